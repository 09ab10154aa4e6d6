"""One run of a command under ncu: with a limit in time, its words kept, and its failures as sentences."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from llmtop.errors import NotPossibleHere
from llmtop.format import printable
from llmtop.ncu.command import LaunchFilter, arguments, functor_word
from llmtop.ncu.profile import KernelProfile
from llmtop.ncu.read import SUFFIX
from llmtop.ncu.tool import REMEDY, NcuTool
from llmtop.report.model import KernelTime

_GRACE_SECONDS = 10.0
"""Between the signals that end a run: ncu may have a report to write, a training its own end."""
_LOG_BYTES = 1 << 20
"""Kept end of the output of ncu and the command."""


def run(ncu: NcuTool, launches: LaunchFilter, stem: Path, command: Sequence[str], seconds: float) -> Path:
    """Run a command under ncu; returns its report. What both said is in a .log beside it.

    Args:
        ncu: the program.
        launches: what is profiled.
        stem: the report's path without .ncu-rep; one that is there is written over.
        command: the words of the program, which runs in this folder with this environment.
        seconds: how long it may take; then everything that it started is ended.

    Raises:
        NotPossibleHere: counters are not permitted, nothing was profiled, it took too long, or ncu failed.
    """
    report, log = stem.with_name(stem.name + SUFFIX), stem.with_name(stem.name + ".log")
    words = [*arguments(launches, stem, str(ncu.path)), *command]
    try:
        report.unlink(missing_ok=True)  # else one of before would be read
        with log.open("wb") as said:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )
    except OSError as error:
        raise NotPossibleHere(f"{ncu.path} cannot be run into {stem.parent}: {error.strerror}") from None
    late = False
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        _end(process)
    if report.is_file() and report.stat().st_size:
        return report
    raise NotPossibleHere(_failure(_tail(log), log, launches, process.returncode, seconds if late else None))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what still runs of it: gently, then firmly, then for good; and what it left in its session."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - _LOG_BYTES, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _failure(said: str, log: Path, launches: LaunchFilter, code: int | None, late: float | None) -> str:
    if "ERR_NVGPUCTRPERM" in said:
        return f"ncu may not read the GPU's counters here (ERR_NVGPUCTRPERM): {REMEDY}"
    if late is not None:
        return (
            f"ncu had no report after {late:.0f} s, so llmtop ended ncu and the command: pass more time with "
            f"--timeout, or a shorter command after --; the output of ncu is in {log}"
        )
    if "No kernels were profiled" in said:
        return (
            f"ncu found nothing to profile for {launches.description}: the command ended too early, or launches "
            f"other "
            f"kernels "
            "than the capture has; pass a command after -- that runs as many steps as were captured; the output "
            "of "
            f"ncu is in {log}"
        )
    errors = [line.removeprefix("==ERROR==").strip() for line in said.splitlines() if line.startswith("==ERROR==")]
    last = [line for line in said.splitlines() if line.strip()][-1:]
    why = printable((errors or last or ["no output"])[0], 200)
    return f"ncu wrote no report and ended with code {code} ({why}); the output of ncu is in {log}"


def select_launch(row: KernelTime, kernels: Sequence[KernelProfile]) -> KernelProfile | None:
    """Return the launch of that kernel among those that were profiled; of several the longest. None where there is
    none.

    Args:
        row: the kernel as the capture has it.
        kernels: as ncu wrote them.
    """
    from llmtop.naming.readable_kernels import label_of

    same = [kernel for kernel in kernels if kernel.name == row.short_name]
    if row.functor:
        typed = [kernel for kernel in same if label_of(kernel.name, kernel.demangled).functor == row.functor]
        word = functor_word(row.functor)
        same = typed or [
            kernel for kernel in same if f"{word}<" in kernel.demangled or f"{word}(" in kernel.demangled
        ]
    return max(same, key=lambda kernel: kernel.seconds or 0.0, default=None)
