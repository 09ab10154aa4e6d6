"""Man pages and completion files of the wheel: `python -m tests.support.package_files` writes them.

They are made from the commands themselves, by click-man and click, and are committed, so that building the wheel
imports nothing of llmtop.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from click_man.core import generate_man_page

from llmtop.__main__ import COMMANDS, cli
from llmtop.version import __version__
from tests.support.preloaded import llmtop
from tests.support.processes import REPOSITORY

SHARE: Final = REPOSITORY / "deploy" / "share"
SHORT_HELP: Final = "terminal monitor for trainings of large language models"
COMPLETIONS: Final = {
    "bash": "bash-completion/completions/llmtop",
    "zsh": "zsh/site-functions/_llmtop",
    "fish": "fish/vendor_completions.d/llmtop.fish",
}


def package_files() -> Iterator[tuple[Path, str]]:
    """Yield path below `SHARE` and text of each file."""
    root = click.Context(cli, info_name="llmtop")
    commands: dict[str, click.Command] = {}
    for name, (_, help_line) in COMMANDS.items():
        command = cli.get_command(root, name)
        assert command is not None
        commands[name] = copy.copy(command)
        commands[name].short_help = help_line.rstrip(".")
    # The real group imports its commands one by one, and so lists none.
    group = click.Group("llmtop", commands, params=cli.params, help=cli.help, short_help=SHORT_HELP)
    pages = click.Context(group, info_name="llmtop")
    yield Path("man/man1/llmtop.1"), _page(pages)
    for name, command in commands.items():
        yield Path(f"man/man1/llmtop-{name}.1"), _page(click.Context(command, info_name=name, parent=pages))
    for shell, path in COMPLETIONS.items():
        yield Path(path), llmtop("completion", shell).stdout


def _page(context: click.Context) -> str:
    """One page without a date, which would change each time that it is made."""
    text = generate_man_page(context, version=__version__, date="-").replace('"-"', '""', 1)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def main() -> int:
    """Write all files, and remove those of commands that are gone."""
    made = dict(package_files())
    for old in [path for path in SHARE.rglob("*") if path.is_file()]:
        if old.relative_to(SHARE) not in made:
            old.unlink()
    for path, text in made.items():
        (SHARE / path).parent.mkdir(parents=True, exist_ok=True)
        (SHARE / path).write_text(text)
    print(f"{len(made)} files in {SHARE.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
