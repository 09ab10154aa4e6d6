"""Whether a thread stands in a call that waits for its GPU: `.item()`, a copy to the host, the truth of a tensor.

It is told from the innermost Python frame, from what is called there: the call itself is C. While it waits it
holds no lock of Python's, so whoever looks then gets the lock at once; a look that had to wait for the lock has
found a thread that ran Python, whatever it stands in by the time that the lock is given up (`Looks`).
"""

from __future__ import annotations

import ast
import dis
import re
from types import CodeType, FrameType
from typing import Final

from llmtop.instrument.serve.source_lines import columns, source

_NAMES: Final = frozenset(
    {
        *("item", "tolist", "cpu", "numpy", "synchronize", "nonzero", "is_nonzero"),
        *("_cuda_synchronize", "float", "int", "bool"),
    }
)
"""What is called where the host waits for a result, also of numbers: those of the host are there at once."""
_COPIES: Final = frozenset({"to", "cuda"})
"""What waits as well, unless it says that it does not: a copy of pageable memory."""
_IN_A_LINE: Final = re.compile(r"\.(?:item|tolist|cpu|numpy|synchronize|nonzero|is_nonzero)\(|\b(?:float|bool)\(")
"""Where it cannot be told which call of a line runs."""
_TRUTH: Final = re.compile(r"TO_BOOL|UNARY_NOT|(?:POP_JUMP|JUMP)_(?!BACKWARD).*IF_(?:TRUE|FALSE).*")
"""Instructions that ask for the truth of a value. Those that jump back may give Python's lock up by themselves."""
_MOST: Final = 512


class WaitingCalls:
    """Remembers which instructions of which code wait."""

    def __init__(self) -> None:
        self._known: dict[tuple[CodeType, int], bool] = {}

    def waits(self, frame: FrameType) -> bool:
        """Whether the innermost frame of a thread, which gave up Python's lock there, waits for a GPU."""
        key = frame.f_code, frame.f_lasti
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            known = self._known[key] = _waits(*key, frame.f_lineno or 0)
        return known


def _waits(code: CodeType, instruction: int, line: int) -> bool:
    if not 0 <= instruction < len(code.co_code):
        return False
    name = dis.opname[code.co_code[instruction]]
    if _TRUTH.fullmatch(name):
        return True
    if "CALL" not in name:
        return False
    place = columns(code, instruction, line)
    text = source(code.co_filename, line, place)
    try:
        called = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # more than one call, or a part of one
        return bool(_IN_A_LINE.search(text))
    return isinstance(called, ast.Call) and _is_a_wait(called)


def _is_a_wait(called: ast.Call) -> bool:
    function = called.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in _COPIES:
        return not any(_is_true(keyword.value) for keyword in called.keywords if keyword.arg == "non_blocking")
    return name in _NAMES


def _is_true(value: ast.expr) -> bool:
    return not (isinstance(value, ast.Constant) and not value.value)
