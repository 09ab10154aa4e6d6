"""The alerts as a person meets them: those that hold and those that did, which one is shown, which are muted."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable

from msgspec import Struct

from llmtop.model.alerts import match_previous, with_known_target
from llmtop.model.snapshot import Alert, Snapshot
from tui.paint import alert_style

MAX_ENDED = 1000
"""Alerts that are remembered: of a bad night, not only of its last hour."""


class Episode(Struct, eq=False):
    """One alert from when it came to when it went."""

    alert: Alert
    """The alert as last reported, with its GPU and pid if they were ever known."""
    until: float | None = None
    """Unix time of the first snapshot without it; None while it holds."""
    muted: bool = False


class AlertLog:
    """Log of every alert seen so far. The app adds each snapshot; keys choose or mute an alert."""

    def __init__(self) -> None:
        self._episodes: deque[Episode] = deque(maxlen=MAX_ENDED)
        self._gone: deque[Episode] = deque(maxlen=MAX_ENDED)
        self._past: list[tuple[Alert, float]] = []
        """Alerts from before, and when they ended."""
        self._up: list[Episode] = []
        self._chosen: Episode | None = None
        self._ever_muted = False
        self.since: float | None = None
        """Unix time of the first snapshot that was seen."""
        self.changes = 0
        """How often anything of it may have changed."""

    def take(self, snapshot: Snapshot) -> None:
        """Store the active alerts. A more severe alert than the chosen one is shown in its place."""
        self.changes += 1
        if self.since is None:
            self.since = snapshot.time
        present = alert_style.ordered(snapshot.alerts)
        places = match_previous([one.alert for one in self._up], present)
        going_on = {place for place in places if place is not None}
        for index, episode in enumerate(self._up):
            if index not in going_on:
                episode.until = snapshot.time
                self._gone.append(episode)
        now, new = [], []
        for alert, place in zip(present, places, strict=True):
            if place is None:
                new.append(Episode(alert))
                now.append(new[-1])
            else:
                episode = self._up[place]
                episode.alert = with_known_target(alert, episode.alert)
                now.append(episode)
        self._up = now
        self._episodes.extend(new)
        chosen = self._chosen
        if chosen is not None and (chosen not in now or any(_graver(one, chosen) for one in new)):
            self._chosen = None

    def replace(self, snapshots: Iterable[Snapshot]) -> None:
        """Replace all by the alerts of these snapshots, as after a jump in a recording; muted alerts stay
        muted."""
        muted = [one.alert for one in self._episodes if one.muted]
        self.changes += 1
        self._episodes.clear()
        self._gone.clear()
        self.since = None
        self._up, self._chosen = [], None
        for snapshot in snapshots:
            self.take(snapshot)
        for episode in self._episodes:
            episode.muted = any(_named_alike(episode.alert, alert) for alert in muted)
        if self._past:
            self._remember_past()

    def add_past(self, alerts: Iterable[tuple[Alert, float]]) -> None:
        """Add alerts that ended before this monitor's first snapshot.

        Args:
            alerts: each with the unix time of its end.
        """
        self._past = [*self._past, *(one for one in alerts if one not in self._past)]
        self._remember_past()

    def _remember_past(self) -> None:
        known = [(one.alert.id, one.alert.pid, one.alert.gpu, one.until) for one in self._gone]
        first = self.since
        found = [
            Episode(alert, until)
            for alert, until in self._past
            if (first is None or until <= first) and (alert.id, alert.pid, alert.gpu, until) not in known
        ]
        self.changes += 1
        self._gone = deque(sorted([*self._gone, *found], key=_end_of), MAX_ENDED)

    def episode(self, alert: Alert) -> Episode | None:
        """Return the stored episode of an alert of any snapshot."""
        found = [one for one in reversed(self._episodes) if _named_alike(one.alert, alert)]
        return min(found, key=lambda one: abs(one.alert.since - alert.since), default=None)

    def is_muted(self, alert: Alert) -> bool:
        """Return True if the person has muted it; for as long as it holds."""
        if not self._ever_muted:
            return False  # asked for each alert of each frame
        episode = self.episode(alert)
        return episode is not None and episode.muted

    def unmuted(self, snapshot: Snapshot | None) -> list[Alert]:
        """Return the unmuted alerts of a snapshot, the most severe first."""
        found = () if snapshot is None else snapshot.alerts
        return [alert for alert in alert_style.ordered(found) if not self.is_muted(alert)]

    def all(self, snapshot: Snapshot | None) -> list[Alert]:
        """Return all alerts of a snapshot, the most severe first, muted ones last."""
        found = alert_style.ordered(() if snapshot is None else snapshot.alerts)
        return sorted(found, key=self.is_muted)

    def selected_alert(self, among: list[Alert]) -> Alert | None:
        """Return the one that is shown of these: the chosen one, else the first."""
        if self._chosen is not None:
            for alert in among:
                if self.episode(alert) is self._chosen:
                    return alert
        return among[0] if among else None

    def advance(self, among: list[Alert]) -> None:
        """Show the next one of these; after the last, the first."""
        shown = self.selected_alert(among)
        self.changes += 1
        if shown is not None:
            self._chosen = self.episode(among[(among.index(shown) + 1) % len(among)])

    def choose(self, alert: Alert) -> None:
        """Choose this alert."""
        self._chosen = self.episode(alert)
        self.changes += 1

    def mute(self, alert: Alert) -> bool:
        """Mute the alert for as long as it holds, or unmute it; return True if it is muted now."""
        episode = self.episode(alert)
        if episode is None:
            return False
        self.changes += 1
        episode.muted = not episode.muted
        self._ever_muted = True
        return episode.muted

    def ended_alerts(self, at: float) -> list[Episode]:
        """Return the alerts that had ended at an instant (unix time), the last to end first."""
        return [one for one in reversed(self._gone) if _end_of(one) <= at]

    def last_ended(self, at: float) -> Episode | None:
        """Return the one that had gone last at an instant (unix time), if any had."""
        return next((one for one in reversed(self._gone) if _end_of(one) <= at), None)

    def ended_count(self, at: float) -> int:
        """Return how many that had gone at an instant (unix time) are remembered."""
        return bisect_right(self._gone, at, key=_end_of)


def _end_of(episode: Episode) -> float:
    return episode.until or 0.0


def _graver(one: Episode, other: Episode) -> bool:
    return alert_style.alert_rank(one.alert) > alert_style.alert_rank(other.alert)


def _named_alike(one: Alert, other: Alert) -> bool:
    """Return True if both may be about the same GPU and process, as far as either knows them."""
    pairs = ((one.gpu, other.gpu), (one.pid, other.pid))
    return one.id == other.id and all(None in pair or pair[0] == pair[1] for pair in pairs)
