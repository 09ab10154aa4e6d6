"""Names that stand for one thing, and functions that one can hold in the head."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import REPOSITORY

PACKAGES = ("llmtop", "collectors", "tui")
ONE_A_FOLDER = ("__init__.py", "command.py", "engine.py", "model.py", "source.py", "text.py")
"""File names of what there is one of in each folder of its kind."""
MOST_LINES = 60
MOST_FILES = 5
PRIVATE_WORDS = frozenset({
    "chores", "complain", "complains", "deaf", "dear", "grave", "gravity", "heard", "knob", "knobs", "leftover",
    "leftovers", "look", "looks", "makeup", "met", "obey", "prospect", "prospects", "remembered", "shelf",
    "shelved", "sibling",
    "standstill", "stranger", "strangers", "tells", "told", "trail", "undisturbed", "whom", "wish",
    "wishes",
})  # fmt: skip
"""Words that mean nothing to a reader from the field; STYLE: names are those of the field."""
NO_NAMES = frozenset({
    "about", "above", "after", "ahead", "among", "asked", "at", "before", "begun", "behind", "below", "beside",
    "between", "both", "by", "done", "for", "found", "from", "given", "gone", "heard", "into", "kept", "known",
    "made", "met", "of", "off", "on", "out", "over", "said", "seen", "shown", "taken", "to", "told", "under",
    "until", "when", "where", "while", "who", "whom", "why", "with", "within", "without",
})  # fmt: skip
"""Prepositions, participles and question words that say nothing of a function when they are its whole name."""
WORDS_LEFT: dict[str, int] = {
    "grave": 1, "heard": 10, "look": 24, "looks": 17, "makeup": 6, "standstill": 3, "strangers": 1, "tells":
    2, "told": 35, "undisturbed": 7,
}  # fmt: skip
"""How many names still have such a word: only ever lowered."""
NAMES_LEFT: dict[str, int] = {
    "after": 1, "at": 5, "before": 2, "behind": 1, "beside": 2, "both": 1, "gone": 3, "heard": 1, "kept": 3,
    "known": 4, "made": 1, "of": 7, "on": 1, "over": 2, "said": 2, "seen": 1, "shown": 5, "told": 3, "where":
    4, "within": 3,
}  # fmt: skip
"""How many functions still have such a name: only ever lowered."""

COINCIDENCES = {
    "ALL": "no limit", "ANSWER_SECONDS": "of a training, of a node", "AT_ONCE_NS": "of a lock, of an event",
    "BUDGET": "of two recorders", "CHUNK": "of four sockets", "DIGITS": "of a rank, of a terminal's size",
    "ENDS_SECONDS": "of three programs", "FEWEST_KERNELS": "of a capture, of a step", "GAP": "of three tables",
    "HOTTEST": "of stacks, of kernels", "LARGEST": "of two files", "LEAST_PCT": "of a step, of a graph",
    "LONGEST": "of two texts", "MAX_STEPS": "of a message, of a window", "MIB": "a unit",
    "MOST": "of two lists", "PATIENCE_SECONDS": "of two programs", "POLL_SECONDS": "of five loops",
    "PR_SET_PDEATHSIG": "the kernel's number", "QUIET": "launch/inject runs alone", "RATE_HZ": "of two samplers",
    "RETRY_SECONDS": "of an allocator, of a name server", "SCHEMA": "of six files",
    "START_SECONDS": "of four programs", "TRIES": "of two loops", "WRITE_SECONDS": "of two programs",
}  # fmt: skip
"""Constants of one name and value in several modules that are not one fact, and what they are of."""


def _files() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((REPOSITORY / package).rglob("*.py"))


def test_a_class_name_stands_for_one_thing() -> None:
    classes = Counter(
        (_package(file), node.name)
        for file in _files()
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert not sorted(name for name, count in classes.items() if count > 1), "rename one of two each"


def _package(file: Path) -> str:
    """The folder directly below llmtop, tui or collectors."""
    return "/".join(file.relative_to(REPOSITORY).parts[:2])


def test_a_file_name_says_which_file_it_is() -> None:
    names = Counter(file.name for file in _files())
    too_many = {name: count for name, count in names.items() if count > MOST_FILES and name not in ONE_A_FOLDER}
    assert not too_many
    assert names["steps.py"] <= 2
    assert names["phases.py"] <= 2


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{file.relative_to(REPOSITORY)}: {node.name}, {lines} lines"
        for file in _files()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > MOST_LINES
    ]
    assert not long


def _named(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield field.target.id


def private_words(tree: ast.AST) -> Counter[str]:
    """Count the private words in the names of classes, functions, parameters, attributes and fields."""
    words = (word.lower() for name in _named(tree) for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name))
    return Counter(word for word in words if word in PRIVATE_WORDS)


def unclear_functions(tree: ast.AST) -> Counter[str]:
    """Count the functions whose whole name is a preposition, a participle or a question word."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return Counter(name for node in functions if (name := node.name.strip("_")) in NO_NAMES)


def test_both_counters_find_a_plant() -> None:
    tree = ast.parse(
        "class ToldOf:\n  wish: int\n  def _met(self, whom): self.last_look = 1\n  def told_by(self): ..."
    )
    assert private_words(tree) == {"told": 2, "wish": 1, "met": 1, "whom": 1, "look": 1}
    assert unclear_functions(tree) == {"met": 1}


def test_names_use_no_private_words() -> None:
    found = sum((private_words(ast.parse(file.read_text())) for file in _files()), Counter[str]())
    more = {word: count for word, count in found.items() if count > WORDS_LEFT.get(word, 0)}
    assert not more, f"choose the field's word; all that are left: {dict(sorted(found.items()))}"


def test_no_function_is_named_by_a_preposition_or_a_participle() -> None:
    found = sum((unclear_functions(ast.parse(file.read_text())) for file in _files()), Counter[str]())
    more = {name: count for name, count in found.items() if count > NAMES_LEFT.get(name, 0)}
    assert not more, f"name what it returns or does; all that are left: {dict(sorted(found.items()))}"


def constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each constant of a module that is a number or a text."""
    for node in tree.body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and target.id.strip("_").isupper() and _is_literal(value):
                yield target.id.strip("_"), ast.unparse(value)


def _is_literal(value: ast.AST | None) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_literal(value.left) and _is_literal(value.right)
    return (
        isinstance(value, ast.Constant) and isinstance(value.value, int | float | str) and value.value is not False
    )


def test_a_constant_has_one_home() -> None:
    planted = ast.parse("_GAP: Final = 2\nHEAD = 1 << 20\nLOW, HIGH = 1, 2\nname = 3\nROWS = [4]")
    assert dict(constants(planted)) == {"GAP": "2", "HEAD": "1 << 20"}
    places: dict[tuple[str, str], set[str]] = {}
    for file in _files():
        for constant in constants(ast.parse(file.read_text())):
            places.setdefault(constant, set()).add(str(file.relative_to(REPOSITORY)))
    twice = {name: sorted(files) for (name, _), files in places.items() if len(files) > 1}
    assert not {name: files for name, files in twice.items() if name not in COINCIDENCES}, "one home"
