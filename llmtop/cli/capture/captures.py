"""llmtop captures: list what was captured, remove it, stop what a killed llmtop left recording."""

from __future__ import annotations

from pathlib import Path

import click

from llmtop.cli.capture.options import json_option, out_option
from llmtop.cli.output import print_json, print_text
from llmtop.errors import EXIT_DONE, LlmtopError
from llmtop.format import printable, size


@click.command()
@out_option
@click.option(
    "--remove", "names", multiple=True, metavar="NAME", help="Remove a capture by its folder name, or 'all'."
)
@click.option(
    "--keep",
    type=click.IntRange(0, 100_000),
    metavar="N",
    help="Remove all but the newest N captures, the baseline and running captures.",
)
@click.option("--stop", is_flag=True, help="Stop recordings that a killed llmtop left running.")
@json_option
def captures(*, out: Path | None, names: tuple[str, ...], keep: int | None, stop: bool, as_json: bool) -> int:
    """List the captures of a folder, or remove some."""
    from llmtop.capture.base import folder

    parent = (out or Path(folder.PARENT)).absolute()
    if stop:
        _stop_orphaned_captures(as_json)
    elif keep is not None:
        from llmtop.capture import capture_list as capture_store

        gone = capture_store.removable_captures(
            capture_store.list_captures(parent), keep, capture_store.baseline(parent)
        )
        _remove([one.path for one in gone], as_json)
    elif names:
        _remove(_named_captures(parent, names), as_json)
    else:
        _list(parent, as_json)
    return EXIT_DONE


def _list(parent: Path, as_json: bool) -> None:
    from llmtop.capture.base import folder
    from llmtop.capture.nsys import orphans
    from llmtop.cli.printed import CaptureListing

    found, refused = folder.list_infos_and_errors(parent)
    total = 0
    for path, info in found:
        taken = folder.total_bytes(path)
        total += taken
        state = orphans.capture_state(path, info)
        if as_json:
            print_json(CaptureListing(folder=str(path), bytes=taken, capture=info, state=state))
            continue
        steps = "" if info.steps is None else f"{info.steps} steps"
        ranks = [str(rank) for rank in info.ranks if rank is not None]
        whom = f"rank {','.join(ranks)}" if ranks else f"pid {','.join(map(str, info.pids))}"
        command = printable(info.command or "", 40)
        name, state = printable(path.name), printable(state, 12)
        print_text(f"{name:<36} {state:<12} {size(taken):>9}  {steps:<10} {whom}  {command}".rstrip())
    if not as_json:
        what = f"{len(found)} capture{'' if len(found) == 1 else 's'}, {size(total)}" if found else "no captures"
        print_text(f"{what} in {printable(str(parent))}", err=True)
    for sentence in refused:
        print_text(f"ignored: {printable(sentence)}", err=True)
    for line in orphans.orphan_messages():
        print_text(line, err=True)


def _named_captures(parent: Path, names: tuple[str, ...]) -> list[Path]:
    from llmtop.capture.base import folder

    if "all" in names:
        return [path for path, _ in folder.list_infos(parent)]
    return [parent / name if Path(name).name == name else Path(name) for name in names]


def _remove(paths: list[Path], as_json: bool) -> None:
    from llmtop.capture.base import folder
    from llmtop.cli.printed import CaptureRemoval

    for path in paths:
        freed = folder.remove(path)
        if as_json:
            print_json(CaptureRemoval(removed=str(path), bytes=freed))
        else:
            print_text(f"removed {printable(str(path))} ({size(freed)})")


def _stop_orphaned_captures(as_json: bool) -> None:
    from llmtop.capture.nsys import orphans
    from llmtop.cli.printed import OrphanStop

    failed: LlmtopError | None = None
    for outcome in orphans.stop_orphans():
        if isinstance(outcome, LlmtopError):
            failed = outcome
            print_text(f"llmtop: {outcome}", err=True)
        elif as_json:
            print_json(OrphanStop(stopped=outcome))
        else:
            print_text(outcome)
    if failed is not None:
        raise failed
