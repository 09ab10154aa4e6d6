"""CUDA graphs that nsys traced as a whole, which is its default: the GPU is busy, its kernels are not known."""

from __future__ import annotations

import sqlite3
import tarfile
from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze, analyze_trace
from llmtop.report.model import Report
from llmtop.trace import model
from llmtop.trace.files.open import open_trace
from tests.support import written
from tests.support.data import DATA
from tests.support.traces import Capture, steady, write_sqlite

GRAPHS = """
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER NOT NULL, end INTEGER NOT NULL,
 deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
 globalPid INTEGER, graphId INTEGER NOT NULL, graphExecId INTEGER)
"""
_A_GRAPH = 90


def _folded(path: Path) -> None:
    """Fold the kernels of a real capture into graphs, in order, as if each had been a node of one."""
    database = sqlite3.connect(path)
    database.execute(GRAPHS)
    name = database.execute("SELECT max(id) + 1 FROM StringIds").fetchone()[0]
    database.execute("INSERT INTO StringIds VALUES (?, 'cudaGraphLaunch_v10000')", (name,))
    kernels = database.execute(
        "SELECT rowid, start, end, deviceId, contextId, streamId, correlationId, globalPid "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start"
    ).fetchall()
    for first in range(0, len(kernels) - 5, _A_GRAPH):
        nodes = kernels[first : first + _A_GRAPH]
        _, start, _, device, context, stream, launch, process = nodes[0]
        row = (start, max(node[2] for node in nodes), device, context, stream, launch, process, first, first)
        database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES ({', '.join('?' * 9)})", row)
        rows = [(node[0],) for node in nodes]
        database.executemany("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid = ?", rows)
        rows = [(node[6],) for node in nodes[1:]]
        database.executemany("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId = ?", rows)
        database.execute(
            "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = ? WHERE correlationId = ?", (name, launch)
        )
    database.commit()
    database.close()


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Report]:
    """The reports on a healthy training, as recorded and with its kernels in whole graphs."""
    folder = tmp_path_factory.mktemp("graphs")
    with tarfile.open(DATA / "labelled" / "tuning.tar.xz") as tar:
        tar.extract("nsys-healthy_medium.sqlite", folder)
    path = folder / "nsys-healthy_medium.sqlite"
    before = analyze(path)
    _folded(path)
    return before, analyze(path)


@pytest.mark.slow("reads all real traces; test_steps and test_calls_a_step read one")
def test_what_graphs_are_made_of_is_not_made_up(healthy: tuple[Report, Report]) -> None:
    before, after = healthy
    assert before.makeup is not None
    assert after.makeup is not None
    was = {part.name: part.seconds for part in before.makeup.passes}
    parts = {part.name: part.seconds for part in after.makeup.passes}
    assert parts["CUDA graphs traced as a whole"] > 0.0, "those that no range of a pass is around"
    assert "CUDA graphs traced as a whole" not in was
    assert parts["copies and memsets"] <= was["copies and memsets"]
    assert sum(part.share_pct for part in after.makeup.passes) == pytest.approx(100.0)
    assert all(finding.id != "hot_kernel" for finding in after.findings)


def test_a_gpu_that_runs_graphs_is_busy(healthy: tuple[Report, Report]) -> None:
    before, after = healthy
    assert before.verdict == after.verdict == "gpu_bound"
    assert before.devices[0].busy_pct == pytest.approx(93.7, abs=0.1)
    assert after.devices[0].busy_pct == pytest.approx(99.9, abs=0.1), "pauses within a graph are not seen"
    assert (after.devices[0].idle_pct or 0.0) < 1.0
    assert after.steps.count >= before.steps.count - 1


def test_what_ran_in_them_is_said_to_be_unknown(healthy: tuple[Report, Report]) -> None:
    after = healthy[1]
    device = after.devices[0]
    assert device.graphs > 40
    assert any(f"{device.graphs} CUDA graphs traced as a whole" in note for note in after.notes)
    unknown = (device.kernel_pct, device.memcpy_pct, device.nccl_pct, device.nccl_exposed_pct)
    assert (*unknown, device.kernels_under_10us_pct, device.kernel_median_us) == (None,) * 6
    assert not {finding.id for finding in after.findings} & {"hot_kernel", "small_kernels", "records_lost"}
    assert after.roofline == ""
    for text in (written.text(after), written.html(after)):
        assert "CUDA graph" in text
        assert "≤ 99.9%" in text, "a bound"
    assert after.timeline is not None
    assert {span.kind for row in after.timeline.rows if row.lane == "gpu" for span in row.spans} >= {"graph"}


def test_few_graphs_beside_many_kernels_hide_nothing_of_these(tmp_path: Path) -> None:
    report = _with_graphs(tmp_path, steady(6), [(1000, 1100, 0, 4)])
    device = report.devices[0]
    assert (device.graphs, device.kernels) == (1, 6)
    assert device.kernel_median_us == pytest.approx(9900)
    assert device.kernel_pct is None, "what ran in the graph is not known"
    assert any("1 CUDA graph traced" in note for note in report.notes)


def test_a_graph_that_begins_on_the_host_counts_on_its_process_s_gpu(tmp_path: Path) -> None:
    capture = Capture(device=3)
    capture.kernel(0, 100)
    trace = _traced(tmp_path, capture, [(200, 900, 0x7FFFFFFF, 4), (0, 0, 3, 5)])
    graphs = trace.ops.select(trace.ops.kind == model.GRAPH)
    assert graphs.device.tolist() == [3]
    assert (graphs.end - graphs.start).tolist() == [700_000]
    assert trace.notes == ["1 events have no usable time and are left out"], "0 to 0 is CUPTI's: not known"


def _traced(folder: Path, capture: Capture, graphs: list[tuple[int, int, int, int]]) -> model.Trace:
    """A capture with whole graphs: (start, end, device, graph), times in µs."""
    path = write_sqlite(folder / "graphs.sqlite", [capture])
    database = sqlite3.connect(path)
    database.execute(GRAPHS)
    for start, end, device, graph in graphs:
        row = (start * 1000, end * 1000, device, 1, 7, None, capture.pid << 24, graph, graph)
        database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES ({', '.join('?' * 9)})", row)
    database.commit()
    database.close()
    return open_trace(path)


def _with_graphs(folder: Path, capture: Capture, graphs: list[tuple[int, int, int, int]]) -> Report:
    return analyze_trace(_traced(folder, capture, graphs))
