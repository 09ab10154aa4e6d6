"""Sentences of a view's nodes: since when one is down, how old its values are, what its links carry."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from collectors.prometheus.cluster_view import ClusterView, Node, NodeRates
from llmtop import format as fmt
from llmtop.model.severity import Severity

MOST_NAMES: Final = 3
"""Nodes that one sentence names."""
_DAY: Final = 86_400.0


class NodeNote(NamedTuple):
    """One sentence about nodes that do not answer, send old values, or have a wrong clock."""

    severity: Severity
    kind: str
    """"down", "stale", "clock" or "removed"."""
    text: str


def node_notes(view: ClusterView) -> Iterator[NodeNote]:
    """Yield what must be known of the nodes themselves: a sentence each, and one of more than `MOST_NAMES`."""
    down = [node for node in view.nodes if node.up is False and node.is_target]
    removed = [node for node in view.nodes if node.up is False and not node.is_target]
    stale = [node for node in view.nodes if node.is_stale]
    clocks = [node for node in view.nodes if node.clock_ahead_seconds is not None]

    def since_text(node: Node) -> str:
        return f"{node.name} {down_text(node, view.time)}"

    yield from _notes("critical", "down", down, since_text, "do not answer")
    yield from _notes("warning", "stale", stale, _stale_text, "send old values")
    yield from _notes("warning", "clock", clocks, _clock_text, "have a clock that is wrong by more than 2 s")
    yield from _notes("info", "removed", removed, since_text, "are no targets of Prometheus any more")


def _notes(
    severity: Severity, kind: str, nodes: Sequence[Node], text: Callable[[Node], str], together: str
) -> Iterator[NodeNote]:
    if len(nodes) > MOST_NAMES:
        names = ", ".join(node.name for node in nodes[:MOST_NAMES])
        yield NodeNote(severity, kind, f"{names} and {len(nodes) - MOST_NAMES} more {together}")
        return
    for node in nodes:
        yield NodeNote(severity, kind, text(node))


def down_text(node: Node, now: float) -> str:
    """Return since when a node has not answered.

    Args:
        node: one that does not answer.
        now: unix time of the view.
    """
    what = "has not answered" if node.is_target else "is no longer a target, and has not answered"
    if node.last_seen_at is None:
        return what
    ago = max(0.0, now - node.last_seen_at)
    stamp = time.strftime("%H:%M:%S" if ago < _DAY else "%m-%d %H:%M", time.localtime(node.last_seen_at))
    return f"{what} since {stamp} ({fmt.duration(float(round(ago)))})"


def _stale_text(node: Node) -> str:
    age = "old" if node.data_age_seconds is None else f"{fmt.duration(float(round(node.data_age_seconds)))} old"
    return f"{node.name} sends values that are {age}: restart llmtop export"


def _clock_text(node: Node) -> str:
    seconds = node.clock_ahead_seconds or 0.0
    direction = "ahead of" if seconds > 0 else "behind"
    return f"the clock of {node.name} is {fmt.duration(round(abs(seconds), 1))} {direction} that of Prometheus"


def rate_texts(rates: NodeRates | None) -> Iterator[str]:
    """Yield what the links of a node carry, receive and send; nothing for links without a counter."""
    if rates is None:
        return
    limit = "" if rates.nic_limit is None else f" of {fmt.rate(rates.nic_limit)}"
    for name, received, sent, of_limit in (
        ("NIC", rates.nic_rx, rates.nic_tx, limit),
        ("NVLink", rates.nvlink_rx, rates.nvlink_tx, ""),
        ("PCIe", rates.pcie_rx, rates.pcie_tx, ""),
    ):
        if received is not None or sent is not None:
            yield f"{name} rx {fmt.rate(received)} tx {fmt.rate(sent)}{of_limit}"
