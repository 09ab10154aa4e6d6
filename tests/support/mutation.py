"""Small changes of a module's code, each of which a test must notice: which there are, and their text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "is": "is not", "is not": "is", "in": "not in", "not in": "in",
}  # fmt: skip
ARITHMETIC = {
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "//": "*",
    "%": "*",
    "<<": ">>",
    ">>": "<<",
    "&": "|",
    "|": "&",
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
TEXTS = ast.JoinedStr | ast.Raise | ast.Assert | ast.Import | ast.ImportFrom
"""What no mutant changes: sentences for people, and what a module is made of."""


@dataclass(frozen=True)
class Mutant:
    """One change of one line."""

    path: str
    """Below the repository."""
    line: int
    """Counts from 1."""
    begin: int
    """Offset in the line's UTF-8 bytes."""
    end: int
    before: str
    after: str
    text: str
    """The line without its indent."""

    @property
    def key(self) -> str:
        """The mutant without its line number, so that it is known again when lines before it change."""
        return f"{self.path}: {self.text} [{self.before} -> {self.after}]"

    def apply(self, source: str) -> str:
        """Return the module's source with this change.

        Raises:
            ValueError: the source is not that of which the mutant was made.
        """
        lines = source.encode().split(b"\n")
        line = lines[self.line - 1]
        if line[self.begin : self.end] != self.before.encode():
            raise ValueError(f"{self.path}:{self.line} has no {self.before!r} at {self.begin}")
        lines[self.line - 1] = line[: self.begin] + self.after.encode() + line[self.end :]
        return b"\n".join(lines).decode()

    def compiles(self, source: str) -> bool:
        """Return whether the changed module is still Python."""
        try:
            compile(self.apply(source), self.path, "exec", dont_inherit=True)
        except SyntaxError:
            return False
        return True


def mutants(path: str, source: str) -> Iterator[Mutant]:
    """Yield the mutants of a module in the order of its code; a few do not compile.

    Args:
        path: of the module below the repository.
        source: its code.
    """
    lines = source.encode().split(b"\n")
    for line, begin, end, after in sorted(set(_edits(ast.parse(source), lines))):
        text = lines[line - 1]
        yield Mutant(path, line, begin, end, text[begin:end].decode(), after, text.strip().decode())


Edit = tuple[int, int, int, str]
"""Line, first and last offset, and the new text."""


def _edits(node: ast.AST, lines: list[bytes]) -> Iterator[Edit]:
    if isinstance(node, TEXTS) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        return
    if isinstance(node, ast.keyword) and node.arg in ("strict", "kw_only", "gc"):
        return  # of zip, an assertion; of a Struct, what calls may look like, and how often garbage is looked for
    yield from _own_edits(node, lines)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue  # what a type checker reads
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _edits(child, lines)


def _own_edits(node: ast.AST, lines: list[bytes]) -> Iterator[Edit]:
    if isinstance(node, ast.Compare):
        yield from _between(node.left, node.comparators[0], COMPARISONS, lines)
    elif isinstance(node, ast.BoolOp):
        yield from _between(node.values[0], node.values[1], {"and": "or", "or": "and"}, lines)
    elif isinstance(node, ast.BinOp) and not any(_is_text(side) for side in (node.left, node.right)):
        yield from _between(node.left, node.right, ARITHMETIC, lines)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.lineno, node.col_offset, node.col_offset + len("not "), ""
    elif isinstance(node, ast.Constant):
        yield from _constant(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        yield node.lineno, node.col_offset, node.func.end_col_offset or 0, CALLS[node.func.id]
    elif isinstance(node, ast.Expr | ast.Return | ast.AugAssign | ast.Break | ast.Continue):
        yield from _statement(node, lines)
    if isinstance(node, ast.If | ast.While | ast.IfExp) and node.test.lineno == node.test.end_lineno:
        segment = lines[node.test.lineno - 1][node.test.col_offset : node.test.end_col_offset].decode()
        yield node.test.lineno, node.test.col_offset, node.test.end_col_offset or 0, f"(not ({segment}))"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _between(left: ast.expr, right: ast.expr, others: dict[str, str], lines: list[bytes]) -> Iterator[Edit]:
    """Replace the operator between two operands of one line."""
    if left.end_lineno != right.lineno:
        return
    start = left.end_col_offset or 0
    text = lines[right.lineno - 1][start : right.col_offset].decode()
    found = re.fullmatch(r"[\s)]*(\S+(?: not)?)[\s(]*", text)
    if found and (after := others.get(found[1])):
        yield right.lineno, start + found.start(1), start + found.end(1), after


def _constant(node: ast.Constant) -> Iterator[Edit]:
    if isinstance(node.value, bool):
        after = str(not node.value)
    elif isinstance(node.value, int):
        after = str(node.value + 1)
    elif isinstance(node.value, float):
        after = repr(node.value * 2 if node.value else 1.0)
    else:
        return
    yield node.lineno, node.col_offset, node.end_col_offset or 0, after


def _statement(
    node: ast.Expr | ast.Return | ast.AugAssign | ast.Break | ast.Continue, lines: list[bytes]
) -> Iterator[Edit]:
    if node.lineno != node.end_lineno:
        return
    place = (node.lineno, node.col_offset, node.end_col_offset or 0)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield *place, "pass"
    elif isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield *place, "return None"
    elif isinstance(node, ast.AugAssign):
        yield from _between(node.target, node.value, {"+=": "-=", "-=": "+=", "|=": "&=", "*=": "/="}, lines)
    elif isinstance(node, ast.Break):
        yield *place, "continue"
    elif isinstance(node, ast.Continue):
        yield *place, "break"
