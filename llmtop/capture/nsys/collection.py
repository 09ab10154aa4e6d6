"""One collection of nsys in one session, from its command line to its report.

A small shell holds it: it starts the collection, waits for a word or the end of its input, and stops it. It is in
a session of its own and its input ends with this process, so neither Ctrl+C in the pane nor `kill -9` of the
monitor leaves a training being traced. Its output goes to memory, where a full disk cannot cut it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from llmtop.capture.base.folder import MIN_FREE_BYTES, check_disk
from llmtop.capture.base.job import CaptureJob, Target
from llmtop.capture.base.lock import CaptureLock
from llmtop.capture.base.wait_for_window import POLL_SECONDS
from llmtop.capture.nsys import pause
from llmtop.errors import NotPossibleHere
from llmtop.naming import variable_names
from llmtop.nsys_cli import tool as nsys_module
from llmtop.nsys_cli import words
from llmtop.nsys_cli.export import import_raw, importer
from llmtop.nsys_cli.tool import Nsys, Session
from llmtop.protocol import socket_dir
from llmtop.system import procfs

START_SECONDS = 30.0
"""Measured: 0.25 s, 1.0 s with GPU metrics."""
STOP_SECONDS = 120.0
"""Measured: 2.9 to 3.5 s for a window of one second; 110 s with CPU sampling."""

_HOLD = """
nsys=$1 session=$2 python=$3 program=$4 home=$5 always=$6; shift 6
"$nsys" start --session="$session" "$@" </dev/null
code=$?
echo "llmtop: start $code"
[ "$code" -eq 0 ] || exit 0
read -r word
if [ "$word" != stop ] && [ -n "$python" ] &&
  "$python" -c "$program" "$home" "$nsys" "$session" $always </dev/null
then true; else "$nsys" stop --session="$session" </dev/null; fi
echo "llmtop: stop $?"
"""
_STOPPER = """
import sys
sys.path.append(sys.argv.pop(1))
from llmtop.capture.nsys.pause import main
sys.exit(main())
"""
"""Where llmtop is not installed the shell's python, whose folder is /, would not find it."""
_MARK = re.compile(r"^llmtop: (start|stop) (\d+)$", re.MULTILINE)
_GENERATED = re.compile(r"^\s*(/\S.*\.(?:nsys-rep|qdstrm))\s*$", re.MULTILINE)


@dataclass
class Collection:
    """One collection under way in one session, and the shell that holds it."""

    nsys: Nsys
    session: Session
    output: Path
    """Output path of nsys, without a suffix."""
    holder: subprocess.Popen[bytes]
    log_fd: int
    lock: CaptureLock
    targets: list[Target] = field(default_factory=list)
    is_released: bool = False

    def log(self) -> str:
        """Return all output of nsys so far."""
        size = os.fstat(self.log_fd).st_size
        return os.pread(self.log_fd, size, 0).decode(errors="replace").replace("\r", "\n")

    def exit_status(self, step: str) -> int | None:
        """Return the exit status of "start" or "stop"; None while it runs."""
        codes = [int(code) for name, code in _MARK.findall(self.log()) if name == step]
        return codes[-1] if codes else None

    def output_text(self) -> str:
        """Return nsys's error text in one line."""
        return words.failure_reason(_MARK.sub("", _GENERATED.sub("", self.log()))) or "it gave no reason"

    def written_reports(self) -> list[Path]:
        """Return the files that nsys reports as written."""
        return [Path(text) for text in _GENERATED.findall(self.log())]

    @property
    def tool_info(self) -> dict[str, str]:
        """Which program, which version, which session."""
        return {"nsys": self.nsys.version_text, "path": str(self.nsys.path), "session": self.session.id}

    @property
    def uses_gpu(self) -> bool:
        """Return True if one of the trainings has a GPU open."""
        return any(procfs.uses_gpu(target.pid) for target in self.targets)

    @property
    def has_ended(self) -> bool:
        """Return True if nothing of it runs any more."""
        return self.holder.poll() is not None

    def release(self) -> None:
        """Request its stop; returns at once."""
        if not self.is_released and self.holder.stdin is not None:
            self.is_released = True
            with suppress(OSError):  # the shell has ended: nsys refused to start
                self.holder.stdin.write(b"stop\n")
                self.holder.stdin.close()

    def close(self) -> None:
        """Close this process's handles; the shell stops the collection by itself if it has not yet."""
        if not self.is_released and self.holder.stdin is not None:
            self.is_released = True
            self.holder.stdin.close()  # without a word: then it pauses the trainings for it itself
        self.lock.release()
        if self.log_fd >= 0:
            os.close(self.log_fd)
            self.log_fd = -1


def begin(
    job: CaptureJob, where: tuple[Nsys, Session, list[Target]], lock: CaptureLock, output: Path, paused: bool
) -> Collection:
    """Start a collection in a session that was launched with `nsys launch`; returns before nsys has begun.

    A shell holds the collection: if this process is killed, the shell stops it.

    Args:
        job: whose options become those of `nsys start`.
        where: which nsys, its session, and the trainings in the session.
        lock: of this collection; released on an error, else by `Collection.close`.
        output: where nsys writes, without a suffix.
        paused: True: the shell pauses the trainings while it stops the collection after this process was killed.

    Returns:
        The collection, whose exit statuses are polled.

    Raises:
        NotPossibleHere: less than `MIN_FREE_BYTES` of disk are free, or a tool is missing.
        OSError: the shell cannot be started.
    """
    nsys, session, targets = where
    log_fd = os.memfd_create("llmtop-nsys")
    try:
        check_disk(job.folder, MIN_FREE_BYTES)
        check_disk(_scratch_folder(targets[0].pid), MIN_FREE_BYTES)
        begin = _start_arguments(nsys, output, job.plan.options, sampling_scope(targets[0].pid))
        python = sys.executable if paused else ""  # what stops it when this process is killed
        always = "always" if "pause" in job.plan.options else ""
        home = str(Path(__file__).parents[3])
        arguments = [str(nsys.path), session.id, python, _STOPPER, home, always, *begin]
        holder = subprocess.Popen(
            ["/bin/sh", "-c", _HOLD, "llmtop-nsys", *arguments],
            stdin=subprocess.PIPE,
            stdout=log_fd,
            stderr=log_fd,
            start_new_session=True,
            cwd="/",
            env=_environment(),
        )
    except BaseException:
        os.close(log_fd)
        lock.release()
        raise
    return Collection(nsys, session, output, holder, log_fd, lock, targets)


def _environment() -> dict[str, str]:
    """For the shell, whose folder is /."""
    folder = str(socket_dir.runtime_dir().absolute())
    return {**nsys_module.child_environment(), variable_names.RUNTIME_DIR: folder}


def _scratch_folder(pid: int) -> Path:
    """Return where nsys keeps a collection before it is a report."""
    return Path(procfs.environ(pid).get("NSYS_AGENT_TMP_DIR", "/tmp"))


def sampling_scope(pid: int) -> str:
    """Return the value of ``--sample`` that includes a process: "process-tree" covers nsys's own descendants
    only."""
    ancestor = procfs.parent(pid)
    while ancestor:
        if (procfs.command(ancestor) or "").partition(" ")[0].endswith(("nsys", "nsys-launcher")):
            return "process-tree"
        ancestor = procfs.parent(ancestor)
    return "system-wide"


def _start_arguments(nsys: Nsys, output: Path, options: frozenset[str], scope: str) -> list[str]:
    sampling = scope if "cpu-sampling" in options else "none"
    arguments = [
        "-o", str(output), "-f", "true", "--stop-on-exit=false", f"--sample={sampling}", f"--cpuctxsw={sampling}",
    ]  # fmt: skip
    if "gpu-metrics" in options:
        # renamed from the singular in 2024
        plural = nsys.supports("start", "--gpu-metrics-devices")
        arguments.append(f"--gpu-metrics-device{'s' if plural else ''}=all")
    return arguments


def await_start(job: CaptureJob, collection: Collection) -> None:
    """Wait until nsys collects.

    Raises:
        NotPossibleHere: it refused, crashed, or did not answer.
    """
    deadline = time.monotonic() + START_SECONDS
    while collection.exit_status("start") is None:
        if collection.has_ended:
            raise NotPossibleHere(
                f"nsys start ended without an answer ({collection.output_text()}); the training continues; to "
                f"start it by hand: {collection.nsys.path} start --session={collection.session.id}"
            )
        if time.monotonic() > deadline:
            raise NotPossibleHere(
                f"nsys start has not replied for {START_SECONDS:.0f} s; the training continues, and llmtop "
                f"stops the collection if it still starts; check with: {collection.nsys.path} sessions list"
            )
        job.sleep(POLL_SECONDS)
    code = collection.exit_status("start")
    if code != 0:
        raise NotPossibleHere(
            f"nsys start failed with {code}: {collection.output_text()}; the training continues; to do it by "
            f"hand: "
            f"{collection.nsys.path} start --session={collection.session.id}"
        )


def await_report(job: CaptureJob, collection: Collection) -> Path:
    """Wait until nsys has written its report; returns where it is, in the capture's folder if it can be there.

    Raises:
        Cancelled: meanwhile.
        NotPossibleHere: it did not finish, or left no report.
    """
    sampled = "cpu-sampling" in job.plan.options
    limit = pause.STOP_SECONDS_SAMPLED if sampled else STOP_SECONDS
    began = time.monotonic()
    while not collection.has_ended:
        waited = time.monotonic() - began
        if waited > limit:
            raise NotPossibleHere(
                f"nsys stop (pid {collection.holder.pid}) has not finished for {limit:.0f} s and continues "
                f"alone, as does "
                f"the training; the report will be {collection.output}.nsys-rep; if it does not appear, run: "
                f"{collection.nsys.path} stop --session={collection.session.id}"
            )
        if waited > 5:
            job.report_progress(f"nsys writes its report ({waited:.0f} s)")
        job.sleep(POLL_SECONDS)
    reports = collection.written_reports()
    expected = collection.output.with_name(collection.output.name + ".nsys-rep")
    if expected.is_file() and expected.stat().st_size and expected not in reports:
        reports.append(expected)  # the training ended within the window, and nsys launch wrote it
    finished = [path for path in reports if path.suffix == ".nsys-rep" and path.is_file()]
    if finished:
        return _move_report(finished[0], expected)
    raw = [path for path in reports if path.suffix == ".qdstrm" and path.is_file()]
    if raw:
        kept = _move_report(raw[0], expected.with_suffix(".qdstrm"))
        job.report_progress("nsys could not make its report: once more")
        try:
            return _move_report(import_raw(collection.nsys, kept), expected)
        except NotPossibleHere as failed:
            raise NotPossibleHere(
                f"nsys recorded, but could not make its report ({collection.output_text()}; once more: {failed}); "
                f"the raw data is kept at {kept}; to make the report by hand on a disk with space: "
                f"{importer(collection.nsys) or 'QdstrmImporter'} -i {kept}"
            ) from None
    if not any(procfs.is_alive(target.pid) for target in collection.targets):
        raise NotPossibleHere(
            "the training ended during the capture, and nsys left no report: capture earlier, or fewer steps"
        )
    raise NotPossibleHere(
        f"nsys stop ended with {collection.exit_status('stop')} and left no report: {collection.output_text()}; "
        f"the training continues; check with: {collection.nsys.path} sessions list"
    )


def _move_report(path: Path, wanted: Path) -> Path:
    """Move what nsys wrote elsewhere (it goes to its scratch folder when it cannot write) to the capture."""
    if path == wanted:
        return path
    try:
        return Path(shutil.move(path, wanted))
    except OSError:
        wanted.unlink(missing_ok=True)
        return path


def stop_orphan(nsys: Nsys, session_id: str) -> list[Path]:
    """End a collection that a killed llmtop left behind; returns what nsys wrote.

    Raises:
        NotPossibleHere: it cannot be stopped.
    """
    done = pause.stop_session(nsys, session_id, STOP_SECONDS)
    still = [one for one in nsys_module.list_sessions(nsys) if one.id == session_id and one.collecting]
    if still:
        raise NotPossibleHere(
            f"the nsys session {session_id} is still collecting and cannot be stopped "
            f"({words.failure_reason(done.stderr or done.stdout) or 'nsys gave no reason'}); to do it by hand: "
            f"nsys stop --session={session_id}"
        )
    return [Path(text) for text in _GENERATED.findall(done.stdout.replace("\r", "\n"))]


def discard(collections: list[Collection]) -> None:
    """Wait, for as long as a person will, until nsys has ended these, and remove what it wrote."""
    deadline = time.monotonic() + START_SECONDS
    while not all(collection.has_ended for collection in collections) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    for collection in collections:
        for path in collection.written_reports():
            path.unlink(missing_ok=True)
