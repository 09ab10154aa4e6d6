"""llmtop capture: a focused window of a running training, now or when a condition comes true."""

from __future__ import annotations

import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from llmtop.cli.capture.options import json_option, out_option
from llmtop.cli.output import print_in_place, print_json, print_text, text_width
from llmtop.errors import EXIT_DONE, UnusableInput
from llmtop.format import duration, printable, size
from llmtop.model.setting_ranges import MAX_CAPTURE_SECONDS, MAX_CAPTURE_STEPS, MIN_CAPTURE_SECONDS
from llmtop.naming import file_names

if TYPE_CHECKING:
    from llmtop.capture.base.job import Plan, Progress, Target
    from llmtop.capture.take import Result, TakeSnapshot
    from llmtop.capture.trigger import Firing
    from llmtop.model.snapshot import Snapshot


class _EngineOption(click.Option):
    """Names the engines in its help, for which alone they are loaded."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """See `click.Option`."""
        from llmtop.capture.engines import ENGINES

        *others, last = ENGINES
        self.help = f"{', '.join(others)} or {last}.  [default: the first of these that can]"
        return super().get_help_record(ctx)


@click.command()
@click.option(
    "--pid", "pids", type=int, multiple=True, metavar="PID", help="A process to capture; may be repeated."
)
@click.option("--rank", "ranks", type=int, multiple=True, metavar="R", help="A rank to capture; may be repeated.")
@click.option(
    "--at-step",
    metavar="+N|N",
    help="Begin at step N in all ranks, also on other nodes; +20 is 20 steps from now, at least 3 s.  [default "
    "with --ranks: +20]",
)
@click.option(
    "--ranks",
    "rank_words",
    metavar="WHICH",
    help="With --at-step, ranks of the job: accused (plus neighbours and one rank to compare; the default), 0,7, "
    "node:NAME, here, all.",
)
@click.option(
    "--engine",
    "-e",
    metavar="NAME",
    cls=_EngineOption,
)
@click.option(
    "--steps", type=click.IntRange(1, MAX_CAPTURE_STEPS), metavar="N", help="Whole steps to capture.  [default: 5]"
)
@click.option(
    "--seconds",
    type=click.FloatRange(MIN_CAPTURE_SECONDS, MAX_CAPTURE_SECONDS),
    metavar="S",
    help="Capture for S seconds.",
)
@out_option
@click.option(
    "--option",
    "-o",
    "options",
    multiple=True,
    metavar="NAME",
    help="Additional data to record; 'help' lists the options and their cost.",
)
@click.option(
    "--memory-limit",
    type=click.FloatRange(0.0625, 1024),
    default=0.5,
    show_default=True,
    metavar="GIB",
    help="Stop torch.profiler, jax.profiler and memory captures when the recording takes about SIZE of memory in "
    "the training.",
)
@click.option(
    "--when",
    multiple=True,
    metavar="COND",
    help="Capture when the condition holds: 'step > 2x' (medians), 'step > 800ms', 'alert', 'alert:ID'.",
)
@click.option(
    "--max",
    "most",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="With --when: number of captures to take.",
)
@click.option(
    "--cooldown",
    type=click.FloatRange(0, 86400),
    default=60.0,
    show_default=True,
    metavar="S",
    help="With --when: seconds between two captures.",
)
@click.option(
    "--disk-limit",
    type=click.FloatRange(0.01, 100000),
    default=2.0,
    show_default=True,
    metavar="GIB",
    help="With --when: stop when the captures in the folder take SIZE in total.",
)
@json_option
def capture(
    *,
    pids: tuple[int, ...],
    ranks: tuple[int, ...],
    at_step: str | None,
    rank_words: str | None,
    engine: str | None,
    steps: int | None,
    seconds: float | None,
    out: Path | None,
    options: tuple[str, ...],
    memory_limit: float,  # which _plan takes from the context
    when: tuple[str, ...],
    most: int,
    cooldown: float,
    disk_limit: float,
    as_json: bool,
) -> int:
    """Capture a focused window of a running training, with the best engine that this process supports.

    The training continues; some versions of nsys make it wait for a moment (--option help). Ctrl+C cancels the
    capture, not the training.
    """
    from llmtop.capture import targets, trigger

    if "help" in options:
        _print_options()
        return EXIT_DONE
    steps, seconds = _length(steps, seconds)
    conditions = [trigger.parse(text) for text in when]
    if at_step is not None or rank_words is not None:
        if conditions or seconds is not None:
            raise UnusableInput("--at-step cannot be combined with --when or --seconds; use --steps")
        asked = _AtStep(at_step, rank_words, ranks, pids)
        name = engine or _beginning_at_a_step()
        _at_step(asked, lambda chosen: _plan(chosen, name, (steps, None), out, options), as_json)
        return EXIT_DONE
    with _snapshots(alerts=any(isinstance(one, trigger.AlertCondition) for one in conditions)) as snapshot:
        plan = _plan(targets.choose_targets(pids, ranks), engine, (steps, seconds), out, options)
        with _cancel_on_signals() as cancelled:
            _print_warnings(plan)
            if not conditions:
                _one(plan, cancelled, snapshot, as_json)
            else:
                limits = trigger.TriggerLimits(most, cooldown, int(disk_limit * (1 << 30)))
                _print_stderr(f"armed: {', '.join(when)}; ctrl+c disarms")
                fired = trigger.capture_on_conditions(
                    plan, conditions, limits, on_progress=_Stages(), cancelled=cancelled, snapshot=snapshot
                )
                for one in fired:
                    _print_fired(one, as_json)
    return EXIT_DONE


def _length(steps: int | None, seconds: float | None) -> tuple[int | None, float | None]:
    """Return the length on the command line, else the one in the configuration."""
    context = click.get_current_context()
    asked = {
        name: context.get_parameter_source(name) == ParameterSource.COMMANDLINE for name in ("steps", "seconds")
    }
    if asked["steps"] != asked["seconds"]:
        return (steps, None) if asked["steps"] else (None, seconds)
    return steps, seconds


def _plan(
    chosen: tuple[Target, ...],
    name: str | None,
    length: tuple[int | None, float | None],
    out: Path | None,
    options: tuple[str, ...],
) -> Plan:
    from llmtop.capture import capabilities, engines
    from llmtop.capture.base import folder
    from llmtop.capture.base.job import DEFAULT_STEPS, Plan

    steps, seconds = length
    if steps is not None and seconds is not None:
        raise UnusableInput("--steps and --seconds exclude each other: pass one of them")
    engine = engines.engine_named(capabilities.best_common_engine(chosen) if name is None else name)
    if name is not None:
        for target in chosen:
            capabilities.require(target, name)
    engines.check_options(engine, options)
    for warning in dict.fromkeys(engine.warning(target, options) for target in chosen):
        if warning:
            print_text(f"llmtop: {engine.name}: {warning}", err=True)
    return Plan(
        engine=engine.name,
        targets=chosen,
        parent=(out or Path(folder.PARENT)).absolute(),
        steps=None if seconds is not None else steps or DEFAULT_STEPS,
        seconds=seconds,
        options=frozenset(options),
        memory_bytes=int(click.get_current_context().params["memory_limit"] * (1 << 30)),
    )


class _AtStep(NamedTuple):
    at_step: str | None
    ranks: str | None
    rank: tuple[int, ...]
    pids: tuple[int, ...]


def _beginning_at_a_step() -> str:
    """Return the first engine that can."""
    from llmtop.capture.engines import ENGINES

    return next(engine.name for engine in ENGINES.values() if engine.supports_start_step)


def _at_step(asked: _AtStep, plan: Callable[[tuple[Target, ...]], Plan], as_json: bool) -> None:
    from llmtop.capture.across.step_choice import AHEAD
    from llmtop.capture.take import take
    from llmtop.cli.capture import at_step

    words = at_step.AtStepOptions(asked.at_step or AHEAD, asked.ranks, asked.rank, asked.pids)
    with _snapshots(alerts=False) as snapshot, _cancel_on_signals() as cancelled:
        made, engine = at_step.prepare_plan(words, plan, _print_stderr)
        _print_result(take(made, _Stages(), cancelled, snapshot, engine), as_json)


def _one(plan: Plan, cancelled: threading.Event, snapshot: TakeSnapshot, as_json: bool) -> None:
    from llmtop.capture.take import take

    _print_result(take(plan, _Stages(), cancelled, snapshot), as_json)


@contextmanager
def _snapshots(alerts: bool) -> Iterator[TakeSnapshot]:
    """Sample this machine in the background: its GPUs, and all other signals if alerts are needed."""
    if alerts:
        with _whole_machine() as take:
            yield take
        return
    from collectors.driver.all_gpus import AllGpus
    from llmtop.model.snapshot import Host, Snapshot

    source = AllGpus(1.0)
    source.start()

    def take_snapshot() -> Snapshot:
        reading = source.latest()
        host = Host(name=platform.node(), driver_version=reading.driver_version, cuda_version=reading.cuda_version)
        return Snapshot(time=time.time(), host=host, gpus=reading.gpus)

    try:
        yield take_snapshot
    finally:
        source.close()


@contextmanager
def _whole_machine() -> Iterator[TakeSnapshot]:
    from collectors.hub import live_hub

    latest: list[Snapshot | None] = [None]
    hub = live_hub(interval=1.0)

    def keep(snapshot: Snapshot) -> None:
        latest[0] = snapshot

    hub.start(keep)
    try:
        yield lambda: latest[0]
    finally:
        hub.close()


@contextmanager
def _cancel_on_signals() -> Iterator[threading.Event]:
    """Ctrl+C and SIGTERM call the capture off cleanly; a second one ends this program as ever."""
    cancelled = threading.Event()
    before: dict[signal.Signals, Any] = {}

    def call_off(number: int, frame: FrameType | None) -> None:
        cancelled.set()
        for one, handler in before.items():
            signal.signal(one, handler)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, call_off)
    try:
        yield cancelled
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Stages:
    """Progress on stderr: one line that changes on a terminal, a line a stage elsewhere."""

    def __init__(self) -> None:
        self._on_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._stage = ""

    def __call__(self, progress: Progress) -> None:
        if progress.stage == "done":
            if self._on_terminal:
                print_in_place("")
            return
        steps = "" if progress.steps is None else f" {progress.steps}/{progress.wanted} steps"
        text = f"{progress.elapsed:5.1f} s  {progress.stage}{steps}  {printable(progress.detail, 60)}".rstrip()
        if self._on_terminal:
            print_in_place(text)
        elif progress.stage != self._stage:
            print_text(text, err=True)
        self._stage = progress.stage


def _print_stderr(text: str) -> None:
    print_text(text, err=True)


def _print_warnings(plan: Plan) -> None:
    from llmtop.capture import engines
    from llmtop.capture.base.folder import check_disk

    names = ", ".join(target.name for target in plan.targets)
    length = f"{plan.steps} steps" if plan.steps else duration(plan.seconds)
    free = check_disk(plan.parent)
    _print_stderr(
        f"capturing {length} of {names} with {plan.engine}; a few MB to {plan.parent} ({size(free)} free)"
    )
    for option in engines.engine_named(plan.engine).options:
        if option.name in plan.options:
            _print_stderr(f"{option.name}: {option.cost}")


def _print_result(result: Result, as_json: bool) -> None:
    from llmtop.capture.take import report_data
    from llmtop.cli.printed import CaptureResult

    if as_json:
        facts = CaptureResult(
            folder=str(result.folder),
            trace=str(result.trace) if result.trace else None,
            bytes=result.bytes,
            copy=result.copy_command,
            open=result.open_command,
            capture=result.info,
            report=report_data(result),
        )
        print_json(facts)
        return
    if result.info.stopped_early:
        print_text(printable(result.info.stopped_early, 400))
    print_text(_report_text(result))
    for note in result.info.notes:
        print_text(f"note: {printable(note)}")
    if result.slowest_step_text:
        print_text(result.slowest_step_text)
    print_text(result.summary)
    print_text(f"copy: {result.copy_command}")
    print_text(f"open: {result.open_command}")


def _report_text(result: Result) -> str:
    from llmtop.document.text import write_text
    from llmtop.report.document import brief_document

    document = result.document if result.report is None else brief_document(result.report)
    if document is not None:
        return write_text(document, text_width())
    written = result.folder / file_names.REPORT_TEXT
    return written.read_text(errors="replace") if written.is_file() else ""


def _print_fired(fired: Firing, as_json: bool) -> None:
    from llmtop.cli.printed import CaptureNotTaken

    _print_stderr(fired.reason)
    if fired.result is not None:
        _print_result(fired.result, as_json)
    elif as_json:
        print_json(CaptureNotTaken(reason=fired.reason, error=fired.error))
    else:
        _print_stderr(f"llmtop: {fired.error}")


def _print_options() -> None:
    from llmtop.capture.engines import ENGINES

    for engine in ENGINES.values():
        for option in engine.options:
            refused = engine.option_refusal(option.name)
            where = f"at launch: llmtop run {engine.launch_flag}" if option.at_launch else f"-e {engine.name}"
            print_text(f"{option.name}  ({where})\n    {option.summary}\n    cost: {option.cost}")
            if refused:
                print_text(f"    unavailable: {refused.reason}; to fix: {refused.command}")
