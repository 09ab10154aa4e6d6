"""Errors of one port over ten minutes."""

from __future__ import annotations

import pytest

from llmtop.model.links import Link
from llmtop.rules.state.link import LinkState


def _state(*seen: tuple[float, dict[str, int]]) -> LinkState:
    """A port whose counters had these values at these times."""
    state = LinkState(Link(device="mlx5_0", port=1))
    for now, errors in seen:
        state.update(Link(device="mlx5_0", port=1, errors=errors), now)
    return state


@pytest.mark.parametrize(
    ("before", "after", "rising"),
    [
        ({"symbol_error": 5}, {"symbol_error": 14}, {}),
        ({"symbol_error": 5}, {"symbol_error": 15}, {"symbol_error": 10}),
        ({"link_downed": 3}, {"link_downed": 3}, {}),
        ({"link_downed": 3}, {"link_downed": 4}, {"link_downed": 1}),
        ({"packet_seq_err": 0}, {"packet_seq_err": 900}, {}),
        ({}, {"symbol_error": 900}, {}),
        ({"symbol_error": 900}, {}, {}),
        (
            {"port_rcv_errors": 0, "local_ack_timeout_err": 7},
            {"port_rcv_errors": 50, "local_ack_timeout_err": 27},
            {"port_rcv_errors": 50, "local_ack_timeout_err": 20},
        ),
    ],
)
def test_counters_rise_by_ten_or_a_link_goes_down_once(
    before: dict[str, int], after: dict[str, int], rising: dict[str, int]
) -> None:
    assert _state((0.0, before), (1.0, after)).rising() == rising


def test_a_first_value_is_no_rise() -> None:
    assert _state((0.0, {"symbol_error": 900})).rising() == {}


@pytest.mark.parametrize(("now", "rise"), [(699.0, 20), (700.0, 11), (799.0, 11), (800.0, None)])
def test_a_rise_is_over_the_last_ten_minutes(now: float, rise: int | None) -> None:
    """The count at the begin of the window is the last one before it."""
    errors = [(0.0, {"symbol_error": 5}), (100.0, {"symbol_error": 14}), (200.0, {"symbol_error": 25})]
    state = _state(*errors, (now, {"symbol_error": 25}))
    assert state.rising() == ({} if rise is None else {"symbol_error": rise})


def test_a_counter_that_was_reset_rises_from_its_least_value() -> None:
    state = _state((0.0, {"symbol_error": 90}), (1.0, {"symbol_error": 2}), (2.0, {"symbol_error": 13}))
    assert state.rising() == {"symbol_error": 11}


def test_a_port_is_known_by_its_device_and_number_and_concerns_no_process() -> None:
    state = LinkState(Link(device="mlx5_1", port=2))
    assert state.key == ("link", "mlx5_1", 2)
    assert state.concerned_keys() == {state.key}
    assert state.alert_target() == (None, None)
    assert state.is_updated
