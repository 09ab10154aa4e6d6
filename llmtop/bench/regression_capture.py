"""Output of --capture-on-regression: a capture of the candidate, beside one of the baseline if there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from llmtop.analysis.load_report import load_report
from llmtop.bench.baseline import BASELINE, CANDIDATE
from llmtop.bench.model.results import Bench
from llmtop.bench.protocol import Variant
from llmtop.bench.run.capture_run import BenchCapture, capture_run
from llmtop.bench.run.run_watch import RECORDING_FILE
from llmtop.capture.base.folder import INFO, write
from llmtop.compare.compare import compare_reports
from llmtop.compare.document import comparison_document
from llmtop.document.text import write_text
from llmtop.errors import LlmtopError
from llmtop.format import encode_json

FOLDER = "capture"
_TEXT_WIDTH = 140
"""Width of comparison.txt."""
"""Inside that of the artifacts; a baseline's is found there later."""


def capture_and_compare(
    found: Bench,
    baseline: Bench | None,
    variants: Sequence[Variant],
    folder: Path,
    *,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> str | None:
    """Capture each command once more, and write the comparison beside it.

    A failure here changes no decision: it is printed and noted.

    Args:
        found: the bench that was judged; notes are added to it.
        baseline: what it was held to; None with --against.
        variants: the commands.
        folder: of the artifacts.
        environment: what commands are started with.
        say: prints a sentence on the terminal.

    Returns:
        The folder of all this; None where nothing was captured.
    """
    place = folder / FOLDER
    for variant in variants:
        say(f"one more run{f' ({variant.label})' if variant.label else ''}, under a profiler")
        request = BenchCapture(
            command=variant.command,
            folder=place / variant.label if variant.label else place,
            warmup=found.settings.warmup,
            environment={**environment, **variant.variables},
            kill=found.settings.kill,
            reason="llmtop bench",
            say=say,
        )
        try:
            capture_run(request)
        except LlmtopError as error:
            say(f"llmtop: {error}")
            found.notes.append(f"no capture{f' of the {variant.label}' if variant.label else ''}: {error}")
    try:
        _compare(found, baseline, place, folder)
    except LlmtopError as error:
        found.notes.append(f"the captures were not compared: {error}")
    return str(place) if place.is_dir() else None


def _compare(found: Bench, baseline: Bench | None, place: Path, folder: Path) -> None:
    """Set like beside like: capture and capture if both are there, else recording and recording."""
    if any(run.label == CANDIDATE for run in found.runs):
        sides = _newest(place / BASELINE), _newest(place / CANDIDATE)
    elif baseline is None or baseline.folder is None:
        return
    else:
        sides = _newest(Path(baseline.folder) / FOLDER), _newest(place)
        if None in sides:
            found.notes.append(
                "the baseline has no capture (make it with --save-baseline and --capture-on-regression): "
                "recordings are compared instead"
            )
            sides = _recording(baseline, Path(baseline.folder)), _recording(found, folder)
    if sides[0] is None or sides[1] is None:
        found.notes.append("there is nothing of the baseline to compare the capture with: its folder is gone")
        return
    compared = compare_reports(load_report(sides[0]), load_report(sides[1]))
    place.mkdir(parents=True, exist_ok=True)
    write(place / "comparison.txt", write_text(comparison_document(compared), _TEXT_WIDTH).encode())
    write(place / "comparison.json", encode_json(compared) + b"\n")


def _newest(place: Path) -> Path | None:
    """Return the folder of the last capture made there."""
    found = sorted((info.parent for info in place.glob(f"*/{INFO}")), key=lambda path: path.name)
    return found[-1] if found else None


def _recording(bench: Bench, folder: Path) -> Path | None:
    paths = [folder / run.folder / RECORDING_FILE for run in bench.runs if run.attached]
    return next((path for path in paths if path.is_file()), None)
