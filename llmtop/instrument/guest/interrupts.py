"""Exceptions that are the script's although they came out of llmtop's code: a signal's handler has raised them.

Python runs a handler wherever the main thread happens to be, also in the middle of llmtop. What it raises is meant
for the script (an alarm, a preemption notice, a walltime limit), often as an ordinary `TimeoutError`, and must not
be taken for a failure of llmtop's own.
"""

from __future__ import annotations

import ctypes
import functools
import signal
import sys
from contextlib import suppress
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, Final

_STATEMENTS: Final = 257
"""Py_file_input of Python.h."""


def raised_by_handler(error: BaseException) -> bool:
    """Return True if a signal's handler raised this error; to be asked while it is being handled."""
    trace = error.__traceback__
    handlers: set[CodeType] | None = None
    while trace is not None:
        frame = trace.tb_frame
        if str(frame.f_globals.get("__name__", "")).startswith("llmtop."):
            trace = trace.tb_next  # no handler is ours, and to ask for them all takes 0.2 ms
            continue
        if _was_given(frame, frame.f_back):
            return True
        handlers = _codes_of_handlers() if handlers is None else handlers
        if frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def remember_interrupt() -> None:
    """Tell Python once more that a Ctrl-C has ended the script, so that the process ends by SIGINT; for its end.

    Python forgets it when C code has a string of Python run, and then exits with 1. After a recording on a GPU has
    ended, it has forgotten it (torch 2.11, Python 3.12).
    """
    is_interactive = sys.flags.interactive or sys.flags.inspect or hasattr(sys, "ps1")
    if is_interactive or not isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        return
    run = ctypes.pythonapi.PyRun_String
    run.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.py_object, ctypes.py_object]
    run.restype = ctypes.py_object
    with suppress(KeyboardInterrupt):
        run(b"raise KeyboardInterrupt", _STATEMENTS, {}, {})


def _was_given(frame: FrameType, interrupted: FrameType | None) -> bool:
    """Return True if a function was called with the frame below it, as Python calls handlers and nothing else
    does."""
    if interrupted is None:
        return False
    code, values = frame.f_code, frame.f_locals
    positional = code.co_argcount
    given = [values.get(name) for name in code.co_varnames[:positional]]
    if code.co_flags & 0x04:  # CO_VARARGS: def handler(*args)
        rest = values.get(code.co_varnames[positional + code.co_kwonlyargcount])
        given += rest if isinstance(rest, tuple) else ()
    return any(one is interrupted for one in given)


def _codes_of_handlers() -> set[CodeType]:
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    return {code for handler in handlers if (code := _code_of(handler)) is not None}


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not callable(handler):
        return None
    if not isinstance(handler, FunctionType | MethodType):
        handler = getattr(type(handler), "__call__", None)  # noqa: B004 - an object, of whose class it is a method
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None
