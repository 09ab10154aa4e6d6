"""Errors of a network port raise an alert when they rise, not for having been there."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from llmtop.model.links import ALERTING, HW_COUNTERS, MIN_ERRORS, WINDOW_SECONDS, Link
from llmtop.model.snapshot import Alert, Host
from llmtop.rules.engine import Rules
from tests.support.snapshots import snapshot


def alerts(*counts: tuple[float, dict[str, int]], state: str = "ACTIVE") -> tuple[Alert, ...]:
    """What holds at the last of these moments."""
    rules, found = Rules(), ()
    for at, errors in counts:
        link = Link(device="mlx5_0", port=1, state=state, errors=errors)
        found = rules.apply(snapshot(1000.0 + at, host=Host(name="node", links=(link,)))).alerts
    return found


def each_30_s(values: Iterable[int], error: str) -> list[tuple[float, dict[str, int]]]:
    return [(30.0 * place, {error: value}) for place, value in enumerate(values)]


def test_errors_that_were_there_before_are_no_alert() -> None:
    assert not alerts(
        (0, {"symbol_error": 65535, "link_downed": 3}), (5, {"symbol_error": 65535, "link_downed": 3})
    )


@pytest.mark.parametrize("error", ALERTING)
def test_the_rise_of_each_counter_is_held_against_its_threshold(error: str) -> None:
    least = 1 if error == "link_downed" else MIN_ERRORS
    assert not alerts((0, {error: 5}), (5, {error: 5 + least - 1}))
    (alert,) = alerts((0, {error: 5}), (5, {error: 5 + least}))
    assert (alert.id, alert.severity, alert.gpu, alert.pid) == ("link_errors", "warning", None, None)
    assert alert.summary == f"Network port mlx5_0 port 1 has new errors in the last 10m 00s: {error} +{least}."
    assert alert.evidence[f"{error}_in_window"] == least


@pytest.mark.parametrize("error", sorted(set(HW_COUNTERS) - set(ALERTING)))
def test_retransmissions_of_a_healthy_fabric_are_no_alert(error: str) -> None:
    assert not alerts((0, {error: 0}), (5, {error: 100_000}))


def test_a_slow_rise_is_no_alert_and_an_old_burst_ends_with_the_window() -> None:
    slow = [place // 3 for place in range(80)]  # one in 90 s: less than seven in ten minutes
    assert not alerts(*each_30_s(slow, "symbol_error"))
    burst = [0, *[50] * round(WINDOW_SECONDS / 30 + 2)]
    assert alerts(*each_30_s(burst[:-3], "symbol_error"))
    assert not alerts(*each_30_s(burst, "symbol_error"))


def test_a_port_that_went_down_is_named_first_and_with_its_state() -> None:
    (alert,) = alerts(
        (0, {"link_downed": 0, "symbol_error": 0}), (5, {"link_downed": 1, "symbol_error": 400}), state="DOWN"
    )
    assert "link_downed +1, symbol_error +400; the port is DOWN." in alert.summary
    assert alert.points[0] == "link_downed +1"
