"""llmtop live, record, replay and demo: one way from a feed to a screen, a stream, a text or a file."""

from __future__ import annotations

import gc
import math
import platform
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from llmtop.cli.output import print_json, print_text, write_json, write_text
from llmtop.errors import EXIT_DONE, NotPossibleHere, UnusableInput
from llmtop.model.setting_ranges import MAX_INTERVAL_SECONDS, MIN_INTERVAL_SECONDS

if TYPE_CHECKING:
    from collectors.base.source import Feed
    from collectors.record_stage import RecordStage
    from collectors.replay import ReplayFeed, SnapshotReader
    from collectors.runs.past import OpenedRun
    from llmtop.cli.live.alert_command import AlertCommand
    from llmtop.cli.live.webhook import Webhook

F = TypeVar("F", bound=Callable[..., Any])
_DEMO_BEGINS = 15.0
"""Seconds into its recording: half a minute is healthy, and who sees llmtop first need not sit through all."""


def range_check(low: float, high: float) -> Callable[[click.Context, click.Parameter, float | None], float | None]:
    """Return a check that click calls with the option's value. click.FloatRange lets NaN through."""

    def check(_ctx: click.Context, _param: click.Parameter, value: float | None) -> float | None:
        if value is not None and not low <= value <= high:
            raise click.BadParameter(f"{value:g} is outside the allowed range of {low:g} to {high:g}")
        return value

    return check


_interval = click.option(
    "--interval",
    "-i",
    type=float,
    callback=range_check(MIN_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS),
    default=1.0,
    show_default=True,
    metavar="S",
    help=f"Seconds between snapshots, {MIN_INTERVAL_SECONDS:g} to {MAX_INTERVAL_SECONDS:g}.",
)
_gpus = click.option(
    "--gpus",
    metavar="LIST",
    help='GPUs to show: indices and UUIDs of nvidia-smi -L ("0,2"), "all", or "attached" for those of '
    "attached trainings.",
)
_force = click.option("--force", "-f", is_flag=True, help="Overwrite an existing recording.")
_on_alert = click.option(
    "--on-alert",
    metavar="CMD",
    help="Run CMD in a shell for each new alert, with the alert as JSON on stdin.",
)
_ascii = click.option("--ascii/--no-ascii", default=False, help="Draw with ASCII characters only.")
_theme = click.option("--theme", metavar="NAME", help="Colour theme; press t on the screen for the next one.")


@click.command()
@_interval
@_gpus
@click.option("--once", is_flag=True, help="Print one snapshot as text and exit; with --json, as one object.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per snapshot and line, without a screen."
)
@click.option(
    "--record",
    "record_to",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Also write a recording to FILE.",
)
@_force
@_on_alert
@_ascii
@_theme
def live(
    *,
    interval: float,
    gpus: str | None,
    once: bool,
    as_json: bool,
    record_to: Path | None,
    force: bool,
    on_alert: str | None,
    ascii: bool,
    theme: str | None,
) -> int:
    """Watch the GPUs and the attached trainings of this machine."""
    from collectors.gpu.selection import GpuSelection
    from collectors.hub import live_hub, live_sources

    selection = GpuSelection.parse(gpus) if gpus is not None else None
    if not (once or as_json):
        require_terminal("llmtop --json or llmtop --once")
    elif theme is not None and _is_typed(
        "theme"
    ):  # of the configuration, --once needs none: it would cost Textual
        from tui.core.base_app import theme_named

        theme_named(theme)
    code = EXIT_DONE
    with ExitStack() as closing:
        recorder = _recorder(record_to, force) if record_to else None
        if recorder:
            closing.callback(recorder.close)
        stages = alert_stages(on_alert, closing, posts=not once)
        stages += [recorder] if recorder is not None else []
        sources = partial(live_sources, keep_runs=not once, paces_trainings=not as_json)
        hub = live_hub(interval=interval, selection=selection, stages=stages, whole=as_json, make_sources=sources)
        if once:
            closing.callback(hub.close)
            _print_once(hub.first_snapshot(), as_json)
        elif as_json:
            print_snapshots(hub)
        else:
            code = show_feed(hub, ascii=ascii, theme=theme)
    return _finish_recording(recorder) or code


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@_interval
@_gpus
@click.option(
    "--seconds",
    "-s",
    type=float,
    callback=range_check(0.1, 366 * 86400.0),
    metavar="S",
    help="Exit S seconds after the first snapshot.",
)
@_force
@_on_alert
@click.option("--json", "as_json", is_flag=True, help="Print a summary of the recording as JSON.")
@click.option(
    "--daemon",
    is_flag=True,
    help="Start a watcher in the background: it adds GPU signals, alerts and captures to the runs of trainings, "
    "and writes no recording.",
)
@click.option("--stop", is_flag=True, help="With --daemon: end the watcher in the background.")
@click.option(
    "--foreground", is_flag=True, help="With --daemon: watch in this process, as systemd or a script needs."
)
def record(
    *,
    file: Path | None,
    interval: float,
    gpus: str | None,
    seconds: float | None,
    force: bool,
    on_alert: str | None,
    as_json: bool,
    daemon: bool,
    stop: bool,
    foreground: bool,
) -> int:
    """Write a recording to FILE without a screen, until ctrl+c, SIGTERM or --seconds.

    With --daemon there is no FILE: a watcher in the background adds GPU signals and alerts to the runs that llmtop
    runs lists. Each user can have one watcher on a node.
    """
    if daemon:
        if file is not None or force or as_json or (stop and foreground):
            raise UnusableInput(
                "--daemon cannot be combined with FILE, --force or --json; pass at most one of --stop and "
                "--foreground"
            )
        return _watch(interval, gpus, seconds, on_alert, stop=stop, foreground=foreground)
    if stop or foreground:
        raise UnusableInput("--stop and --foreground need --daemon: llmtop record --daemon --stop")
    if file is None:
        raise UnusableInput("No FILE given: llmtop record FILE; or llmtop record --daemon, which needs none")
    from collectors.gpu.selection import GpuSelection
    from collectors.hub import live_hub, live_sources
    from llmtop.cli.live.stream import SnapshotStream
    from llmtop.cli.printed import RecordingSummary
    from llmtop.recording.reader_writer import Reader

    selection = GpuSelection.parse(gpus) if gpus is not None else None
    recorder = _recorder(file, force)
    stream = SnapshotStream()

    def consume(_snapshot: object) -> None:
        if recorder.error is not None:
            stream.finish()

    with ExitStack() as closing:
        closing.callback(recorder.close)
        stages = [*alert_stages(on_alert, closing), recorder]
        sources = partial(live_sources, keep_runs=True)
        hub = live_hub(interval=interval, selection=selection, stages=stages, make_sources=sources)
        print_text(f"recording to {file}; press ctrl+c to stop", err=True)
        stream.run(hub, consume, seconds)
    reader = Reader(file)
    facts = RecordingSummary(
        path=str(file.resolve()), snapshots=reader.count, seconds=reader.length, bytes=file.stat().st_size
    )
    reader.close()
    if as_json:
        print_json(facts)
    else:
        print_text(f"{reader.count} snapshots over {reader.length:.1f} s, {facts.bytes} bytes: {file}", err=True)
    return _finish_recording(recorder)


def _watch(
    interval: float, gpus: str | None, seconds: float | None, on_alert: str | None, *, stop: bool, foreground: bool
) -> int:
    """Start, end or be the watcher of this node."""
    from llmtop.cli.live import watcher

    if stop:
        return watcher.stop()
    interval = interval if _is_typed("interval") else watcher.INTERVAL_SECONDS
    if not foreground:
        given = {"--gpus": gpus, "--seconds": seconds, "--on-alert": on_alert}
        options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
        return watcher.start(["--interval", f"{interval:g}", *options])

    from collectors.gpu.selection import GpuSelection
    from collectors.hub import live_hub, live_sources
    from llmtop.cli.live.stream import SnapshotStream

    with ExitStack() as closing:
        stages = alert_stages(on_alert, closing)
        sources = partial(live_sources, engines=False, sample_loaders=False, unattended=True, keep_runs=True)
        hub = live_hub(
            interval=interval,
            selection=GpuSelection.parse("all" if gpus is None else gpus),
            stages=stages,
            whole=True,
            make_sources=sources,
        )
        return watcher.watch(lambda: SnapshotStream().run(hub, watcher.NoteLog(), seconds))


_speed = click.option(
    "--speed",
    type=float,
    callback=range_check(0.25, 16.0),
    metavar="X",
    help="Speed factor, 0.25 to 16. With --json, the default is as fast as possible.",
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per snapshot, each on its own line, to the end."
)
@click.option(
    "--no-limits",
    is_flag=True,
    help="Remove the limit on the unpacked size of the file; reading may take much memory and time.",
)
@_speed
@_ascii
@_theme
def replay(
    *, file: Path, as_json: bool, no_limits: bool, speed: float | None, ascii: bool, theme: str | None
) -> int:
    """Show the recording in FILE as if it were live; space pauses."""
    return _replay(file, as_json=as_json, no_limits=no_limits, speed=speed, ascii=ascii, theme=theme)


@click.command()
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per snapshot, each on its own line, to the end."
)
@_speed
@_ascii
@_theme
def demo(as_json: bool, speed: float | None, ascii: bool, theme: str | None) -> int:
    """Show a recorded run of a real H200: healthy, input-starved, launch-bound and spinning minutes.

    In the demo, key c opens captures that were recorded beforehand: of a training before and after a fix.
    """
    from importlib.resources import as_file, files

    shipped = files("llmtop") / "data"
    recording, captures = shipped / "demo.llmtop.gz", shipped / "demo-captures.tar.xz"
    if not recording.is_file():
        raise NotPossibleHere("the demo recording is missing in this installation; reinstall llmtop")
    with as_file(recording) as path, as_file(captures) as archive:
        return _replay(
            path, as_json=as_json, speed=speed, ascii=ascii, theme=theme, captures=archive, begin=_DEMO_BEGINS
        )


def _replay(
    path: Path,
    *,
    as_json: bool,
    speed: float | None,
    ascii: bool,
    theme: str | None,
    no_limits: bool = False,
    captures: Path | None = None,
    begin: float = 0.0,
) -> int:
    from collectors.replay import ReplayFeed
    from llmtop.recording.reader_writer import Reader
    from llmtop.rules.engine import Rules
    from llmtop.system.inputs import Limits

    unpaced = as_json and speed is None

    def opened() -> Reader:
        return Reader(path, Limits(lifted=True) if no_limits else None)

    reader = opened()
    if not as_json:
        require_terminal("--json")
    feed = ReplayFeed(reader, lambda: Rules().apply, math.inf if unpaced else speed or 1.0)
    if as_json:
        print_snapshots(feed)
        return EXIT_DONE
    if begin:
        feed.seek(begin)
    return show_feed(feed, ascii=ascii, theme=theme, captures=captures, recording=opened)


def alert_stages(
    command: str | None, closing: ExitStack, *, posts: bool = True
) -> list[AlertCommand | Webhook | RecordStage]:
    """Return the stages that report alerts, closed with the others.

    Args:
        command: run for each new alert; empty or None: there is none.
        closing: closes them.
        posts: whether the webhook of the configuration is one of them.

    Raises:
        UnusableInput: the file with the address of the webhook is unusable.
    """
    from llmtop.config import current

    found: list[AlertCommand | Webhook | RecordStage] = []
    notify = current().notify
    if posts and notify.url_file is not None:
        from llmtop.cli.live.webhook import Webhook
        from llmtop.system.address_file import read_address

        found.append(Webhook(notify, read_address(Path(notify.url_file).expanduser())))
    if command:  # --on-alert '' overrides the configuration
        from llmtop.cli.live.alert_command import AlertCommand

        found.append(AlertCommand(command))
    for stage in found:
        closing.callback(stage.close)
    return found


def _is_typed(option: str) -> bool:
    """Return True if an option stands on the command line, rather than in the configuration."""
    return click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE


def require_terminal(instead: str) -> None:
    """Refuse to draw without a terminal.

    Raises:
        UnusableInput: one of the three standard streams is no terminal.
    """
    # Each is None when the caller closed it.
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise UnusableInput(f"standard output is not a terminal, so no screen can be shown; use {instead}")


def show_feed(
    feed: Feed,
    *,
    ascii: bool,
    theme: str | None,
    captures: Path | None = None,
    opened: OpenedRun | None = None,
    recording: Callable[[], SnapshotReader] | None = None,
) -> int:
    """Run the screen, the demo's with captures; 128 + the signal's number if that or a lost terminal ended it."""
    # What is loaded up to the first frame stays for good, and 120 scans of it find nothing. The app enables them.
    gc.disable()
    with ExitStack() as closing:
        closing.callback(gc.enable)
        _load_asyncio_without_tls()
        from tui.show import show

        if captures is None:
            return show(feed, ascii=ascii, theme=theme, remember=True, opened=opened, recording=recording)
        from llmtop.capture.prepared import PreparedCaptures

        prepared = PreparedCaptures(captures)
        closing.callback(prepared.close)
        return show(feed, ascii=ascii, theme=theme, remember=True, prepared=prepared)


def _load_asyncio_without_tls() -> None:
    """Load asyncio without Python's ssl: OpenSSL takes 2 MiB, and no screen uses TLS."""
    if "asyncio" in sys.modules or "ssl" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]
    try:
        import asyncio  # noqa: F401
    finally:
        del sys.modules["ssl"]  # who asks for it later gets it


def print_snapshots(feed: Feed | ReplayFeed) -> None:
    from collectors.replay import ReplayFeed
    from llmtop.cli.live.stream import SnapshotStream
    from llmtop.model.key_commands import with_commands
    from llmtop.model.snapshot import to_json

    stream = SnapshotStream()
    if isinstance(feed, ReplayFeed):
        feed.on_end(stream.finish)
    stream.run(feed, lambda snapshot: write_json(to_json(with_commands(snapshot))))


def _print_once(snapshot: Any, as_json: bool) -> None:
    from llmtop.cli.live.snapshot_text import render
    from llmtop.model.key_commands import with_commands
    from llmtop.model.snapshot import to_json

    snapshot = with_commands(snapshot)
    if as_json:
        write_json(to_json(snapshot))
    else:
        write_text(render(snapshot))


def _recorder(path: Path, force: bool) -> RecordStage:
    from collectors.record_stage import RecordStage
    from llmtop.environment.collect import machine_environment

    return RecordStage(path, host=platform.node(), overwrite=force, environment=machine_environment())


def _finish_recording(recorder: RecordStage | None) -> int:
    """Return the exit code after the recorder is closed; prints why a recording ended early."""
    if recorder is None or recorder.error is None:
        return EXIT_DONE
    print_text(f"llmtop: {recorder.error}", err=True)
    return recorder.error.exit_code
