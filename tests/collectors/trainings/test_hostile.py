"""Publishers that no llmtop is: endless names, lies about numbers, steps without end. The other ranks go on."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from collectors.trainings import bounds
from collectors.trainings.bounds import Bounds, KnownNames
from collectors.trainings.pending_steps import PENDING_BYTES, PENDING_STEPS, PendingSteps
from collectors.trainings.source import StepsSource
from llmtop.cli.live.snapshot_text import render
from llmtop.model.snapshot import Host, Phase, Rank, Snapshot, Step, from_json, to_json
from llmtop.protocol import wire
from tests.support import wire_peer
from tests.support.processes import wait_for
from tests.support.trainings import STEPPING, Training, socket_of

NAMES = 9928


@pytest.fixture
def source(runtime_dir: Path) -> Iterator[StepsSource]:
    source = StepsSource(runtime_dir)
    source.start()
    yield source
    source.close()


def steps_with(names: list[str], metrics: dict[str, float], first: int) -> bytes:
    """One step that has these phases."""
    phases = [wire.PhaseTime(name, 1_000_000) for name in names]
    done = wire.StepDone(first, 10**18 + first * 10**9, 10**8, 10**9, phases=phases)
    return wire.encode(wire.Steps(steps=[done], metrics=metrics, first_ordinal=first))


def test_endless_names_are_counted_and_the_rest_is_shown(source: StepsSource, runtime_dir: Path) -> None:
    data = wire.encode(wire.Hello(rank=1, note="by hand"))
    for first in range(0, NAMES, 16):
        names = [f"phase {number}" for number in range(first, min(first + 16, NAMES))]
        data += steps_with(names, dict.fromkeys(names, 1.0), first)
    path = runtime_dir / "4242-0123abcd.sock"
    file = runtime_dir / "frames"
    file.write_bytes(data)
    peer = wire_peer.start_file(path, file)
    try:
        with Training(STEPPING, RANK="0") as training:
            socket_of(runtime_dir, training.pid)
            seen: dict[int | None, list[Rank]] = {0: [], 1: []}

            def both() -> bool:
                for rank in source.latest().ranks:
                    seen[rank.rank].append(rank)
                odd = seen[1]
                return bool(odd) and odd[-1].step is not None and odd[-1].step >= NAMES - 16 and len(seen[0]) > 3

            wait_for(both)
            here = seen[0][-1].step or 0
            wait_for(lambda: both() and (seen[0][-1].step or 0) > here + 100)
            odd = seen[1][-1]
        assert (odd.phases_left_out, odd.metrics_left_out) == (NAMES - 128, NAMES - 128)
        assert odd.note == (
            "it has 128 phases and 9,800 more and 128 metrics and 9,800 more, which are left out; by hand"
        )
        assert len(odd.metrics) == 128
        assert all(len(step.phases) <= 128 for rank in seen[1] for step in rank.new_steps)
        lines = [to_json(Snapshot(time=1.0, host=Host(name="here"), ranks=(rank,))) for rank in seen[1]]
        assert max(map(len, lines)) < 1 << 20
        assert from_json(lines[-1]).ranks[0].phases_left_out == NAMES - 128
        assert "9,800 more" in render(from_json(lines[-1]))
        assert source.latest().notes == ()
    finally:
        peer.kill()
        peer.wait(100)


@pytest.mark.slow(
    "two of five kinds; each starts a training",
    kept=(
        "body1-not a message of llmtop",
        "-not a message of llmtop",
    ),
)
@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"\x82\xa4type\xa5steps\xa5steps" + b"\x91" * 100_000 + b"\xc0", "not a message of llmtop"),
        (b"\x91" * 100_000, "not a message of llmtop"),
        (msgspec.msgpack.encode({"type": "steps", "steps": [[1]]}), "not a message of llmtop"),
        (b"\x81\xa4type\xa3\xff\xfe\xfd", "not a message of llmtop"),
        (b"", "not a message of llmtop"),
    ],
)
def test_one_training_s_garbage_is_noted_and_the_other_ranks_go_on(
    source: StepsSource, runtime_dir: Path, body: bytes, sentence: str
) -> None:
    path = runtime_dir / "4242-0123abcd.sock"
    frame = struct.pack("<I", len(body)) + body
    file = runtime_dir / "frames"
    file.write_bytes(wire.encode(wire.Hello(rank=7)) + steps_with(["a"], {}, 3) + frame)
    peer = wire_peer.start_file(path, file)
    try:
        with Training(STEPPING, RANK="0") as training:
            socket_of(runtime_dir, training.pid)
            wait_for(lambda: [note for note in source.latest().notes if sentence in note])

            def step_of(rank: int) -> int:
                return next((one.step or 0 for one in source.latest().ranks if one.rank == rank), 0)

            assert wait_for(lambda: step_of(7)) == 3, "what came before it was taken"
            here = wait_for(lambda: step_of(0))
            wait_for(lambda: step_of(0) > here + 100)
    finally:
        peer.kill()
        peer.wait(100)


def test_numbers_that_no_training_has_are_absent() -> None:
    told = bounds.bounded_hello(
        wire.Hello(
            pid=1 << 40, rank=-1, world_size=1 << 60, total_steps=-5, warmup_steps=-1,
            flops_per_token=float("nan"), started_at=float("inf"), gpu_uuid="z" * 1000,
            command="x" * 100_000, note="y" * 100_000,
            engines=["e" * 1000] * 1000, local_rank=3,
        )
    )  # fmt: skip
    assert (told.pid, told.rank, told.world_size, told.local_rank) == (0, None, None, 3)
    assert (told.total_steps, told.warmup_steps, told.flops_per_token, told.started_at) == (None, 0, None, 0.0)
    assert len(msgspec.msgpack.encode(told)) < 2500


def test_steps_that_no_clock_has_timed_count_as_lost() -> None:
    good = wire.StepDone(5, 10**18, 10**6, 10**6, tokens=10.0, phases=[wire.PhaseTime("a", 5)])
    odd = wire.StepDone(6, 10**18, 10**6, -1, tokens=float("inf"), phases=[wire.PhaseTime("a", -5)])
    backward = wire.StepDone(7, 10**18, -1)
    (message,) = Bounds().take([wire.Steps(steps=[good, odd, backward], lost=3)])
    assert isinstance(message, wire.Steps)
    assert [step.index for step in message.steps] == [5, 6]
    assert message.lost == 4
    assert message.steps[0] == good
    assert (message.steps[1].interval_ns, message.steps[1].tokens, message.steps[1].phases) == (None, None, [])


def test_more_steps_than_a_message_has_count_as_lost() -> None:
    steps = [wire.StepDone(number, 10**18, 1) for number in range(bounds.MAX_STEPS + 7)]
    (message,) = Bounds().take([wire.Steps(steps=steps, first_ordinal=100)])
    assert isinstance(message, wire.Steps)
    assert (len(message.steps), message.lost, message.first_ordinal) == (bounds.MAX_STEPS, 7, 107)
    assert message.steps[0].index == 7


def test_a_step_has_no_more_phases_than_there_are_names() -> None:
    many = [wire.PhaseTime("again", 1)] * 10_000
    (message,) = Bounds().take([wire.Steps(steps=[wire.StepDone(0, 1, 1, phases=many)])])
    assert isinstance(message, wire.Steps)
    assert len(message.steps[0].phases) == bounds.MAX_PHASES


def test_names_are_counted_as_long_as_they_can_be_told_apart() -> None:
    names = KnownNames(2)
    assert [names.admit(name) for name in ("a", "b", "c", "a", "c", "x" * 5000)] == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]
    assert names.refused_count == 2
    for number in range(50_000):
        names.admit(str(number))
    assert names.refused_count == 20_000


def test_steps_that_wait_are_bounded_by_number_and_by_size() -> None:
    phases = tuple(Phase(name=f"{number} " + "x" * 1000, host_seconds=1.0) for number in range(100))
    pending = PendingSteps()
    dropped = sum(pending.add(Step(index=n, started_at=float(n), seconds=1.0, phases=phases)) for n in range(1000))
    kept = pending.take()
    assert dropped + len(kept) == 1000
    assert 1 < len(kept) < 1 + PENDING_BYTES / 100_000
    assert kept[-1].index == 999
    assert pending.take() == ()
    dropped = sum(pending.add(Step(index=n, started_at=float(n), seconds=1.0)) for n in range(PENDING_STEPS + 5))
    assert dropped == 5
    assert pending.replace(Step(index=9, started_at=9.0, seconds=2.0))
    assert not pending.replace(Step(index=1, started_at=1.0, seconds=2.0))
    assert pending.take()[4] == Step(index=9, started_at=9.0, seconds=2.0)
