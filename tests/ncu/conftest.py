"""A capture with a hot kernel, a stand-in for ncu, and llmtop on a stand-in driver with one free GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llmtop.capture.base.folder import Info, write_info
from tests.support import nvml_stub
from tests.support.ncu_reports import GEMM, StandInNcu
from tests.support.processes import environment
from tests.support.traces import Capture, write_chrome

Llmtop = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Six steps, each with two products, of which the second is the longer one."""
    made = Capture()
    for step in range(6):
        begin = step * 1_000.0
        made.range("step", begin, begin + 1_000)
        for index, took in enumerate((90, 800)):
            at = begin + 10 + index * 100
            made.kernel(at, at + took, launched=begin + 2 + index, took=1, name=GEMM)
    folder = tmp_path / "captured"
    folder.mkdir()
    write_chrome(folder / "rank0.pt.trace.json", made)
    write_info(folder, Info(engine="torch.profiler", state="done", started_at=1.0, command="true --steps 9"))
    return folder


@pytest.fixture
def ncu(tmp_path: Path) -> StandInNcu:
    folder = tmp_path / "nsight"
    folder.mkdir()
    return StandInNcu(folder)


@pytest.fixture
def scenario() -> nvml_stub.Scenario:
    """One GPU that nobody uses."""
    return nvml_stub.Scenario(count=1).set(mem_used_bytes=700 << 20)


@pytest.fixture
def llmtop(tmp_path: Path, ncu: StandInNcu, scenario: nvml_stub.Scenario, runtime_dir: Path) -> Llmtop:
    """Run llmtop with these arguments to its end."""

    def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        env = nvml_stub.environment(
            nvml_stub.build(),
            scenario.write(tmp_path / "scenario"),
            **environment(LLMTOP_DIR=str(runtime_dir), LLMTOP_NCU=str(ncu.path)),
        )
        return subprocess.run(
            [sys.executable, "-m", "llmtop", *map(str, arguments)],
            env=env | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return run
