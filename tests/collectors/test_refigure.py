"""A recording shows what this version makes of the steps in it."""

from __future__ import annotations

from importlib.resources import files

import pytest
from msgspec.structs import replace

from collectors.refigure import RecomputeFigures
from llmtop.model.snapshot import Host, Phase, Rank, Snapshot, Step
from llmtop.recording.reader_writer import Reader

DEMO = files("llmtop") / "data" / "demo.llmtop.gz"


def shown(recorded: list[Snapshot]) -> list[Snapshot]:
    stage = RecomputeFigures()
    return [stage(snapshot) for snapshot in recorded]


def recorded(rank: Rank) -> list[Snapshot]:
    steps = tuple(
        Step(
            index=index,
            started_at=100 + index * 0.1,
            seconds=0.06,
            interval_seconds=0.1 if index else None,
            tokens=100,
            phases=(Phase(name="forward", host_seconds=0.05),),
        )
        for index in range(20)
    )
    return [
        Snapshot(time=101 + i, host=Host(name="box"), ranks=(replace(rank, new_steps=steps[5 * i :][:5]),))
        for i in range(4)
    ]


def test_figures_are_those_of_whole_steps_and_what_was_recorded_otherwise_is_gone() -> None:
    old = Rank(
        pid=7, host="box", step=19, total_steps=120, step_seconds_p50=0.06, tokens_per_s=2000.0, mfu_pct=40.0
    )
    last = shown(recorded(old))[-1]
    (rank,) = last.ranks
    assert rank.step_seconds_p50 == pytest.approx(0.1)
    assert rank.outside_seconds == pytest.approx(0.05)
    assert rank.eta_seconds == pytest.approx(10.0)
    assert rank.tokens_per_s == pytest.approx(1000)
    assert rank.mfu_pct == pytest.approx(20.0), "of the same tokens a second as it stands beside"


def test_a_rank_without_steps_in_the_recording_stays_as_it_was() -> None:
    old = Rank(pid=7, host="box", step=19, step_seconds_p50=0.06, tokens_per_s=2000.0)
    snapshot = Snapshot(time=101, host=Host(name="box"), ranks=(old,))
    assert shown([snapshot])[0].ranks == (old,)


def test_a_training_that_stands_has_no_rate() -> None:
    old = Rank(pid=7, host="box", step=19, tokens_per_s=2000.0, state="stalled")
    (rank,) = shown(recorded(old))[-1].ranks
    assert rank.tokens_per_s is None
    assert rank.step_seconds_p50 == pytest.approx(0.1)


def test_in_the_demo_slower_steps_show_within_the_window() -> None:
    """Its steps take 57 ms until 29 s after its start, then 184 ms."""
    reader = Reader(DEMO)
    try:
        rows = [(position, snapshot) for position, snapshot in reader.snapshots() if position < 50]
    finally:
        reader.close()
    played = zip([position for position, _ in rows], shown([snapshot for _, snapshot in rows]), strict=True)
    ranks = {round(position): snapshot.ranks[0] for position, snapshot in played if snapshot.ranks}
    before, soon, after = ranks[28], ranks[34], ranks[45]
    assert before.step_seconds_p50 == pytest.approx(0.057, rel=0.1)
    assert after.step_seconds_p50 == pytest.approx(0.184, rel=0.1)
    assert soon.change.after_seconds == pytest.approx(0.184, rel=0.1), "within ten steps"
    assert soon.step_seconds_p50 == pytest.approx(0.184, rel=0.1), "the window is of one regime"
    assert after.steps_per_s == pytest.approx(1 / after.step_seconds_mean)
    parts = sum(phase.host_seconds for phase in after.phases if "/" not in phase.name)
    assert parts + after.outside_seconds == pytest.approx(after.step_seconds_mean)
