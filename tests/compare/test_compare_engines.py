"""Captures by different profilers: compared by the steps without them, else only as far as these are bounded."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from llmtop.analysis.load_report import load_report
from llmtop.compare.compare import compare_reports, is_regression, is_undecided
from llmtop.report.environment import Environment, differences, read_environment, words_changed
from llmtop.report.model import Report
from tests.support import preloaded, written
from tests.support.traces import Capture, write_chrome, write_sqlite

_OWN_US = 4_000.0
"""Device time of a step."""


def _launching(folder: Path, engine: str, period: float, told: dict[str, Any] | None = None) -> Path:
    """A capture whose host launches too slowly: two kernels a step, and idle time between them.

    Args:
        folder: where its folder goes.
        engine: "nsys" or "kineto".
        period: of a captured step, in µs.
        told: what capture.json says; None: there is none.
    """
    capture = Capture()
    for step in range(12):
        begin = step * period
        capture.range("step", begin, begin + period)
        half = period / 2
        for part in (0, 1):
            at = begin + part * half
            capture.kernel(at + 90, at + 90 + _OWN_US / 2, launched=at, took=80, name=f"kernel_{part}")
            # The host is in calls all the while, each shorter than what would count as a pause of its own.
            for call in range(int((half - 100) // 90)):
                capture.call("cudaLaunchKernel", at + 95 + call * 90, at + 180 + call * 90)
    own = folder / f"{engine}-{period:.0f}-{len(list(folder.iterdir()))}"
    own.mkdir()
    if engine == "nsys":
        write_sqlite(own / "trace.sqlite", [capture])
    else:
        write_chrome(own / "trace.json", capture)
    if told is not None:
        (own / "capture.json").write_text(json.dumps({"schema": 1, "engine": engine, "state": "done", **told}))
    return own


def _steps(before: float, after: float) -> dict[str, Any]:
    return {"step_seconds": {"before_p50": before, "after_p50": after}}


def _compared(*folders: Path) -> tuple[Report, Report]:
    one, two = (load_report(folder) for folder in folders)
    return one, two


def test_two_profilers_alone_change_nothing_that_can_be_told(tmp_path: Path) -> None:
    one, two = _compared(_launching(tmp_path, "nsys", 8_000), _launching(tmp_path, "kineto", 10_000))
    found = compare_reports(one, two)
    assert found.basis == "bounded"
    assert found.step is not None
    assert not found.step.moved
    assert "cannot be told" in found.summary
    assert "GPU time in a step, which no profiler changes, did not move: 4.00 ms to 4.00 ms" in found.summary
    least, most = found.step_range_pct or (0, 0)
    assert (least, most) == (pytest.approx(100 * (4 / 8 - 1), abs=1), pytest.approx(100 * (10 / 4 - 1), abs=2))
    host = [row for row in (*found.phases, *found.figures, *found.parts) if row.moved]
    assert host == []
    assert not found.bottleneck_changed


def test_the_same_captures_are_compared_by_their_undisturbed_steps(tmp_path: Path) -> None:
    told = _steps(0.0062, 0.0062)
    one, two = _compared(_launching(tmp_path, "nsys", 8_000, told), _launching(tmp_path, "kineto", 10_000, told))
    found = compare_reports(one, two)
    assert found.basis == "undisturbed"
    assert found.step is not None
    assert (found.step.before, found.step.after) == (pytest.approx(6.2e-3), pytest.approx(6.2e-3))
    assert not found.step.moved
    assert "did not move: 6.20 ms to 6.20 ms without the profiler" in found.summary
    idle = next(row for row in found.figures if row.name == "GPU idle")
    assert idle.before == pytest.approx(idle.after)
    assert idle.before == pytest.approx(100 * (1 - 4 / 6.2), abs=1)
    assert sum(row.after or 0 for row in found.parts) == pytest.approx(6.2e-3, rel=0.01)


def test_a_change_of_the_undisturbed_step_is_told_whatever_the_profilers_show(tmp_path: Path) -> None:
    one, two = _compared(
        _launching(tmp_path, "nsys", 8_000, _steps(0.0078, 0.0078)),
        _launching(tmp_path, "kineto", 10_000, _steps(0.0052, 0.0052)),
    )
    found = compare_reports(one, two)
    assert found.step is not None
    assert found.step.moved
    assert found.step.speedup == pytest.approx(1.5)
    assert "faster: 7.80 ms to 5.20 ms without the profiler, a speed-up of 1.50x (-33.3 %" in found.summary


def test_one_undisturbed_step_is_not_set_against_a_captured_one(tmp_path: Path) -> None:
    one, two = _compared(
        _launching(tmp_path, "nsys", 8_000, _steps(0.005, 0.005)), _launching(tmp_path, "nsys", 8_000)
    )
    found = compare_reports(one, two)
    assert found.basis == "captured"
    assert found.step is not None
    assert (found.step.before, found.step.after) == (pytest.approx(8e-3), pytest.approx(8e-3))
    assert "only the first knows its step without the profiler: both are compared as captured" in found.notes
    assert not found.step.moved


def test_a_difference_beyond_any_profiler_is_told(tmp_path: Path) -> None:
    one, two = _compared(_launching(tmp_path, "nsys", 5_000), _launching(tmp_path, "kineto", 40_000))
    for found, word in ((compare_reports(one, two), "slower"), (compare_reports(two, one), "faster")):
        assert found.step is not None
        assert found.step.moved
        assert f"is {word}, whatever profilers cost" in found.summary
    assert is_regression(compare_reports(one, two), 100.0)
    assert not is_regression(compare_reports(two, one), 0.0)


def test_how_far_the_undisturbed_steps_lie_apart_is_noise(tmp_path: Path) -> None:
    sure = _compared(
        _launching(tmp_path, "nsys", 8_000, _steps(0.006, 0.006)),
        _launching(tmp_path, "nsys", 8_000, _steps(0.0063, 0.0063)),
    )
    unsure = _compared(
        _launching(tmp_path, "nsys", 8_000, _steps(0.0055, 0.0065)),
        _launching(tmp_path, "nsys", 8_000, _steps(0.0060, 0.0066)),
    )
    moved = [compare_reports(*reports).step for reports in (sure, unsure)]
    assert [step is not None and step.moved for step in moved] == [True, False]


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return preloaded.llmtop("compare", *arguments)


def test_fail_over_says_when_it_cannot_be_decided(tmp_path: Path) -> None:
    nsys, kineto = _launching(tmp_path, "nsys", 8_000), _launching(tmp_path, "kineto", 10_000)
    done = _run(nsys, kineto, "--fail-over", "5%")
    assert done.returncode == 3
    assert "cannot be decided" in done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot be told" in done.stdout, "what can be said is said all the same"
    assert _run(nsys, kineto, "--fail-over", "200").returncode == 0, "not even the worst case is that slow"
    assert _run(nsys, _launching(tmp_path, "kineto", 40_000), "--fail-over", "5 %").returncode == 1


@pytest.mark.slow("one spelling stands for all", kept=("5%",))
@pytest.mark.parametrize("given", ["5", "5%", "5 %", " 5.0% "])
def test_fail_over_takes_percent_with_and_without_the_sign(tmp_path: Path, given: str) -> None:
    slow, fast = _launching(tmp_path, "nsys", 8_800), _launching(tmp_path, "nsys", 8_000)
    assert _run(fast, slow, "--fail-over", given).returncode == 1
    assert _run(slow, fast, "--fail-over", given).returncode == 0


@pytest.mark.parametrize("given", ["five", "-1", "nan", "inf", "%", "5%%", ""])
def test_what_is_no_percent_is_refused(tmp_path: Path, given: str) -> None:
    done = _run("a.json", "b.json", "--fail-over", given)
    assert done.returncode == 2
    assert "5 or 5%" in done.stderr


def test_undecided_is_only_what_two_profilers_leave_open(tmp_path: Path) -> None:
    one, two = _compared(_launching(tmp_path, "nsys", 8_000), _launching(tmp_path, "nsys", 8_010))
    assert not is_undecided(compare_reports(one, two), 0.0)


_THERE = {
    "host": "node1",
    "command": "python train.py --lr 3e-4 --num-workers 0 --bf16",
    "pids": [1],
    "driver": "580.159.04",
    "cuda": "13.0",
    "torch": "2.11.0",
    "git": {"commit": "a" * 40, "dirty": False, "root": "/x"},
    "gpus_before": [{"name": "NVIDIA H200", "power_limit_watts": 700.0}],
}


def test_what_differs_around_the_trainings_stands_first(tmp_path: Path) -> None:
    other = _THERE | {
        "command": "python train.py --lr 3e-4 --num-workers 8 --bf16 --compile",
        "torch": "2.12.0",
        "git": {"commit": "a" * 40, "dirty": True, "root": "/x"},
        "gpus_before": [{"name": "NVIDIA H200", "power_limit_watts": 500.0}],
    }
    one, two = _launching(tmp_path, "nsys", 8_000, _THERE), _launching(tmp_path, "nsys", 8_000, other)
    done = _run(one, two)
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "power limit: 700 W -> 500 W",
        "torch: 2.11.0 -> 2.12.0",
        "commit: aaaaaaaaaaaa -> aaaaaaaaaaaa and changes",
        "command: - --num-workers 0  + --num-workers 8 --compile",
    ]
    assert lines[4].startswith("before:")
    told = json.loads(_run(one, two, "--json").stdout)["environment"]
    assert [row["name"] for row in told] == ["power limit", "torch", "commit", "command"]
    assert told[-1]["after"] == other["command"]
    # The same from reports that lie in the folders.
    for folder in (one, two):
        report = load_report(folder)
        (folder / "report.json").write_bytes(_json(structs.replace(report, environment=None)))
    assert _run(one / "report.json", two / "report.json").stdout.splitlines()[:4] == lines[:4]


def _json(report: Report) -> bytes:
    from llmtop.report.model import to_json

    return to_json(report)


def test_the_same_environment_is_not_worth_a_line(tmp_path: Path) -> None:
    one, two = _launching(tmp_path, "nsys", 8_000, _THERE), _launching(tmp_path, "nsys", 8_000, _THERE)
    found = compare_reports(load_report(one), load_report(two))
    assert found.environment == ()
    assert written.short_comparison(found).startswith("before:")


@pytest.mark.slow("one kind of damage stands for all; each compares captures", kept=("{",))
@pytest.mark.parametrize(
    "written",
    [b"", b"[]", b"{", b'{"git": 5, "gpus_before": [7, {"name": 8}], "pids": {}, "command": []}', b"\xff\xfe"],
)
def test_a_damaged_capture_json_tells_nothing_and_stops_nothing(tmp_path: Path, written: bytes) -> None:
    damaged, whole = _launching(tmp_path, "nsys", 8_000), _launching(tmp_path, "nsys", 8_000, _THERE)
    (damaged / "capture.json").write_bytes(written)
    assert read_environment(damaged) in (None, Environment())
    neighbour = read_environment(whole)
    assert neighbour is not None
    assert neighbour.torch == "2.11.0"
    assert _run(damaged, whole).returncode == 0


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("python a.py --x 1 --y", "python a.py --x 2 --y", "- --x 1  + --x 2"),
        ("python a.py --x 1", "python a.py --x 1 --fast", "+ --fast"),
        ("python a.py --x=1 data", "python a.py data", "- --x=1"),
        ("python a.py", "torchrun b.py", ""),
        ("python a.py 'it''s", "python a.py 'it''s --x", "+ --x"),
    ],
)
def test_of_a_command_what_changed_is_told(before: str, after: str, told: str) -> None:
    assert words_changed(before, after) == told


def test_what_only_one_side_tells_is_said_as_that() -> None:
    (found,) = differences(Environment(torch="2.11.0"), Environment())
    assert (found.before, found.after) == ("2.11.0", None)
    assert differences(None, Environment(torch="2.11.0")) == ()
