"""A log of any kind -> facts: tracebacks, stacks, torchrun's table of failures, marks of single lines."""

from __future__ import annotations

import calendar
import re
import signal
import time
from pathlib import Path

from llmtop.postmortem.error_kinds import error_kind
from llmtop.postmortem.evidence import Evidence, Mark, Place, ProcessEnd, PythonError, StackDump
from llmtop.postmortem.log_lines import LogLine, log_lines, read_ends, said_rank
from llmtop.postmortem.log_marks import LostGpu, marks_of, srun_ends
from llmtop.postmortem.process_table import ProcessTable
from llmtop.postmortem.python_output import PythonOutput

_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_RETURNED = re.compile(r"--local_rank=(\d{1,6})\b.{0,3000}\] exits with return code = (-?\d{1,4})")
"""DeepSpeed's launcher."""
_MPI_SIGNAL = re.compile(r"process rank (\d{1,6}) with PID (\d+) on node (\S+) exited on signal (\d{1,2})")
_MPI_PROCESS = re.compile(r"^\s*Process name: \[\[\d+,\d+\],(\d{1,6})\]")
_MPI_CODE = re.compile(r"^\s*Exit code: +(\d{1,3})\b")
_CLOSING = re.compile(r"Sending process (\d+) closing signal")
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback)\s*: (.*)$")
_WHAT = re.compile(r"^\s*what\(\): +(.{1,600})")
_LAST_OF_TRACEBACK = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (.+)")
_TERMINATED = re.compile(r"terminate called after throwing an instance of '(.{1,120})'")
_SHELL = re.compile(r"line \d+: +(\d+) (Killed|Segmentation fault|Aborted|Bus error|Terminated)")
_SIGNALS = {
    "Killed": signal.SIGKILL, "Segmentation fault": signal.SIGSEGV, "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS, "Terminated": signal.SIGTERM, "Out Of Memory": signal.SIGKILL,
}  # fmt: skip
_MOST_STEPS = 2
"""Marks of steps that are kept of one rank in one file: the first and the last."""
MOST_MARKS = 20_000


class LogReader:
    """Reads one log after the other into an `Evidence`."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence

    def read(self, path: Path, name: str, rank: int | None, most: int) -> tuple[int | None, bool]:
        """Read a log.

        Args:
            path: the file.
            name: as it is shown.
            rank: of its folder or name; None: unknown, or a log of several ranks.
            most: bytes that are read.

        Returns:
            The rank, and whether its lines name it; None where they name several or none.

        Raises:
            UnusableInput: it cannot be read.
        """
        head, tail = read_ends(path, most)
        return self.read_parts(head, tail, name, rank)

    def read_parts(self, head: bytes, tail: bytes, name: str, rank: int | None) -> tuple[int | None, bool]:
        """Read a log whose content is known; see `read`.

        Args:
            head: its beginning, or all of it.
            tail: its end where the middle is left out.
            name: as it is shown.
            rank: of its folder or name.
        """
        log = _OneLog(self._evidence, name, rank)
        for line in log_lines(head, tail):
            log.add(line)
        return log.finish(said_rank(head, tail))


class _OneLog:
    """State of the log that is being read."""

    def __init__(self, evidence: Evidence, name: str, rank: int | None) -> None:
        self._evidence = evidence
        self._known = len(evidence.errors), len(evidence.stacks), len(evidence.marks)
        self._name = name
        self._rank = rank
        self._streams: dict[tuple[str, int | None], PythonOutput] = {}
        self._prefixes: dict[int, int] = {}
        self._tags: set[int] = set()
        self._steps: dict[int | None, list[Mark]] = {}
        self._table = _FailureTable(evidence, name)
        self._processes = ProcessTable(name)
        self._thrown = ""
        self._lost_gpu = LostGpu()
        self._hosts_failed: set[str] = set()
        self._mpi_rank: int | None = None

    def add(self, line: LogLine) -> None:
        """Take the next line."""
        if line.rank is not None:
            self._prefixes[line.rank] = self._prefixes.get(line.rank, 0) + 1
        elif line.tag is not None:
            self._tags.add(line.tag)
        rank = line.rank if line.rank is not None else line.tag
        text, place = line.text, Place(self._name, line.number)
        stream = self._streams.get((line.host, rank))
        if stream is None:
            stream = self._streams[line.host, rank] = PythonOutput(self._name)
        named = line if line.rank is not None else line._replace(rank=rank)
        if self._table.add(named) or stream.add(named, None) or not text:
            return
        state = self._processes.add(text, line.number)
        if state:
            self._evidence.marks += [state] if isinstance(state, Mark) else []
            return
        if self._add_mpi_end(text, place):
            return
        last = _LAST_OF_TRACEBACK.match(text)
        if last is not None and (line.rank is not None or last[1].endswith("OutOfMemoryError")):
            # Its beginning is not in the log. torch's hook for exceptions writes the prefix with a rank.
            name, kind = last[1].rpartition(".")[2], error_kind(last[1], last[2])
            stream.errors.append(PythonError(place, name, last[2][:3000], rank, host=line.host, kind=kind))
        self._add_error(text, place, rank)
        self._add_end(text, place, line.host)
        if (lost := self._lost_gpu.add(text, place)) is not None:
            self._evidence.marks.append(lost)
            return
        for mark in marks_of(text, place, rank):
            if mark.kind == "step":
                known = self._steps.setdefault(mark.rank, [])
                known[_MOST_STEPS - 1 :] = [mark]
            elif len(self._evidence.marks) < MOST_MARKS:
                self._evidence.marks.append(mark)

    def _add_error(self, text: str, place: Place, rank: int | None) -> None:
        if (thrown := _TERMINATED.search(text)) is not None:
            self._thrown = thrown[1]
        elif self._thrown and (what := _WHAT.match(text)) is not None:
            kind = error_kind(self._thrown, what[1])
            self._evidence.errors.append(PythonError(place, self._thrown, what[1], rank, kind=kind))
            self._thrown = ""

    def _add_mpi_end(self, text: str, place: Place) -> bool:
        """Take a line in which mpirun names the first process that ended; True if it is one."""
        if (ended := _MPI_SIGNAL.search(text)) is not None:
            pid = int(ended[2]) or None
            end = ProcessEnd(place, int(ended[1]), pid, ended[3], signal=int(ended[4]), is_first=True)
            self._evidence.ends.append(end)
        elif (process := _MPI_PROCESS.match(text)) is not None:
            self._mpi_rank = int(process[1])
        elif self._mpi_rank is not None and (code := _MPI_CODE.match(text)) is not None:
            self._evidence.ends.append(ProcessEnd(place, self._mpi_rank, code=int(code[1]), is_first=True))
            self._mpi_rank = None
        else:
            return False
        return True

    def _add_end(self, text: str, place: Place, host: str) -> None:
        ends = self._evidence.ends
        if (failed := _FAILED.search(text)) is not None:
            ends.append(_end(place, int(failed[1]), rank=None, pid=int(failed[3]), is_first=True))
            self._evidence.marks.append(Mark("process", place, "local", int(failed[2]), int(failed[3])))
        elif (returned := _RETURNED.search(text)) is not None:
            end = _end(place, int(returned[2]), rank=None, pid=None, host=host)
            end.local_rank, end.is_first = int(returned[1]), host not in self._hosts_failed
            end.is_by_launcher = end.signal == signal.SIGTERM and not end.is_first
            self._hosts_failed.add(host)
            ends.append(end)
        elif (closing := _CLOSING.search(text)) is not None:
            ends.append(ProcessEnd(place, pid=int(closing[1]), signal=signal.SIGTERM, is_by_launcher=True))
        elif (shell := _SHELL.search(text)) is not None:
            ends.append(ProcessEnd(place, pid=int(shell[1]), signal=_SIGNALS[shell[2]]))
        elif (srun := srun_ends(text)) is not None:
            tasks, host, reason = srun
            cause = next((number for word, number in _SIGNALS.items() if reason.startswith(word)), None)
            exited = re.search(r"exit code (\d+)", reason)
            code = int(exited[1]) if exited else None
            for task in tasks:
                ends.append(ProcessEnd(place, task, host=host, code=code, signal=cause))

    def finish(self, said: int | None) -> tuple[int | None, bool]:
        """Add the findings to the evidence.

        Args:
            said: the one rank that the lines name without a prefix.

        Returns:
            The rank, and whether the lines name it.
        """
        is_shared = len(self._prefixes) > 1 or len(self._tags) > 1 or self._table.is_found
        own = next(iter(self._prefixes)) if len(self._prefixes) == 1 else said
        rank = None if is_shared else own if own is not None else self._rank
        for stream in self._streams.values():
            stream.finish()
            self._evidence.errors += stream.errors
            self._evidence.stacks += stream.stacks
        self._table.finish()
        self._evidence.marks += [mark for marks in self._steps.values() for mark in marks]
        if rank is not None:
            evidence, (errors, stacks, marks) = self._evidence, self._known
            found: list[PythonError | StackDump | Mark] = [*evidence.errors[errors:], *evidence.stacks[stacks:]]
            for fact in (*found, *evidence.marks[marks:]):
                fact.rank = rank if fact.rank is None else fact.rank
        return rank, rank is not None and own is not None


def _end(
    place: Place, code: int, *, rank: int | None, pid: int | None, host: str = "", is_first: bool = False
) -> ProcessEnd:
    """Return an end as torchrun writes it: a negative exit code is a signal."""
    return ProcessEnd(
        place,
        rank,
        pid,
        host,
        code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        is_first=is_first,
        is_by_launcher=code == -signal.SIGTERM and not is_first,
    )


class _FailureTable:
    """torchrun's table of failed ranks, with the traceback of each."""

    def __init__(self, evidence: Evidence, name: str) -> None:
        self._evidence = evidence
        self._name = name
        self.is_found = False
        self._is_open = False
        self._is_first = False
        self._fields: dict[str, str] = {}
        self._output = PythonOutput(name)
        self._in_traceback = False

    def add(self, line: LogLine) -> bool:
        """Take a line; True if it belongs to the table."""
        text = line.text
        if not self._is_open:
            self._is_open = text.strip() in ("Failures:", "Root Cause (first observed failure):")
            self._is_first = text.startswith("Root")
            self.is_found = self.is_found or self._is_open
            return self._is_open
        if text.startswith("Root Cause"):
            self._is_first, self._in_traceback = True, False
            return True
        if text.startswith("=====") or (text and text[0] not in " -["):
            self._is_open = self._is_first = self._in_traceback = False
            return True
        found = _FIELD.match(text)
        if found is not None and not (self._in_traceback and found[1] != "time"):
            self._take(found[1], found[2], line)
        elif self._in_traceback and text.startswith("  "):
            self._output.add(line._replace(text=text[2:], rank=self._rank()), None)
        return True

    def _rank(self) -> int | None:
        number = self._fields.get("rank", "").partition(" ")[0]
        return int(number) if number.isdigit() else None

    def _take(self, name: str, value: str, line: LogLine) -> None:
        if name == "time":
            self._fields, self._in_traceback = {}, False
        self._fields[name] = value
        if name == "exitcode" and (code := re.match(r"(-?\d+)(?: \(pid: (\d+)\))?", value)) is not None:
            place = Place(self._name, line.number)
            pid = int(code[2]) if code[2] else None
            host = self._fields.get("host", "")
            end = _end(place, int(code[1]), rank=self._rank(), pid=pid, host=host, is_first=self._is_first)
            local = re.search(r"local_rank: (\d+)", self._fields.get("rank", ""))
            end.local_rank = int(local[1]) if local is not None else None
            end.time = _table_time(self._fields.get("time", ""))
            self._evidence.ends.append(end)
            self._evidence.marks.append(Mark("process", place, rank=end.rank, pid=pid, host=host))
        elif name == "traceback" and value.startswith("Traceback"):
            self._in_traceback = True
            self._output.add(line._replace(text=value, rank=self._rank()), None)

    def finish(self) -> None:
        """Add the errors of the table to the evidence."""
        self._output.finish()
        self._evidence.errors += self._output.errors


def _table_time(text: str) -> float | None:
    """Time of the table in seconds, in the launcher's own time zone: comparable with others of tables alone."""
    try:
        return float(calendar.timegm(time.strptime(text.strip(), "%Y-%m-%d_%H:%M:%S")))
    except ValueError:
        return None
