"""llmtop config: check the configuration, and print what it sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from llmtop.cli.output import print_json, print_text
from llmtop.errors import EXIT_DONE


@click.command()
@click.option(
    "--check",
    is_flag=True,
    help="Print one sentence, and exit with 0 if the file is valid or absent, 2 if it is invalid.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: path, exists, settings.")
def config(*, check: bool, as_json: bool) -> int:
    """Check config.toml, and print its path and what it sets.

    Every command reads the file first and refuses an invalid one with the same sentence and exit code 2.
    """
    import msgspec

    from llmtop.cli.printed import ConfigSettings
    from llmtop.config import Config, config_path, current
    from llmtop.redaction.secret_filter import without_known_secrets

    path = config_path()  # has been read: a wrong one has ended this command
    exists = os.path.exists(path)
    chosen = dict(_differences(msgspec.to_builtins(current()), msgspec.to_builtins(Config())))
    if as_json:
        settings = msgspec.json.decode(without_known_secrets(msgspec.json.encode(chosen).decode()))
        print_json(ConfigSettings(path=str(path), exists=exists, settings=settings))
        return EXIT_DONE
    if not exists:
        reason = (
            "cannot be seen, because a folder above it may not be entered"
            if _is_hidden(path)
            else "does not exist"
        )
        print_text(f"{path} {reason}: every setting has its default")
        return EXIT_DONE
    plural = "" if len(chosen) == 1 else "s"
    print_text(f"{path} is valid: {len(chosen)} setting{plural} other than the default")
    if not check:
        for name, value in chosen.items():
            print_text(without_known_secrets(f"{name} = {msgspec.json.encode(value).decode()}"))
    return EXIT_DONE


def _is_hidden(path: Path) -> bool:
    """Return True if a folder of its path may not be entered (after setpriv or su), so that the file may exist."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _differences(chosen: dict[str, Any], usual: dict[str, Any], table: str = "") -> Iterator[tuple[str, Any]]:
    """Yield name and value of each setting that differs, by its dotted name."""
    for name, value in chosen.items():
        if isinstance(value, dict):
            yield from _differences(value, usual[name], f"{table}{name}.")
        elif value != usual[name]:
            yield f"{table}{name}", value
