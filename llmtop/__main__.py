"""The command line: `llmtop` and `python -m llmtop`.

Commands are imported only when they are called, so that `llmtop run` costs a training no Textual and `--help`
nothing but click.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import click

from llmtop import __version__
from llmtop.errors import EXIT_USAGE, LlmtopError
from llmtop.format import printable

# command -> (module:attribute, one line of help); the bare `llmtop` is "live"
COMMANDS: dict[str, tuple[str, str]] = {
    "live": ("llmtop.cli.live:live", "Watch GPUs and attached trainings (what llmtop without a command does)."),
    "run": ("llmtop.cli.run:run", "Start a training, attached, without changing it."),
    "capture": ("llmtop.cli.capture:capture", "Capture a focused window of a running training."),
    "captures": ("llmtop.cli.capture:captures", "List captures, or remove them."),
    "report": ("llmtop.cli.report:report", "Say what a capture or a recording shows."),
    "compare": ("llmtop.cli.report:compare", "Two captures, recordings or reports: what moved."),
    "record": ("llmtop.cli.live:record", "Write a recording without a screen."),
    "replay": ("llmtop.cli.live:replay", "Show a recording as if it were live."),
    "demo": ("llmtop.cli.live:demo", "Show a recorded run of a real H200."),
    "doctor": ("llmtop.cli.doctor:doctor", "What this machine allows, and the command that would change it."),
}


def _put_own_packages_first() -> None:
    """Make `import tui` and `import collectors` mean ours, whatever stands in the current folder.

    In a wheel they lie in llmtop/_app; in a checkout, beside the package.
    """
    package = Path(__file__).resolve().parent
    home = package / "_app"
    sys.path.insert(0, str(home if home.is_dir() else package.parent))


class _ReaderGone(Exception):
    """Whoever read our output has gone (`llmtop --json | head`): nothing more to say."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

        # The bare command is the live monitor, so its options belong on the first page.
        live = self.get_command(ctx, "live")
        records = [param.get_help_record(ctx) for param in live.params] if live else []
        with formatter.section("Options of the live monitor (llmtop without a command)"):
            formatter.write_dl([record for record in records if record])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader that has gone is no error, though click would exit 1 for it."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGone from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let the bare command, and one that starts with an option of `live`, mean `live`."""
        own = {"--help", "-h", "--version"}
        if not args or (args[0].startswith("-") and args[0] not in own):
            args = ["live", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="llmtop")
def cli() -> None:
    """The terminal monitor for people who train large language models."""


def main(argv: list[str] | None = None) -> Any:
    """Run one command and exit with its code (llmtop/errors.py)."""
    _put_own_packages_first()
    try:
        code = cli.main(args=argv, prog_name="llmtop", standalone_mode=False)
    except LlmtopError as error:
        # What it names may come from a file, or be the name of one: nothing of that reaches the terminal as it is.
        lines = [printable(line) for line in str(error).splitlines()]
        click.echo("llmtop: " + "\n".join(lines), err=True)
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = EXIT_USAGE
    except click.Abort:
        code = 130
    except _ReaderGone:
        # What still lies in a buffer would raise once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


if __name__ == "__main__":
    main()
