"""Dumps of the flight recorder: torch's own, those of older versions, and hostile pickles."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from llmtop.postmortem.evidence import FlightDump
from llmtop.postmortem.flight_dumps import DumpAnswer, read_pickles
from tests.support.job_files import WORLD, call, dump, write_dumps

_RECORD = """
import os, pickle, sys, time, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
for size in (3, 5):
    dist.all_reduce(torch.ones(size))
dist.broadcast(torch.ones(2, dtype=torch.float64), 0)
until = time.monotonic() + 60  # a call may return before its end is noted
while not all(one["retired"] for one in pickle.loads(_dump_fr_trace())["entries"]):
    assert time.monotonic() < until
    time.sleep(0.01)
open(sys.argv[1], "wb").write(_dump_fr_trace())
open(sys.argv[2], "wb").write(_dump_fr_trace_json())
os._exit(0)
"""


def _read(path: Path) -> FlightDump:
    (found,) = read_pickles([path])
    assert isinstance(found, FlightDump), found
    return found


def _error(path: Path) -> str:
    (found,) = read_pickles([path])
    assert isinstance(found, DumpAnswer)
    return found.error


@pytest.mark.torch
@pytest.mark.slow("starts torch; the other tests here read dumps of the same form")
def test_a_dump_of_the_installed_torch_is_read_as_pickle_and_json(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    one, other = tmp_path / "trace_7", tmp_path / "trace_7.json"
    environment = {"TORCH_FR_BUFFER_SIZE": "100", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", _RECORD, str(one), str(other)], check=True, env=environment, timeout=240)
    found = _read(one)
    truth = pickle.loads(one.read_bytes())
    assert found.version == truth["version"]
    assert [entry.operation for entry in found.calls] == ["all_reduce", "all_reduce", "broadcast"]
    assert [entry.seq for entry in found.calls] == [entry["collective_seq_id"] for entry in truth["entries"]]
    assert [entry.input_sizes for entry in found.calls] == [((3,),), ((5,),), ((2,),)]
    assert found.calls[-1].input_dtypes == ("Double",)
    assert all(entry.is_done for entry in found.calls)
    assert found.calls[0].frames[0].function == truth["entries"][0]["frames"][0]["name"]

    from llmtop.postmortem.input_files import read_evidence

    evidence = read_evidence([other])
    assert [entry.seq for entry in evidence.dumps[0].calls] == [entry.seq for entry in found.calls]
    assert evidence.dumps[0].rank == 7


@pytest.mark.parametrize("version", ["2.0", "2.3", "2.4", "2.9", "2.10"])
def test_older_versions_are_read(tmp_path: Path, version: str) -> None:
    entries = [call(1), call(2, state="started")]
    for entry in entries:
        if version < "2.4" and version != "2.10":
            entry["seq_id"] = entry.pop("collective_seq_id")  # one number for all operations
            del entry["input_dtypes"], entry["is_p2p"], entry["retired"]
    data = {**dump([call(1)], {WORLD: [0, 1]}, version), "entries": entries}
    found = _read(write_dumps(tmp_path, {3: data}) / "nccl_trace_rank_3")
    assert [(one.seq, one.is_done) for one in found.calls] == [(1, True), (2, False)]
    assert found.groups["0"].ranks == (0, 1)


def test_the_list_of_the_first_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0"
    path.write_bytes(
        pickle.dumps([{"seq_id": 4, "pg_id": 0, "profiling_name": "nccl:all_reduce", "state": "started"}])
    )
    assert _read(path).calls[0].seq == 4


_HOSTILE = {
    "memo": (b"\x80\x02]r\xff\xff\xff\xff.", "more objects than it has bytes"),
    "global": (b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.", "os.system"),
    "empty": (b"", "empty"),
    "text": (b"\x80\x02X\x05\x00\x00\x00hello.", "no dump of a flight recorder"),
    "depth": (b"\x80\x02" + b"]" * 400_000 + b"a" * 399_999 + b".", ""),
    "memory": (b"\x80\x02(" + b"]" * 60_000_000 + b"l.", ""),
}


@pytest.mark.slow(
    "60 million lists; the others are small",
    kept=(
        "memo",
        "global",
        "empty",
        "text",
        "depth",
    ),
)
@pytest.mark.parametrize("name", list(_HOSTILE))
def test_a_hostile_pickle_ends_with_one_sentence(tmp_path: Path, name: str) -> None:
    data, reason = _HOSTILE[name]
    path = tmp_path / "rank0"
    path.write_bytes(data)
    error = _error(path)
    assert error
    assert "\n" not in error
    assert reason in error


def test_a_cut_dump_and_a_huge_one_are_refused_and_the_others_read(tmp_path: Path) -> None:
    write_dumps(tmp_path, {rank: dump([call(1)], {WORLD: [0, 1, 2]}) for rank in range(3)})
    cut, huge, whole = (tmp_path / f"nccl_trace_rank_{rank}" for rank in range(3))
    cut.write_bytes(cut.read_bytes()[:200])
    with huge.open("ab") as file:
        file.truncate(1 << 30)
    first, second, third = read_pickles([cut, huge, whole])
    assert isinstance(first, DumpAnswer)
    assert isinstance(second, DumpAnswer)
    assert "1024 MiB" in second.error
    assert isinstance(third, FlightDump)


@pytest.mark.slow("4 million calls; test_a_cut_dump_and_a_huge_one_are_refused_and_the_others_read has the others")
def test_a_file_that_ends_the_child_costs_no_other_file(tmp_path: Path) -> None:
    write_dumps(tmp_path, {rank: dump([call(1)], {WORLD: [0, 1, 2]}) for rank in (0, 2)})
    bomb = tmp_path / "nccl_trace_rank_1"
    frames = [{"name": "f", "filename": "x.py", "line": 1}] * 1000
    entries = [{**call(1), "frames": frames, "input_sizes": [[1] * 1000] * 1000}] * 4_000_000
    bomb.write_bytes(pickle.dumps({"entries": entries, "version": "2.4"}, protocol=2))
    found = read_pickles([tmp_path / f"nccl_trace_rank_{rank}" for rank in range(3)])
    assert [isinstance(one, FlightDump) for one in found] == [True, False, True]
