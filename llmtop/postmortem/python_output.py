"""Tracebacks, faulthandler's stacks and py-spy's in the lines of a log."""

from __future__ import annotations

import re

from llmtop.postmortem.error_kinds import error_kind
from llmtop.postmortem.evidence import SAMPLED, CodeLine, Place, PythonError, StackDump, ThreadTrace
from llmtop.postmortem.log_lines import LogLine
from llmtop.postmortem.stack_meaning import own_line

_FRAME = re.compile(r'^\s*File "([^"]{1,400})", line (\d{1,7}),? in (.{1,200})$')
_ERROR = re.compile(r"^(?:\s*\|\s)?((?:[A-Za-z_]\w*\.)*[A-Z_a-z]\w*)(?:: (.*))?$")
_THREAD = re.compile(
    r"^\s*(Current thread|Thread) (0x[0-9a-fA-F]{1,16}|\d{1,20})(?: \[(.*?)\])? \(most recent call first\)"
)
_SPY_PROCESS = re.compile(r"^Process (\d{1,10}): (.*)$")
_SPY_THREAD = re.compile(r'^Thread (0x[0-9A-Fa-f]{1,16}|\d{1,20}) \(([\w+ ]{1,40})\)(?:: "(.*)")?$')
_SPY_FRAME = re.compile(r"^ {2,8}(.{1,200}?) \((.{1,400}?)(?::(\d{1,7}))?\)$")
_FATAL = re.compile(r"^Fatal Python error: (.{1,200})$")
_TIMEOUT = re.compile(r"^Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!")
_CHAIN = ("During handling of the above", "The above exception was the direct")
_MOST_FRAMES = 100
_MOST_THREADS = 256


class PythonOutput:
    """State of one stream of lines: a traceback or stacks that have begun."""

    def __init__(self, file: str) -> None:
        self.errors: list[PythonError] = []
        self.stacks: list[StackDump] = []
        self._file = file
        self._traceback: list[CodeLine] | None = None
        self._codes: dict[CodeLine, str] = {}
        """Source lines that the traceback quotes."""
        self._place = Place(file)
        self._dump: StackDump | None = None
        self._frames: list[CodeLine] | None = None
        self._head: re.Match[str] | None = None
        self._is_spy = False

    def add(self, line: LogLine, time: float | None) -> bool:
        """Take a line; True if it belongs to a traceback or a stack."""
        text = line.text
        if self._traceback is not None and self._in_traceback(text, line, time):
            return True
        if text.startswith("Traceback (most recent call last)") or text.lstrip("| +").startswith(
            "Traceback (most"
        ):
            self._end_thread()
            self._traceback, self._codes = [], {}
            self._place = Place(self._file, line.number)
            return True
        return self._in_stacks(text, line)

    def finish(self) -> None:
        """Take what the end of the file completes."""
        self._end_thread()

    def _in_traceback(self, text: str, line: LogLine, time: float | None) -> bool:
        assert self._traceback is not None
        frame = _FRAME.match(text)
        if frame is not None:
            if len(self._traceback) < _MOST_FRAMES * 10:
                self._traceback.append(CodeLine(frame[3].strip(), frame[1], int(frame[2])))
            return True
        if not text.strip() or text[:1] in " \t|":
            if self._traceback and text.strip(" ^~|"):
                self._codes.setdefault(self._traceback[-1], text.strip(" |"))
            return True
        named = _ERROR.match(text)
        frames, self._traceback = self._traceback, None
        if named is None:
            return False
        name, message = named[1], (named[2] or "")[:3000]
        inner_first = tuple(reversed(frames[-_MOST_FRAMES:]))
        own = own_line(inner_first)
        self.errors.append(
            PythonError(
                self._place,
                name.rpartition(".")[2],
                message,
                rank=line.rank,
                host=line.host,
                frames=inner_first,
                code="" if own is None else self._codes.get(own, "")[:300],
                time=time,
                kind=error_kind(name, message),
            )
        )
        return True

    def _in_stacks(self, text: str, line: LogLine) -> bool:
        if (fatal := _FATAL.match(text)) is not None or _TIMEOUT.match(text):
            self._end_thread()
            reason = fatal[1] if fatal is not None else "timeout"
            self._begin(StackDump(Place(self._file, line.number), reason, line.rank), is_spy=False)
            return True
        if (process := _SPY_PROCESS.match(text)) is not None:
            self._end_thread()
            dump = StackDump(Place(self._file, line.number), SAMPLED, line.rank, int(process[1]))
            self._begin(dump, is_spy=True)
            return True
        head = _THREAD.match(text) or (_SPY_THREAD.match(text) if self._is_spy else None)
        if head is not None:
            self._end_thread()
            if self._dump is None:  # faulthandler.dump_traceback writes no first line
                self._begin(StackDump(Place(self._file, line.number), "dump", line.rank), is_spy=False)
            self._head, self._frames = head, []
            return True
        if self._frames is not None:
            return self._in_thread(text)
        return False

    def _begin(self, dump: StackDump, *, is_spy: bool) -> None:
        self._dump, self._is_spy = dump, is_spy
        self.stacks.append(dump)

    def _in_thread(self, text: str) -> bool:
        assert self._frames is not None
        if (frame := _FRAME.match(text)) is not None:
            self._take(CodeLine(frame[3].strip(), frame[1], int(frame[2])))
            return True
        if self._is_spy and (frame := _SPY_FRAME.match(text)) is not None:
            self._take(CodeLine(frame[1], frame[2], int(frame[3] or 0)))
            return True
        if text.startswith("  ") or (self._is_spy and not text.strip()):
            return True
        self._end_thread()
        if text.strip():
            self._dump, self._is_spy = None, False
        return False

    def _take(self, frame: CodeLine) -> None:
        if self._frames is not None and len(self._frames) < _MOST_FRAMES:
            self._frames.append(frame)

    def _end_thread(self) -> None:
        if self._frames is None or self._head is None or self._dump is None:
            return
        head, frames = self._head, tuple(self._frames)
        name = (head[3] or "").strip()
        if self._is_spy:
            trace = ThreadTrace(frames, name, _number(head[1]), head[2], name == "MainThread")
        else:
            trace = ThreadTrace(frames, name, _number(head[2]), is_main=head[1].startswith("Current"))
        if len(self._dump.threads) < _MOST_THREADS:
            self._dump.threads.append(trace)
        self._frames = self._head = None


def _number(text: str) -> int:
    return int(text, 16) if text[:2].lower() == "0x" else int(text)
