"""No circle of imports between files or between folders.

Late imports, imports for types and module names in strings count too. import-linter holds the floors between
packages; it does not see a circle inside one. Two files that know each other are one file in two places: neither
can be read, tried or replaced alone. The same holds for two folders.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.shape

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
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]
            if name in modules and modules[name].name != "__init__.py":
                yield name


def _edges(root: Path) -> tuple[dict[str, Path], dict[str, set[str]]]:
    modules = _modules(root)
    return modules, {name: set(_imported(path, modules)) - {name} for name, path in modules.items()}


def circles(root: Path) -> list[set[str]]:
    """The groups of modules that reach each other, by the imports written in the files under `root`."""
    return [group for group in _strongly_connected(_edges(root)[1]) if len(group) > 1]


def folder_circles(root: Path) -> list[set[str]]:
    """The groups of folders that reach each other. A module directly in llmtop/ counts as a folder of its own."""
    modules, edges = _edges(root)

    def folder(name: str) -> str:
        parent = name.rpartition(".")[0]
        if name == "llmtop":
            return "llmtop/__init__.py"
        return name if modules[name].name == "__init__.py" or parent == "llmtop" else parent

    between: dict[str, set[str]] = {folder(name): set() for name in modules}
    for name, imported in edges.items():
        between[folder(name)] |= {folder(other) for other in imported} - {folder(name)}
    return [group for group in _strongly_connected(between) if len(group) > 1]


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


def test_no_folder_imports_what_imports_it() -> None:
    assert folder_circles(REPOSITORY) == []


@pytest.mark.parametrize(
    "second",
    [
        "import llmtop.a",
        "def f():\n    from llmtop import a",
        "from llmtop.a import x",
        "def f():\n    import sys\n    return sys.modules.get('llmtop.a')",
    ],
)
def test_a_circle_is_found(tmp_path: Path, second: str) -> None:
    package = tmp_path / "llmtop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from llmtop.b import y\nx = 1\n")
    (package / "b.py").write_text(second + "\n")
    assert circles(tmp_path) == [{"llmtop.a", "llmtop.b"}]


def test_a_circle_of_folders_is_found_where_no_two_files_form_one(tmp_path: Path) -> None:
    for folder, name, text in (
        ("upper", "a", "from llmtop.lower.b import y"), ("upper", "c", ""),
        ("lower", "b", "import llmtop.upper.c"),
    ):  # fmt: skip
        package = tmp_path / "llmtop" / folder
        package.mkdir(parents=True, exist_ok=True)
        (package / f"{name}.py").write_text(text + "\n")
    assert circles(tmp_path) == []
    assert folder_circles(tmp_path) == [{"llmtop.upper", "llmtop.lower"}]


def test_folders_and_files_stay_small() -> None:
    files = list(_modules(REPOSITORY).values())
    lines = {path: len(path.read_text().splitlines()) for path in files}
    assert {path.name for path, count in lines.items() if count > LONGEST_FILE} == set()
    folders = [path.parent for path in files if path.name != "__init__.py"]
    assert {folder.name for folder in folders if folders.count(folder) > LARGEST_FOLDER} == set()


LONGEST_FILE = 660
LARGEST_FOLDER = 24


def _floors(document: str, begins: str, ends: str) -> list[list[str]]:
    """The rows between two marks of a document, each as the modules that stand side by side on it."""
    block = (REPOSITORY / document).read_text().partition(begins)[2].partition(ends)[0]
    return [re.findall(r"[a-z_][\w.]+", row) for row in block.splitlines() if row.strip()]


def test_the_floors_that_are_held_are_those_of_the_design_and_hold_every_module() -> None:
    held = _floors("pyproject.toml", "layers = [\n", "]\n")
    assert held == _floors("docs/design.md", "```text\n", "```\n")
    own = {f"llmtop.{path.stem}" for path in (REPOSITORY / "llmtop").iterdir() if _is_module(path)}
    assert {name for floor in held for name in floor} == own | {"tui", "collectors"}


def _is_module(path: Path) -> bool:
    if path.is_dir():
        return (path / "__init__.py").is_file()
    return path.suffix == ".py" and not path.stem.startswith("__")
