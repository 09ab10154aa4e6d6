"""Every sentence that a user may read, with examples filled in: python -m tests.support.words [KIND…]

Sentences are read from the source: strings in texts of alerts and rules, in `raise` (errors), in the output of
`llmtop doctor`, in the help of commands, and on screens. What an f-string fills in is replaced by an example.
`tests/test_words.py` holds them against the rules of CONTRIBUTING.md, section "Words".
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Final, Literal, NamedTuple, get_args

from tests.support.processes import REPOSITORY

Kind = Literal["alert", "doctor", "error", "help", "screen"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

ALERTS: Final = (
    "llmtop/rules",
    "llmtop/loading/words.py",
    "llmtop/model/bottlenecks.py",
    "llmtop/hardware/gpu_errors.py",
)
DOCTOR: Final = ("llmtop/cli/doctor",)
HELP: Final = ("llmtop/cli", "llmtop/__main__.py")
EXAMPLES: Final[tuple[tuple[str, str], ...]] = (
    (r"percent|share|_pct|PCT", "83 %"),
    (r"duration|seconds|SECONDS|age|ago|elapsed", "57.1 ms"),
    (r"fmt\.rate|\brate\(|BYTES_PER_S", "1.30 GB/s"),
    (r"fmt\.size|\bsize\(|bytes", "16.6 GiB"),
    (r"watts|_power_text", "671 of 700 W"),
    (r"counted|_waiting", "3 ranks"),
    (r"temperature|heat", "61 °C"),
    (r"\.clock\b", "GPU"),
    (r"hang\.|stuck\.|group", "all_reduce #1979"),
    (r"clock", "1455 of 1980 MHz"),
    (r"rank_name", "Rank 5 (pid 4711, GPU 5)"),
    (r"where|location", " (pid 4711, GPU 5)"),
    (r"label|\.name\b|who\b|whom", "rank 5"),
    (r"step_noun", "step"),
    (r"pid", "4711"),
    (r"path|folder|file|parent|directory|socket", "run/trace.json"),
    (r"url|URL|EXAMPLE", "http://prometheus:9090"),
    (r"error|reason|refus|why|strerror", "Permission denied"),
    (r"command|CMD|tool|argv", "python train.py"),
    (r"VARIABLE|variable", "LLMTOP_VARIABLE"),
    (r"engine", "torch.profiler"),
    (r"host", "node1"),
    (r"unit|step|count|number|len|steps", "12"),
)
"""What an expression in an f-string matches, and the example of it; the first that matches."""


class Sentence(NamedTuple):
    """A sentence with examples filled in."""

    kind: Kind
    place: str
    """File and line."""
    text: str

    @property
    def words(self) -> int:
        """The words of its longest part between full stops, semicolons and colons."""
        parts = re.split(r"[.;:!?](?:\s|$)|\n", self.text)
        return max(len(part.split()) for part in parts)


@cache
def sentences() -> list[Sentence]:
    """All sentences, by kind and place."""
    found = {*_alerts(), *_doctor(), *_errors(), *_help(), *_screens()}
    return sorted(found, key=lambda one: (KINDS.index(one.kind), one.place.rpartition(":")[0], one.text))


def _files(*places: str) -> Iterator[tuple[str, ast.Module]]:
    for place in places:
        path = REPOSITORY / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield file.relative_to(REPOSITORY).as_posix(), ast.parse(file.read_text())


def _alerts() -> Iterator[Sentence]:
    for place, tree in _files(*ALERTS):
        yield from _texts("alert", place, tree)


def _doctor() -> Iterator[Sentence]:
    for place, tree in _files(*DOCTOR):
        yield from (one for one in _texts("doctor", place, tree) if one not in set(_calls("help", place, tree)))
    for place, tree in _files("llmtop/capture", "llmtop/launch", "llmtop/ncu"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _called(node) in ("Check", "Refusal"):
                yield from _texts("doctor", place, node)


def _errors() -> Iterator[Sentence]:
    for place, tree in _files("llmtop", "collectors", "tui"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and not _is_internal(node.exc):
                yield from _texts("error", place, node.exc)


def _is_internal(call: ast.Call) -> bool:
    """Whether no user sees it: an error for the caller in the code."""
    return _called(call) in (
        "AssertionError",
        "TypeError",
        "KeyError",
        "NotImplementedError",
        "RuntimeError",
        "ValueError",
    )


def _help() -> Iterator[Sentence]:
    for place, tree in _files(*HELP):
        yield from _calls("help", place, tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and any(
                "command" in ast.unparse(one) for one in node.decorator_list
            ):
                text = (ast.get_docstring(node) or "").split("\n\n")
                yield from (
                    Sentence("help", f"{place}:{node.lineno}", " ".join(one.split())) for one in text if one
                )
            if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "COMMANDS":
                yield from _texts("help", place, node)


def _calls(kind: Kind, place: str, tree: ast.AST) -> Iterator[Sentence]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in ("help", "short_help", "epilog"):
            yield from _texts(kind, place, node.value)


def _screens() -> Iterator[Sentence]:
    for place, tree in _files("tui"):
        raised = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise) for part in ast.walk(node)}
        for part in _strings(tree):
            if id(part) not in raised:
                yield from _texts("screen", place, part)


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _texts(kind: Kind, place: str, node: ast.AST) -> Iterator[Sentence]:
    for part in _strings(node):
        text = " ".join(filled_in(part).split())
        if sum(bool(re.search(r"[^\W\d_]{2}", word)) for word in text.split()) >= 3 and not re.match(
            r"https?://\S+$|[\w./-]+\.(py|json|tcss)|\w+ \{ |\w+ \{ ", text
        ):
            yield Sentence(kind, f"{place}:{getattr(part, 'lineno', 0)}", text)


def _strings(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr | ast.BinOp]:
    """The strings of the code, each as a whole; without docstrings, patterns and annotations."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
        return
    if isinstance(node, ast.Compare | ast.Assert | ast.arg):
        return  # held against something, not written
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _strings(child)


def filled_in(node: ast.AST) -> str:
    """Return the text of a string with examples for what it fills in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(filled_in, node.values))
    if isinstance(node, ast.FormattedValue):
        return "12" if node.format_spec is not None else filled_in(node.value)
    if isinstance(node, ast.IfExp):
        return filled_in(node.body)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return filled_in(node.left) + filled_in(node.right)
    text = ast.unparse(node)
    return next((example for pattern, example in EXAMPLES if re.search(pattern, text)), "NAME")


def main(kinds: list[str]) -> None:
    """Print all sentences, or those of some kinds."""
    for one in sentences():
        if not kinds or one.kind in kinds:
            print(f"{one.kind:<7} {one.place:<52} {one.text}")


if __name__ == "__main__":
    main(sys.argv[1:])
