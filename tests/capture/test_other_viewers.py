"""A captured trace in others' programs: what Perfetto and TensorBoard's plugin ask of a file, and the real HTA."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from llmtop.analysis.capture_info import read_capture_info
from llmtop.capture import take
from llmtop.capture.base import traces
from llmtop.capture.base.job import Plan, Target
from tests.capture.conftest import Start
from tests.support.processes import REPOSITORY, wait_for
from tests.support.traces import steady, write_chrome

HTA = REPOSITORY / ".cache" / "hta" / "bin" / "python"
WORKER = re.compile(r"^(.*?)(\.\d+)?\.pt\.trace\.json(?:\.gz)?$")
"""By which TensorBoard's profiler plugin knows a trace among the files of a folder."""
WITH_HTA = """
import json, sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_dir=sys.argv[1]).t
names = set(found.symbol_table.get_sym_table())
print("TOLD", json.dumps({"events": {str(rank): len(frame) for rank, frame in found.traces.items()},
                          "names": sorted(names & {"forward", "aten::mm", "backward"}),
                          "files": {str(rank): path for rank, path in found.trace_files.items()}}))
"""


@pytest.fixture(scope="module")
def captured(start_once: Start, tmp_path_factory: pytest.TempPathFactory) -> take.Result:
    """Two ranks of a training that makes no process group, by torch.profiler."""
    pytest.importorskip("torch")
    ranks = [start_once("--torch", RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    targets = tuple(training.wait_attached() for training in ranks)
    parent = tmp_path_factory.mktemp("captures")
    return take.take(Plan(engine="torch.profiler", targets=targets, parent=parent, steps=3))


def files(result: take.Result) -> list[Path]:
    return sorted((result.folder / "traces").iterdir())


@pytest.mark.slow("two ranks that torch records; test_only_the_rank_is_added writes the same into a file")
@pytest.mark.torch
def test_the_rank_is_in_the_name_and_in_the_file(captured: take.Result) -> None:
    assert [path.name for path in files(captured)] == ["rank0.pt.trace.json", "rank1.pt.trace.json"]
    for rank, path in enumerate(files(captured)):
        assert json.loads(path.read_bytes())["distributedInfo"] == {"rank": rank, "world_size": 2}
    assert captured.report is not None
    assert captured.info.steps is not None
    assert captured.info.steps > 0, "these ranks do not wait for each other, so they count differently"
    assert {entry.name for entry in captured.info.files} >= {"traces/rank0.pt.trace.json"}
    assert captured.open_command.endswith(f"{captured.folder.name}/traces/rank0.pt.trace.json there")
    assert read_capture_info(files(captured)[0]) == read_capture_info(captured.folder), (
        "the trace alone knows its capture"
    )


@pytest.mark.slow("two ranks that torch records; test_only_the_rank_is_added writes the same into a file")
@pytest.mark.torch
def test_tensorboard_s_plugin_finds_a_worker_a_rank_and_what_it_needs(captured: take.Result) -> None:
    matches = [WORKER.match(path.name) for path in files(captured)]
    assert [match[1] for match in matches if match] == ["rank0", "rank1"]
    for path in files(captured):
        trace = json.loads(path.read_bytes())
        assert trace["schemaVersion"] == 1
        assert isinstance(trace["deviceProperties"], list)
        assert isinstance(trace["baseTimeNanoseconds"], int)
        assert any(event.get("name", "").startswith("ProfilerStep#") for event in trace["traceEvents"])
    others = [path for path in captured.folder.rglob("*") if path.is_file() and WORKER.match(path.name)]
    assert sorted(others) == files(captured), "nothing else is taken for a trace"


@pytest.mark.slow("two ranks that torch records; test_only_the_rank_is_added writes the same into a file")
@pytest.mark.torch
def test_perfetto_finds_events_that_it_can_place(captured: take.Result) -> None:
    for path in files(captured):
        events: list[dict[str, Any]] = json.loads(path.read_bytes())["traceEvents"]
        whole = [event for event in events if event["ph"] == "X"]
        assert {"forward", "backward"} <= {event["name"] for event in whole}
        for event in whole:
            assert isinstance(event["ts"], int | float)
            assert event["dur"] >= 0
            assert {"pid", "tid"} <= set(event)
        for event in events:
            if event["ph"] == "M":
                assert event["name"]
                assert "args" in event


@pytest.mark.slow("two ranks that torch records; test_only_the_rank_is_added writes the same into a file")
@pytest.mark.hta
@pytest.mark.torch
@pytest.mark.skipif(not HTA.exists(), reason="no HTA: tests/fetch_hta.sh brings it to .cache/hta")
def test_hta_opens_the_folder_as_it_is_and_knows_the_ranks(captured: take.Result) -> None:
    folder = captured.folder / "traces"
    done = subprocess.run([HTA, "-c", WITH_HTA, folder], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("TOLD"))[5:])
    assert told["files"] == {str(rank): str(path) for rank, path in enumerate(files(captured))}
    assert all(count > 20 for count in told["events"].values()), told
    assert {"forward", "backward"} <= set(told["names"])


def test_only_the_rank_is_added(tmp_path: Path) -> None:
    path = write_chrome(tmp_path / "x.json", steady())
    before = json.loads(path.read_bytes())
    traces.write_label(path, 3, 8)
    after = json.loads(path.read_bytes())
    assert after.pop("distributedInfo") == {"rank": 3, "world_size": 8}
    assert after == before
    assert re.search(r'"rank":\s+3\b', path.read_text()), "HTA wants a blank"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "data",
    [
        b'{"schemaVersion": 1, "distributedInfo": {"rank": 5}, "traceEvents": []}',
        b'[{"ph": "X"}]',
        b"{}",
        b"",
        b"\x1f\x8b not text",
    ],
)
def test_a_trace_that_says_its_rank_or_is_no_object_is_left_alone(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    traces.write_label(path, 3, 8)
    assert path.read_bytes() == data
    traces.write_label(path, None, None)
    assert path.read_bytes() == data


def test_a_name_of_an_event_is_not_taken_for_the_rank_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"traceEvents": [{"name": "\\"distributedInfo\\"", "ph": "i"}]}')
    traces.write_label(path, 0, None)
    assert json.loads(path.read_bytes())["distributedInfo"] == {"rank": 0}


def test_a_training_that_torchrun_started_without_llmtop_has_its_rank_from_there(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "60"], env={"RANK": "5", "WORLD_SIZE": "16"})
    try:
        # Its environment can be read once it has become that program.
        wait_for(lambda: traces.rank_and_world_size(Target(sleeper.pid)) == (5, 16))
    finally:
        sleeper.kill()
        sleeper.wait(100)
    assert traces.rank_and_world_size(Target(sleeper.pid)) == (None, None)
