"""The tree of phases: places of their cells, limits, and their order in a step."""

from __future__ import annotations

import pytest

from llmtop.instrument.steps.phase_tree import HIDDEN, Paths, PhaseNode

MOST_PATHS, MOST_LEVELS, LONGEST_NAME = 128, 16, 64
"""The documented limits."""


def _root() -> PhaseNode:
    return PhaseNode("", None, "", HIDDEN)


def _grown(*paths: str) -> tuple[PhaseNode, Paths]:
    """Return the root of a tree with these phases, begun one after the other at 1, 2, ..."""
    root, known = _root(), Paths()
    for number, path in enumerate(paths, 1):
        node = root
        for name in path.split("/"):
            node = node.children.get(name) or node.child(name, known)
        node.begun = number
    return root, known


def _paths(nodes: list[PhaseNode]) -> list[str]:
    return [node.path for node in nodes]


def test_each_path_has_two_cells_after_the_two_of_what_is_hidden() -> None:
    paths = Paths()
    assert (paths.has_any, paths.cells) == (False, 2)
    assert [paths.slot(path) for path in ("a", "a/b", "a", "c")] == [2, 4, 2, 6]
    assert (paths.has_any, paths.cells, paths.names) == (True, 8, ["", "a", "a/b", "c"])


def test_one_path_is_enough_to_have_any() -> None:
    paths = Paths()
    paths.slot("a")
    assert (paths.has_any, paths.cells) == (True, 4)


def test_a_path_over_the_limit_is_hidden_and_known_ones_keep_their_cells() -> None:
    paths = Paths()
    assert [paths.slot(str(number)) for number in range(MOST_PATHS)] == list(range(2, 2 * MOST_PATHS + 1, 2))
    assert paths.slot("one more") == HIDDEN
    assert paths.slot("0") == 2
    assert paths.cells == 2 * (MOST_PATHS + 1)


def test_a_root_is_its_own_parent_and_a_child_is_one_level_below() -> None:
    root, paths = _root(), Paths()
    child = root.child("a", paths)
    inner = child.child("b", paths)
    assert (root.parent, root.depth, root.begun) == (root, 0, 0)
    assert (child.parent, child.depth, child.begun, child.path, child.slot) == (root, 1, 0, "a", 2)
    assert (inner.parent, inner.depth, inner.path, inner.slot) == (child, 2, "a/b", 4)
    assert (root.children, child.children) == ({"a": child}, {"b": inner})


@pytest.mark.parametrize("length", [LONGEST_NAME - 1, LONGEST_NAME, LONGEST_NAME + 1])
def test_a_long_name_is_cut_in_the_path_at_each_level(length: int) -> None:
    root, paths = _root(), Paths()
    shown = "x" * min(length, LONGEST_NAME)
    child = root.child("x" * length, paths)
    assert (child.name, child.path) == ("x" * length, shown)
    assert child.child("y" * length, paths).path == f"{shown}/{'y' * len(shown)}"


def test_a_phase_within_itself_is_hidden_and_its_children_are_those_of_the_outer_one() -> None:
    root, paths = _root(), Paths()
    outer = root.child("a", paths)
    again = outer.child("a", paths)
    assert (again.slot, again.path, again.depth) == (HIDDEN, "a", 2)
    assert again.child("b", paths).path == "a/b"
    assert again.child("b", paths).slot == outer.child("b", paths).slot == 4


def test_the_17th_level_is_hidden() -> None:
    node, paths = _root(), Paths()
    for number in range(MOST_LEVELS):
        node = node.child(str(number), paths)
        assert (node.name, node.slot) == (str(number), 2 * number + 2)
    hidden = node.child("deeper", paths)
    assert (hidden.name, hidden.slot, hidden.path, hidden.depth) == ("", HIDDEN, node.path, MOST_LEVELS + 1)
    assert node.child("others too", paths) is hidden
    assert node.children == {"": hidden}


def test_names_over_the_limit_share_one_hidden_phase() -> None:
    root, paths = _root(), Paths()
    for number in range(MOST_PATHS):
        root.child(str(number), paths)
    hidden = root.child("one more", paths)
    assert (hidden.name, hidden.slot, hidden.path) == ("", HIDDEN, "")
    assert root.child("and another", paths) is hidden
    assert len(root.children) == MOST_PATHS + 1
    assert root.children["0"].child("0", paths).name == "0"  # recursion needs no path


def test_a_phase_has_no_more_than_129_children_even_without_paths_of_their_own() -> None:
    """Names that are equal in their first 64 characters share a path."""
    root, paths = _root(), Paths()
    made = [root.child("x" * LONGEST_NAME + str(number), paths) for number in range(MOST_PATHS + 2)]
    assert {node.slot for node in made[: MOST_PATHS + 1]} == {2}
    assert (made[-1].slot, made[-1].name) == (HIDDEN, "")


def test_phases_are_in_the_order_of_their_last_begin_each_before_its_own() -> None:
    root, _ = _grown("b", "b/y", "b/x", "a", "a/z")
    assert _paths(root.in_order(1 << 62)) == ["b", "b/y", "b/x", "a", "a/z"]
    assert _paths(root.subtree()) == ["b", "b/y", "b/x", "a", "a/z"]
    root.children["b"].begun = 9
    assert _paths(root.in_order(1 << 62)) == ["a", "a/z", "b", "b/y", "b/x"]
    assert _paths(root.children["b"].in_order(1 << 62)) == ["b/y", "b/x"]


@pytest.mark.parametrize(("step_ended", "order"), [(3, "abc"), (2, "cab"), (1, "bca"), (0, "abc")])
def test_what_began_after_the_end_of_the_step_is_first_in_the_next(step_ended: int, order: str) -> None:
    root, paths = _grown("a", "b", "c")
    assert _paths(root.in_order(step_ended)) == list(order)
    assert [paths.names[place] for place in paths.arrange(root, step_ended)] == list(order)
    assert [paths.names[place] for place in paths.order] == list(order)


def test_paths_are_arranged_as_their_phases_and_hidden_ones_are_not() -> None:
    root, paths = _grown("b", "a", "a/a", "a/x")
    assert [paths.names[place] for place in paths.arrange(root)] == ["b", "a", "a/x"]


def test_a_path_without_a_phase_goes_before_the_phase_that_it_was_part_of() -> None:
    root, paths = _grown("a", "epoch", "epoch/load", "z")
    paths.slot("load")
    assert [paths.names[place] for place in paths.arrange(root)] == ["a", "epoch", "load", "epoch/load", "z"]


def test_a_path_that_no_phase_ends_with_is_the_last() -> None:
    root, paths = _grown("a", "download", "z")
    paths.slot("load")
    assert [paths.names[place] for place in paths.arrange(root)] == ["a", "download", "z", "load"]
