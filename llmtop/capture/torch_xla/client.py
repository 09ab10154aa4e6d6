"""torch_xla's own client, in a child process with the training's Python."""

from __future__ import annotations

import select
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from llmtop.capture.base.job import CaptureJob, Target
from llmtop.capture.base.parent_death import signal_on_thread_death
from llmtop.capture.torch_xla import ports, trace_program
from llmtop.errors import NotPossibleHere
from llmtop.format import duration, printable
from llmtop.system import procfs
from llmtop.trace.xla.viewer import ENDING

LOAD_SECONDS = 120.0
"""torch_xla takes some six seconds to load from a quiet disk."""
WRITE_SECONDS = 60.0
"""How long after the window the file may take: 0.1 s for 300 kB on the CPU's backend."""
_POLL_SECONDS: Final = 0.05
_ENDS_SECONDS: Final = 5.0
_LEFT_OUT: Final = (
    "LLMTOP",
    "PYTHON",
    "PT_XLA",
    "NSYS",
    "LD_PRELOAD",
    "KINETO",
    "CUDA_INJECTION",
    "NVTX_INJECTION",
)
_OWN: Final = {"PJRT_DEVICE": "CPU", "XLA_REGISTER_INSTALLED_PLUGINS": "0", "OMP_NUM_THREADS": "1"}
"""It computes nothing and takes no device."""


class ProfilerClient:
    """One window of one training."""

    def __init__(self, target: Target, port: int, folder: Path) -> None:
        """Start it: it loads torch_xla.

        Args:
            target: whose window.
            port: where its profiler listens.
            folder: of this window alone; it is made, and removed by `close`.

        Raises:
            NotPossibleHere: the training's Python cannot be started from here.
        """
        self.target, self._folder = target, folder
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        try:
            folder.mkdir()
            self._process = subprocess.Popen(
                client_command(target.pid, port, folder),
                env=_environment(target.pid),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                preexec_fn=signal_on_thread_death(),  # noqa: PLW1509 - two system calls, no lock
            )
        except OSError as error:
            self._said.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise NotPossibleHere(
                f"the Python of {target.name} cannot be started from here ({error.strerror}): run llmtop where "
                "the training runs"
            ) from None

    def await_ready(self, job: CaptureJob) -> None:
        """Wait until it has loaded torch_xla.

        Raises:
            Cancelled: meanwhile.
            NotPossibleHere: it cannot load it, or takes too long.
        """
        assert self._process.stdout is not None
        until = time.monotonic() + LOAD_SECONDS
        while not select.select([self._process.stdout], [], [], _POLL_SECONDS)[0]:
            job.raise_if_cancelled()
            if time.monotonic() > until:
                raise NotPossibleHere(
                    f"torch_xla's client has not loaded torch_xla for {duration(LOAD_SECONDS)}: the machine is "
                    "overloaded or its disk is slow: try again"
                )
        if not self._process.stdout.read1(64).startswith(b"ready"):  # type: ignore[attr-defined]
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDS_SECONDS)
            raise self._failure()

    def record(self, seconds: float) -> None:
        """Begin to record; returns at once.

        Args:
            seconds: length of the window, rounded to milliseconds; at least 1 ms.

        Raises:
            NotPossibleHere: the profiler's client process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{max(1, round(1000 * seconds))}\n".encode())
            self._process.stdin.close()
        except OSError:
            raise self._failure() from None

    def await_file(self, job: CaptureJob, seconds: float, began: float) -> Path:
        """Wait for the end of the window and for its file.

        Args:
            job: gets progress once per poll; its cancellation ends the wait.
            seconds: length of the window.
            began: monotonic seconds at which recording began.

        Raises:
            Cancelled: the person cancelled.
            NotPossibleHere: no window was recorded, or the file is not there `WRITE_SECONDS` after its end.
        """
        while self._process.poll() is None:
            job.sleep(_POLL_SECONDS)
            spent = time.monotonic() - began
            job.report_progress(
                f"{duration(min(spent, seconds))} of {duration(seconds)}" if spent < seconds else "writing"
            )
            if spent > seconds + WRITE_SECONDS:
                raise NotPossibleHere(
                    f"the profiler of {self.target.name} has not answered for {duration(spent)}: the training may "
                    "be stopped, or may compile; look at the stacks of the training (key s)"
                )
        if self._process.returncode:
            raise self._failure()
        found = sorted(self._folder.rglob(f"*{ENDING}"))
        if not found or not found[-1].stat().st_size:
            raise NotPossibleHere(
                f"the profiler of {self.target.name} recorded a window and left no {ENDING} in {self._folder}: "
                "the training writes this file, perhaps it cannot write there: pass another folder with --out"
            )
        return found[-1]

    def close(self) -> None:
        """End it if it still runs, which ends the recording as well, and remove what it left."""
        if self._process.poll() is None:
            self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # it waits for a disk, say, and ends after that
            self._process.wait(_ENDS_SECONDS)
        for stream in (self._process.stdin, self._process.stdout, self._said):
            if stream is not None:
                with suppress(OSError):  # unsent input of a client that has gone
                    stream.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _failure(self) -> NotPossibleHere:
        code = self._process.poll()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        last = printable(lines[-1], 200) if lines else f"exit code {code}"
        if code == trace_program.NOT_LOADED:
            return NotPossibleHere(f"the Python of {self.target.name} does not load torch_xla here ({last})")
        if code == trace_program.NOT_RECORDED:
            return NotPossibleHere(
                f"the profiler of {self.target.name} recorded nothing ({last.rstrip('.')}): another client may be "
                "recording, or the server has ended"
            )
        return NotPossibleHere(f"torch_xla's client of {self.target.name} ended by itself ({last})")


def client_command(pid: int, port: int, folder: Path) -> list[str]:
    """Return how to start the client of one training.

    Raises:
        OSError: the process has gone, or may not be inspected.
    """
    program = str(Path(trace_program.__file__))
    return [procfs.executable(pid), "-I", program, str(port), str(folder), *ports.package_folders(pid)]


def _environment(pid: int) -> dict[str, str]:
    """Return the training's, for the places of its libraries, without what would be done to it."""
    given = procfs.environ(pid)
    return {name: value for name, value in given.items() if not name.startswith(_LEFT_OUT)} | _OWN
