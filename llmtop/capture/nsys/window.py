"""A window of trainings under nsys: their sessions taken, a collection in each, the reports exported and checked.

A training that nsys could harm is paused, if it can be, while nsys starts and stops (pause.py), also when the
monitor is killed meanwhile.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress

from llmtop.capture.base.job import Cancelled, CaptureJob, Recorded, Target
from llmtop.capture.base.lock import CaptureLock, Holder
from llmtop.capture.base.wait_for_window import POLL_SECONDS, SPARE_STEPS, wait_window
from llmtop.capture.nsys import lost_records, pause
from llmtop.capture.nsys.collection import (
    Collection,
    await_report,
    await_start,
    begin,
    discard,
    stop_orphan,
)
from llmtop.capture.nsys.operators import OperatorMarking
from llmtop.capture.nsys.pause import SessionPause
from llmtop.capture.nsys.sessions import can_pause, should_pause
from llmtop.errors import NotPossibleHere
from llmtop.nsys_cli import tool as nsys_module
from llmtop.nsys_cli.export import export_beside
from llmtop.nsys_cli.tool import Nsys, Session

_NO_PAUSE = (
    "nsys was not started: {}; some versions crash trainings on GPUs that do not pause for it; Python stacks can "
    "be had at any time (key s, or --engine py-spy); to start nsys all the same: --option no-pause"
)
_WENT_ON = f"nsys took longer to start than a training is paused at most ({pause.LONGEST_SECONDS:.0f} s)"


def record(job: CaptureJob) -> Recorded:
    """Record the window into one report for each session; see `Engine.record`."""
    job.stage("prepare", "looking for the nsys session")
    sessions = _sessions(job.plan.targets)
    collections: list[Collection] = []
    with ExitStack() as held, _find_pause(job, sessions) as pauses, _prepare_operators(job) as operators:
        try:
            locks = [held.enter_context(_lock(job, nsys, session)) for nsys, session, _ in sessions]
            _pause_for_start(job, pauses)
            for where, lock in zip(sessions, locks, strict=True):
                output = job.folder / ("trace" if len(sessions) == 1 else where[2][0].file_stem)
                collections.append(begin(job, where, lock, output, len(pauses) > 0))
            job.stage("start")
            for collection in collections:
                await_start(job, collection)
            operators.begin()  # a paused training goes on with them
            begun = time.time_ns()
            early = [] if pauses.is_paused else [_WENT_ON]
            pauses.resume()
            job.stage("record")
            if operators:
                operators.await_begin(job.sleep)
                begun = time.time_ns()
            notes = early + operators.notes + _record(job, pauses, operators, begun)
            job.window = (begun, time.time_ns())
            job.stage("stop", "nsys writes its report")
            _release(collections, pauses)
            operators.close()
            reports = [await_report(job, collection) for collection in collections]
            job.stage("export")
            recorded = Recorded(notes=notes, paused_seconds=pauses.seconds)
            for collection, report in zip(collections, reports, strict=True):
                recorded.tool.update(collection.tool_info)
                exported, notes = export_beside(collection.nsys, report, collection.uses_gpu)
                job.raise_if_cancelled()
                recorded.traces.append(exported)
                recorded.notes += notes
                if exported.parent != job.folder:
                    recorded.notes.append(f"what nsys recorded is not in the folder, which is full: {exported}")
        except Cancelled:
            _undo(job, collections, pauses)
            raise
        finally:
            for collection in collections:
                collection.close()
    return recorded


def _find_pause(job: CaptureJob, sessions: list[tuple[Nsys, Session, list[Target]]]) -> SessionPause:
    """Return the sessions that pause for this capture; the user decides."""
    options = job.plan.options
    if "no-pause" in options:
        return SessionPause()
    always = "pause" in options
    unable = [target.name for target in job.plan.targets if not can_pause(target)]
    if always and unable:
        raise NotPossibleHere(
            f"{', '.join(unable)} cannot be paused (not attached to this llmtop, or reports no steps): remove "
            "--option pause"
        )
    pauses = SessionPause(
        [session.id for nsys, session, _ in sessions if always or nsys.needs_pause], only_gpu=not always
    )
    for target in job.plan.targets:
        wanted = can_pause(target) and (always or should_pause(target))
        if wanted and target.pid not in pauses.pids:
            pauses.close()
            raise NotPossibleHere(_NO_PAUSE.format(f"{target.name} does not answer: it may be stopped"))
    return pauses


def _prepare_operators(job: CaptureJob) -> OperatorMarking:
    """Return the targets whose operators are to be marked, after asking them.

    Raises:
        NotPossibleHere: one of them cannot.
    """
    if "ops" not in job.plan.options:
        return OperatorMarking(())
    operators = OperatorMarking(job.plan.targets)
    try:
        operators.await_support(job.sleep)
    except BaseException:
        operators.close()
        raise
    return operators


def _pause_for_start(job: CaptureJob, pauses: SessionPause) -> None:
    """Pause them.

    Raises:
        NotPossibleHere: one cannot be paused, and to start nsys all the same may end it.
    """
    if not pauses:
        return
    job.report_progress("the training pauses at the end of its step")
    try:
        pauses.pause(job.sleep)
    except NotPossibleHere as refusal:
        raise NotPossibleHere(_NO_PAUSE.format(refusal)) from None


def _record(job: CaptureJob, pauses: SessionPause, operators: OperatorMarking, begun: int) -> list[str]:
    """Wait for the window's end, at which operators are marked no longer and the trainings are paused again if
    they can be; returns notes."""
    if not pauses:
        return [*wait_window(job, begun, operators.listen), *operators.end(job.sleep)]
    # asked for when the window is over, it would take one step more
    ahead = job.plan.steps is not None and pauses.schedule(job.plan.steps + SPARE_STEPS)
    # also when nothing is expected: the trainings' messages must be read, or they stop sending
    notes = wait_window(job, begun, lambda: operators.listen() or (pauses.is_any_paused and ahead))
    operators.end_soon()  # one that is paused does when it goes on
    if ahead and not notes:
        with suppress(NotPossibleHere):  # one that became slow, say: it can still be asked for now
            if pauses.wait(job.sleep):
                return notes
    try:
        pauses.pause(job.sleep)
    except NotPossibleHere as refusal:
        notes.append(f"nsys was stopped without a pause: {refusal}")
    return notes


def _release(collections: list[Collection], pauses: SessionPause) -> None:
    """Stop all of them; paused trainings resume when the part that needs a pause is over."""
    settle = bool(pauses) and not all(collection.is_released for collection in collections)
    for collection in collections:
        collection.release()
    if settle:
        time.sleep(pause.SETTLE_SECONDS)
        pauses.resume()


def _sessions(targets: tuple[Target, ...]) -> list[tuple[Nsys, Session, list[Target]]]:
    """Return the sessions of the targets; the ranks under one `nsys launch` share one.

    Raises:
        NotPossibleHere: a target has none, or it is not safe to collect in it once more.
    """
    found: dict[str, tuple[Nsys, Session, list[Target]]] = {}
    for target in targets:
        nsys, session = nsys_module.find_session(target.pid)
        if lost_records.has_loss(session.id):
            raise NotPossibleHere(
                f"nsys cannot capture {target.name}: {lost_records.REFUSAL}; save a checkpoint and restart the "
                f"training "
                "for another nsys capture"
            )
        found.setdefault(session.id, (nsys, session, []))[2].append(target)
    return list(found.values())


def _lock(job: CaptureJob, nsys: Nsys, session: Session) -> CaptureLock:
    """Take the session; stop what a killed llmtop left collecting in it.

    Raises:
        NotPossibleHere: another llmtop, or a person by hand, is capturing in it.
    """
    holder = Holder(
        pid=os.getpid(), engine=job.plan.engine, since=time.time(), began=time.monotonic(), folder=str(job.folder),
        session=session.id, target=job.plan.targets[0].pid,
    )  # fmt: skip
    lock = CaptureLock(f"nsys-{session.id}", holder)
    try:
        if session.collecting:
            if lock.orphan is None:
                raise NotPossibleHere(
                    f"another program is capturing in the nsys session {session.id} of "
                    f"{job.plan.targets[0].name}: wait until it ends, or stop it with: nsys stop "
                    f"--session={session.id}"
                )
            job.report_progress("stopping what a killed llmtop left collecting")
            stop_orphan(nsys, session.id)
    except BaseException:
        lock.release()
        raise
    return lock


def _undo(job: CaptureJob, collections: list[Collection], pauses: SessionPause) -> None:
    """After a cancel: stop every collection and remove its files, for as long as a person will wait."""
    job.report_progress("cancelling: nsys ends its collection")
    if pauses and not all(collection.is_released for collection in collections):
        limit = time.monotonic() + pause.LONGEST_SECONDS
        while (
            any(one.exit_status("start") is None and not one.has_ended for one in collections) and pauses.is_paused
        ):
            if time.monotonic() > limit:
                break
            time.sleep(POLL_SECONDS)
        with suppress(NotPossibleHere):  # then it has to do without
            if not pauses.is_paused:
                pauses.pause()
    _release(collections, pauses)
    discard(collections)
