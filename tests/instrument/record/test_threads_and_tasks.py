"""Generators, coroutines, threads and asyncio: the numbers stay right, or what they cannot tell is left out."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import llmtop
from tests.support.recorded import Recorded, names


def in_thread(work: object) -> None:
    """Run to the end in another thread; an error there is an error here."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(100)  # type: ignore[arg-type]


def test_a_decorated_function_keeps_its_name_and_answer(recorded: Recorded) -> None:
    @llmtop.step(tokens=3)
    def train(x: int, *, y: int) -> int:
        """Docs."""
        return work(x) + y

    @llmtop.phase("work")
    def work(x: int) -> int:
        return 2 * x

    assert (train(1, y=5), train(2, y=5)) == (7, 9)
    assert (train.__name__, train.__doc__) == ("train", "Docs.")
    assert [(step.tokens, names(step)) for step in recorded.steps] == [(3, ["work"])] * 2


def test_a_decorated_generator_is_timed_only_while_it_runs(recorded: Recorded) -> None:
    @llmtop.phase("tokenise")
    def documents() -> Iterator[int]:
        for number in range(2):
            time.sleep(0.002)
            yield number

    with llmtop.step():
        for _ in documents():
            time.sleep(0.03)
    (phase,) = recorded.step.phases
    assert phase.count == 3  # twice to a yield, once to its end
    assert 4_000_000 <= phase.host_ns < recorded.step.host_ns - 50_000_000


def test_a_decorated_generator_takes_send_throw_close_and_returns(recorded: Recorded) -> None:
    log = []

    @llmtop.phase("dialogue")
    def dialogue() -> object:
        try:
            got = yield "first"
            log.append(got)
            try:
                yield "second"
            except KeyError:
                log.append("caught")
            yield "third"
            return "answer"
        finally:
            log.append("closed")

    def outer() -> object:
        return (yield from dialogue())

    with llmtop.step():
        run = outer()
        assert next(run) == "first"
        assert run.send("hello") == "second"
        assert run.throw(KeyError("x")) == "third"
        with pytest.raises(StopIteration) as stop:
            next(run)
        assert stop.value.value == "answer"
        abandoned = dialogue()
        next(abandoned)
        abandoned.close()
    assert log == ["hello", "caught", "closed", "closed"]
    assert names(recorded.step) == ["dialogue"]


def test_coroutines_and_async_generators_are_timed(recorded: Recorded) -> None:
    @llmtop.phase("fetch")
    async def fetch() -> int:
        await asyncio.sleep(0.002)
        return 4

    @llmtop.phase("stream")
    async def stream() -> AsyncIterator[int]:
        for number in range(2):
            yield number

    @llmtop.step(samples=1)
    async def step() -> int:
        total = await fetch()
        async for number in stream():
            total += number
        return total

    assert asyncio.run(step()) == 5
    assert asyncio.run(step()) == 5
    for done in recorded.steps:
        assert names(done) == ["fetch", "stream"]
        assert done.phases[0].host_ns >= 2_000_000
        assert done.phases[1].count == 3


def test_requests_that_overlap_in_one_loop_keep_their_own_phases(recorded: Recorded) -> None:
    async def serve(number: int) -> None:
        with llmtop.step(kind="request", tokens=number, index=number):
            with llmtop.phase("prefill"):
                await asyncio.sleep(0.002 * (5 - number))
            for _ in range(number):
                with llmtop.phase("decode"), llmtop.phase("sample"):
                    await asyncio.sleep(0.001)

    async def server() -> None:
        await asyncio.gather(*(serve(number) for number in range(1, 5)))

    asyncio.run(server())
    assert recorded.recorder.facts.kind == "request"
    assert sorted(step.index for step in recorded.steps) == [1, 2, 3, 4]
    for step in recorded.steps:
        assert step.tokens == step.index
        phases = {phase.name: phase for phase in step.phases}
        assert phases["prefill"].host_ns >= 2_000_000 * (5 - step.index)
        assert phases["decode"].count == phases["decode/sample"].count == step.index
        assert phases["prefill"].host_ns + phases["decode"].host_ns <= step.host_ns
    assert recorded.left_out == []


def test_requests_that_overlap_in_threads_keep_their_own_phases(recorded: Recorded) -> None:
    together = threading.Barrier(4)

    def serve(number: int) -> None:
        together.wait(100)
        for _ in range(25):
            with llmtop.step(kind="request", tokens=number):
                with llmtop.phase("prefill"):
                    time.sleep(0.0002)
                with llmtop.phase(f"decode {number}"):
                    pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(serve, range(4)))
    assert sorted(step.index for step in recorded.steps) == list(range(100))
    for step in recorded.steps:
        assert names(step) == ["prefill", f"decode {int(step.tokens or 0)}"]


def test_what_a_thread_does_before_its_first_request_is_of_that_one(recorded: Recorded) -> None:
    """From the loader of a thread that has made no step, too; its wait for the end is of no request."""
    together = threading.Barrier(2)

    def overlap(_: int) -> None:
        with llmtop.step(kind="request", tokens=0):
            together.wait(100)

    def serve() -> None:
        with llmtop.phase("read"):
            pass
        for number in llmtop.loader([1, 2]):
            with llmtop.step(kind="request", tokens=number), llmtop.phase("decode"):
                pass
        with llmtop.step(kind="request", tokens=3):
            pass

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(overlap, range(2)))
    in_thread(serve)
    found = {step.tokens: set(names(step)) for step in recorded.steps if step.tokens}
    assert found == {1: {"read", "dataload", "decode"}, 2: {"dataload", "decode"}, 3: set()}


def test_another_thread_cancels_no_phase_of_the_training(recorded: Recorded) -> None:
    with llmtop.step(), llmtop.phase("dataload"):
        in_thread(lambda: recorded.recorder.cancel_phase("dataload"))
    assert names(recorded.step) == ["dataload"]


def test_tasks_within_a_step_that_overlap_do_not_add_up_in_it(recorded: Recorded) -> None:
    async def rollout(name: str) -> None:
        with llmtop.phase(name):
            await asyncio.sleep(0.003)

    async def train() -> None:
        for _ in range(2):
            with llmtop.step():
                await asyncio.gather(rollout("left"), rollout("right"))
                with llmtop.phase("learn"):
                    pass

    asyncio.run(train())
    assert [names(step) for step in recorded.steps] == [["learn"]] * 2
    assert recorded.left_out == ["phases of other threads and tasks"]


def test_overlapping_tasks_in_a_step_that_knew_of_no_loop_are_left_out_too(recorded: Recorded) -> None:
    async def rollout(name: str, seconds: float) -> None:
        with llmtop.phase(name):
            await asyncio.sleep(seconds)

    async def rollouts() -> None:
        await asyncio.gather(rollout("left", 0.002), rollout("right", 0.004))

    for _ in range(3):
        with llmtop.step():
            asyncio.run(rollouts())
            with llmtop.phase("learn"):
                pass
    assert all(set(names(step)) <= {"learn"} for step in recorded.steps)
    assert names(recorded.steps[-1]) == ["learn"]
    assert recorded.left_out


def test_phases_of_another_thread_are_left_out_and_said(recorded: Recorded) -> None:
    def prefetch() -> None:
        for _ in range(3):
            with llmtop.phase("forward"), llmtop.phase("decode jpeg"):
                pass

    with llmtop.step(), llmtop.phase("forward"):
        in_thread(prefetch)
    assert names(recorded.step) == ["forward"]
    assert recorded.step.phases[0].count == 1
    assert recorded.left_out == ["phases of other threads"]


def test_a_training_that_moves_to_another_thread_takes_the_steps_with_it(recorded: Recorded) -> None:
    def train() -> None:
        with llmtop.step(), llmtop.phase("forward"):
            pass

    train()
    in_thread(train)
    train()
    assert [names(step) for step in recorded.steps] == [["forward"]] * 3


def test_a_second_thread_stepping_inside_an_open_step_is_left_out_and_said(recorded: Recorded) -> None:
    def other() -> None:
        with llmtop.step(), llmtop.phase("other"):
            pass

    with llmtop.step(), llmtop.phase("forward"):
        in_thread(other)
    assert names(recorded.step) == ["forward"]
    assert recorded.left_out == ["steps of a second thread", "phases of other threads"]


def test_threads_that_hammer_at_phases_never_disturb_the_steps(recorded: Recorded) -> None:
    stop = threading.Event()

    def hammer() -> None:
        while not stop.is_set():
            for _ in range(50):
                with llmtop.phase("forward"), llmtop.phase("backward"):
                    pass
            time.sleep(0.0001)

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(100):
            with llmtop.step(), llmtop.phase("forward"):
                time.sleep(0.0001)
    finally:
        stop.set()
        for thread in threads:
            thread.join(100)
    assert [names(step) for step in recorded.steps] == [["forward"]] * 100
    assert all(step.phases[0].count == 1 for step in recorded.steps)
