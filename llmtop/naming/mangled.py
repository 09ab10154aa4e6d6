"""Names that a profiler did not demangle: what of them is read without a demangler (Itanium C++ ABI)."""

from __future__ import annotations

import re
from typing import Final

_BEGIN: Final = re.compile(r"_ZN?(?=\d)")
_LENGTH: Final = re.compile(r"\d{1,4}")
_READ: Final = 4000
_NO_NAME: Final = re.compile(r"L[a-z]n?\d+E|[ST][0-9A-Z]*_")
"""A literal (Li4E) or a substitution (S0_, T_), whose digits are no length of a name."""


def mangled_path(name: str) -> list[str]:
    """Return the namespaces and the function of a mangled name; empty for any other.

    Args:
        name: "_ZN5cudnn25bn_fw_tr_1C11_kernel_NCHWI…".
    """
    begin = _BEGIN.match(name)
    path: list[str] = []
    place = begin.end() if begin is not None else len(name)
    while (length := _LENGTH.match(name, place)) is not None:
        place = length.end() + int(length[0])
        if place > len(name) or not int(length[0]):
            return []
        path.append(name[length.end() : place])
    return path


def mangled_words(name: str) -> list[str]:
    """Return all identifiers of a mangled name in order: its path, then those of its arguments."""
    words, place = [], 0
    name = name[:_READ]
    while place < len(name):
        skipped = _NO_NAME.match(name, place)
        length = _LENGTH.match(name, place)
        end = place + 1
        if skipped is not None:
            end = skipped.end()
        elif length is not None:
            end = length.end() + int(length[0])
            word = name[length.end() : end]
            is_word = end <= len(name) and len(word) > 1 and word.isidentifier()
            words += [word] if is_word else []
            end = end if is_word else length.end()
        place = end
    return words
