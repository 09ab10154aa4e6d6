"""Size limits for what a coding agent gets: valid JSON that fits, with a list of what was shortened."""

from __future__ import annotations

import json
from typing import Any, Final

LARGEST_BYTES: Final = 200_000
"""Limit of one answer: some 50,000 tokens. A longer one would fill the context window of the agent that asked."""
SHORTENED: Final = "_shortened"
"""Key of an answer that was shortened: by the path of a list, how many of its items are left out."""
_KEPT_ITEMS: Final = (200, 100, 50, 20, 10, 5, 2, 1, 0)
_LONGEST_TEXT: Final = 4_000


def bounded(answer: dict[str, Any], largest: int = LARGEST_BYTES) -> dict[str, Any]:
    """Return an answer that fits.

    Args:
        answer: decoded JSON.
        largest: bytes that it may have as JSON.

    Returns:
        The same where it fits; else a copy in which each list has the same number of items at most, and
        texts end after 4,000 characters. `_shortened` says how many items each list lacks.
    """
    if _size(answer) <= largest:
        return answer
    for kept in _KEPT_ITEMS:
        left_out: dict[str, int] = {}
        short = _shorten(answer, "$", kept, left_out)
        short[SHORTENED] = left_out
        if _size(short) <= largest:
            return dict(short)
    return {SHORTENED: {"$": len(answer)}}


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, indent=2).encode())  # as the mcp package writes it


def _shorten(value: Any, path: str, kept: int, left_out: dict[str, int]) -> Any:
    if isinstance(value, dict):
        return {name: _shorten(one, f"{path}.{name}", kept, left_out) for name, one in value.items()}
    if isinstance(value, list):
        if len(value) > kept:
            key = path if len(left_out) < _KEPT_ITEMS[0] else "others"
            left_out[key] = left_out.get(key, 0) + len(value) - kept
        return [_shorten(one, f"{path}[]", kept, left_out) for one in value[:kept]]
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return value[:_LONGEST_TEXT] + "…"
    return value
