"""Jobs, what llmtop costs and other users' GPUs, as `--json` and `--once` say them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmtop.cli.live.snapshot_text import render
from llmtop.model.jobs import job_totals
from tests.support import nvml_stub
from tests.support.launched import STEPPING, Started
from tests.support.processes import environment, repeat_until
from tests.support.snapshots import rank, snapshot
from tests.support.trainings import socket_of


@pytest.fixture
def strangers() -> Iterator[subprocess.Popen[bytes]]:
    """A process of another user."""
    if os.geteuid() != 0:
        pytest.skip("only root may start a process of another user")
    with subprocess.Popen(["sleep", "600"], user="nobody") as process:
        yield process
        process.kill()


@pytest.mark.slow(
    "two monitors; test_the_text_has_a_job_before_its_ranks_and_none_for_a_process_alone has the text"
)
def test_a_live_monitor_says_jobs_and_whose_gpus_these_are(
    runtime_dir: Path, tmp_path: Path, strangers: subprocess.Popen[bytes]
) -> None:
    scenario = nvml_stub.Scenario.eight_gpus()
    script = tmp_path / "train_gpt.py"
    script.write_text(STEPPING)
    both = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "SLURM_JOB_ID": "4711"}
    with (
        Started(sys.executable, str(script), RANK="0", **both) as first,
        Started(sys.executable, str(script), RANK="1", **both) as second,
    ):
        for one in (first, second):
            socket_of(runtime_dir, one.pid)
        scenario.process(0, strangers.pid, 1 << 30)
        scenario.process(1, first.pid, 1 << 30)
        scenario.process(1, strangers.pid, 1 << 30)
        env = nvml_stub.environment(
            nvml_stub.build(), scenario.write(tmp_path / "scenario"), **environment(LLMTOP_DIR=str(runtime_dir))
        )

        def once(*how: str) -> str:
            return subprocess.run(
                [sys.executable, "-m", "llmtop", "--once", *how],
                env=env,
                capture_output=True,
                text=True,
                timeout=240,
                check=True,
            ).stdout

        text = repeat_until(once, lambda text: "ranks seen 2 of 2" in text and "used by nobody too" in text)
        now = repeat_until(
            lambda: json.loads(once("--json")),
            lambda now: len(now["ranks"]) == 2 and any(one["pid"] == strangers.pid for one in now["processes"]),
        )
    (job,) = now["jobs"]
    assert (job["name"], job["slurm_job_id"], job["ranks"]) == ("train_gpt.py · slurm 4711", "4711", [0, 1])
    assert {one["job"] for one in now["ranks"]} == {job["name"]}
    assert "Job train_gpt.py · slurm 4711  running" in text
    assert "ranks seen 2 of 2" in text
    assert now["host"]["user"] == "root"
    assert {one["user"] for one in now["processes"] if one["pid"] == strangers.pid} == {"nobody"}
    of_gpu = {block.split()[1]: block for block in text.split("\n\n") if block.startswith("GPU ")}
    assert "used by nobody alone" in of_gpu["0"]
    assert "used by nobody too" in of_gpu["1"]
    assert "used by" not in of_gpu["2"]


def test_the_text_has_a_job_before_its_ranks_and_none_for_a_process_alone() -> None:
    two = [
        rank(pid, rank=place, world_size=8, job="a.py · :1", attached_at=1.0) for place, pid in enumerate((5, 6))
    ]
    alone = rank(7, job="b.py · pid 7", attached_at=2.0, overhead_seconds=1e-5, step_seconds_mean=0.1)
    ranks = (*two, alone)
    text = render(snapshot(ranks=ranks, jobs=job_totals(ranks)))
    heads = [line.split("  ")[0] for line in text.splitlines() if line and not line.startswith(" ")]
    assert heads[1:] == ["Job a.py · :1", "Rank 0 of 8", "Rank 1 of 8", "Training"]
    assert "ranks seen 2 of 8" in text
    assert text.count("llmtop costs 10.0 µs per step (0.01 %)") == 1
