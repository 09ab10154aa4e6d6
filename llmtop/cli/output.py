"""Output of all commands, text and JSON, without terminal control characters.

No other module of the command line writes to a standard stream (`tests/cli/test_output.py`).
"""

from __future__ import annotations

import os
import shutil
import sys

import click

from llmtop.errors import NotPossibleHere
from llmtop.format import escaped_json, printable, printable_lines

_LINE_AGAIN = "\r\x1b[K"


def text_width() -> int:
    """Return the columns of the terminal; 80 where the output is no terminal and $COLUMNS is not set."""
    return shutil.get_terminal_size((80, 24)).columns


def print_text(text: str = "", *, err: bool = False, nl: bool = True, styled: bool = False) -> None:
    """Print text, a line or several.

    Args:
        text: may hold names from anywhere.
        err: on standard error.
        nl: with a newline behind it.
        styled: keep the colours that are in it.
    """
    click.echo(printable_lines(text, styled=styled), err=err, nl=nl)


def print_in_place(text: str) -> None:
    """Print one line on standard error, which is a terminal, in place of the line that is there."""
    click.echo(_LINE_AGAIN + printable(text), err=True, nl=False)


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    from llmtop.format import encode_json  # not for llmtop run, which prints none

    print_encoded(encode_json(value))


def print_encoded(data: bytes) -> None:
    """Print JSON that is made already."""
    click.echo(escaped_json(data).decode())


def write_json(data: bytes) -> None:
    """Write JSON as one line to standard output; errors as of `write_out`."""
    write_out(escaped_json(data) + b"\n")


def write_text(text: str) -> None:
    """Write lines of text to standard output; errors as of `write_out`."""
    write_out(printable_lines(text).encode(sys.stdout.encoding or "utf-8", "replace"))


def write_out(data: bytes) -> None:
    """Write to standard output, past every buffer, so that a reader has it at once and whole.

    Raises:
        BrokenPipeError: the reader has gone.
        NotPossibleHere: it is closed, or cannot be written, as on a full disk.
    """
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(sys.stdout.fileno(), rest) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise NotPossibleHere(f"standard output cannot be written: {error.strerror}") from None
