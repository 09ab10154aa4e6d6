"""The rule about steps that come now and then and take much longer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from llmtop.model.snapshot import Alert, Cause, RareSteps
from llmtop.naming.own_phases import OUTSIDE
from llmtop.rules.engine import Rules
from llmtop.rules.rare import RARE_STEPS
from tests.support.rule_states import rank_state
from tests.support.snapshots import rank, snapshot


def told(rare: RareSteps | None, **fields: object) -> list[Alert]:
    """What stands after ten seconds of a training with such steps."""
    rules, found = Rules(), []
    for second in range(10):
        process = rank(step=100 + second, step_seconds_p50=0.07, rare=rare, **fields)
        found = list(rules.apply(snapshot(1000.0 + second, ranks=(process,))).alerts)
    return found


def steps(lost_pct: float, part: str | None = "checkpoint", every: float | None = 60.0) -> RareSteps:
    return RareSteps(every=every, seconds=6.4, usual_seconds=0.07, seconds_per_hour=36.0 * lost_pct, part=part)


@pytest.mark.parametrize(("lost", "severity"), [(4.8, None), (5.2, "info"), (19.0, "info"), (21.0, "warning")])
def test_what_they_cost_decides_how_loudly_they_are_told(lost: float, severity: str | None) -> None:
    assert [one.severity for one in told(steps(lost))] == ([severity] if severity else [])


def test_a_checkpoint_is_named_with_its_length_share_and_what_helps() -> None:
    (alert,) = told(steps(50.0))
    assert alert.id == "rare_steps"
    assert alert.points == ("1 step in 60 takes 6.40 s", "50 % of the time", "most in checkpoint")
    assert "async_save" in alert.next
    assert alert.evidence["lost_pct"] == 50.0


def test_what_is_no_checkpoint_is_not_advised_as_one() -> None:
    (alert,) = told(steps(50.0, part=None, every=None))
    assert "async_save" not in alert.next
    assert alert.points[0] == "a rare step takes 6.40 s"


def test_requests_and_inference_are_as_long_as_what_they_are_asked_for() -> None:
    assert not told(steps(50.0), kind="request", inference=True)


def test_the_known_cause_of_untimed_long_steps_is_kept() -> None:
    causes = (Cause(what="garbage collection", seconds=0.05), Cause(what="train.py:9 log(x)", seconds=0.002))
    (alert,) = told(steps(40.0, OUTSIDE), step_seconds_mean=0.12, outside_causes=causes)
    assert "garbage collection" in alert.summary
    assert alert.evidence["cause"] == "garbage collection"
    assert "gc.freeze()" in alert.next


@pytest.mark.parametrize(("samples", "is_named"), [((3, 2), False), ((9, 1), True)])
def test_a_cause_of_long_steps_is_named_only_if_its_samples_separate_it(
    samples: tuple[int, int], is_named: bool
) -> None:
    causes = (
        Cause(what="train.py:35 loss", seconds=0.05, samples=samples[0]),
        Cause(what="train.py:10 loads(text)", seconds=0.03, samples=samples[1]),
    )
    (alert,) = told(steps(40.0, OUTSIDE), step_seconds_mean=0.12, outside_causes=causes)
    assert ("cause" in alert.evidence) is is_named


def test_a_cause_that_every_step_has_is_not_that_of_the_long_ones() -> None:
    (alert,) = told(
        steps(40.0, OUTSIDE), step_seconds_mean=0.12, outside_causes=(Cause(what="train.py:9 f(x)", seconds=0.02),)
    )
    assert "cause" not in alert.evidence


# ---- each limit by itself ----


@pytest.mark.parametrize(
    ("lost", "fields", "expected"),
    [
        (5.0, {}, (True, True)),
        (4.99, {}, (False, True)),
        (3.5, {}, (False, True)),
        (3.49, {}, (False, False)),
        (math.nan, {}, (False, False)),
        (50.0, {"kind": "request"}, (False, False)),
        (50.0, {"inference": True}, (False, False)),
        (50.0, {"state": "stalled"}, (False, False)),
    ],
)
def test_rare_steps_count_from_five_percent_of_the_time_on(
    lost: float, fields: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    state = rank_state(rare=steps(lost), **fields)
    assert (RARE_STEPS.holds(state, False), RARE_STEPS.holds(state, True)) == expected
    assert not RARE_STEPS.holds(rank_state(**fields), True)


@pytest.mark.parametrize(("lost", "severity"), [(19.9, "info"), (20.0, "warning"), (math.nan, "info")])
def test_a_fifth_of_the_time_is_a_warning(lost: float, severity: str) -> None:
    assert RARE_STEPS.describe(rank_state(rare=steps(lost))).severity == severity


@pytest.mark.parametrize(
    ("part", "every", "points", "advice"),
    [
        ("checkpoint", 60.0, ("1 step in 60 takes 6.40 s", "10 % of the time"), "save less often"),
        ("model/save_all", 60.0, ("1 step in 60 takes 6.40 s", "10 % of the time"), "save less often"),
        ("dataload", None, ("a rare step takes 6.40 s", "10 % of the time"), "set persistent_workers=True"),
        ("evaluation", 60.0, ("1 step in 60 takes 6.40 s", "10 % of the time"), "press s during a long step"),
        (None, 60.0, ("1 step in 60 takes 6.40 s", "10 % of the time"), "press s during a long step"),
    ],
)
def test_clauses_and_advice_follow_the_part(
    part: str | None, every: float | None, points: tuple[str, ...], advice: str
) -> None:
    shown = RARE_STEPS.describe(rank_state(rare=steps(10.0, part, every), rank=3))
    assert shown.points[:2] == points
    assert len(shown.points) == (2 if part is None else 3)
    assert shown.next.startswith(advice)
    assert shown.summary.startswith("Rank 3 (pid 100): ")
    assert shown.summary.endswith(", which is 10 % of the time.")
    assert shown.evidence == {
        "every_steps": every,
        "rare_step_seconds": 6.4,
        "usual_step_seconds": 0.07,
        "lost_pct": pytest.approx(10.0),
        "lost_seconds_per_hour": pytest.approx(360.0),
        "part": part,
    }


@pytest.mark.parametrize(
    ("seconds", "mean", "usual", "part", "is_named"),
    [
        (0.5, 2.0, 1.0, OUTSIDE, True),
        (0.49, 2.0, 1.0, OUTSIDE, False),
        (0.5, 2.0, 1.0, "checkpoint", False),
        (0.5, 1.0, 1.0, OUTSIDE, False),
        (0.5, None, 1.0, OUTSIDE, False),
        (0.5, 2.0, None, OUTSIDE, False),
    ],
)
def test_a_cause_covers_half_of_what_the_steps_are_longer(
    seconds: float, mean: float | None, usual: float | None, part: str, is_named: bool
) -> None:
    causes = Cause(what="a.py:1 other()", seconds=0.1), Cause(what="a.py:2 evaluate()", seconds=seconds)
    state = rank_state(
        rare=steps(10.0, part), step_seconds_mean=mean, step_seconds_p50=usual, outside_causes=causes
    )
    shown = RARE_STEPS.describe(state)
    assert shown.summary.endswith(": a.py:2 evaluate().") is is_named
    assert shown.evidence.get("cause") == ("a.py:2 evaluate()" if is_named else None)
    assert shown.evidence.get("cause_seconds") == (seconds if is_named else None)
    assert ("a.py:2 evaluate()" in shown.points) is is_named


def test_without_causes_none_is_named() -> None:
    state = rank_state(rare=steps(10.0, OUTSIDE), step_seconds_mean=2.0, step_seconds_p50=1.0)
    assert "cause" not in RARE_STEPS.describe(state).evidence
