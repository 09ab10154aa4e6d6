"""The rule about steps that come now and then and take much longer."""

from __future__ import annotations

import pytest

from llmtop.model.snapshot import Alert, Cause, RareSteps
from llmtop.naming.own_phases import OUTSIDE
from llmtop.rules.engine import Rules
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
