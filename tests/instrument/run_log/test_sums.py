"""Sums of a run's steps, whether they come one by one or many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from llmtop.instrument.run_log.sums import FIRST_STEPS, Sums
from llmtop.runs import records

STEPS = 150
MS = 1_000_000
OFFSET = 1_700_000_000 * 10**9
LONG, SAVING = 90, 120


def _row(number: int) -> tuple[Any, ...]:
    host = 900 * MS if number == LONG else (2 + number % 3) * MS
    phases = [("forward", MS, 1), *([("save_checkpoint", MS // 2, 1)] if number == SAVING else [])]
    tokens = None if number % 2 else 64
    begun = OFFSET + number * 1000 * MS
    return number, begun, host, None if number == 0 else 1000 * MS, tokens, None, phases


def _sums(rows: Sequence[tuple[Any, ...]], at_once: int) -> Sums:
    sums = Sums(0.0, OFFSET / 1e9)
    for place in range(0, len(rows), at_once):
        sums.add(rows[place : place + at_once], OFFSET)
    return sums


@pytest.mark.parametrize("at_once", [1, 7, 64, STEPS])
def test_steps_add_up_however_many_come_at_once(at_once: int) -> None:
    sums = _sums([_row(number) for number in range(STEPS)], at_once)
    found = sums.sums()
    assert (found.steps, found.intervals, found.first_index, found.last_index) == (STEPS, STEPS - 1, 0, STEPS - 1)
    assert found.tokens == 64 * STEPS / 2
    assert found.samples is None
    assert found.step_seconds == pytest.approx(0.9 + sum((2 + i % 3) / 1e3 for i in range(STEPS) if i != LONG))
    assert found.interval_seconds == pytest.approx(STEPS - 1)
    assert found.phases == {"forward": pytest.approx(STEPS / 1e3), "save_checkpoint": pytest.approx(0.0005)}
    assert found.histogram == [(records.bucket_of(1.0), STEPS - 1)]
    assert found.first_mono == 0.0
    assert found.last_mono == pytest.approx((STEPS - 1) + (2 + (STEPS - 1) % 3) / 1e3)
    assert found.checkpoint_mono == pytest.approx(SAVING + 0.002)  # the end of the step
    assert found.checkpoint_index == SAVING
    minute = next(one for one in sums.end_minute({}, repeat_names=False) if isinstance(one, records.Minute))
    assert (minute.steps, minute.intervals, minute.first, minute.last) == (STEPS, STEPS - 1, 0, STEPS - 1)
    names = records.Names(phases=["forward", "save_checkpoint"])
    statistics = records.statistics_of(names, minute)
    assert statistics["step"][3:] == pytest.approx((0.002, 0.9))
    assert statistics["step"][0] == pytest.approx(0.003)
    assert statistics["save_checkpoint"][4] == pytest.approx(0.0005)


@pytest.mark.parametrize("at_once", [1, 64])
def test_the_first_steps_and_those_that_save_are_kept_in_full(at_once: int) -> None:
    kept = _sums([_row(number) for number in range(STEPS)], at_once).take_kept()
    assert kept is not None
    by_number = {row[0]: reason for row, reason in zip(kept.steps, kept.reasons, strict=True)}
    assert by_number == {**dict.fromkeys(range(FIRST_STEPS), "first"), SAVING: "checkpoint"}


def test_a_long_step_between_short_ones_is_kept_in_full() -> None:
    rows = [(*_row(number)[:1], OFFSET + number * 3 * MS, *_row(number)[2:]) for number in range(LONG + 1)]
    sums = _sums(rows, 64)
    kept = sums.take_kept()
    assert kept is not None
    assert (kept.steps[-1][0], kept.reasons[-1]) == (LONG, "long")
    assert len(kept.steps) == FIRST_STEPS + 1
    assert msgspec.to_builtins(sums.sums())["usual_seconds"] < 0.1
