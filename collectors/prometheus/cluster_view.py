"""A cluster at one instant, as the pane and `llmtop cluster --json` have it. What is not known is None."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

from llmtop.rules.straggler import BEHIND_PCT


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run: all its ranks on all nodes."""

    name: str
    uid: str = ""
    ranks: int | None = None
    tokens_per_s: float | None = None
    steps_per_s: float | None = None
    step_seconds_p50: float | None = None
    step_seconds_p99: float | None = None
    """Value of the rank with the longest."""
    ranks_without_step: int = 0
    """For a minute and more."""
    rate_span_seconds: float | None = None
    """Seconds of steps that tokens/s and steps/s are over."""
    world_size: int | None = None
    """Number of ranks by the launcher."""
    ranks_reporting: int | None = None
    """How many of them, by their numbers, are exported now."""
    ranks_missing: tuple[int, ...] = ()
    """Numbers of the others; () where none is missing or their numbers could not be asked for."""


class LateRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank for which the others wait."""

    run: str
    rank: str
    node: str
    pid: str
    seconds: float
    """A step, that it waits less than the median rank."""
    step_share: float | None = None
    """Share of the run's step."""

    @property
    def is_straggler(self) -> bool:
        """Return True if that is enough for the rule `straggler`, with the threshold that the user has
        configured."""
        return self.step_share is not None and 100.0 * self.step_share >= BEHIND_PCT[0]


class HungRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that is behind in a collective, or, without a rank, a group in which all wait."""

    run: str
    process_group: str
    rank: str | None = None
    node: str | None = None
    pid: str | None = None
    behind: int | None = None
    """Collectives."""
    waiting: int = 0
    """Ranks of the group that wait in one."""
    operation: str | None = None
    """The collective, where NCCL reports it."""
    communicator: str | None = None
    """NCCL's name of the group; None where the ranks' own counters are the source."""
    missing: bool = False
    """True if the rank's process does not answer NCCL at all."""


class NodeAlert(msgspec.Struct, frozen=True, kw_only=True):
    """Condition of a node: a critical alert of llmtop there, "xid", "ecc", "hot" (much hotter than the others), or
    "link_errors" (of an InfiniBand or RoCE port)."""

    id: str
    node: str
    gpu: str | None = None
    rank: str | None = None
    pid: str | None = None
    value: float | None = None
    """The number of the Xid; how many errors; the temperature in Celsius."""
    link: str | None = None
    """The port, and the kernel's name of the counter: "mlx5_0 port 1 symbol_error"."""


class NodeRates(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per second of a node's links; None where no counter gives them."""

    pcie_rx: float | None = None
    pcie_tx: float | None = None
    nvlink_rx: float | None = None
    nvlink_tx: float | None = None
    """Rates of all its GPUs."""
    nic_rx: float | None = None
    nic_tx: float | None = None
    """Rates of all its InfiniBand and RoCE ports, over the last minute or the counters' shorter span."""
    nic_limit: float | None = None
    """Highest rate one way of the ports that are up."""


class GpuCell(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a node that is shown."""

    gpu: str
    power_ratio: float
    """Power of its limit; a cell is drawn by it, never by utilisation, which does not show work."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One node; the worst come first."""

    name: str
    up: bool | None = None
    """True if its exporter answers; None for a node known only from a dcgm-exporter."""
    badness: float = 0.0
    reasons: tuple[str, ...] = ()
    power_ratio: float | None = None
    """Mean over its GPUs."""
    power_ratio_least: float | None = None
    last_seen_at: float | None = None
    """Unix time by the server's clock of the last scrape with values; None while it answers."""
    is_target: bool = True
    """False once Prometheus no longer has it among its targets: the node was removed, or its job has ended."""
    data_age_seconds: float | None = None
    """How old its values were when they were fetched, by its own clock."""
    is_stale: bool = False
    """True if that is too old (`node:llmtop_stale:seconds`): nothing of it is shown as of now."""
    clock_ahead_seconds: float | None = None
    """Seconds by which its clock is ahead of the server's, where that is more than two; negative: behind."""
    rates: NodeRates | None = None
    """Only of nodes on the visible page."""
    cells: tuple[GpuCell, ...] = ()
    """Only of nodes on the visible page."""


NodeOrder = Literal["worst", "name", "power"]
NODE_ORDERS: Final[tuple[NodeOrder, ...]] = ("worst", "name", "power")
"""Orders of the nodes; power: that with the least share of its limit first."""


def ordered_nodes(nodes: Iterable[Node], order: NodeOrder = "worst", *, reverse: bool = False) -> list[Node]:
    """Return the nodes sorted; without a known power, last.

    Args:
        nodes: in any order.
        order: by what.
        reverse: the other way round.
    """
    keys: dict[NodeOrder, Callable[[Node], tuple[float, float, str]]] = {
        "worst": lambda node: (-node.badness, node.power_ratio_least or 0.0, node.name),
        "name": lambda node: (0.0, 0.0, node.name),
        "power": lambda node: (node.power_ratio or 0.0, 0.0, node.name),
    }
    found = sorted(nodes, key=keys[order], reverse=reverse)
    return found if order != "power" else sorted(found, key=lambda node: node.power_ratio is None)


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one round of queries has found."""

    server: str
    time: float
    """Unix time by the server's clock to which it holds."""
    asked_at: float
    """Unix time by this machine's clock."""
    took_seconds: float
    pinned: bool = False
    """True if it is of an instant that was asked for, and not of now."""
    clock_ahead_seconds: float | None = None
    """Seconds by which the server's clock is ahead of this machine's, where that is more than the query took."""
    data_age_seconds: float | None = None
    """How long before that instant the newest of all snapshots was taken, each by its node's own clock."""
    rules: bool | None = None
    """True if the recording rules are there; without them the same is asked for at a higher price."""
    every_seconds: float | None = None
    """How often it is asked now."""
    problems: tuple[str, ...] = ()
    """Missing parts, in sentences."""
    nodes_up: int | None = None
    nodes_down: int | None = None
    """Targets that do not answer, and were fetched in the last week."""
    nodes_removed: int = 0
    """Nodes of the last week that are no target any more."""
    nodes_acknowledged: int = 0
    """Nodes that are down or removed, were acknowledged in this session, and are left out."""
    alerts: dict[str, int] = {}
    """How many hold, by id."""
    runs: tuple[Run, ...] = ()
    late: tuple[LateRank, ...] = ()
    hung: tuple[HungRank, ...] = ()
    grave: tuple[NodeAlert, ...] = ()
    nodes: tuple[Node, ...] = ()


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One chart of a node."""

    title: str
    unit: str
    values: tuple[float | None, ...]
    """Values of equal lengths of time, oldest first; None: a gap."""


class NodeCharts(msgspec.Struct, frozen=True, kw_only=True):
    """One node over a span of time."""

    node: str
    start: float
    end: float
    series: tuple[Series, ...] = ()
    problems: tuple[str, ...] = ()
