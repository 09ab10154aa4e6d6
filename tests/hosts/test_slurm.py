"""docs/slurm.md: trainings that a real SLURM starts, watched from a shell on the node and from within the job."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import slurm
from tests.support.processes import REPOSITORY, wait_for
from tests.support.slurm import Slurm

pytestmark = pytest.mark.slurm
TOY = f"{sys.executable} -m tests.support.toy_training --step-ms 50"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    if why := slurm.why_not():
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="ls-"))
    with Slurm(folder) as made:
        made.variables["LLMTOP_DIR"] = str(folder / "sockets")
        yield made
    shutil.rmtree(folder, ignore_errors=True)


def ranks(cluster: Slurm, *before: str) -> list[dict[str, Any]]:
    """The trainings that `llmtop --json --once` sees; `before` is put in front of the command."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "llmtop", "--json", "--once"],
        env=cluster.variables, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(done.stdout)["ranks"]
    return [rank for rank in found if rank["state"] == "running" and rank["step"]]


@pytest.mark.slow("test_a_training_in_a_pid_namespace_is_seen_through_a_shared_socket_folder finds the same fault")
def test_a_batch_job_under_llmtop_run_is_watched_from_the_node(cluster: Slurm) -> None:
    out = cluster.folder / "batch.out"
    script = f"srun {sys.executable} -m llmtop run -- {TOY}"
    said = cluster.run("sbatch", "-D", str(REPOSITORY), "-o", str(out), "-n", "1", "--wrap", with_path(script))
    job = said.split()[-1]
    (rank,) = wait_for(lambda: ranks(cluster), 90, "the batch job's training")
    assert job in rank["job"], "the run is called by SLURM's job"
    cluster.run("scancel", job)
    wait_for(lambda: not ranks(cluster), 60, "the job's end")


@pytest.mark.slow("test_a_training_in_a_pid_namespace_is_seen_through_a_shared_socket_folder finds the same fault")
def test_the_tasks_of_srun_are_ranks_of_one_job_and_are_watched_from_within_it(cluster: Slurm) -> None:
    script = f"srun -n 2 --overcommit {TOY}"
    said = cluster.run("sbatch", "-D", str(REPOSITORY), "-o", str(cluster.folder / "two.out"), "-n", "1",
                       "--overcommit", "--wrap", with_path(script))  # fmt: skip
    job = said.split()[-1]
    both = wait_for(lambda: found if len(found := ranks(cluster)) == 2 else None, 90, "two ranks")
    assert sorted(rank["rank"] for rank in both) == [0, 1]
    assert len({rank["job"] for rank in both}) == 1
    srun = str(slurm.find("srun"))
    pids = {rank["pid"] for rank in both}

    def within() -> set[int]:
        return {rank["pid"] for rank in ranks(cluster, srun, "--overlap", "--jobid", job, "-n", "1")}

    wait_for(lambda: within() == pids, 40, "the same two with srun --overlap, as the page has it")
    cluster.run("scancel", job)
    wait_for(lambda: not ranks(cluster), 60, "the job's end")


def with_path(script: str) -> str:
    """With this SLURM's own srun, and this checkout."""
    return script.replace("srun ", f"{slurm.find('srun')} ", 1)
