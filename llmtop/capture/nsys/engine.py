"""The nsys engine: start a collection in the session of a training, stop it, export it, check it.

A small shell holds the collection: it starts it, waits for a word or the end of its input, and stops it. It is in
a session of its own and its input ends with this process, so neither Ctrl+C in the pane nor `kill -9` of the
monitor leaves a training being traced. Its output goes to memory, where a full disk cannot cut it. A training that
nsys could harm is paused, if it can be, while nsys starts and stops (pause.py), also when the input ends without
a word.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from llmtop import procfs, wire
from llmtop.capture import capabilities
from llmtop.capture.folder import MIN_FREE_BYTES, check_disk
from llmtop.capture.job import Cancelled, Job, Recorded, Target
from llmtop.capture.lock import CaptureLock, Holder
from llmtop.capture.nsys import lost_records, pause
from llmtop.capture.nsys.pause import Pauses
from llmtop.capture.wait_for_window import SPARE_STEPS, wait_window
from llmtop.errors import NotPossibleHere
from llmtop.nsys_cli import tool as nsys_module
from llmtop.nsys_cli import words
from llmtop.nsys_cli.export import export_beside, import_raw, importer
from llmtop.nsys_cli.tool import Nsys, Session

START_SECONDS = 30.0
"""Measured: 0.25 s, 1.0 s with GPU metrics."""
STOP_SECONDS = 120.0
"""Measured: 2.9 to 3.5 s for a window of one second; 110 s with CPU sampling."""
STOP_SECONDS_SAMPLED = 600.0
_POLL = 0.02

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
_NO_PAUSE = (
    "nsys was not started: {}; some versions crash trainings on GPUs that do not pause for it; Python stacks can "
    "be had at any time (key s, or --engine py-spy); to start nsys all the same: --option no-pause"
)
_WENT_ON = f"nsys took longer to start than a training is paused at most ({pause.LONGEST_SECONDS:.0f} s)"
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
    """Where nsys was told to write, without a suffix."""
    holder: subprocess.Popen[bytes]
    log_fd: int
    lock: CaptureLock
    targets: list[Target] = field(default_factory=list)
    released: bool = False

    def log(self) -> str:
        """All that nsys said so far."""
        size = os.fstat(self.log_fd).st_size
        return os.pread(self.log_fd, size, 0).decode(errors="replace").replace("\r", "\n")

    def code(self, step: str) -> int | None:
        """The exit status of "start" or "stop"; None while it runs."""
        codes = [int(code) for name, code in _MARK.findall(self.log()) if name == step]
        return codes[-1] if codes else None

    def said(self) -> str:
        """What nsys said for people, in one line."""
        return words.reason(_MARK.sub("", _GENERATED.sub("", self.log()))) or "it gave no reason"

    @property
    def done(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.holder.poll() is not None

    def release(self) -> None:
        """Have it stopped; returns at once."""
        if not self.released and self.holder.stdin is not None:
            self.released = True
            with suppress(OSError):  # the shell has ended: nsys refused to start
                self.holder.stdin.write(b"stop\n")
                self.holder.stdin.close()

    def close(self) -> None:
        """Give up what this process holds; the shell stops the collection by itself if it has not yet."""
        if not self.released and self.holder.stdin is not None:
            self.released = True
            self.holder.stdin.close()  # without a word: then it pauses the trainings for it itself
        self.lock.release()
        if self.log_fd >= 0:
            os.close(self.log_fd)
            self.log_fd = -1


class NsysEngine:
    """Records with Nsight Systems; one report for all processes of a session."""

    name = "nsys"

    def record(self, job: Job) -> Recorded:
        """See `Engine.record`."""
        job.stage("prepare", "looking for the nsys session")
        sessions = _sessions(job.plan.targets)
        collections: list[Collection] = []
        with ExitStack() as held, _pauses(job, sessions) as pauses:
            try:
                locks = [held.enter_context(_lock(job, nsys, session)) for nsys, session, _ in sessions]
                _pause_for_start(job, pauses)
                for where, lock in zip(sessions, locks, strict=True):
                    output = job.folder / ("trace" if len(sessions) == 1 else where[2][0].stem)
                    collections.append(_begin(job, where, lock, output, len(pauses) > 0))
                job.stage("start")
                for collection in collections:
                    _await_start(job, collection)
                begun = time.time_ns()
                early = [] if pauses.hold else [_WENT_ON]
                pauses.resume()
                job.stage("record")
                notes = early + _record(job, pauses, begun)
                job.window = (begun, time.time_ns())
                job.stage("stop", "nsys writes its report")
                _release(collections, pauses)
                reports = [_await_report(job, collection) for collection in collections]
                job.stage("export")
                recorded = Recorded(notes=notes, open_with="nsys-ui", paused_seconds=pauses.seconds)
                for collection, report in zip(collections, reports, strict=True):
                    recorded.tool.update(_tool(collection))
                    exported, notes = export_beside(collection.nsys, report, _uses_gpu(collection))
                    job.check()
                    recorded.traces.append(exported)
                    recorded.notes += notes
            except Cancelled:
                _undo(job, collections, pauses)
                raise
            finally:
                for collection in collections:
                    collection.close()
        return recorded


def _pauses(job: Job, sessions: list[tuple[Nsys, Session, list[Target]]]) -> Pauses:
    """Those that are to pause for this capture; the person has the last word."""
    options = job.plan.options
    if "no-pause" in options:
        return Pauses()
    always = "pause" in options
    unable = [target.name for target in job.plan.targets if not capabilities.can_pause(target)]
    if always and unable:
        raise NotPossibleHere(
            f"{', '.join(unable)} cannot be paused (not attached to this llmtop, or tells no steps): leave out "
            "--option pause"
        )
    pauses = Pauses(
        [session.id for nsys, session, _ in sessions if always or nsys.needs_pause], only_gpu=not always
    )
    for target in job.plan.targets:
        wanted = capabilities.can_pause(target) and (always or capabilities.should_pause(target))
        if wanted and target.pid not in pauses.pids:
            pauses.close()
            raise NotPossibleHere(_NO_PAUSE.format(f"{target.name} does not answer: is it stopped?"))
    return pauses


def _pause_for_start(job: Job, pauses: Pauses) -> None:
    """Pause them.

    Raises:
        NotPossibleHere: one cannot be paused, and to start nsys all the same may end it.
    """
    if not pauses:
        return
    job.say("the training pauses at the end of its step")
    try:
        pauses.pause(job.sleep)
    except NotPossibleHere as refusal:
        raise NotPossibleHere(_NO_PAUSE.format(refusal)) from None


def _record(job: Job, pauses: Pauses, begun: int) -> list[str]:
    """Wait for the window's end, at which the trainings are paused again if they can be; returns notes."""
    if not pauses:
        return wait_window(job, begun)
    # asked for when the window is over, it would take one step more
    ahead = job.plan.steps is not None and pauses.ahead(job.plan.steps + SPARE_STEPS)
    # also when nothing is expected: what the trainings tell must be read, or they stop telling
    notes = wait_window(job, begun, lambda: pauses.begun and ahead)
    if ahead and not notes:
        with suppress(NotPossibleHere):  # one that became slow, say: it can still be asked for now
            if pauses.wait(job.sleep):
                return notes
    try:
        pauses.pause(job.sleep)
    except NotPossibleHere as refusal:
        notes.append(f"nsys was stopped without a pause: {refusal}")
    return notes


def _release(collections: list[Collection], pauses: Pauses) -> None:
    """Have all of them stopped; what is paused goes on when the part of it that needs a pause is over."""
    settle = bool(pauses) and not all(collection.released for collection in collections)
    for collection in collections:
        collection.release()
    if settle:
        time.sleep(pause.SETTLE_SECONDS)
        pauses.resume()


def _sessions(targets: tuple[Target, ...]) -> list[tuple[Nsys, Session, list[Target]]]:
    """The sessions of the targets; the ranks under one `nsys launch` share one.

    Raises:
        NotPossibleHere: a target has none, or it is not safe to collect in it once more.
    """
    found: dict[str, tuple[Nsys, Session, list[Target]]] = {}
    for target in targets:
        nsys, session = nsys_module.for_process(target.pid)
        if lost_records.happened(session.id):
            raise NotPossibleHere(
                f"nsys cannot capture {target.name}: {lost_records.REFUSAL}; save a checkpoint and start it anew "
                "for another nsys capture"
            )
        found.setdefault(session.id, (nsys, session, []))[2].append(target)
    return list(found.values())


def _lock(job: Job, nsys: Nsys, session: Session) -> CaptureLock:
    """Take the session; stop what a killed llmtop left collecting in it.

    Raises:
        NotPossibleHere: another llmtop, or somebody by hand, is capturing in it.
    """
    holder = Holder(
        pid=os.getpid(), engine="nsys", since=time.time(), began=time.monotonic(), folder=str(job.folder),
        session=session.id, target=job.plan.targets[0].pid,
    )  # fmt: skip
    lock = CaptureLock(f"nsys-{session.id}", holder)
    try:
        if session.collecting:
            if lock.leftover is None:
                raise NotPossibleHere(
                    f"something other than llmtop is capturing in the nsys session {session.id} of "
                    f"{job.plan.targets[0].name}: let it finish, or stop it: nsys stop --session={session.id}"
                )
            job.say("stopping what a killed llmtop left collecting")
            stop_leftover(nsys, session.id)
    except BaseException:
        lock.release()
        raise
    return lock


def stop_leftover(nsys: Nsys, session_id: str) -> list[Path]:
    """End a collection that a killed llmtop left behind; returns what nsys wrote.

    Raises:
        NotPossibleHere: it cannot be stopped.
    """
    done = pause.stop(nsys, session_id, STOP_SECONDS)
    still = [one for one in nsys_module.sessions(nsys) if one.id == session_id and one.collecting]
    if still:
        raise NotPossibleHere(
            f"the nsys session {session_id} is still collecting and cannot be stopped "
            f"({words.reason(done.stderr or done.stdout) or 'nsys gave no reason'}); by hand: "
            f"nsys stop --session={session_id}"
        )
    return [Path(text) for text in _GENERATED.findall(done.stdout.replace("\r", "\n"))]


def _begin(
    job: Job, where: tuple[Nsys, Session, list[Target]], lock: CaptureLock, output: Path, paused: bool
) -> Collection:
    nsys, session, targets = where
    log_fd = os.memfd_create("llmtop-nsys")
    try:
        check_disk(job.folder, MIN_FREE_BYTES)
        check_disk(_scratch(targets[0].pid), MIN_FREE_BYTES)
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
    return {**nsys_module.child_environment(), "LLMTOP_DIR": str(wire.runtime_dir().absolute())}


def _scratch(pid: int) -> Path:
    """Where nsys keeps a collection before it is a report."""
    return Path(procfs.environ(pid).get("NSYS_AGENT_TMP_DIR", "/tmp"))


def sampling_scope(pid: int) -> str:
    """What ``--sample`` must say to see a process: "process-tree" covers nsys's own descendants only."""
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
        plural = nsys.knows("start", "--gpu-metrics-devices")
        arguments.append(f"--gpu-metrics-device{'s' if plural else ''}=all")
    return arguments


def _await_start(job: Job, collection: Collection) -> None:
    """Wait until nsys collects.

    Raises:
        NotPossibleHere: it refused, crashed, or did not answer.
    """
    deadline = time.monotonic() + START_SECONDS
    while collection.code("start") is None:
        if collection.done:
            raise NotPossibleHere(
                f"nsys start ended without an answer ({collection.said()}); the training runs on; by hand: "
                f"{collection.nsys.path} start --session={collection.session.id}"
            )
        if time.monotonic() > deadline:
            raise NotPossibleHere(
                f"nsys start has not answered for {START_SECONDS:.0f} s; the training runs on, and whatever it "
                f"still starts is stopped at once; look with: {collection.nsys.path} sessions list"
            )
        job.sleep(_POLL)
    code = collection.code("start")
    if code != 0:
        raise NotPossibleHere(
            f"nsys start failed with {code}: {collection.said()}; the training runs on; by hand: "
            f"{collection.nsys.path} start --session={collection.session.id}"
        )


def _await_report(job: Job, collection: Collection) -> Path:
    """Wait until nsys has written its report; returns where it is, in the capture's folder if it can be there.

    Raises:
        Cancelled: meanwhile.
        NotPossibleHere: it did not finish, or left no report.
    """
    sampled = "cpu-sampling" in job.plan.options
    limit = STOP_SECONDS_SAMPLED if sampled else STOP_SECONDS
    began = time.monotonic()
    while not collection.done:
        waited = time.monotonic() - began
        if waited > limit:
            raise NotPossibleHere(
                f"nsys stop has not finished for {limit:.0f} s and is left to it (pid {collection.holder.pid}); "
                f"the training runs on; the report comes to {collection.output}.nsys-rep, or by hand: "
                f"{collection.nsys.path} stop --session={collection.session.id}"
            )
        if waited > 5:
            job.say(f"nsys writes its report ({waited:.0f} s)")
        job.sleep(_POLL)
    reports = [Path(text) for text in _GENERATED.findall(collection.log())]
    expected = collection.output.with_name(collection.output.name + ".nsys-rep")
    if expected.is_file() and expected.stat().st_size and expected not in reports:
        reports.append(expected)  # the training ended within the window, and nsys launch wrote it
    finished = [path for path in reports if path.suffix == ".nsys-rep" and path.is_file()]
    if finished:
        return _bring_home(finished[0], expected)
    raw = [path for path in reports if path.suffix == ".qdstrm" and path.is_file()]
    if raw:
        kept = _bring_home(raw[0], expected.with_suffix(".qdstrm"))
        job.say("nsys could not make its report: once more")
        again = import_raw(collection.nsys, kept)
        if again is not None:
            return again
        raise NotPossibleHere(
            f"nsys recorded, but could not make its report ({collection.said()}); the raw data is kept at {kept}; "
            f"by hand, where there is room: {importer(collection.nsys) or 'QdstrmImporter'} -i {kept}"
        )
    if not any(procfs.is_alive(target.pid) for target in collection.targets):
        raise NotPossibleHere("the training ended within the window and nsys left no report")
    raise NotPossibleHere(
        f"nsys stop ended with {collection.code('stop')} and left no report: {collection.said()}; the training "
        f"runs on; look with: {collection.nsys.path} sessions list"
    )


def _bring_home(path: Path, wanted: Path) -> Path:
    """Move what nsys wrote elsewhere (it goes to its scratch folder when it cannot write) to the capture."""
    if path == wanted:
        return path
    try:
        return Path(shutil.move(path, wanted))
    except OSError:
        wanted.unlink(missing_ok=True)
        return path


def _tool(collection: Collection) -> dict[str, str]:
    nsys = collection.nsys
    return {"nsys": nsys.version_text, "path": str(nsys.path), "session": collection.session.id}


def _uses_gpu(collection: Collection) -> bool:
    return any(procfs.uses_gpu(target.pid) for target in collection.targets)


def _undo(job: Job, collections: list[Collection], pauses: Pauses) -> None:
    """After a cancel: have every collection stopped and its files gone, for as long as a person will wait."""
    job.say("cancelling: nsys ends its collection")
    if pauses and not all(collection.released for collection in collections):
        limit = time.monotonic() + pause.LONGEST_SECONDS
        while any(one.code("start") is None and not one.done for one in collections) and pauses.hold:
            if time.monotonic() > limit:
                break
            time.sleep(_POLL)
        with suppress(NotPossibleHere):  # then it has to do without
            if not pauses.hold:
                pauses.pause()
    _release(collections, pauses)
    deadline = time.monotonic() + START_SECONDS
    while not all(collection.done for collection in collections) and time.monotonic() < deadline:
        time.sleep(_POLL)
    for collection in collections:
        for text in _GENERATED.findall(collection.log()):
            Path(text).unlink(missing_ok=True)
