"""Asks again and again, in a thread of its own, at a pace that the server bears."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from collectors.base.interruptible_sleep import InterruptibleSleep
from collectors.prometheus.cluster import Cluster
from collectors.prometheus.cluster_view import ClusterView, NodeCharts, NodeOrder

LONGEST_SECONDS = 60.0
SHARE = 0.25
"""Share of the time that a server may be kept busy."""
WITHOUT_RULES = 3.0
"""Times the interval, where each question is asked in full."""


class ViewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The view that is shown."""

    page: tuple[int, int] = (0, 64)
    """Which of the nodes, in that order: from, to."""
    order: NodeOrder = "worst"
    reverse: bool = False
    at: float | None = None
    """Unix time; None for now."""
    node: str | None = None
    """Node whose charts are drawn."""
    span: float = 900.0
    """Seconds of the charts."""


OnView = Callable[[ClusterView, NodeCharts | None], None]


class ClusterSource:
    """A cluster's views, one after the other."""

    def __init__(self, cluster: Cluster, interval: float) -> None:
        """Prepare.

        Args:
            cluster: is asked in this source's thread only.
            interval: seconds from one round of queries to the next, where the server bears it.
        """
        self._cluster = cluster
        self._interval = interval
        self._wanted = ViewRequest()
        self._wake = InterruptibleSleep()
        self._closed = False

    def start(self, on_view: OnView) -> None:
        """Begin; `on_view` is called in the source's thread with each view."""
        threading.Thread(target=self._run, args=(on_view,), name="llmtop-cluster", daemon=True).start()

    def request(self, view_request: ViewRequest) -> None:
        """Change the view, effective at once."""
        self._wanted = view_request
        self._wake.set()

    def close(self) -> None:
        """Stop; a question that is under way is not waited for."""
        self._closed = True
        self._wake.set()

    def _run(self, on_view: OnView) -> None:
        while not self._closed:
            began, view_request = time.monotonic(), self._wanted
            self._wake.clear()
            view = self._cluster.query_view(
                slice(*view_request.page), view_request.at, view_request.order, reverse=view_request.reverse
            )
            charts = None
            if view_request.node is not None and not (view.problems and not view.nodes):
                charts = self._cluster.charts(view_request.node, view_request.span, view_request.at)
            pause = poll_interval(self._interval, time.monotonic() - began, view.rules)
            if not self._closed:
                on_view(replace(view, every_seconds=pause), charts)
            self._wake.wait(max(0.0, began + pause - time.monotonic()))


def poll_interval(interval: float, took: float, rules: bool | None) -> float:
    """Seconds from one round to the next.

    Args:
        interval: what was asked for.
        took: how long the last round was.
        rules: whether the server has the recording rules.
    """
    least = interval * (WITHOUT_RULES if rules is False else 1.0)
    return max(interval, min(LONGEST_SECONDS, max(least, took / SHARE)))
