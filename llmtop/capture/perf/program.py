"""perf as a program: its path, its permissions here, and one run of it that ends with the starting process."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from llmtop.capture.base.engine import Check, Refusal
from llmtop.capture.base.parent_death import signal_on_thread_death
from llmtop.capture.py_spy.ptrace_permission import is_in_container
from llmtop.errors import NotPossibleHere
from llmtop.format import printable
from llmtop.system import procfs

START_SECONDS = 20.0
WRITE_SECONDS = 60.0
TRY_SECONDS = 10.0
ENDS_SECONDS = 5.0
"""How long a killed perf may take to end: the kernel ends it once it comes back from the disk."""


def find_perf() -> str:
    """perf's program.

    Raises:
        NotPossibleHere: it is not there.
    """
    found = shutil.which("perf")
    if found is None:
        raise NotPossibleHere("perf is not installed: sudo apt-get install linux-perf")
    return found


def paranoid() -> int:
    """kernel.perf_event_paranoid; 2, the kernel's own default, where it cannot be read."""
    level = procfs.perf_event_paranoid()
    return 2 if level is None else level


def may_trace_kernel() -> bool:
    """Return True if this user may look at the kernel and its tracepoints too."""
    return os.geteuid() == 0 or procfs.has_capability(procfs.CAP_PERFMON) or paranoid() < 0


def refusal() -> Refusal | None:
    """Return why perf cannot be used here; None if it can, as far as known without a try."""
    try:
        find_perf()
    except NotPossibleHere as missing:
        because, _, command = str(missing).partition(": ")
        return Refusal(because, command)
    if paranoid() > 2 and not may_trace_kernel():
        return Refusal(
            f"the kernel allows perf for root only (kernel.perf_event_paranoid is {paranoid()})",
            "sudo sysctl kernel.perf_event_paranoid=1",
        )
    return None


def check() -> Check:
    """Return True if it works here, by a try."""
    refused = refusal()
    if refused is not None:
        return Check(name="perf", ok=False, says=refused.reason, command=refused.command)
    why = _try_perf()
    if why:
        command = "docker run --cap-add=PERFMON --security-opt seccomp=unconfined …" if is_in_container() else ""
        return Check(name="perf", ok=False, says=f"perf cannot record here ({why})", command=command)
    if may_trace_kernel():
        return Check(name="perf", ok=True, says=f"{find_perf()}, with kernel frames and context switches")
    return Check(
        name="perf",
        ok=True,
        says=f"{find_perf()}, frames of programs only, none of the kernel (kernel.perf_event_paranoid is "
        f"{paranoid()})",
        command="sudo sysctl kernel.perf_event_paranoid=-1",
    )


def _try_perf() -> str:
    """Return why it cannot count this very process; "" if it can."""
    command = [find_perf(), "stat", "-e", "task-clock:u", "-p", str(os.getpid()), "--", "true"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRY_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return printable(str(error), 100)
    return "" if done.returncode == 0 else failure_reason(done.stderr.decode(errors="replace"))


def failure_reason(text: str) -> str:
    """Return perf's own reason in one clause."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    stated = [line for line in lines if line.lower() not in ("error:", "fatal:")]
    return printable(stated[0].rstrip("."), 160) if stated else "it gave no reason"


class PerfRun:
    """One perf process that records or counts between `begin()` and its end."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """Start it; it waits.

        Args:
            arguments: after "perf", with "{control}" where its --control belongs.

        Raises:
            NotPossibleHere: it cannot be run.
        """
        read, self._orders = os.pipe()
        self._answers, write = os.pipe()
        self._log = os.memfd_create("llmtop-perf")
        control = f"fd:{read},{write}"
        command = [find_perf(), *(word.replace("{control}", control) for word in arguments)]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(read, write),
                start_new_session=True,
                preexec_fn=signal_on_thread_death(),  # noqa: PLW1509  safe, as it says
            )
        except OSError as error:
            self.close()
            raise NotPossibleHere(f"{command[0]} cannot be run: {error.strerror}; check its permissions") from None
        finally:
            os.close(read)
            os.close(write)

    def begin(self) -> None:
        """Begin recording; returns when it has begun.

        Raises:
            NotPossibleHere: it may not, or has ended; the sentence has its own reason.
        """
        deadline = time.monotonic() + START_SECONDS
        try:
            os.write(self._orders, b"enable\n")
        except OSError:
            deadline = 0.0
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self._answers], [], [], 0.05)
            if ready and b"ack" in os.read(self._answers, 64):
                return
            if self.process.poll() is not None:
                break
        raise NotPossibleHere(
            f"perf cannot record the process ({failure_reason(self.output_text())}); the training continues"
        )

    def end(self) -> None:
        """Write the recorded data."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def wait(self) -> None:
        """Wait until it has written.

        Raises:
            NotPossibleHere: it does not end, or was killed.
        """
        try:
            code = self.process.wait(timeout=WRITE_SECONDS)
        except subprocess.TimeoutExpired:
            raise NotPossibleHere(
                f"perf has not written within {WRITE_SECONDS:.0f} s: no file was kept; try again"
            ) from None
        if code == -signal.SIGKILL:
            raise NotPossibleHere(
                "perf was killed while it recorded: no file was kept, and the training continues; try again"
            )

    def output_text(self) -> str:
        """Return its output."""
        return os.pread(self._log, 1 << 16, 0).decode(errors="replace")

    def close(self) -> None:
        """End it, whatever it does."""
        process = getattr(self, "process", None)
        if process is not None and process.poll() is None:
            process.kill()  # the kernel takes its events off the training
            with suppress(subprocess.TimeoutExpired):  # it waits for a disk, say, and ends after that
                process.wait(ENDS_SECONDS)
        for descriptor in (self._orders, self._answers, self._log):
            os.close(descriptor)
