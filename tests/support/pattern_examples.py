"""Random examples of a regular expression, drawn uniformly and the same for the same seed."""

from __future__ import annotations

import random
import string
import sys
from typing import Any

if sys.version_info >= (3, 11):
    from re import _parser as sre_parse  # type: ignore[attr-defined]
else:
    import sre_parse

_PRINTABLE = string.ascii_letters + string.digits + "!#%*+,-.?@_~"
_CATEGORIES = {
    "CATEGORY_DIGIT": string.digits,
    "CATEGORY_WORD": string.ascii_letters + string.digits + "_",
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": _PRINTABLE,
}
_MOST_REPEATS = 12
"""More repeats than the least, where the pattern sets no limit or a higher one."""


def example(pattern: str, drawn: random.Random) -> str:
    """Return a text that the pattern describes; what only looks around (`(?<!x)`, `\\b`) is left out."""
    return _text(sre_parse.parse(pattern), drawn)


def _text(tree: Any, drawn: random.Random) -> str:
    return "".join(_part(str(name), value, drawn) for name, value in tree)


def _part(name: str, value: Any, drawn: random.Random) -> str:
    if name == "LITERAL":
        return chr(value)
    if name == "IN":
        return drawn.choice(_alphabet(value))
    if name == "ANY":
        return drawn.choice(_PRINTABLE)
    if name == "NOT_LITERAL":
        return drawn.choice(_PRINTABLE.replace(chr(value), ""))
    if name in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most, tree = value
        times = drawn.randint(least, min(int(most), least + _MOST_REPEATS))
        return "".join(_text(tree, drawn) for _ in range(times))
    if name == "SUBPATTERN":
        return _text(value[3], drawn)
    if name == "BRANCH":
        return _text(drawn.choice(value[1]), drawn)
    return ""


def _alphabet(members: Any) -> str:
    found = ""
    negated = False
    for member, value in members:
        name = str(member)
        if name == "NEGATE":
            negated = True
        elif name == "LITERAL":
            found += chr(value)
        elif name == "RANGE":
            found += "".join(map(chr, range(value[0], value[1] + 1)))
        else:
            found += _CATEGORIES[str(value)]
    return "".join(c for c in _PRINTABLE if c not in found) if negated else found
