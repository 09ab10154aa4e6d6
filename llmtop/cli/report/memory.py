"""`llmtop report` and `llmtop compare` where they are given snapshots of PyTorch's allocator."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from llmtop.cli.output import print_encoded, print_text
from llmtop.errors import UnusableInput
from llmtop.system.inputs import Limits

Paint = Callable[[str, str], str]


def memory_files(paths: Sequence[Path]) -> list[Path] | None:
    """The memory snapshots that paths lead to; None where they lead to something else.

    Raises:
        UnusableInput: a path cannot be read, or kinds are mixed.
    """
    from llmtop.memory.files import memory_files

    return memory_files(paths)


def report_memory(files: list[Path], limits: Limits, paint: Paint | None, *, as_json: bool, full: bool) -> None:
    """Print what the snapshots show.

    Raises:
        UnusableInput: one cannot be read.
    """
    from llmtop.memory.analyze import analyze_memory
    from llmtop.memory.model import to_json
    from llmtop.memory.text import brief, render

    found = analyze_memory(files, limits)
    if as_json:
        print_encoded(to_json(found))
    else:
        print_text((render if full else brief)(found, _width(), paint), nl=False, styled=True)


def compare_memory(
    before: list[Path] | None,
    after: list[Path] | None,
    limits: Limits,
    paint: Paint | None,
    *,
    as_json: bool,
    full: bool,
) -> None:
    """Print what grew from one to the other.

    Raises:
        UnusableInput: only one of them is a memory snapshot, or one cannot be read.
    """
    from llmtop.memory.leaks import compare_memory
    from llmtop.memory.model import to_json
    from llmtop.memory.text import render_growth

    if before is None or after is None:
        raise UnusableInput(
            "a memory snapshot can only be compared with another memory snapshot of the same program"
        )
    found = compare_memory(before, after, limits)
    if as_json:
        print_encoded(to_json(found))
    else:
        print_text(render_growth(found, _width(), paint, full=full), nl=False, styled=True)


def _width() -> int:
    return shutil.get_terminal_size((100, 40)).columns
