"""py-spy at work: one sample, and a recording of a process with its children."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

from llmtop.capture.base.job import CaptureJob, Target
from llmtop.capture.base.parent_death import signal_on_thread_death
from llmtop.capture.base.wait_for_window import recording_seconds
from llmtop.capture.py_spy import program, ptrace_permission, stacks
from llmtop.capture.py_spy.cpu_times import descendant_pids
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.format import printable
from llmtop.stacks.samples import Stack, read_folded
from llmtop.system import procfs

RATE_HZ = 100
START_SECONDS = 20.0
WRITE_SECONDS = 20.0
DUMP_SECONDS = 5.0
ENDS_SECONDS = 5.0
"""How long a killed py-spy may take to end."""
_DUMP_TRIES = 3
"""Tries of a dump. Without a pause a stack can change while py-spy reads it; it then fails and is started
again."""
_UNKNOWN_VERSION = "unsupported version of python"
_MOST_WORKERS, _AT_ONCE = 64, 8


def check_access(pid: int) -> None:
    """See whether py-spy may read a process.

    Raises:
        NotPossibleHere: it may not; the sentence names the command that would change it.
    """
    program.find_py_spy()
    refused = ptrace_permission.refusal(pid)
    if refused is not None:
        raise NotPossibleHere(f"{refused.reason}; to change that: {refused.command}")


def dump(pid: int) -> tuple[stacks.ThreadStack, ...]:
    """Return the stacks of all Python threads now, workers' too; takes some 0.05 s a process and pauses nothing.

    Raises:
        NotPossibleHere: not permitted, no Python process, one that py-spy does not know, or gone.
    """
    found = list(_run_dump(pid, None))
    # With --json py-spy up to 0.4.3 leaves out the subprocesses despite --subprocesses.
    workers = [child for child in descendant_pids([pid]) if procfs.runs_python(child)][:_MOST_WORKERS]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for worker in pool.map(_dump_worker, workers):
            found += worker
    return stacks.sort_threads(found)


def record_command(
    pid: int, seconds: int, rate_hz: float, output: Path | str, *, native: bool = False
) -> list[str]:
    """Return the command that writes the stacks of a process, and of those that it starts, as folded stacks.

    Args:
        pid: of the process.
        seconds: after which py-spy ends by itself.
        rate_hz: looks a second.
        output: the file to write.
        native: with the frames of C and C++, for which py-spy pauses the process at each look.

    Raises:
        NotPossibleHere: py-spy is not there.
    """
    py_spy = str(program.find_py_spy())
    command = [py_spy, "record", "--pid", str(pid), "--duration", str(seconds), "--rate", str(rate_hz)]
    command += ["--format", "raw", "--threads", "--idle", "--subprocesses", "--full-filenames"]
    return [*command, "--native" if native else "--nonblocking", "--output", str(output)]


def _dump_worker(pid: int) -> tuple[stacks.ThreadStack, ...]:
    try:
        return _run_dump(pid, pid)
    except (NotPossibleHere, UnusableInput):
        return ()  # it has ended meanwhile


def _run_dump(pid: int, worker: int | None) -> tuple[stacks.ThreadStack, ...]:
    check_access(pid)
    last = ""
    py_spy = str(program.find_py_spy())
    command = [py_spy, "dump", "--json", "--nonblocking", "--full-filenames", "--pid", str(pid)]
    for _ in range(_DUMP_TRIES):
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DUMP_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            last = f"no answer within {DUMP_SECONDS:.0f} s"
            continue
        except OSError as error:
            raise NotPossibleHere(f"{command[0]} cannot be run: {error.strerror}; install py-spy again") from None
        if done.returncode == 0:
            return stacks.read_dump(done.stdout, pid, worker)
        last = done.stderr.decode(errors="replace")
    raise NotPossibleHere(failure_reason(pid, last))


def failure_reason(pid: int, text: str) -> str:
    """Return why py-spy cannot read a process, from what it printed."""
    if not procfs.is_alive(pid):
        return f"process {pid} has ended"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = printable(lines[0].removeprefix("Error: "), 200) if lines else "it gave no reason"
    if _UNKNOWN_VERSION in text.lower():
        return f"py-spy cannot read the Python of process {pid} ({reason}): pip install -U py-spy may help"
    return (
        f"py-spy cannot read process {pid} ({reason}): it must be a Python process of yours, or llmtop must run "
        "as root"
    )


class PySpyRecording:
    """A py-spy that samples one process and those that it starts."""

    taken_by: Literal["py-spy"] = "py-spy"

    def __init__(self, job: CaptureJob, target: Target) -> None:
        """Start it.

        Raises:
            NotPossibleHere: it may not read the process, or cannot be run.
        """
        check_access(target.pid)
        self.target = target
        self.notes: list[str] = []
        self._native = "native" in job.plan.options
        self.rate_hz: float = program.NATIVE_RATE_HZ if self._native else RATE_HZ
        self._raw = job.folder / f"{target.file_stem}.py-spy"
        self._log_fd = os.memfd_create("llmtop-py-spy")
        # Bounded, so that a py-spy whose monitor was killed ends as well.
        bound = math.ceil(3 * (job.plan.seconds or recording_seconds(job))) + 30
        self._stopped_before = procfs.is_stopped(target.pid)
        command = record_command(target.pid, bound, self.rate_hz, self._raw, native=self._native)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log_fd,
                stderr=self._log_fd,
                start_new_session=True,
                # A py-spy that pauses the training for each sample must not be killed within one.
                preexec_fn=None if self._native else signal_on_thread_death(),  # noqa: PLW1509  safe, as it says
            )
        except OSError as error:
            os.close(self._log_fd)
            raise NotPossibleHere(f"{command[0]} cannot be run: {error.strerror}; install py-spy again") from None

    def await_start(self, job: CaptureJob) -> None:
        """Wait until it samples.

        Raises:
            NotPossibleHere: it cannot read the process.
        """
        deadline = time.monotonic() + START_SECONDS
        while "Sampling process" not in self._log():
            if self._process.poll() is not None:
                raise NotPossibleHere(failure_reason(self.target.pid, self._log()))
            if time.monotonic() > deadline:
                raise NotPossibleHere(
                    f"py-spy did not start within {START_SECONDS:.0f} s; the training continues, try again"
                )
            job.sleep(0.01)

    def stop(self) -> None:
        """Make it write its samples."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def samples(self, job: CaptureJob) -> list[Stack]:
        """Wait until it has written, and read that.

        Raises:
            NotPossibleHere: it wrote nothing that can be read.
        """
        deadline = time.monotonic() + WRITE_SECONDS
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                raise NotPossibleHere(
                    f"py-spy has not written {self._raw} within {WRITE_SECONDS:.0f} s: no file was kept; try again"
                )
            job.sleep(0.02)
        if not self._raw.is_file() or self._raw.stat().st_size == 0:
            why = "; ".join(line for line in self._log().splitlines() if "rror" in line) or "it gave no reason"
            raise NotPossibleHere(
                f"py-spy wrote no samples to {self._raw} ({printable(why)}): free space on the disk if it is "
                "full, and try again"
            )
        try:
            found = read_folded(self._raw.read_text(errors="replace"))
        except (OSError, UnusableInput) as error:
            raise NotPossibleHere(
                f"the output of py-spy in {self._raw} cannot be read: {error}; mend that, and take the "
                "capture again"
            ) from None
        self._raw.unlink(missing_ok=True)
        return found

    def close(self) -> None:
        """End it, and see that the training runs."""
        if self._process.poll() is None:
            self._process.kill()  # py-spy itself, never the training
            with suppress(subprocess.TimeoutExpired):  # it waits for a disk, say, and ends after that
                self._process.wait(ENDS_SECONDS)
            if self._native and not self._stopped_before and procfs.is_stopped(self.target.pid):
                # It was killed while it paused the process for a sample; the kernel detached it, but it is
                # stopped.
                with suppress(OSError):
                    os.kill(self.target.pid, signal.SIGCONT)
        os.close(self._log_fd)

    def _log(self) -> str:
        return os.pread(self._log_fd, 1 << 16, 0).decode(errors="replace")
