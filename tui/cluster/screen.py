"""The two screens of `llmtop cluster`: the nodes, with the charts of one; and the help."""

from __future__ import annotations

from collectors.prometheus.cluster_view import NODE_ORDERS
from tui.cluster import paint
from tui.cluster.state import ClusterState
from tui.core import keys
from tui.core.canvas import Placed
from tui.core.key_lookup import own_and_shared
from tui.core.layout import Rect
from tui.core.scrolling import Scrolling
from tui.core.sorting import SortedTable
from tui.paint.rows import Row
from tui.screens.help import key_blocks
from tui.state.order import Order


class ClusterScreen(SortedTable):
    """All nodes, or the charts of the opened one."""

    NAME = keys.CLUSTER

    def __init__(self, state: ClusterState) -> None:
        super().__init__()
        self.state = state

    def parts(self, width: int, height: int) -> list[Placed]:
        """Paint what the state holds, and the keys."""
        painted = paint.rows(self.state, width, height - 1, self.cell_theme) if height > 1 else []
        self.page_lines = max(1, self.state.page_size)
        placed = [Placed(Rect(0, 0, width, len(painted)), painted)]
        return [*placed, Placed(Rect(0, height - 1, width, 1), [self.paint_footer(width)])]

    def move(self, step: int) -> None:
        """Choose another node; where the charts of one are shown, show its charts."""
        self.state.move(step)
        if self.state.opened is not None and self.state.opened != self.state.chosen:
            self.state.opened = self.state.chosen
            self.terminal_app.redraw()  # which also asks for them

    def action_column(self, by: int) -> None:
        """Choose the node in the next column."""
        self.action_move(by * max(1, self.state.columns))

    @property
    def order(self) -> Order:
        """How the nodes are sorted."""
        return Order(self.state.order, self.state.reverse)

    @order.setter
    def order(self, order: Order) -> None:
        known = next((name for name in NODE_ORDERS if name == order.name), NODE_ORDERS[0])
        self.state.order, self.state.reverse = known, order.reverse

    def sortable(self) -> list[str]:
        """Return by what nodes can be sorted; nothing while charts are shown."""
        return list(NODE_ORDERS) if self.state.nodes and self.state.opened is None else []

    def descends(self, name: str) -> bool:
        """Return False: the worst, the first letter and the least power come first."""
        return False

    def sort_rows(self, order: Order) -> None:
        self.order = order
        self.terminal_app.redraw()  # which also asks for the GPUs of the nodes that are now in sight

    def searchable(self) -> list[str]:
        """Return name and reasons of each node."""
        return [f"{node.name} {' '.join(node.reasons)}" for node in self.state.nodes]

    def position(self) -> int:
        """Return the place of the chosen node."""
        return self.state.place

    def show_line(self, place: int) -> None:
        """Choose the node that was found."""
        self.state.move(place - self.state.place)

    def wheel(self, direction: int, y: int) -> None:
        """Choose the node above or below; over charts, a shorter or a longer span."""
        if self.state.opened is not None:
            self.press_again("left_square_bracket" if direction < 0 else "right_square_bracket")
        else:
            self.action_move(direction)

    def click(self, x: int, y: int) -> None:
        """Choose the node under the pointer, a second click opens it; on a word of the title, sort by it."""
        if y == self.state.first_row - 1 and self.sortable():
            name = next((order for end, order in self.state.order_ends if x < end), "")
            if name:
                self.sort_by(name)
            return
        place = self.state.place_at(x, y)
        if place is None or self.state.opened is not None:
            return
        if place == self.state.place:
            self.press_again("enter")
        self.show_line(place)
        self.redraw()


_OF_TABLE, _OF_CHARTS = frozenset({"sort", "turn"}), frozenset({"back"})
"""Actions that work only while the table of nodes, or the charts of one node, are open."""


class ClusterHelp(Scrolling):
    """The keys of the cluster's pane."""

    NAME = keys.CLUSTER_HELP
    MARGIN = 1

    def __init__(self, *, of_charts: bool) -> None:
        """Show the keys that work now.

        Args:
            of_charts: whether the charts of one node are open, else the table of nodes.
        """
        super().__init__()
        self._left_out = _OF_TABLE if of_charts else _OF_CHARTS

    def header(self, width: int) -> Row:
        """Paint the first line."""
        return paint.header_line(width, self.cell_theme)

    def lines(self, width: int) -> list[Row]:
        """Paint the keys."""
        own, shared = own_and_shared(keys.CLUSTER)
        here = [key for key in (*own, *shared) if key.action.partition("(")[0] not in self._left_out]
        blocks = key_blocks(keys.CLUSTER, here, [], width, self.cell_theme)
        return [row for block in blocks for row in block]

    async def action_back(self) -> None:
        """Close the help."""
        self.app.pop_screen()
