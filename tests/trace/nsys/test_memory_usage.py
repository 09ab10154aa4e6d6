"""Device allocations in an export of nsys: sign, kind of memory, and the call that made each."""

from __future__ import annotations

from pathlib import Path

from llmtop.trace import model
from llmtop.trace.files.open import open_trace
from tests.support.nsys_tables import NsysTables
from tests.support.traces import MAIN, steady, write_sqlite


def test_allocations_and_releases_with_their_calls(tmp_path: Path) -> None:
    capture = steady()
    call = capture.call("cudaMalloc", 100.0, 150.0, tid=7)
    path = write_sqlite(tmp_path / "made.sqlite", [capture])
    tables = NsysTables(path)
    tables.call_stack(3, call, [("cudaMalloc", "/lib/libcudart.so.12"), ("grow", "/t/pool.so")])
    tables.memory(MAIN, 120.0, 4096, 0x1000, call=call)
    tables.memory(MAIN, 130.0, 512, 0x9000, kind=model.PINNED)
    tables.memory(MAIN, 900.0, 4096, 0x1000, freed=True)
    trace = open_trace(path)
    memory = trace.memory
    assert memory.bytes.tolist() == [4096, 512, -4096]
    assert memory.device.tolist() == [0, model.HOST_MEMORY, 0]
    assert memory.memory.tolist() == [model.DEVICE, model.PINNED, model.DEVICE]
    assert memory.thread.tolist() == [7, 0, 0]
    assert [trace.names[number] for number in memory.place.tolist()] == ["grow (pool.so)", "", ""]
