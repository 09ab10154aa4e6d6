"""Names that stand for one thing, and functions that one can hold in the head."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.shape

PACKAGES = ("llmtop", "collectors", "tui")
ONE_A_FOLDER = ("__init__.py", "command.py", "document.py", "engine.py", "model.py", "source.py", "text.py")
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
    "between", "both", "by", "done", "for", "found", "from", "given", "gone", "hear", "heard", "into", "kept",
    "known", "made", "meet", "met", "news", "of", "off", "on", "out", "over", "said", "say", "seen", "shown",
    "speak", "taken", "tell", "to", "told", "under", "until", "when", "where", "while", "who", "whom", "why",
    "with", "within", "without",
})  # fmt: skip
"""Prepositions, participles, question words and verbs of speech: no whole name of a function."""
CONTRACTS = frozenset({
    ("collectors/prometheus/cluster_view.py", "grave"),  # llmtop cluster --json
    ("llmtop/compare/model.py", "told"),  # a comparison as JSON
    ("llmtop/config.py", "look_at_loaders"),  # a key of config.toml
    ("llmtop/instrument/guest/sanitize.py", "kept"),  # llmtop of another version may call the launcher
    ("llmtop/launch/inject/_llmtop_watch.py", "kept"),
    ("llmtop/model/snapshot.py", "looks"),  # snapshots and recordings
    ("llmtop/protocol/wire.py", "looks"),  # messages of a training
    ("llmtop/report/device_time.py", "told_by"),  # report.json, as the three below
    ("llmtop/report/environment.py", "told"),
    ("llmtop/report/model.py", "makeup"),
    ("llmtop/report/model.py", "undisturbed_seconds"),
})  # fmt: skip
"""File and name: encoded, configured, or called by another version. They stay, and count in none of the lists."""
SENTENCE_WORDS = frozenset({
    "anybody", "deaf", "dear", "grave", "gravest", "gravity", "heard", "hears", "nobody", "obey", "obeys",
    "somebody", "told", "undisturbed", "whoever", "whom",
})  # fmt: skip
"""Words without a field's meaning in comments and docstrings; STYLE: name the actor, no riddles."""
SENTENCE_WORDS_LEFT: dict[str, int] = {
    "nobody": 2, "told": 15, "undisturbed": 6, "whoever": 1, "whom": 4,
}  # fmt: skip
"""How many comments and docstrings still have such a word: only ever lowered."""
WORDS_LEFT: dict[str, int] = {"makeup": 1, "undisturbed": 1}
"""How many names still have such a word: only ever lowered."""
NAMES_LEFT: dict[str, int] = {"at": 3, "both": 1, "kept": 1, "of": 2, "shown": 1}
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


def _parsed() -> Iterator[tuple[str, ast.Module]]:
    """Return each file's path below the repository, and its code without the names of `CONTRACTS`."""
    for file in _files():
        name = str(file.relative_to(REPOSITORY))
        tree = ast.parse(file.read_text())
        kept = {word for place, word in CONTRACTS if place == name}
        yield name, _WithoutNames(kept).visit(tree) if kept else tree


class _WithoutNames(ast.NodeTransformer):
    """Removes the functions and annotated fields of these names."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        return None if node.name in self._names else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        is_contract = isinstance(node.target, ast.Name) and node.target.id in self._names
        return None if is_contract else self.generic_visit(node)


def sentence_words(text: str) -> Counter[str]:
    """Count the comments and docstrings of a module that have such a word; other strings do not count."""
    tree = ast.parse(text)
    bodies = (body for node in ast.walk(tree) for body in (getattr(node, "body", ()),) if isinstance(body, list))
    constants = (one.value for body in bodies for one in body if isinstance(one, ast.Expr))
    documents = [one.value for one in constants if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return Counter(
        word
        for sentence in (*documents, *comments)
        for word in SENTENCE_WORDS & {one.lower() for one in re.findall(r"[A-Za-z]+", sentence)}
    )


def test_the_counter_of_sentences_finds_comments_and_docstrings_alone() -> None:
    text = '"""Who heard it."""\nA = 1  # told to whom\n"""Dear calls."""\nB = "told"\nwhom = "nobody"\n'
    assert sentence_words(text) == {"heard": 1, "told": 1, "whom": 1, "dear": 1}


def test_comments_and_docstrings_use_no_private_words() -> None:
    found = sum((sentence_words(file.read_text()) for file in _files()), Counter[str]())
    left = dict(sorted(found.items()))
    assert not found - Counter(SENTENCE_WORDS_LEFT), f"name the actor and the fact; all that are left: {left}"


def test_contracts_are_names_that_exist() -> None:
    trees = {name: ast.parse((REPOSITORY / name).read_text()) for name, _ in CONTRACTS}
    assert not [(name, word) for name, word in CONTRACTS if word not in _named(trees[name])]


def test_names_use_no_private_words() -> None:
    found = sum((private_words(tree) for _, tree in _parsed()), Counter[str]())
    assert not found - Counter(WORDS_LEFT), (
        f"choose the field's word; all that are left: {dict(sorted(found.items()))}"
    )


def test_no_function_is_named_by_a_preposition_or_a_participle() -> None:
    found = sum((unclear_functions(tree) for _, tree in _parsed()), Counter[str]())
    assert not found - Counter(NAMES_LEFT), f"name what it returns or does: {dict(sorted(found.items()))}"


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
