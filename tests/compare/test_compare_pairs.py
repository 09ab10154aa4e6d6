"""What must hold of any two reports, over all captures with a planted bottleneck."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from llmtop.analysis.analyze import analyze, analyze_trace
from llmtop.analysis.load_report import load_report
from llmtop.compare.compare import Comparison, compare_reports, is_regression
from llmtop.document.model import BRIEF_LINES
from llmtop.report.model import Report
from tests.support import written
from tests.support.data import HEALTHY, KINETO, LAUNCH_BOUND, TWO_GPUS
from tests.support.labelled import SETS, unpacked_set
from tests.support.traces import Capture

DEMO = Path(__file__).resolve().parents[2] / "llmtop" / "data" / "demo.llmtop.gz"

_OPPOSITES = (("new", "gone"), ("faster", "slower"), ("more", "fewer"))
_MIRRORED = {one: two for pair in _OPPOSITES for one, two in (pair, pair[::-1])}


@pytest.fixture(scope="module", params=SETS, ids=[path.name.partition(".")[0] for path in SETS])
def reports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Any, Report]]:
    """Label and report of each capture of a set, by its name."""
    folder = tmp_path_factory.mktemp("labelled")
    found = {name: (label, analyze(path)) for name, label, path in unpacked_set(request.param, folder)}
    return found | (_others(folder) if request.param == SETS[-1] else {})


def _others(folder: Path) -> dict[str, tuple[Any, Report]]:
    """Reports of other kinds: two GPUs with UUIDs, ten thousands of kernels, a recording, one without a step."""
    bare = Capture()
    for begin, took in ((0, 90), (250, 400), (900, 5), (2_000, 700)):
        bare.kernel(begin, begin + took, launched=begin - 9, name=f"kernel_{took % 2}")
    found = {path.name: analyze(path) for path in (HEALTHY, LAUNCH_BOUND, TWO_GPUS, KINETO)}
    found |= {"demo": load_report(DEMO), "no step": analyze_trace(bare.trace(folder))}
    assert found["no step"].steps.count == 0
    return {name: (None, report) for name, report in found.items()}


@pytest.mark.slow("reads all labelled captures")
def test_a_capture_against_itself_shows_no_difference(reports: dict[str, tuple[Any, Report]]) -> None:
    for name, (_, report) in reports.items():
        found = compare_reports(report, report)
        assert found.same, name
        assert found.summary.startswith("No difference."), name
        assert not found.bottleneck_changed, name
        assert not _moved(found), name
        assert {row.state for row in (*found.kernels, *found.operators, *found.collectives)} <= {"same"}, name
        assert all(row.worth_seconds in (0.0, None) for row in found.kernels), name
        assert not found.unpaired, name
        assert not is_regression(found, 0.0), name


@pytest.mark.slow("reads all labelled captures")
def test_one_way_is_the_mirror_of_the_other(reports: dict[str, tuple[Any, Report]]) -> None:
    for (name, (_, one)), (other_name, (_, other)) in itertools.combinations(reports.items(), 2):
        there, back = compare_reports(one, other), compare_reports(other, one)
        pair = f"{name}, {other_name}"
        assert there.basis == back.basis, pair
        assert there.bottleneck_changed == back.bottleneck_changed, pair
        assert _moved(there) == _moved(back), pair
        assert not (is_regression(there, 0.0) and is_regression(back, 0.0)), pair
        findings = {row.id: _mirror(row.state) for row in there.findings}
        assert findings == {row.id: row.state for row in back.findings}, pair
        assert len(there.unpaired) == len(back.unpaired), pair
        _assert_mirrored_step(there, back, pair)
        for rows, others in ((there.kernels, back.kernels), (there.kinds, back.kinds)):
            states = {row.name: row.state for row in others}
            worth = {row.name: row.worth_seconds for row in others}
            for row in rows:
                assert _mirror(row.state) == states[row.name], f"{pair}: {row.name}"
                expected = None if row.worth_seconds is None else pytest.approx(-row.worth_seconds)
                assert worth[row.name] == expected, f"{pair}: {row.name}"


def _assert_mirrored_step(there: Comparison, back: Comparison, pair: str) -> None:
    if there.step is None or back.step is None:
        assert there.step is back.step, pair
        return
    assert there.step.speedup == pytest.approx(1 / (back.step.speedup or 0.0)), pair
    assert there.step.noise == pytest.approx(back.step.noise), pair
    if there.step_range_pct is not None:
        assert back.step_range_pct is not None, pair
        least, most = (1 + value / 100 for value in there.step_range_pct)
        assert back.step_range_pct == pytest.approx((100 * (1 / most - 1), 100 * (1 / least - 1))), pair
    if there.work_ratio is not None:
        assert there.work_ratio == pytest.approx(1 / (back.work_ratio or 0.0), rel=0.07), pair


def _mirror(state: str) -> str:
    return _MIRRORED.get(state, state)


def _moved(found: Comparison) -> set[tuple[str, str]]:
    """What moved, by group and name; a phase that has two names stands for both."""
    groups = {"step": (found.step,), "figures": found.figures, "parts": found.parts, "phases": found.phases}
    groups |= {device.paired_by + str(n): device.figures for n, device in enumerate(found.devices)}
    return {
        (group, " ".join(sorted(re.split(r" / |, ", row.name))))
        for group, rows in groups.items()
        for row in rows
        if row is not None and row.moved
    }


@pytest.mark.slow("one pair of captures; the others take seconds to read", kept=("tuning",))
def test_the_parts_of_a_step_are_the_step(reports: dict[str, tuple[Any, Report]]) -> None:
    single = [report for _, report in reports.values() if len(report.devices) == 1 and report.devices[0].steps]
    single = [report for report in single if report.engine != "recording"]
    assert len(single) >= 15
    for one, two in itertools.pairwise(single):
        found = compare_reports(one, two)
        for side, device in (("before", one.devices[0]), ("after", two.devices[0])):
            mean = device.window_seconds / device.steps * (1 - (device.one_off_pct or 0.0) / 100)
            assert sum(getattr(row, side) for row in found.parts) == pytest.approx(mean), (one.source, two.source)


@pytest.mark.slow("one pair of captures; the others take seconds to read", kept=("tuning",))
def test_the_text_fits_the_screen_and_has_no_percent_of_next_to_nothing(
    reports: dict[str, tuple[Any, Report]],
) -> None:
    names = list(reports)
    for shift in (1, 5, 11):
        for name, other in zip(names, names[shift:] + names[:shift], strict=True):
            found = compare_reports(reports[name][1], reports[other][1])
            short = written.short_comparison(found)
            assert short.count("\n") <= BRIEF_LINES, f"{name}, {other}"
            for text in (short, written.comparison(found, width=100)):
                assert not re.search(r"\d{4,}(\.\d)?%", text), f"{name}, {other}"
                assert text.replace("\n", "").isprintable()


@pytest.mark.slow("one pair of captures; the others take seconds to read", kept=("tuning",))
def test_a_training_under_two_profilers_has_changed_nothing(reports: dict[str, tuple[Any, Report]]) -> None:
    """The same program with the same plant, once under nsys and once under torch.profiler."""
    both = [(name, f"kineto-{name.removeprefix('nsys-')}") for name in reports if name.startswith("nsys-")]
    both = [pair for pair in both if pair[1] in reports]
    assert len(both) >= 8
    moved, judged = [], 0
    for one, other in both:
        found = compare_reports(reports[one][1], reports[other][1])
        assert not found.bottleneck_changed, one
        lost = any("lacks kernels" in note for note in found.notes)
        if not lost and len(found.devices) == 1:
            judged += 1
            # The kernels are the same ones, whatever they were recorded by.
            assert [row.name for row in found.kernels if row.state != "same"] == [], one
            assert found.kernels, one
        if found.step is not None and found.step.moved:
            moved.append(one)
    assert judged >= 6
    # A rank of two waits for the other in one capture as much as it does in the next, but for some percent.
    assert [name for name in moved if "ddp" not in name] == []
