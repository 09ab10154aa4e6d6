"""Result of a finished run: window, figures, verdict, and why it is not steady or not whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from llmtop.analysis.analyze_recording import analyze_snapshots
from llmtop.analysis.verdict import BORDER_PCT
from llmtop.bench.model.results import BenchRun, BenchSettings, MeasuredSteps, RunFigures
from llmtop.bench.run import steadiness
from llmtop.bench.run.command_process import CommandProcess
from llmtop.bench.run.run_figures import LOOK_BACK_SECONDS, MIN_SAMPLES, window_figures
from llmtop.bench.run.run_steps import RunSteps
from llmtop.bench.run.run_watch import RunWatch
from llmtop.errors import UnusableInput
from llmtop.format import counted, duration, percent_text, printable
from llmtop.launch.uninstrumentable import OFF_REASON, flag_message, unattachable_reason, unsupported_python_flag
from llmtop.model.bottlenecks import BOTTLENECKS
from llmtop.model.gpu_busy import source_name
from llmtop.model.snapshot import Snapshot
from llmtop.naming import variable_names

_BOUND_REASONS: Final = {
    "events": f"with fewer than {MIN_SAMPLES} readings of GPU-Util in the window, the GPU's idle time is known as "
    f"a lower bound only: measure for {LOOK_BACK_SECONDS + MIN_SAMPLES + 1:g} s or longer",
    "util": "GPU-Util counts small kernels that come one by one for longer than they take, so that the GPU's idle "
    "time is known as a lower bound only: llmtop capture measures it",
}
"""Reason for a bound and what to do, by the source of the idle share."""


def run_result(run: BenchRun, settings: BenchSettings, watch: RunWatch, command: CommandProcess) -> BenchRun:
    """Return the run with all that was measured of it.

    Args:
        run: what is known of it whatever it measured.
        settings: what it was asked for.
        watch: what was seen of it.
        command: its process, which has ended.
    """
    steps = watch.steps
    window = steps.measured_window(settings)
    notes = [*run.notes, *_incomplete_notes(run, settings, steps, window)]
    if window is None:
        return replace(run, steps_seen=steps.step_count, notes=notes)
    ended = window.started_at + window.seconds
    during = [one for one in watch.snapshots if window.started_at <= one.time <= ended + 1.0]
    uuids = {rank.rank.gpu_uuid for rank in steps.ranks if rank.rank.gpu_uuid}
    by_gpus, more, shared = steadiness.gpu_findings(uuids, during, command.owns)
    figures = window_figures(window, steps.measured_steps(settings), steps.ranks, list(watch.snapshots), shared)
    # A mean over several GPUs would hide the idle one.
    verdict, summary = verdict_of_window(during, figures if len(uuids) == 1 else RunFigures())
    return replace(
        run,
        steps_seen=steps.step_count,
        window=window,
        figures=figures,
        verdict=verdict,
        verdict_summary=summary,
        unsteady=[*steadiness.step_findings(window), *by_gpus],
        notes=[*notes, *more, *_lost_notes(window)],
    )


def _lost_notes(window: MeasuredSteps) -> list[str]:
    if not window.lost:
        return []
    return [f"{counted(window.lost, 'step')} of the window did not arrive here, and count in no figure"]


def result_in_turns(
    run: BenchRun,
    settings: BenchSettings,
    steps: RunSteps,
    watch: RunWatch,
    *,
    owns: Callable[[int], bool],
    turn: float,
) -> BenchRun:
    """Return the run of a command that ran in turns with others, with the figures of its kept steps.

    What a pause or the other commands change is absent: power, energy, GPU idle time, MFU, and the verdict.

    Args:
        run: what is known of it whatever it measured.
        settings: what it was asked for.
        steps: steps of this command, the kept ones chosen.
        watch: what was seen of all commands.
        owns: whether a process belongs to any of the commands.
        turn: usual length of a turn, seconds.
    """
    window = steps.measured_window(settings)
    notes = [*run.notes, *_incomplete_notes(run, settings, steps, window)]
    if window is None or steps.kept is None:
        return replace(run, steps_seen=steps.step_count, notes=notes)
    uuids = {rank.rank.gpu_uuid for rank in steps.ranks if rank.rank.gpu_uuid}
    by_gpus, more, _ = steadiness.gpu_findings(uuids, list(watch.snapshots), owns)
    figures = window_figures(window, steps.measured_steps(settings), steps.ranks, [], frozenset(uuids))
    return replace(
        run,
        steps_seen=steps.step_count,
        window=replace(window, turn_seconds=turn),
        figures=replace(figures, mfu_pct=None, mfu_note=None),
        unsteady=[*steadiness.step_findings(window), *by_gpus, *_turn_findings(steps, turn)],
        notes=[*notes, *more, *_lost_notes(window)],
    )


def _turn_findings(steps: RunSteps, turn: float) -> list[str]:
    """Return why the kept steps may not stand for all of them."""
    kept, found = steps.kept, []
    if kept is None:
        return []
    long = [seconds for seconds in kept.interrupted if seconds > turn]
    if long:
        usual = duration(sum(long) / len(long))
        found.append(
            f"{counted(len(long), 'step')} ran for longer than a turn ({usual} on average, turns of "
            f"{duration(turn)}): such steps are never kept; pass longer --turns"
        )
    if kept.while_paused > len(set(kept.rounds)):
        found.append(
            f"{counted(kept.while_paused, 'step')} were made while the command was paused: some of its processes "
            "are not stopped with it"
        )
    return found


def verdict_of_window(during: Iterable[Snapshot], figures: RunFigures) -> tuple[str, str]:
    """Return the verdict on a window, as in `llmtop report`, and its sentence; "unknown" and "" without snapshots.

    Args:
        during: snapshots within the window, oldest first.
        figures: of the window, with one GPU. Snapshots average GPU-Util over more seconds than a short run lasts:
            by them alone its verdict is unknown.
    """
    try:
        report = analyze_snapshots(during, "the window")
    except UnusableInput:
        return "unknown", ""
    idle = figures.gpu_idle_pct
    if report.verdict != "unknown" or idle is None or idle >= BORDER_PCT:
        return report.verdict, report.summary
    if figures.gpu_idle_bound:
        return "unknown", _BOUND_REASONS.get(figures.gpu_idle_source or "", "")
    source = source_name(figures.gpu_idle_source)
    name = BOTTLENECKS["gpu_bound"].name
    return "gpu_bound", f"{name}: the GPU was idle for {percent_text(idle, 1)} of the window, by {source}."


def _incomplete_notes(
    run: BenchRun, settings: BenchSettings, steps: RunSteps, window: MeasuredSteps | None
) -> list[str]:
    """Return why there is no whole window, and what to do; empty where there is one."""
    if window is not None and window.whole:
        return []
    wanted = f"{settings.steps} steps" if settings.steps is not None else f"{settings.seconds:g} s"
    asked = f"{settings.warmup} steps of warm-up and {wanted}"
    if run.ended == "crashed":
        return [f"{crash_text(run, steps.step_count)} (asked for were {asked})"]
    if not steps.step_count:
        return [f"not one whole step was seen: {_no_steps_reason(run, attached=steps.has_attached)}"]
    if run.ended != "itself":
        return [f"cut short after {counted(steps.step_count, 'whole step')}; asked for were {asked}"]
    return [
        f"the command ended (exit code 0) after {counted(steps.step_count, 'whole step')}; asked for were "
        f"{asked}: give fewer, or let it train for longer"
    ]


def crash_text(run: BenchRun, step_count: int) -> str:
    """Return how the command ended, and its last line on standard error.

    Args:
        run: one that crashed.
        step_count: whole steps of it that were seen.
    """
    how = f"was ended by {run.signal}" if run.signal else f"ended with exit code {run.exit_code}"
    when = f"after {counted(step_count, 'whole step')}" if step_count else "before a whole step of it was seen"
    last = printable(run.last_stderr_line, 300)
    return f"the command {how} {when}" + (f"; its last line on standard error: {last}" if last else "")


def _no_steps_reason(run: BenchRun, *, attached: bool) -> str:
    """Return why no step arrived, as far as known."""
    if attached:
        return "it attached, and ended no step; llmtop doctor says what is seen of a training"
    if os.environ.get(variable_names.OFF):
        return OFF_REASON
    if option := unsupported_python_flag(run.command):
        return flag_message(option)
    program = shutil.which(run.command[0]) or run.command[0]
    return unattachable_reason(run.command, program) or (
        "nothing of it attached; a PyTorch loop attaches by itself, any other by calling llmtop.step()"
    )
