"""The runs of a folder: their restarts, ranks, and how they ended."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import msgspec

from llmtop.errors import UnusableInput
from llmtop.format import counted, nearest_word, printable
from llmtop.runs import folder, index, records
from llmtop.runs.run_file import FileMember, RunFile
from llmtop.system import procfs

ALIVE_SECONDS = 20.0
"""A process writes a sign of life every five seconds at least. On another host, or in another container, it is
taken for running as long as its last record is younger."""
RUNNING, ENDED, FAILED, KILLED = "running", "ended", "failed", "killed"
"""How a process ended: still running, in order, by an exception, without its end being written."""
INTERRUPT = "KeyboardInterrupt"
"""Class of the exception by which Python ends at SIGINT, which is how `llmtop bench` ends its runs."""
_STATE_SECONDS = 900.0
"""Sums are written every ten minutes."""
_BACK = re.compile(r"-[1-9]\d{0,5}")
RESUMED_SECONDS = 24 * 3600.0
_OVERLAP_SECONDS = 1.0
"""Largest error of the stamps of a process and of the one that takes its place."""
_STARTS_APART_SECONDS = 120.0
"""Ranks of one start begin within; those of a restart begin after the ranks before have ended."""


class RankProcess:
    """One process of a run: one rank from a start to its end. Its files are read when they are needed."""

    def __init__(self, run_folder: Path, name: folder.FileName) -> None:
        self.folder = run_folder
        self.name = name
        self._lost_bytes = 0
        """Bytes of files of the last minutes that have no whole member."""

    def use_facts(self, facts: index.ProcessFacts) -> None:
        """Take what the index has of this process instead of its files."""
        vars(self).update(
            start=facts.start,
            state=facts.state,
            end=facts.end,
            last_sign=facts.last_sign,
            damaged_bytes=facts.damaged_bytes,
            _last_values=facts.last_values,
        )

    def facts(self) -> index.ProcessFacts:
        """Return what the index keeps of this process."""
        return index.ProcessFacts(
            start=self.start,
            state=self.state,
            end=self.end,
            last_sign=self.last_sign,
            damaged_bytes=self.damaged_bytes,
            last_values=self.last_values(),
        )

    def forget_files(self) -> None:
        """Free the memory of the files that were read; they are read again when they are needed."""
        for name in ("file", "ends", "last_files"):
            vars(self).pop(name, None)

    @cached_property
    def rank(self) -> int | None:
        """None for a process that is no rank."""
        start = self.start
        return self.name.rank if start is None or start.rank is None else start.rank

    @cached_property
    def file(self) -> RunFile | None:
        """The file of the whole process; None where it is missing or cannot be read."""
        return self._read(folder.RUN)

    @cached_property
    def ends(self) -> RunFile | None:
        """Beginning and end of that file, which are enough for the sums."""
        return self._read(folder.RUN, ends_only=True)

    @cached_property
    def last_files(self) -> list[RunFile]:
        """The files of its last minutes, the older one first."""
        found = [file for ending in folder.LAST if (file := self._read(ending)) is not None]
        self._lost_bytes = sum(file.damaged_bytes for file in found if not file.members)
        return sorted((file for file in found if file.members), key=lambda file: file.members[-1].last)

    @cached_property
    def start(self) -> records.Start | None:
        """Return the start record; None where no file has one."""
        for file in self._files():
            found: records.Start | None = file.newest(records.Start)
            if found is not None:
                return found
        return None

    @cached_property
    def state(self) -> records.State | None:
        """The newest sums, to the last step that was written."""
        found = [file.newest(records.State) for file in self._files()]
        states = [state for state in found if state is not None]
        newest = max(states, key=lambda state: state.mono, default=None)
        if self._needs_whole_file(newest):
            newest = None if self.file is None else self.file.newest(records.State) or newest
        return newest if newest is None else _add_last_minutes(newest, self.last_files)

    def _needs_whole_file(self, newest: records.State | None) -> bool:
        """Return True if newer sums may stand in the middle of the file, which `ends` leaves out."""
        if self.ends is None or not self.ends.members:
            return False
        return newest is None or self.ends.members[-1].last - newest.at > _STATE_SECONDS

    @cached_property
    def end(self) -> records.End | None:
        """How it ended, if it could write that."""
        for file in self._files():
            found: records.End | None = file.newest(records.End)
            if found is not None:
                return found
        return None

    @cached_property
    def exit(self) -> records.Exit | None:
        """Exit code from its launcher; None where the launcher did not write one."""
        file = self._read(folder.EXIT)
        return None if file is None else file.newest(records.Exit)

    @cached_property
    def started(self) -> float:
        """Unix time at which the process itself started, else attached."""
        start = self.start
        if start is None:
            return self.name.started_ms / 1000
        return start.at - (start.process_seconds or 0.0)

    @cached_property
    def last_sign(self) -> float:
        """Unix time of the last record; when the process attached, where there is none."""
        ends = [file.members[-1].last for file in self._files() if file.members]
        return max(ends, default=self.name.started_ms / 1000)

    @property
    def unix_offset(self) -> float:
        """Seconds from the process's CLOCK_MONOTONIC to unix time, as it was when the process attached."""
        return 0.0 if self.start is None else self.start.at - self.start.mono

    @cached_property
    def ended(self) -> float:
        """Unix time of its end or last record, without settings of the wall clock since it attached."""
        known = [one.mono for one in (self.end, self.state) if one is not None]
        return max(known) + self.unix_offset if known and self.start is not None else self.last_sign

    @cached_property
    def how(self) -> str:
        """`RUNNING`, `ENDED`, `FAILED` or `KILLED`."""
        if self.end is not None:
            by_bench = self.is_bench and self.end.error == INTERRUPT
            return FAILED if self.end.error and not by_bench else ENDED
        return RUNNING if self._is_running() else KILLED

    @property
    def is_bench(self) -> bool:
        """Return True for a process of a run of `llmtop bench`."""
        return self.start is not None and self.start.bench

    @cached_property
    def damaged_bytes(self) -> int:
        """How many bytes of its files cannot be read."""
        return sum(file.damaged_bytes for file in self._files()) + self._lost_bytes

    def minutes(self) -> Iterator[tuple[records.Names, records.Minute]]:
        """Yield its minutes, oldest first, with what their rows are of."""
        names = records.Names()
        for record in () if self.file is None else self.file.records():
            if isinstance(record, records.Names):
                names = record
            elif isinstance(record, records.Minute):
                yield names, record

    def kept_steps(self) -> Iterator[tuple[records.StepRow, str]]:
        """Yield the steps that are kept in full, oldest first, each with why."""
        for record in () if self.file is None else self.file.records():
            if isinstance(record, records.KeptSteps):
                yield from zip(record.steps, record.reasons, strict=False)

    def last_steps(self) -> list[tuple[int, records.StepRow]]:
        """Return each step of the last minutes with how many the process had finished before it, oldest first."""
        found: dict[int, records.StepRow] = {}
        for record in self.last_records():
            if isinstance(record, records.RecentSteps):
                found.update(enumerate(record.steps, record.first))
        return sorted(found.items())

    def last_records(self, wanted: Callable[[FileMember], bool] | None = None) -> Iterator[records.Record]:
        """Yield all that the files of the last minutes hold, oldest first.

        Args:
            wanted: passes over the members for which it returns False.
        """
        for file in self.last_files:
            yield from file.records(wanted)

    def last_values(self) -> dict[str, float]:
        """Return the last logged value of each name."""
        return self._last_values

    @cached_property
    def _last_values(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for record in self.last_records():
            if isinstance(record, records.Values):
                found.update(record.values)
        return found

    def _files(self) -> list[RunFile]:
        return ([] if self.ends is None else [self.ends]) + self.last_files[::-1]

    def _read(self, ending: str, *, ends_only: bool = False) -> RunFile | None:
        try:
            return RunFile(self.folder / (self.name.text + ending), ends_only=ends_only)
        except OSError:
            return None

    def _is_running(self) -> bool:
        start = self.start
        if start is not None and start.ticks and (start.boot, start.namespace) == _here():
            return procfs.started_ticks(start.pid) == start.ticks and procfs.is_alive(start.pid)
        return abs(time.time() - self.last_sign) < ALIVE_SECONDS


@cache
def _here() -> tuple[str, str]:
    """Return the namespace of pids here."""
    return procfs.boot_id(), procfs.namespace("self", "pid")


@dataclass
class Attempt:
    """One start of a run: its ranks, up to their end or the next restart."""

    processes: list[RankProcess] = field(default_factory=list)

    @property
    def started(self) -> float:
        """Unix time at which its first process started."""
        return min(process.started for process in self.processes)

    @property
    def last_sign(self) -> float:
        """Unix time of the last record of its processes."""
        return max(process.last_sign for process in self.processes)

    @property
    def leader(self) -> RankProcess:
        """The process of the lowest rank."""
        return min(self.processes, key=lambda one: (one.rank is None, one.rank or 0, one.name))

    @property
    def how(self) -> str:
        """How it ended: the worst of what its processes say; `RUNNING` while one of them runs."""
        ways = {process.how for process in self.processes}
        return next(way for way in (RUNNING, FAILED, KILLED, ENDED) if way in ways)


@dataclass
class Run:
    """A run with its restarts."""

    folder: Path
    number: int
    """1; 2 and more for another run that went on at the same time under the same id."""
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Return the id that commands use: eight hexadecimal digits, and ".2" for a second run of that id."""
        digits = self.folder.name.rpartition("-")[2]
        return digits if self.number == 1 else f"{digits}.{self.number}"

    @property
    def name(self) -> str:
        """Return the name from its launcher or user; "" without a name."""
        start = self.attempts[0].leader.start
        return "" if start is None or start.source in ("process", "launcher") else start.run

    @property
    def started(self) -> float:
        """Unix time."""
        return self.attempts[0].started

    @property
    def last_sign(self) -> float:
        """Unix time of the last record of its ranks."""
        return max(attempt.last_sign for attempt in self.attempts)

    @property
    def how(self) -> str:
        """How its last restart ended."""
        return self.attempts[-1].how

    @property
    def is_bench(self) -> bool:
        """Return True for a run of `llmtop bench`, which is no training of its own."""
        return self.attempts[-1].leader.is_bench

    @property
    def processes(self) -> list[RankProcess]:
        """Return the processes of all restarts."""
        return [process for attempt in self.attempts for process in attempt.processes]


def list_runs(path: Path, unreadable: list[Path] | None = None) -> list[Run]:
    """Return the runs below a folder, the newest last; empty where there is no such folder.

    Processes that have ended are read once, and then found in the index of the folder, if that is on a local disk.

    Args:
        path: folder of all runs.
        unreadable: gets the folders of runs that this user may not read.

    Raises:
        OSError: the folder is there and cannot be read; or it holds nothing else than unreadable runs.
    """
    found: list[Run] = []
    refused: list[Path] = []
    try:
        folders = sorted(entry for entry in path.iterdir() if entry.is_dir())
    except FileNotFoundError:
        return []
    known = _Known(path)
    for run_folder in folders:
        if not os.access(run_folder, os.R_OK | os.X_OK):
            refused.append(run_folder)
            continue
        found += runs_in(run_folder, known)
    if refused and not found:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(refused[0]))
    if unreadable is not None:
        unreadable += refused
    known.save()
    return sorted(_join_resumed_runs(found), key=lambda run: run.last_sign)


class _Known:
    """The index of a folder while its runs are listed."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._is_used = folder.is_local(runs.absolute())
        self._entries = index.load(runs) if self._is_used else {}
        self._changed: dict[index.ProcessKey, index.Entry] = {}
        self._seen: set[index.ProcessKey] = set()

    def fill_in(self, process: RankProcess, signature: str) -> None:
        """Fill a process from the index, or note it for the index."""
        if not self._is_used:
            return
        key = index.ProcessKey(process.folder.name, process.name.text)
        self._seen.add(key)
        entry = self._entries.get(key)
        facts = index.unpacked(entry.facts) if entry is not None and entry.signature == signature else None
        if facts is not None:
            process.use_facts(facts)
        elif process.how != RUNNING:
            self._changed[key] = index.Entry(signature, index.packed(process.facts()))
            process.forget_files()

    def save(self) -> None:
        gone = self._entries.keys() - self._seen
        if self._changed or gone:
            index.save(self._runs, self._changed, gone)


def find_run(path: Path, wanted: str | None, *, least_characters: int = 1) -> Run:
    """Return the run of an id, of the beginning of one or of a name; the newest where none is given.

    Args:
        path: folder of all runs.
        wanted: as above; "-1" is the newest, "-2" the one before it. Those of `llmtop bench` are found by id and
            name alone.
        least_characters: fewer than this are no beginning of an id; a whole id or name may have any number.

    Raises:
        UnusableInput: there is none, several fit, or the beginning is too short.
        OSError: the folder cannot be read.
    """
    runs = list_runs(path)
    if not runs:
        raise UnusableInput(f"No run is kept in {path}. Start a training with llmtop run, or set LLMTOP_RUNS.")
    if wanted is None:
        return newest_training(runs)
    if _BACK.fullmatch(wanted):
        trainings = [run for run in runs if not run.is_bench]
        if int(wanted[1:]) > len(trainings):
            raise UnusableInput(
                f"{counted(len(trainings), 'run')} kept in {path}: no run {wanted}. List them: llmtop runs"
            )
        return trainings[int(wanted)]
    fitting = [run for run in runs if wanted in (run.id, run.folder.name, run.name)]
    fitting = fitting or [run for run in runs if run.id.startswith(wanted)]
    is_whole = any(wanted in (run.id, run.name) for run in fitting)
    if fitting and len(wanted) < least_characters and not is_whole:
        raise UnusableInput(
            f"{printable(wanted, 60)} is too short. Give at least {least_characters} characters of the id, "
            f"or the whole name: {fitting[-1].id}"
        )
    if not fitting:
        known = list(dict.fromkeys(name for run in reversed(runs) for name in (run.id, run.name) if name))
        near = nearest_word(wanted, known)
        hint = f" The nearest is {near}." if near else ""
        raise UnusableInput(f"No run {printable(wanted, 60)} is kept in {path}.{hint} List the runs: llmtop runs")
    if len({run.id for run in fitting}) > 1 and wanted != fitting[-1].name:
        raise UnusableInput(
            f"{wanted} matches {len(fitting)} runs ({', '.join(run.id for run in fitting)}). Give more of one id."
        )
    return fitting[-1]


def newest_training(runs: list[Run]) -> Run:
    """Return the newest run that is none of `llmtop bench`.

    Args:
        runs: the newest last; at least one.

    Raises:
        UnusableInput: there is none.
    """
    found = next((run for run in reversed(runs) if not run.is_bench), None)
    if found is None:
        raise UnusableInput(
            f"Only runs of llmtop bench are kept in {runs[-1].folder.parent}. Name one of them, such as "
            f"{runs[-1].id}; llmtop runs --all lists them"
        )
    return found


def _join_resumed_runs(runs: list[Run]) -> list[Run]:
    """Join runs without an id that go on where another one failed after a checkpoint: the same command, folder and
    host, within `RESUMED_SECONDS`."""
    open_ends: dict[tuple[str, ...], Run] = {}
    found: list[Run] = []
    for run in sorted(runs, key=lambda one: one.started):
        start = run.attempts[0].leader.start
        if start is None or start.source not in ("process", "launcher"):
            found.append(run)
            continue
        same = (start.host, start.folder, start.command, "bench" if start.bench else "")
        earlier = open_ends.get(same)
        if earlier is not None and 0 <= run.started - earlier.last_sign + _OVERLAP_SECONDS < RESUMED_SECONDS:
            earlier.attempts += run.attempts
        else:
            found.append(run)
            earlier = run
        saved = any(one.state is not None and one.state.checkpoint_mono for one in earlier.processes)
        if earlier.how in (FAILED, KILLED) and saved:
            open_ends[same] = earlier
        else:
            open_ends.pop(same, None)
    return found


def runs_in(run_folder: Path, known: _Known | None = None) -> list[Run]:
    """Return the run in one folder; several where trainings had the same id at the same time.

    Args:
        run_folder: of the run.
        known: the index of the folder around it; None: all is read from the files.
    """
    signatures: dict[folder.FileName, list[str]] = {}
    with os.scandir(run_folder) as entries:
        for entry in entries:
            parsed = folder.parsed_name(entry.name)
            if parsed is None or parsed[1] not in (folder.RUN, *folder.LAST):
                continue
            parts = signatures.setdefault(parsed[0], [])
            if known is not None:
                info = entry.stat()
                parts.append(f"{parsed[1]} {info.st_size} {info.st_mtime_ns}")
    processes = [RankProcess(run_folder, name) for name in signatures]
    if known is not None:
        for process in processes:
            known.fill_in(process, ", ".join(sorted(signatures[process.name])))
    processes.sort(key=lambda one: one.started)
    runs: list[Run] = []
    for process in processes:
        if not any(_joins(run, process) for run in runs):
            runs.append(Run(run_folder, len(runs) + 1, [Attempt([process])]))
    return runs


def _joins(run: Run, process: RankProcess) -> bool:
    """Add a process to a run if it is a further rank of its last start, or a restart."""
    attempt = run.attempts[-1]
    if attempt.leader.is_bench != process.is_bench:
        return False
    start, other = process.start, attempt.leader.start
    restart = (None if start is None else start.restart, None if other is None else other.restart)
    same_rank = [one for one in attempt.processes if one.rank == process.rank]
    again = any(one.last_sign <= process.started + _OVERLAP_SECONDS for one in same_rank)
    together = process.started <= max(attempt.last_sign, attempt.started + _STARTS_APART_SECONDS)
    if not same_rank and together and (None in restart or restart[0] == restart[1]):
        attempt.processes.append(process)
        return True
    if same_rank and not (again and all(one.how != RUNNING for one in same_rank)):
        return False
    if attempt.how == RUNNING and not again:
        return False
    run.attempts.append(Attempt([process]))
    return True


def _add_last_minutes(state: records.State, files: list[RunFile]) -> records.State:
    """Return sums that hold the steps after them as well, which the files of the last minutes have."""
    counts, phases = dict(state.histogram), dict(state.phases)
    total = msgspec.structs.replace(state, stalls=dict(state.stalls), capture_parts=dict(state.capture_parts))

    def is_newer(member: FileMember) -> bool:
        return member.last >= state.at - 1.0

    for file in files:
        for record in file.records(is_newer):
            if isinstance(record, records.Hold):
                records.add_hold(total, record)
            elif isinstance(record, records.RecentSteps):
                done = total.steps + total.lost
                new = record.steps[max(0, done - record.first) :]
                if new:
                    total.phases_after = {}  # they are in these steps
                    records.add_steps(total, phases, counts, new, record.mono_offset_ns)
            elif isinstance(record, records.Sign):
                total.at, total.mono = max(total.at, record.at), max(total.mono, record.mono)
    total.phases, total.histogram = phases, sorted(counts.items())
    return total
