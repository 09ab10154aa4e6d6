"""Cases of tests.gpu.check_gpu_clock: whether GPU times and idle times are what was planted."""

from __future__ import annotations

import time
from collections.abc import Iterator

from torch import Tensor

import llmtop
from llmtop.instrument.gpu.clock import BUDGET
from llmtop.instrument.record.recorder import get
from tests.gpu.gpu_clock_trainings import (
    CPU,
    DEVICE,
    Gpt,
    Tiny,
    Verdict,
    gpu_times,
    host_steps,
    idle_share,
    share,
    synchronise,
)


def healthy_clocks() -> Verdict:
    """The copy to the GPU waits for the step before: dataload long on the host's clock, short on the GPU's."""
    training = Gpt()
    for number in range(4 if CPU else 40):
        training.recorded(number)
    synchronise()
    times, steps = gpu_times(10), host_steps(10)
    host = sum(step.phases[0].host_ns for step in steps) / max(1, sum(step.host_ns for step in steps))
    gpu, idle = share(times, "dataload"), idle_share(times)
    ok = host > 0.5 and gpu < 0.02 and idle is not None and idle < 0.03
    return {
        "dataload_host_share": host,
        "dataload_gpu_share": gpu,
        "idle_share": idle,
        "timed": len(times),
        "ok": ok,
    }


def starved(wanted: float) -> Verdict:
    """A loader that sleeps: the idle share is 1 - (GPU-bound step) / (starved step), both measured here."""
    training = Gpt()
    steps = 3 if CPU else 25

    def run(delay_s: float) -> float:
        def batches() -> Iterator[Tensor]:
            for number in range(steps):
                time.sleep(delay_s)
                yield training.pageable[number % 8].pin_memory() if not CPU else training.pageable[number % 8]

        synchronise()
        begun = time.perf_counter()
        for batch in llmtop.loader(batches()):
            with llmtop.step():
                with llmtop.phase("h2d"):
                    ids = batch.to(DEVICE, non_blocking=True)
                with llmtop.phase("forward"):
                    loss = training.loss(ids)
                with llmtop.phase("backward"):
                    loss.backward()
                with llmtop.phase("optimizer"):
                    training.update()
        synchronise()
        return (time.perf_counter() - begun) / steps

    run(0.0)
    plain = run(0.0)
    first = 2 * steps + 3
    planted = run(plain / (1 - wanted))
    truth = 1 - plain / planted
    times = gpu_times(first)
    measured, idle = share(times, "dataload"), idle_share(times)
    ok = bool(times) and abs(measured - truth) < 0.05 and idle is not None and abs(idle - truth) < 0.05
    return {"truth": truth, "dataload_gpu_share": measured, "idle_share": idle, "timed": len(times), "ok": ok}


def starved_30() -> Verdict:
    """Idle for 30 % of the step."""
    return starved(0.3)


def starved_60() -> Verdict:
    """Idle for 60 % of the step."""
    return starved(0.6)


def launch_bound_clocks() -> Verdict:
    """Where the host sets the pace idle time is not told, and that is said; events keep to their budget."""
    training = Tiny()
    for number in range(500):
        training.recorded(number)
    recorder = get()
    clock = recorder.clock
    if clock is None:
        return {"ok": False, "why": "no GPU clock"}
    spent = 0
    mark, read = clock.mark, clock.read

    def timed_mark(slot: int, begins: bool) -> None:
        nonlocal spent
        begun = time.perf_counter_ns()
        mark(slot, begins)
        spent += time.perf_counter_ns() - begun

    def timed_read() -> None:
        nonlocal spent
        begun = time.perf_counter_ns()
        read()
        spent += time.perf_counter_ns() - begun

    clock.mark, clock.read = timed_mark, timed_read  # type: ignore[method-assign]
    begun = time.perf_counter_ns()
    first = recorder.next_index
    for number in range(5000):
        training.recorded(number)
    whole = time.perf_counter_ns() - begun
    synchronise()
    times = gpu_times(first)
    paced = sum(step.host_paced_ns for step in times) / max(1, sum(step.gpu_ns for step in times))
    told = sum(step.idle_ns is not None for step in times)
    return {
        "step_ms": whole / 5000 / 1e6,
        "timed": len(times),
        "host_paced_share": paced,
        "steps_with_idle_told": told,
        "clock_share_of_time": spent / whole,
        "ok": len(times) > 5 and paced > 0.8 and told < 0.1 * len(times) and spent / whole < 1.5 * BUDGET,
    }
