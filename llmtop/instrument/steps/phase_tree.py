"""The tree of phases that a training has entered.

A phase within a phase has its parent's path in front: ``forward/attention``. Each path has a slot, the place of
its two cells (nanoseconds, count) in the flat list that a step is counted in.
"""

from __future__ import annotations

MAX_PATHS = 128
"""Different phases in one process: names made from data (``layer_{i}_{step}``) must not fill the memory."""
MAX_DEPTH = 16
MAX_NAME = 64
"""Characters; longer names are cut."""

NEVER = 1 << 62
"""Later than any stamp."""
HIDDEN = 0
"""The slot of what is not reported: a phase within itself, or one over the limits."""
STEP = -1
"""The slot that stands for the step itself, where boundaries are marked for the GPU clock."""


class Paths:
    """Path <-> slot, shared by all that record in this process. Grows only; a slot never changes its path."""

    def __init__(self) -> None:
        self.names: list[str] = [""]
        """Names by slot / 2; the first is `HIDDEN`."""
        self.order: tuple[int, ...] = ()
        """Slot / 2 of each path, as they follow each other in a step (`arrange`)."""
        self._slots: dict[str, int] = {}

    @property
    def has_any(self) -> bool:
        """Return True if there is a path."""
        return len(self.names) > 1

    def slot(self, path: str) -> int:
        """Return the slot of `path`, a new one if need be; `HIDDEN` when there are too many."""
        slot = self._slots.get(path)
        if slot is None:
            if len(self.names) > MAX_PATHS:
                return HIDDEN
            # The name first: a reader that finds a count in a slot must find its name.
            self.names.append(path)
            slot = self._slots[path] = 2 * (len(self.names) - 1)
        return slot

    def arrange(self, root: PhaseNode, step_ended: int = NEVER) -> tuple[int, ...]:
        """Sort the paths by the last begin of their phases; most accurate when a step has just ended.

        Args:
            root: of all phases.
            step_ended: when the last step did (perf_counter ns); what has begun since comes first in the next.

        Returns:
            Slot / 2 of each path.

        What is in few steps (a checkpoint, before the first phase of the step it belongs to) comes first. A path
        that no node has, since its phase is counted further up than it was entered, goes with that phase.
        """
        nodes = root.in_order(step_ended)
        places = {node.slot // 2: None for node in nodes if node.slot != HIDDEN}
        for place in range(1, len(self.names)):
            if place not in places:
                tail = f"/{self.names[place]}"
                stands_at = [node.slot // 2 for node in nodes if node.path.endswith(tail)]
                before = next((one for one in places if one in stands_at), None)
                kept = list(places)
                kept.insert(len(kept) if before is None else kept.index(before), place)
                places = dict.fromkeys(kept)
        self.order = tuple(places)
        return self.order

    @property
    def cells(self) -> int:
        """How many cells a step's row has for the phases known now."""
        return 2 * len(self.names)


class PhaseNode:
    """One phase at one place of the stack."""

    __slots__ = ("begun", "children", "depth", "name", "parent", "path", "slot")

    def __init__(self, name: str, parent: PhaseNode | None, path: str, slot: int) -> None:
        """Make a node; `child()` of the parent registers it.

        Args:
            name: last part of `path`.
            parent: the enclosing phase; None for the root, which is its own parent.
            path: names from below the root, joined by "/".
            slot: index of its time in ns in the step's cells; the count of calls is at `slot` + 1.
        """
        self.name = name
        self.parent: PhaseNode = self if parent is None else parent
        self.path = path
        self.slot = slot
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.begun = 0
        self.children: dict[str, PhaseNode] = {}

    def child(self, name: str, paths: Paths) -> PhaseNode:
        """Make the node for `name` within this one.

        A phase within itself (recursion) is already counted by the outer one: it gets no slot, and its children
        get those of the outer one's. Beyond the limits all names share one hidden node, whose own name is "".
        """
        if self.depth >= MAX_DEPTH or len(self.children) > MAX_PATHS:
            return self._overflow()
        recursive = name == self.name
        path = self.path if recursive else f"{self.path}/{name[:MAX_NAME]}" if self.path else name[:MAX_NAME]
        slot = HIDDEN if recursive else paths.slot(path)
        if slot == HIDDEN and not recursive:
            return self._overflow()
        node = self.children[name] = PhaseNode(name, self, path, slot)
        return node

    def _overflow(self) -> PhaseNode:
        node = self.children.get("")
        if node is None:
            node = self.children[""] = PhaseNode("", self, self.path, HIDDEN)
        return node

    def in_order(self, step_ended: int) -> list[PhaseNode]:
        """Return all nodes below this one as they last began, each before those within it; for any thread."""
        found: list[PhaseNode] = []
        for node in sorted(self.children.values(), key=lambda one: (one.begun <= step_ended, one.begun)):
            found.append(node)
            found += node.in_order(step_ended)
        return found

    def subtree(self) -> list[PhaseNode]:
        """Return all nodes below this one."""
        found: list[PhaseNode] = []
        for node in self.children.values():
            found.append(node)
            found += node.subtree()
        return found
