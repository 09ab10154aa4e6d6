"""The report of a capture: the screen's, the shell's, the page's and the comparison's figures are the same."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmtop.capture.base.folder import Info, write_info
from llmtop.capture.base.job import CaptureJob, Plan
from llmtop.capture.base.step_listener import StepListener
from llmtop.capture.take import written_report
from llmtop.format import percent
from llmtop.report.model import to_json
from tests.support.data import HEALTHY, KINETO, LAUNCH_BOUND
from tests.support.preloaded import llmtop
from tests.support.traces import steady, write_sqlite


def _uneven(folder: Path) -> Path:
    """Seven steps, of which the last two lose most of their time."""
    capture = steady(6)
    for step in range(6, 9):
        begin = step * 10_000
        capture.range("step", begin, begin + 10_000)
        capture.kernel(begin + 5000, begin + 6000, launched=begin + 4990)
    return write_sqlite(folder / "trace.sqlite", [capture])


def _copied(source: Path, folder: Path) -> Path:
    if source.name.endswith(".sqlite.gz"):
        target = folder / source.name.removesuffix(".gz")
        with gzip.open(source) as packed, target.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
        return target
    return Path(shutil.copy(source, folder))


def _shell(*arguments: object) -> str:
    done = llmtop(*map(str, arguments), timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _judged(report: dict[str, Any]) -> dict[str, Any]:
    return {
        key: report[key] for key in ("verdict", "summary", "steps", "devices", "gaps", "findings", "correction")
    }


@pytest.mark.slow(
    "a trace that is cut and one that is not; the others are large",
    kept=(
        "uneven-3",
        "uneven-None",
    ),
)
@pytest.mark.parametrize(
    ("what", "wanted"), [("uneven", 3), ("uneven", None), ("healthy", 3), ("launch_bound", None), ("kineto", 2)]
)
def test_every_output_has_the_same_figures(tmp_path: Path, what: str, wanted: int | None) -> None:
    folder = tmp_path / "capture"
    folder.mkdir()
    sources = {"healthy": HEALTHY, "launch_bound": LAUNCH_BOUND, "kineto": KINETO}
    trace = _uneven(folder) if what == "uneven" else _copied(sources[what], folder)
    info = Info(engine="nsys", started_at=0.0, steps_wanted=wanted, seconds_wanted=None if wanted else 5.0)
    write_info(folder, info)
    job = CaptureJob(Plan("nsys", (), folder), folder, StepListener([]))
    shown = written_report(job, trace)
    screen = msgspec.json.decode(to_json(shown))
    assert wanted is None or screen["steps"]["count"] <= wanted
    written = json.loads((folder / "report.json").read_text())
    shell = json.loads(_shell("report", folder, "--json", "--html", tmp_path / "page.html"))
    one_file = json.loads(_shell("report", trace, "--json"))
    assert _judged(written) == _judged(screen)
    assert _judged(shell) == _judged(screen)
    assert _judged(one_file) == _judged(screen)
    lost = percent(sum(next(one["lost_pct"] for one in screen["devices"] if one["judged"]).values()), 1)
    page = re.sub(r"<[^>]+>|&nbsp;", "", (tmp_path / "page.html").read_text())
    for text in (page, _shell("report", folder), (folder / "report.md").read_text()):
        assert lost in " ".join(text.split())
    compared = json.loads(_shell("compare", folder, folder / "report.json", "--json"))
    assert compared["verdict_before"] == compared["verdict_after"] == screen["verdict"]
    assert compared["steps_before"] == compared["steps_after"] == screen["steps"]["count"]
    assert compared["step"]["change_pct"] == 0


def test_an_engine_that_records_a_time_counts_all_steps(tmp_path: Path) -> None:
    trace = _uneven(tmp_path)
    counts = []
    for engine in ("nsys", "xla.profiler"):
        write_info(tmp_path, Info(engine=engine, started_at=0.0, steps_wanted=3))
        counts.append(json.loads(_shell("report", trace, "--json"))["steps"]["count"])
    assert counts == [3, 8]
    assert json.loads(_shell("report", trace, "--json", "--steps", "2"))["steps"]["count"] == 2
