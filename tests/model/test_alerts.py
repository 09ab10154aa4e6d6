"""Alerts are told once, whatever becomes known of them meanwhile."""

from __future__ import annotations

from llmtop.model.alerts import NewAlertFilter
from llmtop.model.snapshot import Alert


def alert(pid: int | None = None, gpu: str | None = "GPU-1", kind: str = "low_power_full_util") -> Alert:
    return Alert(id=kind, severity="critical", gpu=gpu, pid=pid, since=1.0, summary="it spins")


def told(*snapshots: list[Alert]) -> list[list[int | None]]:
    raised = NewAlertFilter()
    return [[one.pid for one in raised.select_new(alerts)] for alerts in snapshots]


def test_a_training_that_ends_leaves_the_alert_the_same() -> None:
    assert told([alert(7)], [alert(None)], [alert(7)]) == [[7], [], []]


def test_another_training_on_the_gpu_is_another_alert_even_after_nobody_was_on_it() -> None:
    assert told([alert(7)], [alert(None)], [alert(9)]) == [[7], [], [9]]


def test_one_alert_continues_one_only() -> None:
    assert told([alert(None)], [alert(7), alert(8)]) == [[None], [8]]
    assert told([alert(7), alert(None)], [alert(None), alert(7)]) == [[7, None], []]


def test_what_is_gone_is_new_when_it_comes_again() -> None:
    assert told([alert(7)], [], [alert(7)]) == [[7], [], [7]]


def test_a_gpu_that_becomes_known_makes_no_new_alert() -> None:
    assert told([alert(7, gpu=None)], [alert(7)], [alert(7, gpu="GPU-2")]) == [[7], [], [7]]


def test_other_alerts_are_others() -> None:
    assert told([alert(7)], [alert(7), alert(7, kind="stalled"), alert(7, gpu="GPU-2")]) == [[7], [7, 7]]
