"""The thread that writes what a run leaves: it reads the recorder's ring once a second, as a late monitor would.

So the training thread pays nothing for it. What the disk does not take is dropped and noted once; while a write
hangs the ring turns over, and what it loses is counted.
"""

from __future__ import annotations

import functools
import math
import os
import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from llmtop.errors import NotPossibleHere
from llmtop.instrument.guest import descriptors, registry, sanitize, threads
from llmtop.instrument.guest.sanitize import log_once
from llmtop.instrument.record.taken_time import TakenTime
from llmtop.instrument.run_log import identity
from llmtop.instrument.run_log.disk import Disk, DiskTrouble, open_disk
from llmtop.instrument.run_log.last_exception import end_record
from llmtop.instrument.run_log.slow_step_stacks import SlowStepStacks
from llmtop.instrument.run_log.sums import Sums
from llmtop.instrument.serve.step_messages import MESSAGE_STEPS, StepReader
from llmtop.instrument.steps.ring import SIZE
from llmtop.naming import variable_names
from llmtop.recording.members import pack
from llmtop.runs import folder, records
from llmtop.system.wall_clock import WallClock

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State

TURN_S = 1.0
"""Longest time for which data is unwritten when the process is killed."""
_SHORTEST_TURN_S = 0.2
_MINUTE_S = 60.0
SIGN_S = 5.0
"""Time without a step after which a sign of life is written."""
LAST_S = 120.0
"""A file of the last minutes is written for so long, then the other one anew."""
LAST_BYTES = 8 << 20
"""Or up to so many bytes."""
STATE_MINUTES = 10
EXIT_S = 0.2
"""How long an exit waits for the last turn."""
RUN_ID_CHARACTERS = 8
WHAT = "its own run on disk"
_EFFORT_LAST = 1
_WAKES = 4096


class RunLog:
    """Writes the files of this process, in a thread of its own; made, stopped and forgotten in others."""

    def __init__(self, recorder: State) -> None:
        self._recorder = recorder
        self._clock = WallClock()
        self._reader = StepReader(recorder, self._clock)
        self._taken = TakenTime(recorder)
        since = time.time() - recorder.facts.started_at if recorder.facts.started_at else 0.0
        self._started_mono = time.monotonic() - min(max(since, 0.0), _MINUTE_S)
        self._open_knock()
        self._disk: Disk | None = None
        self._key: folder.RunKey | None = None
        self._print_summary: Callable[[records.State, str, int | None], None] | None = None
        if os.environ.get(variable_names.RUN_SUMMARY):  # nothing is imported while the process ends
            from llmtop.instrument.run_log.summary import print_summary

            self._print_summary = print_summary
        self._sums = Sums(*self._now())
        self._slow = SlowStepStacks()
        self._cursor = 0
        self._held_until = 0
        self._values: dict[str, float] = {}
        self._facts_version = -1
        self._turn_s = TURN_S
        self._minute_at = self._started_mono + _MINUTE_S
        self._minutes = 0
        self._sign_at = self._started_mono
        self._last = 0
        self._last_at = 0.0
        self._last_bytes = 0
        self._noted = ""
        self._stopping = False
        self._saved_version = recorder.saved.version
        self._woken_at = 0.0
        recorder.saved.wake = self._wake_for_checkpoint
        self.sums_are_final = False
        """True if `sums` holds all steps of the process."""
        self.has_ended = False

    @property
    def sums(self) -> Sums:
        """The sums so far; to be read once they are final."""
        return self._sums

    def run(self) -> None:
        """Write until `stop`."""
        try:
            self._begin()
            while not self._stopping:
                if not (self._knocked.is_ours and self._knock.is_ours):
                    self._open_knock()  # the script has closed what it did not open
                self._taken.end()
                is_woken = bool(self._poll.poll(self._turn_s))
                self._taken.begin()
                if is_woken:  # to read gives up Python's lock, which the training then has for up to 5 ms
                    self._forget_wakes()
                if not self._stopping:
                    self._turn()
            self._finish()
        finally:
            self.has_ended = True
            self._close()

    def stop(self) -> None:
        """Write the last turn; waits a moment for it. In the thread that ends the process."""
        self._stopping = True
        if not self._wake():
            return
        threads.wait_until(lambda: self.has_ended, EXIT_S)

    def _wake(self) -> bool:
        """Wake the writer for its next turn, from any thread; return False if it cannot be reached."""
        try:
            return bool(self._knock.send(b"!"))
        except OSError:
            return False

    def _wake_for_checkpoint(self) -> None:
        """Wake the writer for a checkpoint, but not for each of many files that a script saves."""
        now = time.monotonic()
        if now - self._woken_at >= TURN_S:
            self._woken_at = now
            self._wake()

    def _forget_wakes(self) -> None:
        try:
            self._knocked.recv(_WAKES)
        except OSError:
            return

    def print_summary(self) -> None:
        """Print the summary that `llmtop run` asked for, if all steps are known."""
        key = self._key
        if self._print_summary is not None and self.sums_are_final and key is not None:
            self._print_summary(self._sums.sums(), key.folder_name[-RUN_ID_CHARACTERS:], self._recorder.facts.rank)

    def forget(self) -> None:
        """In a forked child: close the parent's files."""
        self._close()

    def _open_knock(self) -> None:
        self._knock, self._knocked = descriptors.pair()
        self._poll = descriptors.Poll()
        self._poll.register(self._knocked, select.POLLIN)

    def _close(self) -> None:
        for channel in (self._knock, self._knocked):
            channel.close()
        if self._disk is not None:
            self._disk.close()

    def _begin(self) -> None:
        runs = folder.runs_folder()
        key = identity.run_key(self._recorder)
        self._key = key
        self._disk = open_disk(runs, key.folder_name)
        self._name = folder.new_name(
            self._recorder.facts.rank, self._recorder.facts.started_at or time.time()
        ).text
        self._turn_files(self._now()[0])
        self._write_start()

    def _now(self) -> tuple[float, float]:
        """CLOCK_MONOTONIC and unix time without settings of the wall clock that are of no account, in seconds."""
        mono = time.monotonic_ns()
        return mono / 1e9, (mono + self._clock.offset_ns()) / 1e9

    def _turn(self) -> None:
        mono, at = self._now()
        self._sums.now(mono, at)
        is_first = bool(self._recorder.first_batch) and self._sums.state.first_batch_mono is None
        if is_first:
            self._sums.state.first_batch_mono = self._recorder.first_batch / 1e9
        found: list[records.Record] = []
        self._read_steps(found)
        is_saved = self._take_checkpoint()
        if is_first or is_saved:
            found.append(self._sums.sums())  # the next sums may come after the process was killed
        self._read_values(found, at)
        if not found and mono >= self._sign_at:
            found.append(self._sign(mono, at))
        if found:
            self._sign_at = mono + SIGN_S
        stacks = self._slow.sample(self._recorder.ring, mono, at)
        if stacks is not None:
            found.append(stacks)
        if self._facts_version != self._recorder.facts.version:
            self._write_start()
        if mono - self._last_at >= LAST_S or self._last_bytes >= LAST_BYTES:
            self._turn_files(mono)
        if found:
            self._append(folder.LAST[self._last], found, effort=_EFFORT_LAST)
        self._sums.state.phases_after = {}
        if mono >= self._minute_at:
            self._end_minute(mono)

    def _take_checkpoint(self) -> bool:
        """Take a checkpoint that was written since the last turn; return True if there is one."""
        saved = self._recorder.saved
        if saved.version == self._saved_version:
            return False
        self._saved_version = saved.version
        newest, state = saved.read()[-1], self._sums.state
        state.checkpoint_mono, state.checkpoint_index = newest.ended_ns / 1e9, newest.step
        state.phases_after = self._phases_after()
        return True

    def _read_steps(self, found: list[records.Record]) -> None:
        """Take what the ring has, some steps at a time: between them the training may have the interpreter."""
        ring, begun = self._recorder.ring, self._cursor
        until = ring.count
        found += self._read_holds()  # after the count: those before the steps to be read are known
        while self._cursor < until:
            first, rows = self._reader.read(self._cursor, min(MESSAGE_STEPS, until - self._cursor))
            if first > self._cursor:
                self._sums.lose(first - self._cursor)
            self._cursor = first + len(rows)
            offset = self._reader.unix_offset_ns
            self._sums.add(rows, offset)
            self._slow.add(rows)
            if rows:
                found.append(records.RecentSteps(first=first, steps=rows, mono_offset_ns=offset))
            if not rows and first >= until:
                break
            self._poll.poll(0)
        fast = (until - begun) / max(self._turn_s, _SHORTEST_TURN_S)
        self._turn_s = min(TURN_S, max(_SHORTEST_TURN_S, SIZE / 2 / fast)) if fast > 0 else TURN_S

    def _read_holds(self) -> list[records.Record]:
        """Take the stretches since the last turn in which captures held the process; one under way in parts."""
        new: list[records.Record] = []
        for one in self._recorder.holds.since(self._held_until):
            begun, self._held_until = max(one.begun_ns, self._held_until), one.ended_ns
            hold = records.Hold(begun=begun / 1e9, ended=one.ended_ns / 1e9, engine=one.engine)
            records.add_hold(self._sums.state, hold)
            new.append(hold)
        return new

    def _read_values(self, found: list[records.Record], at: float) -> None:
        values = self._recorder.metrics.copy()
        changed = {
            name: value
            for name, value in values.items()
            if self._values.get(name) != value and not math.isnan(value)
        }
        if changed:
            self._values = values
            found.append(records.Values(at=at, values=changed))

    def _sign(self, mono: float, at: float) -> records.Sign:
        recorder = self._recorder
        ended, worked = recorder.ring.last_end(), recorder.worked
        return records.Sign(
            at=at,
            mono=mono,
            idle_seconds=mono - ended / 1e9 if ended else None,
            phase=recorder.node.path if recorder.tracks is None else "",
            worked_seconds=max(0.0, mono - worked / 1e9) if worked else None,
        )

    def _start_record(self) -> records.Start:
        self._facts_version = self._recorder.facts.version
        assert self._key is not None
        return identity.start_record(self._recorder, self._key, self._started_mono)

    def _write_start(self) -> None:
        self._append(folder.RUN, [self._start_record()])

    def _turn_files(self, mono: float) -> None:
        """Write the other file of the last minutes from now on."""
        self._last = 1 - self._last
        self._last_at, self._last_bytes = mono, 0
        found: list[records.Record] = [self._start_record(), self._sums.sums()]
        found += self._slow.of_running(self._recorder.ring)
        self._append(folder.LAST[self._last], found, effort=_EFFORT_LAST, anew=True)

    def _end_minute(self, mono: float) -> None:
        self._minute_at = mono + _MINUTE_S
        self._minutes += 1
        with_state = self._minutes % STATE_MINUTES == 0
        found = self._sums.end_minute(self._values, repeat_names=with_state)
        in_full = self._sums.take_kept()
        if in_full is not None:
            found.append(in_full)
        if with_state:
            found.append(self._sums.sums())
        if not found:
            found.append(self._sign(*self._now()))
        self._append(folder.RUN, found)

    def _finish(self) -> None:
        mono, at = self._now()
        self._sums.now(mono, at)
        found: list[records.Record] = []
        self._read_steps(found)
        self._read_values(found, at)
        self._sums.state.phases_after = self._phases_after()
        self.sums_are_final = True
        end = end_record(at, mono)
        minute = self._sums.end_minute(self._values, repeat_names=False)
        in_full = self._sums.take_kept()
        if in_full is not None:
            minute.append(in_full)
        self._append(folder.RUN, [*minute, self._sums.sums(), end])
        self._append(folder.LAST[self._last], [*found, end], effort=_EFFORT_LAST)

    def _phases_after(self) -> dict[str, float]:
        """Return the seconds of the phases since the last step: a checkpoint at the end, say."""
        recorder = self._recorder
        if recorder.open_step is not None or recorder.tracks is not None:
            return {}
        cells, names = recorder.cells.copy(), recorder.paths.names
        pairs = zip(names, cells[::2], strict=False)
        return {name: ns / 1e9 for name, ns in pairs if name and ns > 0}

    def _append(self, ending: str, found: list[records.Record], *, effort: int = 6, anew: bool = False) -> None:
        """Write a member; what the disk does not take is dropped."""
        if self._disk is None:
            return
        _, at = self._now()
        data = pack(records.lines_of(found), at, at, len(found), effort)
        if ending != folder.RUN:
            self._last_bytes += len(data)
        try:
            self._disk.append(self._name + ending, data, anew=anew)
        except DiskTrouble as trouble:
            self._sums.state.dropped += 1
            if not self._noted:
                self._noted = str(trouble)
                self._recorder.cannot_see(WHAT, f"data was dropped: {trouble}")
                if not self._recorder.facts.local_rank and not os.environ.get(variable_names.QUIET):
                    sanitize.warn("run_log", f"the run is not kept as a whole, data was dropped: {trouble}")
            return
        if self._noted:
            self._noted = ""
            self._recorder.can_see(WHAT)


_present: RunLog | None = None
_thread: threads.Thread | None = None
"""Thread of `_present`."""


def start(recorder: State) -> None:
    """Write the run of this process until it ends, in a thread of its own; a second call does nothing.

    It is called again when a signal's handler has cut the first call short.
    """
    global _present, _thread
    if _thread is None or _present is None or _present._recorder is not recorder:
        _present = log = RunLog(recorder)
        _thread = threads.Thread(functools.partial(_run, log, recorder), "llmtop-run")
    _thread.start()


def _run(log: RunLog, recorder: State) -> None:
    """Write until the process ends; lets nothing out."""
    try:
        log.run()
    except NotPossibleHere as error:
        recorder.cannot_see(WHAT, str(error))
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training
        recorder.cannot_see(WHAT, f"{type(error).__name__}: {error}")
        log_once(error)


def _end(recorder: State) -> None:
    if _present is not None and _present._recorder is recorder:
        _present.stop()
        _present.print_summary()


def _forget(recorder: State) -> None:
    global _present, _thread
    if _present is not None:
        _present.forget()
    _present = _thread = None


registry.at_fork("run_log", _forget)
registry.at_end("run_log", _end)
