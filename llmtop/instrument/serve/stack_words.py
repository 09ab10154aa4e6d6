"""What a thread does, told from its Python frames: in words, and whether it waits for a person.

No frame is kept: it would keep alive all that its function holds, tensors too. Nothing of the script's is asked or
changed, and no file is read into Python's own caches.
"""

from __future__ import annotations

import itertools
import linecache
import os
import sys
import tokenize
from collections.abc import Hashable
from types import FrameType
from typing import Final, NamedTuple

MAX_FRAMES: Final = 128
"""Of a stack, from the innermost on."""
MAX_WORDS: Final = 120
"""Characters."""
_MAX_FILE_BYTES: Final = 4 << 20
_MAX_LINES: Final = 256
"""Lines of source that are remembered."""
COMPILES: Final = "torch.compile"
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/")
_STANDARD_LIBRARY: Final = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_NEVER_NAMED: Final = frozenset({"torch", "llmtop", "numpy"})
"""Beside the standard library: what they do, they do for the line that called them."""
_PROMPTS: Final = frozenset(
    {
        ("pdb", "interaction"),
        ("cmd", "cmdloop"),
        ("code", "interact"),
        ("_pyrepl", "multiline_input"),
        ("_pyrepl", "run_multiline_interactive_console"),
        ("IPython", "interaction"),
        ("IPython", "cmdloop"),
        ("IPython", "interact"),
        ("IPython", "mainloop"),
        ("ipykernel", "_input_request"),
        ("ipykernel", "start"),
        ("ipykernel", "launch_instance"),
        ("pudb", "interaction"),
        ("pydevd", "do_wait_suspend"),
        ("pydevd", "_do_wait_suspend"),
    }
)
"""Package and function within which somebody is asked what to do next."""
_BREAKPOINTS: Final = frozenset({"pdb", "cmd", "pudb", "pydevd"})
_WAITS_WITHIN: Final = frozenset(
    {
        *(
            "pdb",
            "cmd",
            "bdb",
            "code",
            "codeop",
            "_pyrepl",
            "rlcompleter",
            "IPython",
            "ipykernel",
            "pudb",
            "urwid",
        ),
        *("pydevd", "_pydevd_bundle", "_pydev_bundle", "debugpy", "prompt_toolkit", "traitlets", "zmq", "tornado"),
        *("asyncio", "selectors", "threading", "queue", "concurrent", "anyio", "nest_asyncio", "jupyter_client"),
        *("contextlib", "functools", "codecs", "encodings", "runpy", "contextvars", "getpass", "socket"),
    }
)
"""Packages of which frames may lie within such a function while it waits."""


class Place(NamedTuple):
    """One frame, without what it holds."""

    file: str
    line: int
    function: str
    module: str
    number: Hashable
    """Tells it from other calls, for as long as it runs."""

    @property
    def package(self) -> str:
        """The outermost one that it is part of."""
        return self.module.partition(".")[0]

    @property
    def is_library(self) -> bool:
        """Whether its file was installed, rather than written by whoever trains."""
        return any(part in self.file for part in _LIBRARIES)

    @property
    def is_named(self) -> bool:
        """Whether what it does is its own affair, and not that of whoever called it."""
        if self.package in _NEVER_NAMED:
            return False
        return self.is_library or not self.file.startswith(_STANDARD_LIBRARY)


def stack_of(thread: int) -> list[Place] | None:
    """The calls that a thread is in, the innermost first; None where it runs no Python now."""
    # Never the whole dictionary in a variable: it has this very frame too, and would keep itself alive.
    frame: FrameType | None = sys._current_frames().get(thread)
    if frame is None:
        return None
    found: list[Place] = []
    try:
        while frame is not None and len(found) < MAX_FRAMES:
            code = frame.f_code
            module = frame.f_globals.get("__name__")
            number = id(frame), id(code)
            name = module if type(module) is str else ""
            found.append(Place(code.co_filename, frame.f_lineno or 0, code.co_name, name, number))
            frame = frame.f_back
    finally:
        del frame
    return found


def waits_for_a_person(stack: list[Place] | None) -> str | None:
    """Whether a thread waits for somebody to say what comes next, and where; None where it does not.

    Args:
        stack: of `stack_of`, of a thread that is alive: one that runs no Python at all is at Python's own prompt.
    """
    if stack is None:
        return "at a prompt"
    for place in stack:
        if (place.package, place.function) in _PROMPTS:
            asks = place.function == "_input_request"  # of a cell that is under way, or of its debugger
            if place.package in _BREAKPOINTS or (asks and any(one.function == "interaction" for one in stack)):
                return "at a breakpoint"
            if asks:
                return "at a prompt"
            return "between the cells of a notebook" if place.package == "ipykernel" else "at a prompt"
        if place.package not in _WAITS_WITHIN:
            return None
    return None


class Words:
    """Tells what a training does, from stacks that are looked at now and then."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int], str] = {}
        self._before: frozenset[Hashable] = frozenset()
        """The calls of an earlier step; those that still run hold the loop."""
        self._of_step = -1

    def of(self, stack: list[Place], step: int) -> str:
        """The line that says best what is done: "train.py:57 print(loss.item())".

        The innermost of the script's own; where a library runs the loop, the innermost of that library's or the
        script's.

        Args:
            stack: of `stack_of`.
            step: how many steps had ended.
        """
        loop = next((place for place in stack if place.number in self._before), None)
        if step != self._of_step:
            self._of_step = step
            self._before = frozenset(place.number for place in stack)
        if any(place.module.startswith("torch._dynamo.convert_frame") for place in stack):
            return COMPILES
        named = self._named(stack, loop.package if loop is not None and loop.is_library else "")
        return "" if named is None else self._shown(named)

    def _named(self, stack: list[Place], library: str) -> Place | None:
        others = [one for one in stack if one.is_named]
        for place in others:
            if not place.is_library or (library and place.package == library):
                return place
        return next(iter(others), None)

    def _shown(self, place: Place) -> str:
        key = place.file, place.line
        if key not in self._lines:
            if len(self._lines) >= _MAX_LINES:
                self._lines.clear()
            source = _source(place.file, place.line)
            in_cell = "ipykernel_" in place.file or place.file.startswith("<ipython-input")
            name = "cell" if in_cell else os.path.basename(place.file)
            said = source or f"{place.function}()"
            self._lines[key] = "".join(c if c.isprintable() else "?" for c in f"{name}:{place.line} {said}")[
                :MAX_WORDS
            ]
        return self._lines[key]


def _source(file: str, line: int) -> str:
    """A line of a file, stripped; "" where it cannot be read."""
    known = linecache.cache.get(file)  # what cells of a notebook are in, and no file
    if known is not None and len(known) == 4:
        lines = known[2]
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""
    try:
        if not os.path.isfile(file) or os.stat(file).st_size > _MAX_FILE_BYTES:
            return ""
        with tokenize.open(file) as opened:
            return next(itertools.islice(opened, line - 1, line), "").strip() if line > 0 else ""
    except (OSError, SyntaxError, ValueError):
        return ""
