"""What each phase costs, on the host and on the device, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from llmtop.analysis.steps.device_timeline import DeviceTimeline, device_timelines
from llmtop.analysis.steps.phase_times import phase_times
from llmtop.analysis.steps.step_finder import PhaseSpans, ProcessSteps
from llmtop.report.model import PhaseMean
from llmtop.trace import intervals as iv
from tests.support.tables import PID, Tables, only_timeline, steps_at


def _phase(path: str, *spans: tuple[int, int]) -> PhaseSpans:
    starts, ends = np.array(spans, dtype=np.int64).T
    return PhaseSpans(path, iv.union(starts, ends), starts)


LOAD = _phase("load", (0, 200), (1000, 1200), (2000, 2300))
WORK = _phase("work", (250, 900), (1250, 1900))
WORK_AGAIN = _phase("work/part", (300, 400), (500, 700), (1300, 1400))


def _tables() -> Tables:
    """Two steps, from 0 to 1000 and to 2000. Each launches a kernel of 300 ns in `work`, of 50 in `load`, of 20
    in no phase; a third step begins after them."""
    made = Tables()
    number = 0
    for at in (0, 1000):
        for called, start, end in ((10, 15, 65), (260, 300, 600), (950, 960, 980)):
            made.launched(number, at + called, at + start, at + end)
            number += 1
    made.launched(number, 2010, 2015, 2025)
    return made


def _rows(phases: list[PhaseSpans], steps: ProcessSteps | None = None) -> dict[str, PhaseMean]:
    own = steps_at(0, 1000, 2000) if steps is None else steps
    return {row.name: row for row in phase_times(own, phases, [only_timeline(_tables().trace(), own)])}


def test_phases_on_the_host_are_means_over_whole_steps() -> None:
    rows = _rows([WORK, LOAD, WORK_AGAIN])
    assert list(rows) == ["load", "work", "work/part", "outside"]
    assert [row.host_seconds for row in rows.values()] == pytest.approx([200e-9, 650e-9, 200e-9, 150e-9])
    assert [row.share_pct for row in rows.values()] == pytest.approx([20, 65, 20, 15])
    assert [row.count_per_step for row in rows.values()] == [1.0, 1.0, 1.5, 1.0]
    assert {(row.pid, row.device) for row in rows.values()} == {(PID, 0)}


def test_phases_on_the_device_are_of_what_they_launched() -> None:
    """The device's steps begin at 15, 1015 and end at 2015."""
    rows = _rows([LOAD, WORK])
    gpu = {name: row.gpu_seconds for name, row in rows.items()}
    assert gpu == {
        "load": pytest.approx(50e-9),
        "work": pytest.approx(300e-9),
        "outside": pytest.approx(20e-9),
    }
    share = {name: row.gpu_share_pct for name, row in rows.items()}
    assert share == {"load": pytest.approx(5), "work": pytest.approx(30), "outside": pytest.approx(2)}


def test_the_device_is_idle_in_a_phase_while_it_does_nothing_during_it() -> None:
    """From its first work at 15 on: load 65 to 200 and 0 to 15 and 65 to 200 of the second step."""
    rows = _rows([LOAD, WORK])
    assert rows["load"].gpu_idle_seconds == pytest.approx((135 + 15 + 135) / 2 * 1e-9)
    assert rows["work"].gpu_idle_seconds == pytest.approx((50 + 300) * 1e-9)
    assert rows["outside"].gpu_idle_seconds == pytest.approx((50 + 80) * 1e-9)


def test_phases_without_a_device_have_figures_of_the_host_alone() -> None:
    rows = phase_times(steps_at(0, 1000, 2000), [LOAD, WORK], [])
    assert [row.name for row in rows] == ["load", "work", "outside"]
    for row in rows:
        assert (row.gpu_seconds, row.gpu_share_pct, row.gpu_idle_seconds, row.device) == (None,) * 4


def test_without_steps_or_phases_within_them_there_are_no_rows() -> None:
    assert phase_times(steps_at(0), [LOAD], []) == []
    assert phase_times(steps_at(0, 1000), [], []) == []
    assert phase_times(steps_at(0, 1000), [_phase("late", (1000, 1500))], []) == []


def test_what_lies_outside_of_the_steps_counts_for_nothing() -> None:
    """Of a phase from -100 to 100 half is in the step, and it did not begin there; one at the end begins after."""
    (row, rest) = phase_times(steps_at(0, 1000), [_phase("load", (-100, 100), (1000, 1100))], [])
    assert (row.name, row.count_per_step) == ("load", 0.0)
    assert row.host_seconds == pytest.approx(100e-9)
    assert rest.host_seconds == pytest.approx(900e-9)


def test_phases_are_in_order_of_their_median_place_in_a_step() -> None:
    """Places 0.5, 0.5 and 0.1 of a step have the median 0.5, behind 0.4; the first one in a step counts."""
    often = _phase("often", (500, 510), (1500, 1510), (1600, 1610), (2100, 2110))
    early = _phase("early", (400, 410), (1400, 1410), (2400, 2410))
    rows = phase_times(steps_at(0, 1000, 2000, 3000), [often, early], [])
    assert [row.name for row in rows] == ["early", "often", "outside"]
    # Of steps of 1000 and 4000: 0.3 and 0.1, median 0.2, is later than 0.15 and 0.225.
    uneven = [_phase("later", (300, 310), (1400, 1410)), _phase("earlier", (150, 160), (1900, 1910))]
    rows = phase_times(steps_at(0, 1000, 5000), uneven, [])
    assert [row.name for row in rows] == ["earlier", "later", "outside"]


def _two_devices(work_on_second: int) -> list[DeviceTimeline]:
    made = Tables()
    for number, at in enumerate((0, 1000)):
        made.call("cudaLaunchKernel", at, at + 5, correlation=number)
        made.op(at + 10, at + 510, correlation=number, device=0)
    made.call("cudaLaunchKernel", 20, 25, correlation=9)
    made.op(30, 30 + work_on_second, correlation=9, device=1)
    return device_timelines(made.trace(), {PID: steps_at(0, 1000, 2000)})


@pytest.mark.parametrize(("work", "devices"), [(10, [0, 1]), (9, [0])])
def test_a_gpu_touched_in_passing_has_no_phases(work: int, devices: list[int]) -> None:
    """The first works for 1000 ns: one percent of that is 10 ns."""
    rows = phase_times(steps_at(0, 1000, 2000), [LOAD], _two_devices(work))
    assert [row.device for row in rows if row.name == "load"] == devices


def test_the_slow_first_step_is_in_no_mean() -> None:
    made = Tables()
    edges = (0, 3000, 4000, 5000, 6000)
    for number, at in enumerate(edges):
        made.launched(number, at, at, at + 500)
    own = steps_at(*edges)
    timeline = only_timeline(made.trace(), own)
    assert timeline.slow_first
    load = _phase("load", (0, 2000), (3000, 3100), (4000, 4100), (5000, 5400))
    rows = phase_times(own, [load], [timeline])
    assert rows[0].host_seconds == pytest.approx(200e-9)
    assert rows[0].share_pct == pytest.approx(20.0)


def test_device_time_is_unknown_where_no_launch_is() -> None:
    made = Tables()
    made.op(0, 900)
    made.op(1000, 1900)
    rows = phase_times(steps_at(0, 1000, 2000), [LOAD], [only_timeline(made.trace(), steps_at(0, 1000, 2000))])
    assert [(row.gpu_seconds, row.gpu_share_pct) for row in rows] == [(None, None)] * 2
    # Of the host's whole steps the device was idle from 900 and from 1900 on, both in no phase.
    assert [row.gpu_idle_seconds for row in rows] == pytest.approx([0.0, 100e-9])
