"""The phases that are open, and the time of the step so far.

The time of a step is kept in one flat list, two cells a path (nanoseconds, count), which goes into the ring when
the step ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmtop.instrument.steps.phase_tree import HIDDEN, MAX_DEPTH, MAX_PATHS, Paths, PhaseNode

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder_parts import BoundaryObserver


class OpenPhases:
    """The phases that are open in the training thread, and what the step has so far. Base of the recorder.

    What cannot be timed (phases that overlap, or are open when a step begins or ends) is discarded here.
    """

    # Attributes in slots are at fixed offsets: the hot path does no lookup by name.
    __slots__ = ("cells", "cut", "left_out", "node", "paths", "root", "watch", "zeros")

    def clear(self) -> None:
        """Drop all phases, open ones and known names, as a forked child must."""
        self.paths = Paths()
        self.root = PhaseNode("", None, "", HIDDEN)
        self.node = self.root
        """The innermost open phase."""
        self.cells = [0, 0]
        self.zeros = [0, 0]
        self.cut: list[str] = []
        """Phases of the script's that were counted up to the end of a step, and have not ended since."""
        self.watch: BoundaryObserver | None = None
        """Observers of boundaries; None without one."""
        self.left_out: dict[str, int] = {}
        """Why something is not in the numbers -> how often."""

    def count_left_out(self, reason: str) -> None:
        """Store that something is missing in the numbers, and why; the monitor shows it."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def new_node(self, here: PhaseNode, name: str) -> PhaseNode:
        """Return the node for a phase entered at this place for the first time."""
        node = here.child(name, self.paths)
        if node.name != name:
            self.count_left_out(f"phases over the limit of {MAX_PATHS} names or {MAX_DEPTH} levels")
        self.fit(node.slot)
        return node

    def fit(self, slot: int) -> None:
        """Make room for the time and the count of the phase with that slot."""
        while len(self.cells) < slot + 2:
            self.cells.append(0)
        while len(self.zeros) < len(self.cells):
            self.zeros.append(0)

    def close_down_to(self, node: PhaseNode) -> None:
        """Drop phases that are open within `node`."""
        while self.node is not node:
            if self.watch is not None:
                self.watch.give_up(self.node)
            self.node = self.node.parent

    def exit_out_of_order(self, name: str) -> bool:
        """A phase ends that is not the innermost one; returns whether phases overlapped."""
        node = self.node
        if node.name == "" and node is not self.root:
            self.node = node.parent  # beyond the limits: all names share one node
            return False
        while node is not self.root and node.name != name:
            node = node.parent
        if node is self.root:
            if name in self.cut:
                self.cut.remove(name)
            return False  # given up before
        # Two phases overlap without one enclosing the other: their times cannot be separated.
        self.count_left_out("overlapping phases")
        self.close_down_to(node.parent)
        for lost in (node, *node.subtree()):
            self._blank(lost)
        return True

    def give_up_open(self) -> None:
        """Drop open phases at a boundary of a step: they belong to no step.

        What ended within them before this step does: it moves up to where it stands without them, so that a loader
        used within ``phase("epoch")`` is still the step's ``dataload``.
        """
        self.count_left_out("phases that enclose a step or were not ended within it")
        chain = []
        node = self.node
        while node is not self.root:
            chain.append(node)
            node = node.parent
        self.close_down_to(self.root)
        for place, given_up in enumerate(chain):
            for child in given_up.children.values():
                if place == 0 or child is not chain[place - 1]:
                    self._move_up(child, given_up.path)
        for given_up in chain:
            self._blank(given_up)

    def _move_up(self, node: PhaseNode, prefix: str) -> None:
        for moved in (node, *node.subtree()):
            slot = moved.slot
            if slot == HIDDEN or slot >= len(self.cells) or not self.cells[slot + 1]:
                continue
            target = self.paths.slot(moved.path[len(prefix) + 1 :])
            self.fit(target)
            self.cells[target] += self.cells[slot]
            self.cells[target + 1] += self.cells[slot + 1]
            self._blank(moved)
            if self.watch is not None:
                self.watch.move(slot, target)

    def _blank(self, node: PhaseNode) -> None:
        if node.slot < len(self.cells):
            self.cells[node.slot] = self.cells[node.slot + 1] = 0

    def forget_cells(self) -> None:
        """Drop all counts since the last step."""
        self.close_down_to(self.root)
        self.fit(self.paths.cells - 2)
        self.cells[:] = self.zeros
