"""Calls of a line of a script, and whether a function has a yield: read from the script's file.

Libraries in C have no frames of Python (cv2, tokenizers, zlib): the innermost frame is the line that calls them.
Names are followed through imports, plain assignments and results of functions of the same file: `self.tok =
Tokenizer.from_file(...)` makes `self.tok.encode(...)` a call of tokenizers. A file that is gone, too large or
changed since gives nothing.
"""

from __future__ import annotations

import ast
from pathlib import Path

from llmtop.stacks.samples import Frame

_LARGEST_BYTES = 1 << 20
_DEEPEST = 8
"""Most assignments that are followed for one name."""


class SourceFiles:
    """The files that stacks lead to; each is read once."""

    def __init__(self, root: str = "") -> None:
        """Nothing is read yet.

        Args:
            root: where the process sees its files, where that differs from ours: "/proc/812/root".
        """
        self._root = root
        self._files: dict[str, _Source | None] = {}

    def calls(self, frame: Frame) -> tuple[str, ...]:
        """Return the calls of the line of a frame by full name, the innermost first."""
        source = self._source_of(frame.file)
        return () if source is None or frame.line is None else source.calls(frame.line)

    def is_generator(self, frame: Frame) -> bool:
        """Return True if the function of that frame has a yield, and makes no context of it."""
        source = self._source_of(frame.file)
        return source is not None and source.is_generator(frame.name.rpartition(".")[2], frame.line)

    def _source_of(self, file: str) -> _Source | None:
        if file not in self._files:
            self._files[file] = _read(self._root + file) if file.startswith("/") else None
        return self._files[file]


def _read(file: str) -> _Source | None:
    try:
        path = Path(file)
        if not path.is_file() or path.stat().st_size > _LARGEST_BYTES:
            return None
        return _Source(ast.parse(path.read_bytes()))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _Source:
    """One parsed file."""

    def __init__(self, tree: ast.Module) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, ast.expr] = {}
        self._calls: dict[int, list[ast.expr]] = {}
        self._functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        for node in ast.walk(tree):
            self._note(node)

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._add_import(node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._values.setdefault(ast.unparse(target), node.value)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._functions.append(node)
        elif isinstance(node, ast.Call):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                self._calls.setdefault(line, []).append(node.func)
        elif isinstance(node, ast.With):
            self._add_with(node)
        elif isinstance(node, ast.Subscript):
            self._calls.setdefault(node.lineno, []).append(node.value)

    def _add_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for name in node.names:
            if isinstance(node, ast.ImportFrom):
                self._names[name.asname or name.name] = f"{node.module or ''}.{name.name}"
            elif name.asname:
                self._names[name.asname] = name.name
            else:
                first = name.name.split(".")[0]
                self._names[first] = first

    def _add_with(self, node: ast.With) -> None:
        for item in node.items:
            self._calls.setdefault(item.context_expr.lineno, []).append(item.context_expr)
            if item.optional_vars is not None:
                self._values.setdefault(ast.unparse(item.optional_vars), item.context_expr)

    def calls(self, line: int) -> tuple[str, ...]:
        found = [self._full(one) for one in reversed(self._calls.get(line, ()))]
        return tuple(dict.fromkeys(name for name in found if name))

    def _full(self, node: ast.expr, depth: int = 0) -> str:
        """Return the full name of what an expression is or comes from; "" where unknown."""
        if isinstance(node, ast.Call | ast.Subscript) and depth < _DEEPEST:
            inner = node.func if isinstance(node, ast.Call) else node.value
            made = (
                self._returned_expression(inner.id)
                if isinstance(node, ast.Call) and isinstance(inner, ast.Name)
                else None
            )
            return self._full(inner if made is None else made, depth + 1)
        if not isinstance(node, ast.Name | ast.Attribute) or depth >= _DEEPEST:
            return ""
        text = ast.unparse(node)
        if text in self._names:
            return self._names[text]
        if text in self._values:
            return self._full(self._values[text], depth + 1)
        if isinstance(node, ast.Name):
            return node.id
        owner = self._full(node.value, depth + 1)
        return f"{owner}.{node.attr}" if owner else ""

    def _returned_expression(self, name: str) -> ast.expr | None:
        """Return what a function of this file returns, where it is one expression."""
        made = [function for function in self._functions if function.name == name]
        returns = [node.value for one in made[:1] for node in ast.walk(one) if isinstance(node, ast.Return)]
        return returns[0] if len(returns) == 1 else None

    def is_generator(self, name: str, line: int | None) -> bool:
        for function in self._functions:
            inside = line is None or function.lineno <= line <= (function.end_lineno or line)
            if function.name != name or not inside:
                continue
            if any("contextmanager" in ast.unparse(one) for one in function.decorator_list):
                return False
            return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
        return False
