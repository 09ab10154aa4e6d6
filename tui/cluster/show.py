"""The cluster's pane from start to end."""

from __future__ import annotations

from collectors.prometheus.cluster import Cluster
from collectors.prometheus.source import ClusterSource
from tui.cluster.app import ClusterApp
from tui.show import has_unicode, run


def show(cluster: Cluster, interval: float, *, ascii: bool = False, theme: str | None = None) -> int:
    """Run the pane until it is left; returns and raises as `tui.show.show`.

    Args:
        cluster: what is asked.
        interval: seconds between two rounds of questions.
        ascii: draw with ASCII characters only.
        theme: a theme's name.
    """
    return run(ClusterApp(ClusterSource(cluster, interval), ascii=ascii or not has_unicode(), theme=theme))
