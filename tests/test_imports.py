"""No circle of imports between files: late ones and those for types alone counted too.

import-linter holds the floors between packages; it does not see what stands in a circle inside one. Two files that
know each other are one file in two places: neither can be read, tried or replaced alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY

PACKAGES = ("llmtop", "collectors", "tui")


def _modules(root: Path) -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imported(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            inside = [f"{node.module}.{name.name}" for name in node.names]
            yield from (name for name in inside if name in modules)
            if any(name not in modules for name in inside):
                yield node.module


def circles(root: Path) -> list[set[str]]:
    """The groups of modules that reach each other, by the imports written in the files under `root`."""
    modules = _modules(root)
    edges = {name: set(_imported(path, modules)) - {name} for name, path in modules.items()}
    return [group for group in _strongly_connected(edges) if len(group) > 1]


def _strongly_connected(edges: dict[str, set[str]]) -> list[set[str]]:
    """By what each reaches and is reached from: the graph is small."""
    reach: dict[str, set[str]] = {}
    for start in edges:
        seen: set[str] = set()
        stack = [start]
        while stack:
            for there in edges[stack.pop()] - seen:
                seen.add(there)
                stack.append(there)
        reach[start] = seen
    groups: list[set[str]] = []
    for name in edges:
        if not any(name in group for group in groups):
            groups.append({name} | {other for other in reach[name] if name in reach[other]})
    return groups


def test_no_file_imports_what_imports_it() -> None:
    assert circles(REPOSITORY) == []


@pytest.mark.parametrize(
    "second", ["import llmtop.a", "def f():\n    from llmtop import a", "from llmtop.a import x"]
)
def test_a_circle_is_found(tmp_path: Path, second: str) -> None:
    package = tmp_path / "llmtop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from llmtop.b import y\nx = 1\n")
    (package / "b.py").write_text(second + "\n")
    assert circles(tmp_path) == [{"llmtop.a", "llmtop.b"}]


def _floors(document: str, begins: str, ends: str) -> list[list[str]]:
    """The rows between two marks of a document, each as the modules that stand side by side on it."""
    block = (REPOSITORY / document).read_text().partition(begins)[2].partition(ends)[0]
    return [re.findall(r"[a-z_][\w.]+", row) for row in block.splitlines() if row.strip()]


def test_the_floors_that_are_held_are_those_of_the_design_and_hold_every_module() -> None:
    held = _floors("pyproject.toml", "layers = [\n", "]\n")
    assert held == _floors("docs/design.md", "```\n", "```\n")
    own = {f"llmtop.{path.stem}" for path in (REPOSITORY / "llmtop").iterdir() if _is_module(path)}
    assert {name for floor in held for name in floor} == own | {"tui", "collectors"}


def _is_module(path: Path) -> bool:
    if path.is_dir():
        return (path / "__init__.py").is_file()
    return path.suffix == ".py" and not path.stem.startswith("__")
