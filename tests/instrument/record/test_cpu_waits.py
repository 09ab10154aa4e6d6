"""Waits for a CPU in sampled steps, on a CPU in virtual time: what is separated is what was planted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import llmtop
from llmtop.instrument.record import cpu_waits, periodic
from llmtop.instrument.record.cpu_waits import CpuWaits, SampledStep
from tests.support.recorded import Recorded

US = 1000


class Cpu:
    """The clocks of a thread, moved by hand."""

    def __init__(self) -> None:
        self.wall = self.ran = self.sleeps = 0

    def run(self, us: int) -> None:
        """Compute."""
        self.wall += us * US
        self.ran += us * US

    def queue(self, us: int) -> None:
        """Wait for a CPU."""
        self.wall += us * US

    def sleep(self, us: int) -> None:
        """Wait for something else."""
        self.wall += us * US
        self.sleeps += 1

    def stamps(self) -> tuple[int, int, int]:
        """Return the three stamps of a boundary."""
        return self.wall, self.ran, self.sleeps


class Rig:
    """A training on that CPU, recorded by the real recorder."""

    def __init__(self, recorded: Recorded, cpu: Cpu) -> None:
        self.cpu, self.waits, self.recorder = cpu, CpuWaits(), recorded.recorder
        self.recorder.attach()
        self.recorder.cpu_waits = self.waits
        self.recorder.run_periodic = periodic.PeriodicTasks(self.recorder, listen_to_store=lambda _facts: None)
        self.waits.is_wanted = True

    def train(self, steps: int, step: Callable[[], None]) -> list[SampledStep]:
        """Make steps, and return those that were sampled."""
        for _ in range(steps):
            step()
        return list(self.waits.sampled)


@pytest.fixture
def rig(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> Rig:
    cpu = Cpu()
    monkeypatch.setattr(cpu_waits, "thread_stamps", cpu.stamps)
    monkeypatch.setattr(periodic, "PERIOD_NS", 1)
    return Rig(recorded, cpu)


def test_processor_time_sleeps_and_waits_for_a_cpu_are_apart(rig: Rig) -> None:
    cpu = rig.cpu

    def step() -> None:
        cpu.run(7)
        with llmtop.phase("dataload"):
            cpu.sleep(400)
        with llmtop.step():
            cpu.queue(5000)
            with llmtop.phase("forward"):
                cpu.run(100)
                with llmtop.phase("attention"):
                    cpu.run(50)
                    cpu.queue(2000)
            cpu.run(20)
            cpu.sleep(30)
            with llmtop.phase("backward"):
                cpu.run(300)
            cpu.run(3)

    sampled = rig.train(10, step)
    assert len(sampled) >= 5
    planted = SampledStep(450 * US, 400 * US, 30 * US, 30 * US, 7000 * US)
    assert set(sampled) == {planted}


def test_llmtops_own_end_of_a_step_is_in_no_stretch(rig: Rig) -> None:
    rig.recorder.boundary_hook = lambda _index: rig.cpu.run(1000)

    def step() -> None:
        with llmtop.step(), llmtop.phase("forward"):
            rig.cpu.run(10)

    assert set(rig.train(10, step)) == {SampledStep(10 * US, 0, 0, 0, 0)}


def test_nothing_is_sampled_without_a_monitor(rig: Rig) -> None:
    rig.waits.is_wanted = False

    def step() -> None:
        with llmtop.step(), llmtop.phase("forward"):
            rig.cpu.run(10)

    assert rig.train(10, step) == []
    assert rig.recorder.watch is None


def test_a_step_with_a_phase_that_is_given_up_or_without_phases_is_no_sample(rig: Rig) -> None:
    def spoilt() -> None:
        with llmtop.step():
            rig.recorder.begin_step()  # within the step: ignored
            with llmtop.phase("dataload"):
                rig.cpu.run(10)
                rig.recorder.cancel_phase("dataload")

    assert rig.train(10, spoilt) == []

    def bare() -> None:
        with llmtop.step():
            rig.cpu.run(10)

    assert rig.train(10, bare) == []


def test_the_sampled_steps_that_are_not_taken_are_bounded(rig: Rig) -> None:
    def step() -> None:
        with llmtop.step(), llmtop.phase("forward"):
            rig.cpu.run(10)

    assert len(rig.train(3 * cpu_waits.MOST_KEPT, step)) == cpu_waits.MOST_KEPT


def test_the_systems_stamps_tell_a_sleep_from_work() -> None:
    import time

    before = cpu_waits.thread_stamps()
    time.sleep(0.02)
    slept = cpu_waits.thread_stamps()
    assert slept[2] > before[2]
    assert slept[1] - before[1] < slept[0] - before[0] - 15_000_000
    sum(range(200_000))
    worked = cpu_waits.thread_stamps()
    assert worked[1] > slept[1]
