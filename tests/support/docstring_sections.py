"""Count public functions whose docstring needs Args, Returns or Raises, and those that have them.

A function needs sections where it has more than three parameters, or a parameter whose name ends in a unit
("seconds", "_bytes", "_pct"). Run `python -m tests.support.docstring_sections [PREFIX …]`; `--missing` lists the
functions that lack sections.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("llmtop", "collectors", "tui")
MAX_PARAMETERS = 3
_UNIT = re.compile(r"(?:^|_)(?:seconds|s|ms|us|ns|bytes|pct|watts|mhz|hz|celsius)$")
_SECTION = re.compile(r"^ *(?:Args|Returns|Raises|Yields|Attributes):$", re.MULTILINE)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_functions(body: list[ast.stmt]) -> Iterator[Function]:
    """Yield the public functions of a module body and the public methods of its public classes."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node.body)
        elif isinstance(node, Function) and (not node.name.startswith("_") or node.name == "__init__"):
            yield node


def needs_sections(function: Function) -> bool:
    """Return True if the function has more than three parameters or one with a unit in its name."""
    if any(isinstance(one, ast.Call) and "command" in ast.unparse(one.func) for one in function.decorator_list):
        return False  # the docstring of a click command is its --help
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    names = [one.arg for one in every if one.arg not in {"self", "cls"}]
    return len(names) > MAX_PARAMETERS or any(_UNIT.search(name) for name in names)


def has_sections(function: Function) -> bool:
    """Return True if the docstring has an Args, Returns, Yields or Raises section."""
    return bool(_SECTION.search(ast.get_docstring(function) or ""))


def main(arguments: list[str]) -> None:
    """Print one line per package: functions that have sections, functions that need them."""
    prefixes = tuple(one for one in arguments if not one.startswith("--"))
    needed: Counter[str] = Counter()
    present: Counter[str] = Counter()
    for path in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT)
        if prefixes and not str(name).startswith(prefixes):
            continue
        package = "/".join(name.parts[:2])
        for function in public_functions(ast.parse(path.read_text(encoding="utf-8")).body):
            if not needs_sections(function):
                continue
            needed[package] += 1
            present[package] += has_sections(function)
            if "--missing" in arguments and not has_sections(function):
                print(f"{name}:{function.lineno} {function.name}")
    for package, count in sorted(needed.items()):
        print(f"{package}: {present[package]} of {count}")
    print(f"total: {present.total()} of {needed.total()}")


if __name__ == "__main__":
    main(sys.argv[1:])
