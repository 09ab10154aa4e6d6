"""Which earlier run a training is held to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from collectors.trainings.run_references import RunReferences
from llmtop.model.snapshot import Snapshot
from llmtop.runs.reference import reference_of
from llmtop.system import procfs
from tests.support import snapshots
from tests.support.made_runs import write_run
from tests.support.processes import environment, wait_for

_GPU = {"gpu_uuid": "GPU-0", "gpu_model": "NVIDIA H100", "world_size": 8}


@pytest.fixture
def training(tmp_path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """A process, and what the start of a run of the same command has."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)", "--lr", "1"],
        env=environment(LLMTOP_RUNS=str(tmp_path)),
        cwd=tmp_path,
    )
    try:
        wait_for(lambda: "--lr" in procfs.words(process.pid))
        yield process.pid, {"command": " ".join(procfs.words(process.pid)), "folder": str(tmp_path), **_GPU}
    finally:
        process.kill()
        process.wait(60)


def _snapshot(pid: int) -> Snapshot:
    gpu = snapshots.gpu(uuid="GPU-0", name="NVIDIA H100")
    rank = snapshots.rank(pid, uid=os.geteuid(), rank=0, world_size=8, gpu_uuid="GPU-0", kind="step", step=30)
    return snapshots.snapshot(time.time(), gpus=(gpu,), ranks=(rank,))


def test_it_is_the_newest_run_of_the_command_that_ended_in_order(
    training: tuple[int, dict[str, object]], tmp_path: Path
) -> None:
    pid, same = training
    write_run(tmp_path, "old", [0.3] * 200, started=1.70e9, **same)  # type: ignore[arg-type]
    write_run(tmp_path, "wanted", [0.2] * 200, started=1.71e9, **same)  # type: ignore[arg-type]
    write_run(tmp_path, "failed", [0.1] * 200, started=1.72e9, error="RuntimeError", **same)  # type: ignore[arg-type]
    write_run(tmp_path, "short", [0.1] * 99, started=1.73e9, **same)  # type: ignore[arg-type]
    found = reference_of(pid, 8, "NVIDIA H100")
    assert found is not None
    assert found.started == 1.71e9
    assert found.step_seconds_p50 == pytest.approx(0.2)
    assert found.tokens_per_step == 4096


@pytest.mark.parametrize(
    "other",
    [
        {"command": "python other.py"},
        {"folder": "/elsewhere"},
        {"world_size": 4},
        {"gpu_model": "NVIDIA H200"},
        {"gpu_model": None},
        {"gpu_model": None, "gpu_uuid": None},
    ],
)
def test_a_run_of_another_command_or_on_other_hardware_is_none(
    training: tuple[int, dict[str, object]], tmp_path: Path, other: dict[str, object]
) -> None:
    pid, same = training
    write_run(tmp_path, "other", [0.2] * 200, **{**same, **other})  # type: ignore[arg-type]
    assert reference_of(pid, 8, "NVIDIA H100") is None


def test_the_monitor_reads_runs_once_and_not_in_its_own_thread(
    training: tuple[int, dict[str, object]], tmp_path: Path
) -> None:
    pid, same = training
    write_run(tmp_path, "wanted", [0.2] * 200, **same)  # type: ignore[arg-type]
    stage = RunReferences()
    snapshot = _snapshot(pid)
    assert stage(snapshot).ranks[0].reference is None
    found = wait_for(lambda: stage(snapshot).ranks[0].reference)
    assert found.step_seconds_p50 == pytest.approx(0.2)
    for path in tmp_path.iterdir():  # nothing is read again
        path.rename(tmp_path.with_name(path.name))
    assert stage(snapshot).ranks[0].reference == found


def test_a_monitor_that_ends_leaves_no_process_that_reads_runs(
    training: tuple[int, dict[str, object]], tmp_path: Path
) -> None:
    pid, same = training
    write_run(tmp_path, "wanted", [0.2] * 200, **same)  # type: ignore[arg-type]
    stage = RunReferences()
    stage(_snapshot(pid))

    def readers() -> list[int]:
        children = psutil.Process().children()
        return [one.pid for one in children if f'"pid":{pid},' in " ".join(procfs.words(one.pid))]

    (reader,) = wait_for(readers)
    os.kill(reader, signal.SIGSTOP)  # it would take longer than the monitor lives
    stage.end()
    assert not procfs.is_alive(reader)
