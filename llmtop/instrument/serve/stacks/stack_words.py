"""Describes a thread by its Python frames: in words, and whether it waits for a person.

No frame is kept after a sample: it would keep alive all that its function holds, tensors too. For the same reason
none is kept while a file is read, when the script runs on: on a file system that hangs that may take minutes. No
object of the script is called or changed, and no file is read into Python's own caches.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import Final, NamedTuple

from llmtop.format import printable
from llmtop.instrument.serve.stacks.lock_stretches import LockStretches
from llmtop.instrument.serve.stacks.since_check import Lines, Place, SinceCheck
from llmtop.instrument.serve.stacks.source_lines import columns, source
from llmtop.instrument.serve.stacks.waiting_calls import WaitingCalls

MAX_FRAMES: Final = 128
"""Most frames of a stack, from the innermost on."""
MAX_WORDS: Final = 120
"""Characters."""
_MAX_FUNCTIONS: Final = 2048
_MAX_FIRST: Final = 50
"""Characters of the first of several lines."""
_LOOP_SAMPLES: Final = 16
_LOOP_STEPS: Final = 3
"""Samples, and steps, until the calls that all samples have are the ones in which the loop runs."""
_MOST_PHASES: Final = 32
_MOST_RELEASES: Final = 64
_MAX_LINES: Final = 256
"""Lines of source that are remembered."""
SHORT_NS: Final = 1_000_000
"""A thread that gives up the lock so soon after the request may be in code with many checks."""
COMPILES: Final = "torch.compile"
AT_A_PROMPT: Final = "at a prompt"
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
"""Package and function that prompt a person for input."""
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


_OPTIMIZERS: Final = "/torch/optim/"
_OPTIMIZER_BASE: Final = "/torch/optim/optimizer.py"


class _Function(NamedTuple):
    """Facts on the code of a frame; computed once."""

    package: str
    """The outermost one that it is part of."""
    name: str
    file: str
    is_library: bool
    """True if its file was installed, rather than written by the user."""
    is_named: bool
    """True if it is reported itself, rather than its caller."""
    compiles: bool
    """True if it runs torch.compile's compiler."""


class _Named(NamedTuple):
    """Names taken from a sample, without its frames."""

    function: _Function
    code: CodeType
    instruction: int
    """-1 for several."""
    line: int
    last: int
    """Last of several lines."""
    again: tuple[int, int] = (0, 0)
    """Second range of lines, the same as in `Lines`."""


class _PhasePlace(NamedTuple):
    """Where the loop was while a phase was seen."""

    first: int
    """Offset of the first instruction."""
    last: int
    """Offset of the last one."""
    has_own_code: bool
    """True if code of the script ran within that call: it may also run there before the phase begins."""


class StackDescription(NamedTuple):
    """Result of one sample of a thread."""

    words: str
    """The most specific line: "train.py:57 print(loss.item())"; "" where none does."""
    waits_for: str
    """Where it waits for a person to say what comes next: "at a breakpoint"; "" where it does not."""


class StackDescriber:
    """Describes samples of a thread in words."""

    def __init__(self) -> None:
        self._functions: dict[CodeType, _Function] = {}
        self._lines: dict[tuple[CodeType, int, int, int, int], str] = {}
        self._waiting = WaitingCalls()
        self._since_check = SinceCheck()
        self._loop = LoopCalls()
        self._stretches = LockStretches()
        self._phases_of: CodeType | None = None
        """The function that runs the loop."""
        self._phase_places: dict[str, _PhasePlace] = {}
        self._releases: set[int] = set()
        """Offsets of the calls of the loop itself, in C, at which the lock was found given up."""

    def forget(self) -> None:
        """Drop all stored data."""
        self.__init__()  # type: ignore[misc]

    def describe(
        self,
        thread: int,
        step: int,
        held_lock: bool | None = False,
        after_request_ns: int = SHORT_NS,
        *,
        is_given_up: bool = False,
        passed: tuple[str, ...] = (),
        before: str = "",
    ) -> StackDescription | None:
        """Describe the present stack of a live thread; None where it runs no Python now.

        Args:
            thread: as `threading.get_ident()` numbers it.
            step: how many steps had ended.
            held_lock: whether the thread kept Python's lock until the lock was requested: then it is described by
                what it ran before; None where that is not known: without words.
            after_request_ns: how long it kept the lock after the request.
            is_given_up: whether it gave the lock up by itself, and kept it until then.
            passed: names of the phases before what ran until then, the last one first.
            before: name of the first phase since then; "" where there is none.
        """
        # Never the whole dictionary in a variable: it has this very frame too, and would keep itself alive.
        frame: FrameType | None = sys._current_frames().get(thread)
        if frame is None:
            return None
        frames: list[FrameType] = []
        try:
            while frame is not None and len(frames) < MAX_FRAMES:
                frames.append(frame)
                frame = frame.f_back
            self._loop.add([one.f_code for one in frames], step)
            named, waits_for = self._innermost_own_line(frames, held_lock, after_request_ns < SHORT_NS)
            if is_given_up and not named:
                named = self._line_before(frames, passed, before) or ""
        finally:
            frames.clear()
            del frame
        return StackDescription(self._place_text(named) if isinstance(named, _Named) else named, waits_for)

    def knows_place(self, phase: str) -> bool:
        """Return True if it is known where the loop is in a phase: before, no lines are known to come after it."""
        return self._loop.count() > 0 and phase in self._phase_places

    def note_calls(self, thread: int, step: int, phase: str = "") -> None:
        """Record the calls that are on a thread's stack now: those found in every step are the loop itself.

        Args:
            thread: its id.
            step: the number of the running step.
            phase: name of the outermost open phase; "" where there is none.
        """
        frame: FrameType | None = sys._current_frames().get(thread)
        frames: list[FrameType] = []
        try:
            while frame is not None and len(frames) < MAX_FRAMES:
                frames.append(frame)
                frame = frame.f_back
            self._loop.add([one.f_code for one in frames], step)
            number = self._loop.count()
            if 0 < number <= len(frames):
                loop = frames[-number]
                self._stretches.add_free(loop.f_code, loop.f_lineno or 0)
                self._note_phase(loop, frames[:-number], phase)
                del loop
        finally:
            frames.clear()
            del frame

    def waits_for_gpu(self, thread: int, step: int) -> str:
        """Return the line at which a thread waits for its GPU; "" where it does not. Arguments as of `describe`.

        To be asked just when the thread gave up Python's lock, which all that waits does at once.
        """
        frame: FrameType | None = sys._current_frames().get(thread)
        if frame is None:
            return ""
        code, instruction, line = frame.f_code, frame.f_lasti, frame.f_lineno or 0
        del frame
        if not self._waiting.waits(code, instruction, line):
            return ""
        seen = self.describe(thread, step)
        return "" if seen is None else seen.words or "a call of a library"

    def _innermost_own_line(
        self, frames: list[FrameType], held_lock: bool | None, is_short: bool
    ) -> tuple[_Named | str, str]:
        """Return the description or the place of the innermost own line, and what the thread waits for. Reads
        no file."""
        known = self._functions
        functions = [known.get(frame.f_code) or self._add_function(frame) for frame in frames]
        waits_for = _waits_for(functions)
        if any(function.compiles for function in functions):
            return COMPILES, waits_for
        if held_lock is None:
            return "", waits_for
        lines = Lines(0, 0, 0, -1)
        if held_lock:
            found = self._since_check.lines(
                [Place(frame.f_code, frame.f_lasti) for frame in frames], is_short=is_short
            )
            if found is None:
                return "", waits_for
            lines = found
        number = self._loop.count()
        runs_loop = next((one for one in functions[len(functions) - number :] if one.is_named), None)
        library = runs_loop.package if runs_loop is not None and runs_loop.is_library else None
        named = _frame_to_name(functions[lines.depth :], library)
        if named is None or _is_around_optimizer(functions[lines.depth : lines.depth + named]):
            return "", waits_for
        at = lines.depth + named
        if 0 < number <= len(frames):
            own = lines if at == len(frames) - number else None
            self._note_lock(frames[-number], own, held_lock, number == len(frames))
        is_range = bool(held_lock) and named == 0
        if is_range and not lines.are_few:
            # The line that called this function, but none that has called the loop: that one holds every step.
            caller = _frame_to_name(functions[at + 1 : len(functions) - number + 1], library) if number else None
            if caller is None:
                return "", waits_for
            at, is_range = at + 1 + caller, False
        frame = frames[at]
        place = _Named(functions[at], frame.f_code, frame.f_lasti, frame.f_lineno or 0, frame.f_lineno or 0)
        if is_range:
            place = place._replace(instruction=lines.instruction, line=lines.first, last=lines.last)
        return place if place.line else "", waits_for

    def _note_lock(self, loop: FrameType, lines: Lines | None, held_lock: bool, is_innermost: bool) -> None:
        """Count a sample for `LockStretches`, and remember a call that gives the lock up.

        Args:
            loop: the frame that runs the loop.
            lines: what it ran itself; None where a function that it called ran.
            held_lock: as of `describe`.
            is_innermost: whether it has called no function of Python.
        """
        line = loop.f_lineno or 0
        if not held_lock:
            self._stretches.add_free(loop.f_code, line)
            if is_innermost and loop.f_code is self._phases_of and len(self._releases) < _MOST_RELEASES:
                self._releases.add(loop.f_lasti)
        elif lines is None:
            self._stretches.add_kept(loop.f_code, line, line)
        elif lines.are_few:
            self._stretches.add_kept(loop.f_code, lines.first, lines.last)

    def _note_phase(self, loop: FrameType, inner: list[FrameType], phase: str) -> None:
        """Remember where the loop is in a phase. Arguments as of `_lines_after`."""
        if loop.f_code is not self._phases_of:
            self._phases_of = loop.f_code
            self._phase_places.clear()
            self._releases.clear()
        if not phase or (phase not in self._phase_places and len(self._phase_places) >= _MOST_PHASES):
            return
        at = loop.f_lasti
        known = self._phase_places.get(phase) or _PhasePlace(at, at, False)
        has_own_code = known.has_own_code or self._has_own_code(inner)
        self._phase_places[phase] = _PhasePlace(min(at, known.first), max(at, known.last), has_own_code)

    def _has_own_code(self, frames: list[FrameType]) -> bool:
        return any((self._functions.get(one.f_code) or self._add_function(one)).is_named for one in frames)

    def _lines_after(
        self, loop: FrameType, inner: list[FrameType], passed: tuple[str, ...], before: str
    ) -> _Named | None:
        """Return the lines of the loop that may have run between the end of a phase and the next one.

        Args:
            loop: the frame that runs the loop.
            inner: the frames that it has called.
            passed: as of `describe`. Where the last of them was never seen, the lines begin after the one before.
            before: as of `describe`. Where its place is not known, the lines end where the loop is now.
        """
        code = loop.f_code
        places = self._phase_places if code is self._phases_of else {}
        start = next((places[one].last for one in passed if one in places), None)
        if start is None:
            return None
        # The call of a module is where its phase begins. Code of the script may have run within that call before.
        following = places.get(before)
        if following is not None:
            end, is_end_included = following.first, following.has_own_code
        else:
            end, is_end_included = loop.f_lasti, not inner or self._has_own_code(inner)
        found = self._since_check.lines_between(
            code, start, end, is_end_included=is_end_included, releases=self._releases
        )
        function = self._functions.get(code) or self._add_function(loop)
        if found is None or not found.are_few or not function.is_named:
            return None
        return _Named(function, code, found.instruction, found.first, found.last, found.again)

    def _line_before(self, frames: list[FrameType], passed: tuple[str, ...], before: str) -> _Named | None:
        """Return what ran before the lock was given up here, by the line of the loop; None where unknown."""
        number = self._loop.count()
        if not 0 < number <= len(frames):
            return None
        loop = frames[-number]
        code, line = loop.f_code, loop.f_lineno or 0
        found = self._stretches.lines_before(code, line)
        self._stretches.add_free(code, line)
        function = self._functions.get(code) or self._add_function(loop)
        if found is None or not function.is_named:
            return self._lines_after(loop, frames[:-number], passed, before)
        return _Named(function, code, -1, *found)

    def _add_function(self, frame: FrameType) -> _Function:
        if len(self._functions) >= _MAX_FUNCTIONS:
            self._functions.clear()
        code, module = frame.f_code, frame.f_globals.get("__name__")
        module = module if type(module) is str else ""
        package, file = module.partition(".")[0], code.co_filename
        is_library = any(part in file for part in _LIBRARIES)
        is_named = package not in _NEVER_NAMED and (is_library or not file.startswith(_STANDARD_LIBRARY))
        compiles = module.startswith("torch._dynamo.convert_frame")
        found = _Function(package, code.co_name, file, is_library, is_named, compiles)
        self._functions[code] = found
        return found

    def _place_text(self, place: _Named) -> str:
        function, code, instruction, line, last, again = place
        key = code, instruction, line, last, again[1]
        if key not in self._lines:
            if len(self._lines) >= _MAX_LINES:
                self._lines.clear()
            in_cell = "ipykernel_" in function.file or function.file.startswith("<ipython-input")
            name = "cell" if in_cell else os.path.basename(function.file)
            text = source(function.file, line, columns(code, instruction, line)) or f"{function.name}()"
            where = f"{name}:{line}"
            if last > line:
                where = f"{where}-{last}"
            if again[1]:
                where = f"{where} and {again[0]}-{again[1]}" if again[1] > again[0] else f"{where} and {again[0]}"
                last = again[1]
            if last != line:
                text = f"{text[:_MAX_FIRST]} … {source(function.file, last, slice(None))}"
            self._lines[key] = printable(f"{where} {text}")[:MAX_WORDS]
        return self._lines[key]


class LoopCalls:
    """Finds the calls in which the loop of steps runs: the outermost ones, which every sample has."""

    def __init__(self) -> None:
        self._common: list[CodeType] | None = None
        """Common outer frames of all samples of this round, the outermost first."""
        self._samples = 0
        self._steps = (0, 0)
        """First and last step of this round."""
        self._found = 0
        """Number of calls, by the round before."""

    def add(self, codes: list[CodeType], step: int) -> None:
        """Ingest a sample.

        Args:
            codes: of its frames, the innermost first.
            step: how many steps had ended.
        """
        if not codes or len(codes) >= MAX_FRAMES:
            return
        if self._common is None or step < self._steps[0]:
            self._common, self._samples, self._steps = codes[::-1], 0, (step, step)
        common = self._common
        alike = next(
            (
                place
                for place, (one, other) in enumerate(zip(common, reversed(codes), strict=False))
                if one is not other
            ),
            min(len(common), len(codes)),
        )
        del common[alike:]
        self._samples += 1
        self._steps = self._steps[0], max(step, self._steps[1])
        if self._samples >= _LOOP_SAMPLES and self._steps[1] - self._steps[0] >= _LOOP_STEPS:
            self._found = len(common)
            self._common = None

    def count(self) -> int:
        """Return how many of the outermost calls hold the loop; 0 while that is not known."""
        return self._found


def _frame_to_name(functions: list[_Function], library: str | None) -> int | None:
    """Return which frame to name: the innermost of the script's own, or of the library that runs the loop."""
    first = None
    for place, function in enumerate(functions):
        if function.is_named:
            if not function.is_library or function.package == library:
                return place
            first = place if first is None else first
    return first


def _is_around_optimizer(functions: list[_Function]) -> bool:
    """Return True if torch's wrapper of an optimizer's step runs, before its first hook or after its last.

    The step itself has a phase. The wrapper gives Python's lock up, so a thread that waited for the lock (llmtop's
    own, right after a step) gets it there, and on a busy machine may keep it for long.
    """
    inside = [one for one in functions if _OPTIMIZERS in one.file]
    if not inside or not all(one.file.endswith(_OPTIMIZER_BASE) for one in inside):
        return False
    return any(one.name == "wrapper" for one in inside)


def _waits_for(functions: list[_Function]) -> str:
    for function in functions:
        if (function.package, function.name) in _PROMPTS:
            asks = function.name == "_input_request"  # of a cell that is under way, or of its debugger
            if function.package in _BREAKPOINTS or (asks and any(one.name == "interaction" for one in functions)):
                return "at a breakpoint"
            in_notebook = function.package == "ipykernel" and not asks
            return "between the cells of a notebook" if in_notebook else AT_A_PROMPT
        if function.package not in _WAITS_WITHIN:
            return ""
    return ""
