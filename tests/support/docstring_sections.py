"""Count public functions whose docstring needs Args, Returns or Raises, and those that have them.

A function needs sections where it has more than three parameters, or a parameter whose name ends in a unit
("seconds", "_bytes", "_pct"). Sections count where each entry says more than the name and type of what it
describes, each entry of Args is a parameter, and each parameter with a unit has one. Run
`python -m tests.support.docstring_sections [PREFIX …]`; `--missing` lists the functions without, and why.
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
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields):\n((?:(?: +.*)?(?:\n|$))*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\S.*(?:\n {5,}\S.*)*)", re.MULTILINE)
_NAMED_ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): ([\s\S]+)")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_]|\d+")
_NO_CONTENT = """
    a an and any are argument as be bool boolean by dict dictionary float for from given in int integer is it its
    list none number object of optional or parameter result returned str string that the this to tuple type value
    which with
"""

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


def _words(text: str) -> set[str]:
    """Return the words of a text or an identifier in lower case, without the s of a plural."""
    return {word.lower().removesuffix("s") or "s" for word in _WORD.findall(text)}


def _is_hollow(text: str, *known: str) -> bool:
    """Return True if a text holds only words of `known` and words that say nothing."""
    return not _words(text) - _words(" ".join((*known, _NO_CONTENT)))


def _parameters(function: Function) -> dict[str, str]:
    """Return the parameters by name, each with its annotation; without self and cls."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    found = {one.arg: ast.unparse(one.annotation) if one.annotation else "" for one in every if one is not None}
    return {name: annotation for name, annotation in found.items() if name not in {"self", "cls"}}


def _entries(section: str) -> Iterator[tuple[list[str], str]]:
    """Yield the names and the text of each entry of Args; an entry without a name has its first word for it."""
    for entry in _ENTRY.findall(section):
        named = _NAMED_ENTRY.fullmatch(entry)
        names, text = (named[1], named[2]) if named else (entry.split()[0], entry)
        yield [name.lstrip("*") for name in names.split(", ")], text


def stale_arguments() -> Iterator[str]:
    """Yield each name under Args that is no parameter, in all functions and methods."""
    for path in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, Function):
                section = dict(_SECTION.findall((ast.get_docstring(function) or "") + "\n")).get("Args", "")
                described = {name for names, _ in _entries(section) for name in names}
                for name in sorted(described - _parameters(function).keys()):
                    yield f"{path.relative_to(ROOT)}:{function.lineno} {function.name}: {name}"


def fault(function: Function) -> str | None:
    """Return why the sections of a docstring do not count; None where they do."""
    document = ast.get_docstring(function) or ""
    sections = dict(_SECTION.findall(document + "\n"))
    if not sections:
        return "no sections"
    parameters, described = _parameters(function), set()
    for names, text in _entries(sections.pop("Args", "")):
        unknown = [name for name in names if name not in parameters]
        if unknown:
            return f"no parameter {unknown[0]}"
        if _is_hollow(text, *names, *(parameters[name] for name in names)):
            return f"nothing said of {names[0]}"
        described |= set(names)
    missing = [name for name in parameters if _UNIT.search(name) and name not in described]
    if missing:
        return f"nothing said of {missing[0]}"
    known = ast.unparse(function.returns) if function.returns else ""
    hollow = [name for name, text in sections.items() if _is_hollow(text, known, function.name)]
    return f"nothing said in {hollow[0]}" if hollow else None


def counts(prefixes: tuple[str, ...] = ()) -> Iterator[tuple[Path, Function, str | None]]:
    """Yield the file of each function that needs sections, the function, and its fault."""
    for path in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT)
        if not prefixes or str(name).startswith(prefixes):
            for function in public_functions(ast.parse(path.read_text(encoding="utf-8")).body):
                if needs_sections(function):
                    yield name, function, fault(function)


def main(arguments: list[str]) -> None:
    """Print one line per package: functions that have sections, functions that need them."""
    prefixes = tuple(one for one in arguments if not one.startswith("--"))
    needed: Counter[str] = Counter()
    present: Counter[str] = Counter()
    for name, function, why in counts(prefixes):
        package = "/".join(name.parts[:2])
        needed[package] += 1
        present[package] += why is None
        if why is not None and "--missing" in arguments:
            print(f"{name}:{function.lineno} {function.name}: {why}")
    for package, count in sorted(needed.items()):
        print(f"{package}: {present[package]} of {count}")
    print(f"total: {present.total()} of {needed.total()}")


if __name__ == "__main__":
    main(sys.argv[1:])
