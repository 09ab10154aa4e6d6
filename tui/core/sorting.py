"""Base of screens with a table whose titles sort it, by a key or by a click."""

from __future__ import annotations

from tui.core.board_screen import BoardScreen
from tui.state.order import Order


class SortedTable(BoardScreen):
    """A screen with a table. A derived class says which columns it has, and draws it in `order`."""

    _order = Order()

    @property
    def order(self) -> Order:
        """How the table is sorted."""
        return self._order

    @order.setter
    def order(self, order: Order) -> None:
        self._order = order

    def sortable(self) -> list[str]:
        """Return the names of the columns that can be sorted by, as `Order.name`, from left to right."""
        return []

    def descends(self, name: str) -> bool:
        """Return True if the first choice of a column puts its largest values first."""
        return True

    def usual_order(self) -> Order:
        """Return the order before another one is chosen."""
        return Order()

    def sort_by(self, name: str) -> None:
        """Sort by a column; by the one that it is sorted by already, the other way round."""
        if name == self.shown_order().name:
            self.action_turn()
        else:
            self.sort_rows(Order(name, self.descends(name)))

    def shown_order(self) -> Order:
        """Return the order to mark: the chosen one, else the usual one."""
        return self.order if self.order.name else self.usual_order()

    def action_sort(self, step: int) -> None:
        """Sort by the next column (1) or the previous one (-1)."""
        names = self.sortable()
        if not names:
            self.notify("There is no table to sort here.")
            return
        name = self.shown_order().name
        place = names.index(name) + step if name in names else 0
        self.sort_rows(Order(names[place % len(names)], self.descends(names[place % len(names)])))

    def action_turn(self) -> None:
        """Reverse the order."""
        if not self.sortable():
            self.notify("There is no table to sort here.")
            return
        order = self.shown_order()
        self.sort_rows(order._replace(reverse=not order.reverse))

    def sort_rows(self, order: Order) -> None:
        self.order = Order() if order == self.usual_order() else order
        self.redraw()
