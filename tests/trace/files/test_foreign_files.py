"""Files of other tools: each is named for what it is, with the next step, by the documented exit code."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from llmtop.errors import EXIT_USAGE, UnusableInput
from llmtop.trace.files.open import open_trace
from tests.support.traces import Capture, steady, write_chrome


def _events(*events: dict[str, Any], **properties: Any) -> str:
    return json.dumps({"traceEvents": list(events), **properties})


def _span(category: str, name: str) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": 1, "dur": 5}


def _process(name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": name}}


_PERF = """python  4242 [001]  1234.567890:     250000 cpu-clock:pppH:
\t    7f0000001234 PyEval_EvalFrame+0x10 (/usr/bin/python3)
\t    7f0000005678 main+0x20 (/usr/bin/python3)

"""
_FOREIGN: dict[str, tuple[str, str, str]] = {
    "perf.data": ("PERFILE2 and then bytes", "perf.data", "perf script -i "),
    "perf.txt": (_PERF, "the text of perf script", "stackcollapse-perf.pl "),
    "perf_header.txt": (
        "# captured on: Mon\n# cmdline : perf\n#\n" + _PERF,
        "the text of perf script",
        "stackcollapse",
    ),
    "dump.json": ('{"version":"2.4","pg_config":{},"entries":[]}', "flight recorder", "torchfrtrace"),
    "times.json": (
        "[[1726077563878112, 1726077563878112], [[1, 2], [3, 4]]]",
        "memory timeline",
        "--engine memory",
    ),
    "rocprof.json": ('{"rocprofiler-sdk-tool":[{"metadata":{}}]}', "rocprofv3", "pftrace"),
    "timeline.raw": ("[[-1, 1, 37888, 7], [-1, 1, 512, 7]]", "memory timeline", "--engine memory"),
    "x.cpuprofile": ('{"nodes":[{"id":1,"callFrame":{}}]}', "CPU profile of V8", "developer tools"),
    "firefox.json": (
        '{"meta":{"interval":1,"processType":0,"stackwalk":1},"threads":[]}',
        "Firefox",
        "profiler.fire",
    ),
    "callgrind.out.1": ("# callgrind format\nevents: Ir\n", "Callgrind", "callgrind_annotate "),
    "nccl.log": ("host:1:2 [0] NCCL INFO Bootstrap: Using eth0\n", "NCCL_DEBUG", "torch.profiler"),
    "clang.json": (_events(_span("", "Total ExecuteCompiler"), beginningOfTime=1), "clang -ftime-trace", "Clang"),
    "bazel.json": (
        _events(_span("action processing", "a"), otherData={"build_id": "x"}),
        "Bazel",
        "bazel analyze",
    ),
    "browser.json": (_events(_span("devtools.timeline", "Paint")), "a browser", "ui.perfetto.dev"),
    "tensorflow.json": (
        _events(_process("/device:GPU:0/stream:all Compute"), _span("Op", "MatMul")),
        "TensorFlow",
        "",
    ),
    "viz.json": (_events(_span("FEE", "main"), viztracer_metadata={"version": "1"}), "VizTracer", "vizviewer "),
    "ncclprof.json": (_events(_span("COLL_API", "AllReduce")), "NCCL's profiler plugin", ""),
    "other.json": (
        _events(_span("zoo", "lion"), _span("pond", "fish")),
        "(categories: pond, zoo)",
        "llmtop capture",
    ),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", _FOREIGN)
def test_each_is_named_with_the_next_step(tmp_path: Path, name: str, packed: bool) -> None:
    text, what, following = _FOREIGN[name]
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    with pytest.raises(UnusableInput) as refused:
        open_trace(path)
    said, _, then = str(refused.value).partition("; next: ")
    assert said.startswith(f"{path} is ")
    assert what in said
    assert following in then
    assert "FILE" not in then
    assert refused.value.exit_code == EXIT_USAGE


def test_an_execution_trace_of_pytorch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "et.json"
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(path))
    observer.start()
    torch.nn.Linear(8, 8)(torch.randn(2, 8)).sum().backward()
    observer.stop()
    observer.unregister_callback()
    with pytest.raises(
        UnusableInput, match=r"is an execution trace of PyTorch .*; next: .*--engine torch.profiler"
    ):
        open_trace(path)


def test_a_pickled_dump_of_the_flight_recorder(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(
        pickle.dumps({"version": "2.4", "pg_config": {"0": {"name": "0"}}, "entries": []}, protocol=2)
    )
    with pytest.raises(UnusableInput, match="flight recorder"):
        open_trace(path)


def test_traces_of_pytorch_are_none_of_them(tmp_path: Path) -> None:
    odd = steady()
    odd.range("pg_config devtools.timeline NCCL INFO", 0, 5)
    assert len(open_trace(write_chrome(tmp_path / "odd.json", odd)).ops)
    empty = open_trace(write_chrome(tmp_path / "empty.json", Capture(ranges=[], host=odd.host, calls=odd.calls)))
    assert not len(empty.ops)


def test_times_as_text_are_read(tmp_path: Path) -> None:
    path = write_chrome(tmp_path / "numbers.json", steady(), zero_us=1.7e15)
    whole = json.loads(path.read_text())
    for event in whole["traceEvents"]:
        event["ts"], event["dur"] = f"{event['ts']:.3f}", f"{event['dur']:.3f}"
    texts = tmp_path / "texts.json"
    texts.write_text(json.dumps(whole))
    plain, read = open_trace(path), open_trace(texts)
    assert read.ops.start.tolist() == plain.ops.start.tolist()
    assert read.ranges.end.tolist() == plain.ranges.end.tolist()
    assert not read.notes
