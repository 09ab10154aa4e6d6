"""State of the cluster pane: its data, and the user's choices."""

from __future__ import annotations

from msgspec.structs import replace

from collectors.prometheus.cluster_view import ClusterView, Node, NodeCharts, NodeOrder, ordered_nodes
from collectors.prometheus.source import ViewRequest

SPANS = (300.0, 900.0, 3600.0, 6 * 3600.0, 24 * 3600.0, 7 * 24 * 3600.0)
"""Seconds of a node's charts that the keys go through."""
BACK_SHARE = 0.1
LEAST_BACK_SECONDS = 60.0
"""How far the instant moves with a key: that share of the span, and at least so much."""


class ClusterState:
    """The newest view and the person's choices. Belongs to the app."""

    def __init__(self) -> None:
        self.view: ClusterView | None = None
        self._received: ClusterView | None = None
        """The same with the nodes that were acknowledged."""
        self._acknowledged: dict[str, float] = {}
        """Acknowledgement times by node, by the server's clock."""
        self.charts: NodeCharts | None = None
        self.now = 0.0
        """Unix time by this machine, for how old the view is."""
        self.failed = False
        """True if the last round got no answer at all: the view is of one before."""
        self.chosen: str | None = None
        """The node under the cursor, by name: nodes change places."""
        self.opened: str | None = None
        """The node of which charts are shown."""
        self.draws_chosen = False
        """True if the screen has room for the charts of the chosen node below all nodes."""
        self.span = SPANS[1]
        self.at: float | None = None
        self.order: NodeOrder = "worst"
        self.reverse = False
        self._sorted: tuple[Node, ...] = ()
        self._sorted_of: tuple[ClusterView, NodeOrder, bool] | None = None
        self.order_ends: tuple[tuple[int, NodeOrder], ...] = ()
        """For each order in the grid's title, the cell after its last and its name."""
        self.page_size = 64
        self.columns = 1
        self.entry_width = 1
        """Cells that a node takes in the grid."""
        self.first_row = 0
        """The row of the screen that has the first line of the grid."""
        self.capture = ""
        """The command that captures, or what came of it; "" until it is asked for."""
        self.capturing = False

    def receive(self, view: ClusterView) -> None:
        """Show a view, without the nodes that were acknowledged."""
        self._received = view
        self.view = view if view.pinned else self._without_acknowledged(view)

    def acknowledge(self, *, every: bool) -> int:
        """Leave out the chosen node, or all, if they are down; returns how many.

        A node that answers again and goes down later is shown again.
        """
        view = self._received
        if view is None or self.view is None or view.pinned:
            return 0
        chosen = self.nodes if every else self.nodes[self.place : self.place + 1]
        names = [node.name for node in chosen if node.up is False]
        self._acknowledged |= dict.fromkeys(names, view.time)
        self.receive(view)
        return len(names)

    def _without_acknowledged(self, view: ClusterView) -> ClusterView:
        hidden = [
            node
            for node in view.nodes
            if node.up is False and (node.last_seen_at or 0.0) <= self._acknowledged.get(node.name, -1.0)
        ]
        if not hidden:
            return view
        names, targets = {node.name for node in hidden}, sum(node.is_target for node in hidden)
        return replace(
            view,
            nodes=tuple(node for node in view.nodes if node.name not in names),
            nodes_down=None if view.nodes_down is None else view.nodes_down - targets,
            nodes_removed=view.nodes_removed - (len(hidden) - targets),
            nodes_acknowledged=len(hidden),
        )

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes in the chosen order."""
        if self.view is None:
            return ()
        made_of = self.view, self.order, self.reverse
        if self._sorted_of is None or any(
            one is not other for one, other in zip(self._sorted_of, made_of, strict=True)
        ):
            self._sorted_of = made_of
            self._sorted = tuple(ordered_nodes(self.view.nodes, self.order, reverse=self.reverse))
        return self._sorted

    @property
    def place(self) -> int:
        """Where the chosen node is; the first where it is none of them."""
        return next((place for place, node in enumerate(self.nodes) if node.name == self.chosen), 0)

    @property
    def charted(self) -> str | None:
        """The node of which charts are drawn: the opened one, or the chosen one where there is room for it."""
        if self.opened is not None or not self.draws_chosen or not self.nodes:
            return self.opened
        return self.nodes[self.place].name

    @property
    def page(self) -> tuple[int, int]:
        """The visible nodes: from, to."""
        start = self.place // max(1, self.page_size) * max(1, self.page_size)
        return start, start + max(1, self.page_size)

    def place_at(self, x: int, y: int) -> int | None:
        """Return the node at a cell of the screen, by its place in `nodes`; None where there is none."""
        line = y - self.first_row
        if not 0 <= line < self.columns:
            return None
        place = self.page[0] + x // max(1, self.entry_width) * self.columns + line
        return place if place < min(self.page[1], len(self.nodes)) else None

    def move(self, by: int) -> None:
        """Choose another node, so many places on."""
        if self.nodes:
            self.chosen = self.nodes[min(max(self.place + by, 0), len(self.nodes) - 1)].name

    def change_span(self, by: int) -> None:
        """Take a longer or a shorter span."""
        place = SPANS.index(self.span) + by
        self.span = SPANS[min(max(place, 0), len(SPANS) - 1)]

    def shift_instant(self, by: int) -> None:
        """Show an earlier or a later instant; one in the future counts as now."""
        step = max(LEAST_BACK_SECONDS, BACK_SHARE * self.span)
        at = (self.now if self.at is None else self.at) - by * step
        self.at = None if at >= self.now else at

    def view_request(self) -> ViewRequest:
        """Return the request for the view."""
        return ViewRequest(
            page=self.page,
            at=self.at,
            node=self.charted,
            span=self.span,
            order=self.order,
            reverse=self.reverse,
        )
