"""Collecting the tests imports no large library: each of the workers of pytest does it, and would take seconds."""

from __future__ import annotations

import ast

import pytest

from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.shape

LARGE = {"torch", "transformers", "lightning", "accelerate", "jax", "mcp", "pandas", "scipy"}


def imported_at_once(tree: ast.Module) -> set[str]:
    """Return the packages that importing a module imports, by statements or by pytest.importorskip."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found.update(one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        call = getattr(node, "value", None)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.importorskip":
            found.add(ast.literal_eval(call.args[0]).partition(".")[0])
    return found


def test_no_module_of_tests_imports_a_large_library_when_it_is_collected() -> None:
    files = [*(REPOSITORY / "tests").rglob("test_*.py"), *(REPOSITORY / "tests").rglob("conftest.py")]
    assert len(files) > 500
    wrong = {
        f"{path.relative_to(REPOSITORY)}: {', '.join(names)}"
        for path in files
        if (names := imported_at_once(ast.parse(path.read_text())) & LARGE)
    }
    assert not wrong


@pytest.mark.parametrize(
    ("text", "packages"),
    [
        ("import torch.nn", {"torch"}),
        ("from jax import numpy", {"jax"}),
        ("torch = pytest.importorskip('torch')", {"torch"}),
        ("def f():\n    import torch", set()),
    ],
)
def test_imports_in_functions_do_not_count(text: str, packages: set[str]) -> None:
    assert imported_at_once(ast.parse(text)) == packages
