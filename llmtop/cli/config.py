"""llmtop config: check the configuration, and print what it sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from llmtop.cli.output import print_json, print_text
from llmtop.errors import EXIT_DONE, LlmtopError, UnusableInput

if TYPE_CHECKING:
    from llmtop.config import Config

_NAMED_FILES: Final = (
    ("cluster", "token_file", "the bearer token"),
    ("cluster", "ca", "the certificates"),
    ("notify", "url_file", "the address"),
)
"""Table, name, and what the file holds."""
_CHECKED_BYTES: Final = 4096
"""Bytes read from a named file to check that it is readable and not empty."""
_MOST_NAMES: Final = 1000
"""In a folder, that are compared with a missing name."""
_REASON_CHARACTERS: Final = 300


@click.command()
@click.option(
    "--check",
    is_flag=True,
    help="Also open the files that it names. Print one sentence, and exit with 0 if the file is valid or absent, "
    "2 if it is invalid.",
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
    if check and exists:
        _check_named_files(path, current())
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


def _check_named_files(path: Path, settings: Config) -> None:
    """Open the files that the settings name: a command does so only when it needs them.

    Raises:
        UnusableInput: one of them is missing, no file, empty, or not readable.
    """
    from llmtop.config import read_text, value_error
    from llmtop.format import printable
    from llmtop.system.inputs import open_input

    for table, name, content in _NAMED_FILES:
        value = getattr(getattr(settings, table), name)
        if value is None:
            continue
        file_path = Path(value).expanduser()
        try:
            with open_input(file_path) as file:
                is_empty = not file.read(_CHECKED_BYTES).strip()
            reason = f"{file_path} is empty" if is_empty else ""
        except UnusableInput as error:
            reason = str(error)
        if reason:
            near = _nearest_file(file_path)
            advice = f'did you mean "{near}"?' if near else f"write {content} into it, or remove the setting"
            sentence = f"{name}: {printable(reason, _REASON_CHARACTERS)}; {advice}"
        elif unfit := _unfit_content(name, file_path):
            sentence = f"{name}: {printable(unfit, _REASON_CHARACTERS)}"
        else:
            continue
        raise value_error(read_text(path) or "", path, [table, name], sentence)
    out = settings.capture.out
    if out is not None and Path(out).expanduser().is_file():
        sentence = f'out = "{printable(out, 60)}" is a file: a folder for captures is wanted'
        raise value_error(read_text(path) or "", path, ["capture", "out"], sentence)


def _unfit_content(name: str, path: Path) -> str:
    """Return why the content of a file cannot be what the setting names; "" where it can."""
    import ssl

    from collectors.prometheus.client import read_token
    from llmtop.system.address_file import read_address

    try:
        if name == "ca":
            ssl.create_default_context(cafile=path)
        else:
            (read_token if name == "token_file" else read_address)(path)
    except (ssl.SSLError, ValueError):
        return f"{path} holds no certificate; write certificates in the form PEM into it"
    except LlmtopError as error:
        return str(error)
    return ""


def _nearest_file(path: Path) -> str | None:
    """Return the path of a file beside a missing one whose name is similar; None without."""
    if path.exists():
        return None
    try:
        near = get_close_matches(path.name, sorted(os.listdir(path.parent))[:_MOST_NAMES], 1)
    except OSError:
        return None
    return str(path.parent / near[0]) if near else None


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
