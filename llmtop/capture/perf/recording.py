"""One window of perf: on-CPU samples and switches of a training with its workers, its counters, Python's "
"stacks."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from llmtop.capture.base.job import CaptureJob, Target
from llmtop.capture.perf import counters, script
from llmtop.capture.perf.program import WRITE_SECONDS, PerfRun, failure_reason, find_perf, may_trace_kernel
from llmtop.capture.py_spy import outside
from llmtop.capture.py_spy.cpu_times import descendant_pids
from llmtop.errors import NotPossibleHere
from llmtop.stacks.model import Counters
from llmtop.stacks.samples import Stack
from llmtop.system import procfs

SCRIPT_SECONDS = 300.0
"""How long `perf script` may take to print what was recorded: what perf keeps is bounded by `_MOST_BYTES`."""
RATE_HZ = 49
"""Not in step with what happens 50 or 100 times a second."""
_STACK_BYTES = 8192
_MOST_BYTES = "256M"


class PerfRecording:
    """All samplers of one training."""

    def __init__(self, job: CaptureJob, target: Target) -> None:
        """Start what records; it waits.

        Raises:
            NotPossibleHere: it cannot be run.
        """
        self.target = target
        self.notes: list[str] = []
        self.switches = may_trace_kernel()
        self._workers = [pid for pid in descendant_pids([target.pid]) if procfs.is_alive(pid)]
        self._data = job.folder / f"{target.file_stem}.perf.data"
        self._counts = job.folder / f"{target.file_stem}.perf-stat.json"
        self._began = self._ended = 0.0
        pids = ",".join(str(pid) for pid in (target.pid, *self._workers))
        self._runs: list[PerfRun] = []
        self._python: outside.PySpyRecording | None = None
        frames = "fp" if "frame-pointers" in job.plan.options else f"dwarf,{_STACK_BYTES}"
        user = "" if self.switches else ":u"
        record = ["record", "--quiet", "--delay=-1", "--control={control}", "--output", str(self._data)]
        record += ["--no-buildid-cache"]  # it copies the training's libraries and the kernel's symbols to ~/.debug
        record += ["--max-size", _MOST_BYTES, "--call-graph", frames, "--switch-events"]
        record += ["-e", f"cpu-clock/freq={RATE_HZ}/{user.lstrip(':')}"]
        if self.switches:
            record += ["-e", "sched:sched_switch/call-graph=fp/"]
        events = ",".join(f"{event}{user}" for event in counters.EVENTS)
        stat = ["stat", "--json", "--delay=-1", "--control={control}", "--output", str(self._counts), "-e", events]
        try:
            self._runs.append(PerfRun([*record, "-p", pids]))
            self._runs.append(PerfRun([*stat, "-p", pids]))
        except BaseException:
            self.close()
            raise

    def begin(self, job: CaptureJob) -> None:
        """Begin all recordings; returns when all have begun.

        Raises:
            NotPossibleHere: perf may not.
        """
        try:
            self._python = outside.PySpyRecording(job, self.target)
            self._python.await_start(job)
        except NotPossibleHere as why:
            if self._python is not None:
                self._python.close()
            self._python = None
            self.notes.append(f"no Python stacks beside perf's: {why}")
        for run in self._runs:
            run.begin()
        self._began = time.monotonic()

    def end(self) -> None:
        """Write the data of all recordings."""
        self._ended = time.monotonic()
        for run in self._runs:
            run.end()
        if self._python is not None:
            self._python.stop()

    def python_stacks(self, job: CaptureJob) -> list[Stack]:
        """Return the stacks that py-spy saw meanwhile."""
        if self._python is None:
            return []
        try:
            return self._python.samples(job)
        except NotPossibleHere as why:
            self.notes.append(f"no Python stacks beside perf's: {why}")
            return []

    def read_counters(self) -> Counters:
        """Read the counters of perf stat."""
        self._runs[1].wait()
        try:
            return counters.read_counters(self._counts.read_text(), max(self._ended - self._began, 1e-3))
        except OSError as error:
            raise NotPossibleHere(
                f"perf left no readable file of counters ({self._counts}: {error.strerror}); choose another "
                "engine, such as py-spy"
            ) from None
        finally:
            self._counts.unlink(missing_ok=True)

    def read_stacks(self) -> script.PerfStacks:
        """Return the stacks that perf recorded.

        Raises:
            NotPossibleHere: it left none, or they cannot be read.
        """
        self._runs[0].wait()
        if not self._data.is_file() or not self._data.stat().st_size:
            reason = failure_reason(self._runs[0].output_text())
            raise NotPossibleHere(
                f"perf wrote no samples to {self._data} ({reason}): check that the process runs, and capture more "
                "seconds"
            )
        fields = "comm,pid,tid,time,event,ip,sym,dso"
        command = [
            find_perf(),
            "script",
            "--input",
            str(self._data),
            "--no-inline",
            "--show-switch-events",
            "-F",
            fields,
        ]
        asked = {self.target.pid: self.target.command or ""}
        asked |= {pid: procfs.command(pid) or "" for pid in self._workers}
        quiet = subprocess.DEVNULL
        with subprocess.Popen(
            command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, text=True, errors="replace"
        ) as error_lines:
            assert error_lines.stdout is not None
            patience = threading.Timer(SCRIPT_SECONDS, error_lines.kill)
            patience.start()
            try:
                found = script.read_script(
                    error_lines.stdout, asked, dict.fromkeys(self._workers, self.target.pid)
                )
                error_lines.wait(timeout=WRITE_SECONDS)
            except BaseException:
                error_lines.kill()
                raise
            finally:
                patience.cancel()
        if error_lines.returncode == -signal.SIGKILL:
            raise NotPossibleHere(
                f"perf script has not read {self._data} within {SCRIPT_SECONDS:.0f} s: capture fewer seconds"
            )
        if error_lines.returncode and not found.on_cpu:
            raise NotPossibleHere(
                f"{command[0]} script cannot read the recording {self._data}: use the perf of this kernel "
                "(linux-tools), or the engine py-spy"
            )
        # It holds pieces of the training's memory (its stacks), and what was to be seen has been read.
        self._data.unlink(missing_ok=True)
        return found

    def close(self) -> None:
        """End all of it."""
        for run in self._runs:
            run.close()
        self._runs = []
        if self._python is not None:
            self._python.close()
            self._python = None
        for left in (self._counts, Path(f"{self._data}.old")):
            with suppress(OSError):
                left.unlink(missing_ok=True)
