"""When a slow step is sampled, and what of it is written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from llmtop.instrument.run_log.slow_step_stacks import MOST_IN_A_STEP, SlowStepStacks
from llmtop.instrument.steps.ring import MASK, Ring

STEP_NS = 100_000_000


def _ring(last_end_s: float, steps: int = 20) -> Ring:
    ring = Ring([])
    ring.rows[(steps - 1) & MASK] = (steps - 1, int(last_end_s * 1e9) - STEP_NS, STEP_NS, STEP_NS)
    ring.count = steps
    return ring


def _stacks(steps: int = 20) -> SlowStepStacks:
    found = SlowStepStacks()
    found.add([(number, 0, STEP_NS, STEP_NS, None, None, []) for number in range(steps)])
    return found


@contextmanager
def _waiting_thread() -> Iterator[None]:
    enough = threading.Event()

    def wait_here() -> None:
        enough.wait(60)

    thread = threading.Thread(target=wait_here, name="waits-here")
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join(60)


def _sampled_from_another_thread(stacks: SlowStepStacks, ring: Ring, mono: float) -> list[object]:
    """As in the training: the writer's thread samples, and the main thread is among the others."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(stacks.sample(ring, mono, mono)))
    thread.start()
    thread.join(60)
    return found


def test_usual_steps_are_never_sampled() -> None:
    stacks, ring = _stacks(), _ring(100.0)
    assert all(stacks.sample(ring, 100.0 + after / 1000, 0.0) is None for after in range(0, 300, 10))


def test_a_slow_step_is_sampled_once_a_second_and_ten_times() -> None:
    stacks, ring = _stacks(), _ring(100.0)
    taken = [mono for tick in range(300) if stacks.sample(ring, mono := 100.0 + tick / 10, 0.0) is not None]
    assert len(taken) == MOST_IN_A_STEP
    assert taken[0] > 100.3
    assert min(later - sooner for sooner, later in pairwise(taken)) > 0.99
    (kept,) = stacks.of_running(ring)
    assert kept.mono == taken[-1]
    ring.count += 1
    ring.rows[(ring.count - 1) & MASK] = (20, 130_000_000_000, STEP_NS, STEP_NS)
    assert not stacks.of_running(ring), "that step is over"
    assert stacks.sample(ring, 140.0, 0.0) is not None, "the next slow step has ten of its own"


def test_before_there_is_a_usual_step_nothing_is_sampled() -> None:
    assert _stacks(4).sample(_ring(100.0, 4), 200.0, 0.0) is None


def test_the_main_thread_comes_first_with_its_lines() -> None:
    with _waiting_thread():
        (record,) = _sampled_from_another_thread(_stacks(), _ring(100.0), 105.0)
    assert record is not None
    names = [thread.name for thread in record.threads]  # type: ignore[attr-defined]
    assert names[0] == "MainThread"
    waiting = next(thread for thread in record.threads if thread.name == "waits-here")  # type: ignore[attr-defined]
    assert any("wait_here" in function and line > 0 for function, _, line in waiting.frames)


def test_nothing_is_sampled_while_torch_compile_works() -> None:
    space: dict[str, object] = {"__name__": "torch._dynamo.convert_frame", "sample": _sampled_from_another_thread}
    exec("def compile_frame(*given): return sample(*given)", space)
    compile_frame = space["compile_frame"]
    assert callable(compile_frame)
    assert compile_frame(_stacks(), _ring(100.0), 105.0) == [None]
    assert _sampled_from_another_thread(_stacks(), _ring(100.0), 105.0) != [None]


def test_of_many_threads_some_are_kept() -> None:
    stops = threading.Event()
    threads = [threading.Thread(target=stops.wait, args=(60,)) for _ in range(40)]
    for thread in threads:
        thread.start()
    try:
        (record,) = _sampled_from_another_thread(_stacks(), _ring(100.0), 105.0)
        assert record is not None
        assert record.threads[0].name == "MainThread"  # type: ignore[attr-defined]
        assert len(record.threads) == 32  # type: ignore[attr-defined]
    finally:
        stops.set()
        for thread in threads:
            thread.join(60)
