"""A baseline: the runs of an earlier bench, kept in a file, to which later ones are held."""

from __future__ import annotations

from pathlib import Path

import msgspec

from llmtop.bench.model.results import METRICS_FILE, SCHEMA, Bench, BenchRun, has_enough_steps
from llmtop.capture.base.folder import write
from llmtop.errors import UnusableInput
from llmtop.format import encode_json, printable
from llmtop.system.inputs import read_input

BASELINE, CANDIDATE = "baseline", "candidate"
"""Names of the two commands of --against in metrics.json."""


def counted_runs(found: Bench, label: str = "") -> list[BenchRun]:
    """Return the attached runs of one variant that have a window to judge by, in the order in which they were
    made."""
    return [
        run for run in found.runs if run.attached and run.label == label and has_enough_steps(run, found.settings)
    ]


def read_baseline(path: Path) -> Bench:
    """Read what --save-baseline wrote, or metrics.json of any bench of one command, or the folder with that.

    Raises:
        UnusableInput: it is none, or none that can be compared with.
    """
    file = path / METRICS_FILE if path.is_dir() else path
    if not file.exists():
        raise UnusableInput(f"there is no baseline {path}: create it with llmtop bench --save-baseline {path}")
    try:
        found = msgspec.json.decode(read_input(file), type=Bench)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableInput(f"{file} is no baseline of llmtop bench: {printable(str(error), 200)}") from None
    if found.schema > SCHEMA:
        raise UnusableInput(
            f"{file} is of a newer llmtop ({printable(found.llmtop, 20)}): bring this one up to date"
        )
    labels = {run.label for run in found.runs}
    if not labels <= {"", BASELINE, CANDIDATE}:
        raise UnusableInput(
            f"{file} holds the values of --vary, and a baseline is of one command: bench that alone"
        )
    if CANDIDATE in labels:
        found.runs = [msgspec.structs.replace(run, label="") for run in found.runs if run.label == CANDIDATE]
    if not counted_runs(found):
        raise UnusableInput(f"{file} holds no run with a whole window: make the baseline anew")
    return found


def check_baseline_path(path: Path, *, force: bool) -> None:
    """Refuse early what could not be saved after all runs.

    Raises:
        UnusableInput: there is something already, or no folder to put it in.
    """
    if path.is_dir() or (path.exists() and not force):
        raise UnusableInput(f"{path} exists: give another name to --save-baseline, or --force to write over it")
    if not path.absolute().parent.is_dir():
        raise UnusableInput(
            f"there is no folder {path.absolute().parent}: create it, or save the baseline elsewhere"
        )


def save_baseline(found: Bench, path: Path, folder: Path) -> None:
    """Keep the runs of the one command, or of the candidate, as a baseline.

    Args:
        found: all runs.
        path: the file.
        folder: of the artifacts, which a later comparison may read.

    Raises:
        NotPossibleHere: it cannot be written.
    """
    label = CANDIDATE if any(run.label == CANDIDATE for run in found.runs) else ""
    runs = [msgspec.structs.replace(run, label="") for run in found.runs if run.label == label]
    figures = {"": found.figures[label]} if label in found.figures else {}
    kept = msgspec.structs.replace(
        found, runs=runs, figures=figures, comparison=None, ranking=None, folder=str(folder.absolute())
    )
    write(path, msgspec.json.format(encode_json(kept), indent=1) + b"\n")
