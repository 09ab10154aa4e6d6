"""Which phase keeps GPU memory: planted leaks on a model of PyTorch's allocator, in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import llmtop
from llmtop.instrument.gpu import events as gpu_events
from llmtop.instrument.gpu import kept_memory
from llmtop.instrument.record import periodic, recorder
from tests.support.memory_allocator import BACKWARD, FORWARD, LOSS, MIB, OPTIMIZER_SHORT, STEP, Allocator
from tests.support.recorded import Recorded

SECOND = 1_000_000_000
STEP_NS = 500_000_000
LIST_NS = 500_000
"""Time that a list of blocks takes here."""


class Cuda:
    """torch.cuda, as far as the allocator is concerned."""

    def __init__(self) -> None:
        self.allocator = Allocator(recording=False)
        self.now = self.lists = 0
        self.lists_blocks = True
        self.list_ns = LIST_NS

    def clock(self) -> int:
        """Return the time, which goes on a little with each question."""
        self.now += 1
        return self.now

    def is_current_stream_capturing(self) -> bool:
        return False

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, device: int) -> object:
        return SimpleNamespace(uuid="0000", name="stand-in")

    def memory_stats(self) -> dict[str, int]:
        segments = self.allocator.snapshot()["segments"]
        return {
            "allocated_bytes.all.current": sum(one["allocated_size"] for one in segments),
            "reserved_bytes.all.current": sum(one["total_size"] for one in segments),
        }

    def memory_snapshot(self) -> list[dict[str, Any]]:
        self.lists += 1
        self.now += self.list_ns
        if not self.lists_blocks:
            raise RuntimeError("this allocator does not support snapshots")
        found: list[dict[str, Any]] = self.allocator.snapshot()["segments"]
        return found


class Rig:
    """A training of some layers, recorded by the real recorder."""

    def __init__(self, recorded: Recorded, cuda: Cuda) -> None:
        self.cuda, self.recorder = cuda, recorded.recorder
        self.recorder.attach()
        self.recorder.run_periodic = periodic.PeriodicTasks(self.recorder, listen_to_store=lambda _facts: None)
        self.alloc, self.free = cuda.allocator.alloc, cuda.allocator.free
        self.weights = [self.alloc(8 * MIB, FORWARD) for _ in range(4)]
        self.gradients: list[int] = []
        self.loss: int | None = None

    def step(self, **leaks: int) -> None:
        """Make a step; each named place allocates so many bytes that nothing frees."""
        self.cuda.now += STEP_NS
        for address in self.gradients:
            self.free(address)
        self.gradients.clear()
        self._leak(leaks, "outside")
        with llmtop.step():
            with llmtop.phase("forward"):
                saved = [self.alloc(16 * MIB, FORWARD) for _ in range(4)]
                self._leak(leaks, "forward")
            loss = self.alloc(4, LOSS)
            with llmtop.phase("backward"):
                for address in reversed(saved):
                    self.gradients.append(self.alloc(8 * MIB, BACKWARD))
                    self.free(address)
                self._leak(leaks, "backward")
            with llmtop.phase("optimizer"):
                self.free(self.alloc(8 * MIB, OPTIMIZER_SHORT))
                with llmtop.phase("momentum"):
                    self._leak(leaks, "optimizer")
        if self.loss is not None:
            self.free(self.loss)
        self.loss = loss

    def _leak(self, leaks: dict[str, int], place: str) -> None:
        if place in leaks:
            self.alloc(leaks[place], STEP)

    def run(self, seconds: int, step: Callable[[int], None]) -> dict[str, int]:
        """Train for so long; return what was published at the end."""
        until, number = self.cuda.now + seconds * SECOND, 0
        while self.cuda.now < until:
            step(number)
            number += 1
        assert self.recorder.memory is not None
        return dict(self.recorder.memory.kept_bytes)


@pytest.fixture
def rig(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> Rig:
    cuda = Cuda()
    monkeypatch.setattr(gpu_events, "initialised_cuda", lambda: cuda)
    monkeypatch.setattr(recorder, "perf_counter_ns", cuda.clock)
    monkeypatch.setattr(kept_memory, "perf_counter_ns", cuda.clock)
    return Rig(recorded, cuda)


@pytest.mark.parametrize(
    ("place", "published"),
    [("forward", "forward"), ("backward", "backward"), ("optimizer", "optimizer"), ("outside", "")],
)
def test_a_leak_is_of_the_phase_that_allocates_it(rig: Rig, place: str, published: str) -> None:
    assert rig.run(25, lambda _: rig.step(**{place: 12 * MIB})) == {published: 12 * MIB}


def test_a_healthy_training_is_never_asked_for_its_blocks(rig: Rig) -> None:
    assert rig.run(60, lambda _: rig.step()) == {}
    assert rig.cuda.lists == 0


def test_two_leaks_are_apart(rig: Rig) -> None:
    assert rig.run(25, lambda _: rig.step(forward=MIB, optimizer=3 * MIB)) == {
        "forward": MIB, "optimizer": 3 * MIB,
    }  # fmt: skip


def test_a_window_of_kept_outputs_that_is_full_is_not_taken_for_the_leak(rig: Rig) -> None:
    window: deque[int] = deque()

    def step(number: int) -> None:
        rig.step(optimizer=MIB)
        with llmtop.phase("forward"):
            window.append(rig.alloc(3 * MIB, FORWARD))
        if len(window) > 20:
            rig.free(window.popleft())

    assert rig.run(40, step) == {}
    assert rig.cuda.lists > 0


def test_it_ends_with_the_growth(rig: Rig) -> None:
    assert rig.run(25, lambda _: rig.step(forward=MIB)) == {"forward": MIB}
    assert rig.run(10, lambda _: rig.step()) == {}


def test_the_lists_take_a_thousandth_of_the_time(rig: Rig) -> None:
    rig.cuda.list_ns = 2_000_000
    rig.run(150, lambda _: rig.step(forward=MIB))
    # Of the last sample the time that follows is not over yet.
    spent, one = rig.cuda.lists * rig.cuda.list_ns, 20 * rig.cuda.list_ns
    assert one < spent <= 0.001 * rig.cuda.now + one


def test_lists_that_take_too_long_are_given_up(rig: Rig) -> None:
    rig.cuda.list_ns = 60_000_000
    assert rig.run(60, lambda _: rig.step(forward=MIB)) == {}
    assert rig.cuda.lists == 2


def test_an_allocator_without_lists_is_asked_once(rig: Rig) -> None:
    rig.cuda.lists_blocks = False
    assert rig.run(60, lambda _: rig.step(forward=MIB)) == {}
    assert rig.cuda.lists == 1


def test_the_allocators_recorded_history_is_left_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(_C=SimpleNamespace(_cuda_isHistoryEnabled=lambda: True))
    monkeypatch.setitem(kept_memory.sys.modules, "torch", torch)
    assert rig.run(60, lambda _: rig.step(forward=MIB)) == {}
    assert rig.cuda.lists == 0
