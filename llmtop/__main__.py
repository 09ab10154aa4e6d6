"""The command line: `llmtop` and `python -m llmtop`.

Commands are imported only when they are called, so that `llmtop run` costs a training no Textual and `--help`
nothing but click.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from llmtop.cli.output import print_text
from llmtop.errors import EXIT_USAGE, LlmtopError, NotPossibleHere, check_open_files, too_many_open_files
from llmtop.format import printable
from llmtop.system import one_blas_thread
from llmtop.version import __version__

# command -> (module:attribute, one line of help); the bare `llmtop` is "live"
COMMANDS: dict[str, tuple[str, str]] = {
    "live": (
        "llmtop.cli.live.command:live",
        "Watch GPUs and attached trainings (what llmtop without a command does).",
    ),
    "run": ("llmtop.cli.run.command:run", "Start a training with llmtop attached."),
    "capture": ("llmtop.cli.capture.command:capture", "Capture a few steps of a running training."),
    "captures": ("llmtop.cli.capture.captures:captures", "List captures, or remove them."),
    "report": ("llmtop.cli.report.command:report", "Report on a capture or a recording."),
    "compare": ("llmtop.cli.report.command:compare", "Compare two captures, recordings or reports."),
    "bench": (
        "llmtop.cli.bench.command:bench",
        "Run a training several times and measure a steady window of each run.",
    ),
    "kernel": (
        "llmtop.cli.report.kernel:kernel",
        "Profile a hot kernel with ncu and show the result.",
    ),
    "postmortem": (
        "llmtop.cli.postmortem.command:postmortem",
        "Name the rank that failed first in a dead or hung job.",
    ),
    "which": ("llmtop.cli.which.command:which", "Print the first tool for a symptom, and its command."),
    "tail": ("llmtop.cli.postmortem.tail:tail", "Show the last two minutes of each rank of a run."),
    "runs": ("llmtop.cli.runs.command:runs", "List runs, show or open one, or delete one."),
    "record": ("llmtop.cli.live.command:record", "Write a recording without a screen."),
    "replay": ("llmtop.cli.live.command:replay", "Show a recording as if it were live."),
    "demo": ("llmtop.cli.live.command:demo", "Show a recorded run of a real H200."),
    "export": ("llmtop.cli.cluster.export:export", "Expose this node's metrics to Prometheus."),
    "cluster": ("llmtop.cli.cluster.command:cluster", "Watch all nodes through Prometheus."),
    "doctor": (
        "llmtop.cli.doctor.command:doctor",
        "Check this machine, and print the command to fix each problem.",
    ),
    "config": ("llmtop.cli.config:config", "Check config.toml, and print what it sets."),
    "mcp": ("llmtop.cli.mcp.command:mcp", "Serve what llmtop knows to a coding agent."),
    "schema": ("llmtop.cli.schema.command:schema", "Print the JSON Schema of what --json prints."),
    "completion": (
        "llmtop.cli.completion:completion",
        "Completion of commands and options for bash, zsh and fish.",
    ),
}


def _put_own_packages_first() -> None:
    """Make `import tui` and `import collectors` mean ours, whatever stands in the current folder.

    In a wheel they lie in llmtop/_app; in a checkout, beside the package.
    """
    package = Path(__file__).resolve().parent
    home = package / "_app"
    sys.path.insert(0, str(home if home.is_dir() else package.parent))


_WITHOUT_FILES = ("run", "completion")
"""Commands that run in any case: a training starts whatever llmtop needs, and a completion opens nothing."""


class _ReaderGone(Exception):
    """The reader of the output has closed the pipe (`llmtop --json | head`): exit silently."""


class _ClosedOutput(io.TextIOBase):
    """Stands for a standard output that the caller closed: click would drop every word, and exit with 0."""

    def write(self, _text: str) -> int:
        raise NotPossibleHere("standard output is closed: start llmtop with a standard output, such as > FILE")

    def fileno(self) -> int:
        raise NotPossibleHere(
            "standard output is closed: start llmtop with a standard output, such as > FILE"
        )  # its number may belong to a socket by now


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        from llmtop.cli.examples import epilog

        command.epilog = command.epilog or epilog(cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, where this process may open the files that it needs."""
        if not ctx.resilient_parsing and args[0] not in COMMANDS:
            raise click.UsageError(_unknown_command(args[0]), ctx)
        if not ctx.resilient_parsing and args[0] not in _WITHOUT_FILES:
            check_open_files()
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands, from the table alone; the options of the live monitor besides llmtop's own."""
        if not incomplete.startswith("-"):
            return [
                CompletionItem(name, help=text)
                for name, (_, text) in COMMANDS.items()
                if name.startswith(incomplete)
            ]
        live = self.get_command(ctx, "live")
        found = super().shell_complete(ctx, incomplete)
        return found if live is None else [*found, *live.shell_complete(ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

        # The bare command is the live monitor, so its options belong on the first page.
        live = self.get_command(ctx, "live")
        records = [param.get_help_record(ctx) for param in live.params] if live else []
        with formatter.section("Options of the live monitor (llmtop without a command)"):
            formatter.write_dl([record for record in records if record])

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the arguments, and print what --help and --version ask for; as `invoke`."""
        with _closed_pipe_as_reader_gone():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader that has gone is no error, though click would exit 1 for it."""
        with _closed_pipe_as_reader_gone():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Treat the bare command, and one that starts with an option of `live`, as `live`."""
        if ctx.resilient_parsing and not args:  # a shell asks which commands there are
            return super().parse_args(ctx, args)
        if args[:1] == ["help"]:
            args = [*args[1:2], "--help"]
        own = {"--help", "-h", "--version"}
        if not args or (args[0].startswith("-") and args[0] not in own):
            args = ["live", *args]
        return super().parse_args(ctx, args)


def _unknown_command(name: str) -> str:
    """Return the sentence for a command that there is not."""
    import difflib

    near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.6)
    hint = f"Did you mean {near[0]}?" if near else "llmtop help lists all commands."
    return f"there is no command {name!r}. {hint}"


@contextmanager
def _closed_pipe_as_reader_gone() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderGone from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="llmtop")
def cli() -> None:
    """The terminal monitor for people who train large language models."""


def main(argv: list[str] | None = None) -> Any:
    """Run one command and exit with its code (llmtop/errors.py)."""
    _put_own_packages_first()
    one_blas_thread.prepare()
    _prepare_output()
    threading.excepthook = _tell_of_thread
    try:
        code = cli.main(args=argv, prog_name="llmtop", standalone_mode=False, default_map=_defaults())
    except LlmtopError as error:
        code = _print_error(error)
    except click.ClickException as error:
        _show_usage(error)
        code = EXIT_USAGE
    except click.Abort:
        code = 130
    except _ReaderGone:
        _forget_output()
        code = 0
    except Exception as error:  # noqa: BLE001  the one handler of unexpected errors of all commands
        code = _print_error(_output_failed(error) or too_many_open_files(error) or _own_error(error))
    sys.exit(code)


def _defaults() -> dict[str, dict[str, Any]]:
    """Return each command's options from the configuration; the command line takes precedence.

    Raises:
        UnusableInput: the configuration is wrong.
    """
    if "_LLMTOP_COMPLETE" in os.environ:  # a shell calls this at each tab: nothing is printed
        return {}
    from llmtop.config import load

    chosen = load(engines=_engine_options)
    screen: dict[str, Any] = {"ascii": chosen.ascii or None, "theme": chosen.theme}
    stream: dict[str, Any] = {"interval": chosen.interval, "gpus": chosen.gpus, "on_alert": chosen.alerts.command}
    capture = chosen.capture
    into = {"out": None if capture.out is None else os.path.expanduser(capture.out)}
    takes: dict[str, Any] = {"engine": capture.engine, "steps": capture.steps, "seconds": capture.seconds}
    server = chosen.cluster
    token_file = None if server.token_file is None else os.path.expanduser(server.token_file)
    ca = None if server.ca is None else os.path.expanduser(server.ca)
    asks: dict[str, Any] = {"run": server.run, "interval": server.interval, "token_file": token_file}
    settings = {
        "live": {**stream, **screen},
        "run": {"run_log": chosen.runs.keep},
        "record": stream,
        "replay": screen,
        "demo": screen,
        "capture": {**takes, **into, "options": capture.options or None},
        "captures": into,
        "cluster": {**screen, **asks, "user": server.user, "ca": ca, "org": server.org},
    }
    return {
        command: {name: value for name, value in given.items() if value is not None}
        for command, given in settings.items()
    }


def _engine_options() -> dict[str, list[str]]:
    """Return the names of all capture engines, each with the names of its options."""
    from llmtop.capture.engines import ENGINES  # 0.2 s, where the configuration names an engine

    return {name: [option.name for option in engine.options] for name, engine in ENGINES.items()}


def _prepare_output() -> None:
    """Make every failed write raise, and no character end a command."""
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")


def _forget_output() -> None:
    """Send what still lies in a buffer nowhere: it would raise once more at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _show_usage(error: click.ClickException) -> None:
    """Print what click has to say of wrong arguments, which name files as they are called."""
    written = io.StringIO()
    error.show(written)
    print_text(_without_secrets(written.getvalue()), err=True, nl=False)


def _print_error(error: LlmtopError) -> int:
    """Print the error, and return the exit code."""
    with contextlib.suppress(OSError):  # standard error is full, too
        sentence = _without_secrets(_with_arguments_in_line(str(error)))
        print_text("llmtop: " + "\n".join(sentence.splitlines()), err=True)
    return error.exit_code


def _without_secrets(sentence: str) -> str:
    """Mask secrets in what an error repeats of arguments and the configuration: logs of jobs are shared."""
    from llmtop.redaction.secret_filter import without_known_secrets  # for an error alone

    return without_known_secrets(sentence)


def _with_arguments_in_line(sentence: str) -> str:
    """Return the sentence with the arguments in it made printable: the name of a file may hold ends of lines."""
    for argument in sys.argv[1:]:
        if not argument.isprintable():
            sentence = sentence.replace(argument, printable(argument))
    return sentence


def _output_failed(error: Exception) -> LlmtopError | None:
    """Return the sentence for an error of writing to standard output, as on a full disk; None for any other."""
    frames = traceback.extract_tb(error.__traceback__)
    if not isinstance(error, OSError) or not frames or frames[-1].filename != click.echo.__code__.co_filename:
        return None
    _forget_output()
    return NotPossibleHere(f"standard output cannot be written: {error.strerror}")


def _own_error(error: BaseException) -> LlmtopError:
    from llmtop.system.crash import log_own_error

    return log_own_error(error)


def _tell_of_thread(error: threading.ExceptHookArgs) -> None:
    if error.exc_value is not None:
        _print_error(too_many_open_files(error.exc_value) or _own_error(error.exc_value))


if __name__ == "__main__":
    main()
