"""Logged values on their way from a training's messages to snapshots."""

from __future__ import annotations

import math

from collectors.trainings.logged_series import PendingValues
from llmtop.protocol.training_facts import LoggedValue


def values(name: str, *pairs: tuple[int, float]) -> list[LoggedValue]:
    return [LoggedValue(step, name, value) for step, value in pairs]


def test_each_value_is_in_one_snapshot_and_what_is_not_finite_is_none() -> None:
    pending = PendingValues()
    pending.add(values("loss", (1, 2.5), (2, math.nan)) + values("lr", (2, 0.1)), is_history=False)
    pending.add(values("loss", (3, math.inf)), is_history=False)
    loss, rate = pending.take()
    assert (loss.name, loss.steps, loss.values) == ("loss", (1, 2, 3), (2.5, None, None))
    assert (rate.name, rate.steps, rate.values) == ("lr", (2,), (0.1,))
    assert pending.take() == ()


def test_history_after_a_reconnect_brings_no_value_twice() -> None:
    pending = PendingValues()
    pending.add(values("loss", (1, 2.5), (2, 2.4)), is_history=True)
    pending.add(values("loss", (1, 2.5), (2, 2.4), (3, 2.3)), is_history=True)
    assert pending.take()[0].steps == (1, 2, 3)
