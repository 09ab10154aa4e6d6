"""Detects whether a thread is in a call that waits for its GPU: `.item()`, a copy to the host, the truth of a
tensor.

The innermost Python frame shows what is called: the call itself is C. While it waits it holds no lock of Python's,
so a sampler gets the lock at once. A sample that had to wait for the lock has found a thread that ran Python,
whatever it is in when the lock is released (`StackSampler`).
"""

from __future__ import annotations

import dis
import re
from types import CodeType
from typing import Final

from llmtop.instrument.serve.stacks.source_lines import columns, source

_NAMES: Final = frozenset(
    {
        *("item", "tolist", "cpu", "numpy", "synchronize", "nonzero", "is_nonzero"),
        *("_cuda_synchronize", "float", "int", "bool"),
    }
)
"""Calls at which the host waits for a result. Results of host numbers are ready at once."""
_COPIES: Final = frozenset({"to", "cuda"})
"""Calls that wait unless non_blocking is given: a copy of pageable memory."""
_IN_A_LINE: Final = re.compile(r"\.(?:item|tolist|cpu|numpy|synchronize|nonzero|is_nonzero)\(|\b(?:float|bool)\(")
"""Result where it is unknown which call of a line runs."""
_TRUTH: Final = re.compile(r"TO_BOOL|UNARY_NOT|(?:POP_JUMP|JUMP)_(?!BACKWARD).*IF_(?:TRUE|FALSE).*")
"""Instructions that ask for the truth of a value. Those that jump back may give Python's lock up by themselves."""
_LAST_NAME: Final = re.compile(r"(\w+)\s*\Z")
_LONGEST: Final = 2000
"""Characters of a call that are parsed."""
_MOST: Final = 512


class WaitingCalls:
    """Remembers which instructions of which code wait."""

    def __init__(self) -> None:
        self._known: dict[tuple[CodeType, int], bool] = {}

    def waits(self, code: CodeType, instruction: int, line: int) -> bool:
        """Return True if a thread waits for a GPU that has given up Python's lock there, in its innermost
        frame."""
        key = code, instruction
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            known = self._known[key] = _waits(code, instruction, line)
        return known


def _waits(code: CodeType, instruction: int, line: int) -> bool:
    raw = code.co_code
    if not 0 <= instruction < len(raw):
        return False
    name = dis.opname[raw[instruction]]
    if _TRUTH.fullmatch(name):
        return True
    if "CALL" not in name:
        return False
    place = columns(code, instruction, line)
    text = source(code.co_filename, line, place)[-_LONGEST:]
    if place == slice(None):
        return bool(_IN_A_LINE.search(text))
    called, given = _call(text)
    if called in _COPIES:
        return "non_blocking" not in given or "non_blocking=False" in given
    return called in _NAMES


def _call(text: str) -> tuple[str, str]:
    """Return the name of a call without its object, and its arguments; "" if the text is no call.

    Not by Python's parser: it emits warnings, which would reach the script's filters.
    """
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if depth == 0:
            break
    if depth or not text.endswith(")"):
        return "", ""
    name = _LAST_NAME.search(text, 0, place)
    return (name[1] if name else ""), text[place + 1 : -1]
