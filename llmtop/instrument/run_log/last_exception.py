"""The exception that has ended the script, as the interpreter keeps it after it has printed it.

No code of the script runs here: a message is taken only where Python's own `__str__` makes it of plain values.
"""

from __future__ import annotations

import os
import sys
from types import FunctionType, TracebackType

from llmtop.format import printable
from llmtop.instrument.serve.stacks.own_stacks import sampled_frame
from llmtop.redaction.secret_filter import without_secrets
from llmtop.runs import records

_CLASS_CHARACTERS = 100
_MESSAGE_CHARACTERS = 500
_MOST_FRAMES = 30
_LIBRARIES = ("/site-packages/", "/dist-packages/", *(f"/llmtop/{one}/" for one in ("instrument", "integrations")))
_STANDARD_LIBRARY = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_PLAIN = (str, int, float, bool, type(None))


def end_record(at: float, mono: float) -> records.End:
    """Return how the interpreter ends.

    Args:
        at: unix time in seconds.
        mono: CLOCK_MONOTONIC in seconds.
    """
    kind = getattr(sys, "last_type", None)
    if kind is None:
        return records.End(at=at, mono=mono)
    frames = _frames(getattr(sys, "last_traceback", None))
    return records.End(
        at=at,
        mono=mono,
        error=str(getattr(kind, "__name__", kind))[:_CLASS_CHARACTERS],
        message=_message(getattr(sys, "last_value", None)),
        line=_own_line(frames),
        frames=frames,
    )


def _message(error: object) -> str:
    """Return the message on one line without secrets; empty where the script's own code would make it."""
    if not isinstance(error, BaseException):
        return ""
    arguments = BaseException.args.__get__(error)  # type: ignore[attr-defined]  # a class may have its own `args`
    if any(type(one) not in _PLAIN for one in arguments):
        return ""
    if any(isinstance(vars(one).get("__str__"), FunctionType) for one in type(error).__mro__):
        text = str(arguments[0]) if arguments else ""
    else:
        text = str(error)
    return printable(without_secrets(" ".join(text[: 4 * _MESSAGE_CHARACTERS].split())), _MESSAGE_CHARACTERS)


def _frames(found: object) -> list[tuple[str, str, int]]:
    """Return (function, file, line) of the innermost frames, the innermost first."""
    places = []
    trace = found if isinstance(found, TracebackType) else None
    while trace is not None:
        places.append((trace.tb_frame.f_code, trace.tb_lasti))
        trace = trace.tb_next
    frames = (sampled_frame(*place) for place in places[: -_MOST_FRAMES - 1 : -1])
    return [(frame.name, frame.file, frame.line) for frame in frames]


def _own_line(frames: list[tuple[str, str, int]]) -> str:
    """Return the innermost line of the script's own files; else the innermost line."""
    own = (
        one
        for one in frames
        if not one[1].startswith(_STANDARD_LIBRARY) and not any(part in one[1] for part in _LIBRARIES)
    )
    found = next(own, None) or (frames[0] if frames else None)
    return "" if found is None else f"{os.path.basename(found[1])}:{found[2]} in {found[0]}"
