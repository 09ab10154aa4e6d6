"""New alerts of a snapshot, for outputs that report each alert once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from llmtop.model.snapshot import Alert


def match_previous(before: Sequence[Alert], present: Sequence[Alert]) -> list[int | None]:
    """For each alert of `present`, which of `before` it goes on from: its place; None for a new one.

    One alert goes on from one only, and what is the same to the letter comes first, so that none of them is taken
    by a vaguer one.
    """
    places: list[int | None] = [None] * len(present)
    left = set(range(len(before)))
    exact = sorted(range(len(present)), key=lambda i: not any(_is_same(present[i], known) for known in before))
    for index in exact:
        alert = present[index]
        place = next((i for i in sorted(left) if _is_same(alert, before[i])), None)
        if place is None:
            place = next((i for i in sorted(left) if alert.is_continuation_of(before[i])), None)
        if place is not None:
            left.remove(place)
            places[index] = place
    return places


def with_known_target(alert: Alert, before: Alert) -> Alert:
    """Return the alert with its GPU and pid if they were ever known: a training may end before its alert does."""
    return replace(alert, gpu=alert.gpu or before.gpu, pid=before.pid if alert.pid is None else alert.pid)


class NewAlertFilter:
    """Selects new alerts: keeps those that were up at the last call."""

    def __init__(self, up: Iterable[Alert] = ()) -> None:
        self.up: list[Alert] = list(up)
        """Alerts as last reported, each with its GPU and pid if they were ever known."""

    def select_new(self, present: Iterable[Alert]) -> list[Alert]:
        """Return the alerts of `present` that were not up before; one that has gone may come again."""
        waiting = list(present)
        places = match_previous(self.up, waiting)
        self.up = [
            alert if place is None else with_known_target(alert, self.up[place])
            for alert, place in zip(waiting, places, strict=True)
        ]
        return [alert for alert, place in zip(waiting, places, strict=True) if place is None]


def _is_same(one: Alert, other: Alert) -> bool:
    return (one.id, one.gpu, one.pid) == (other.id, other.gpu, other.pid)
