"""Which processes train together, and what that is called: real processes, as launchers start them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from collectors.trainings import source as steps_module
from collectors.trainings.bounds import bounded_hello
from collectors.trainings.job_names import JobNames, Member, program_of
from llmtop.protocol import wire
from tests.support.launched import (
    SPAWNING,
    STEPPING,
    TRAINING,
    Started,
    Watched,
    torchrun,
    watching,
)
from tests.support.ports import free_port


@pytest.fixture(autouse=True)
def _quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "ROUND_SECONDS", 0.1)


@pytest.fixture
def watch(runtime_dir: Path) -> Iterator[Watched]:
    with watching(runtime_dir) as watched:
        yield watched


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train_gpt.py"
    path.write_text(STEPPING)
    return path


@pytest.fixture
def started() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def of(rank: int, size: int, **variables: object) -> dict[str, str]:
    """The variables that a launcher like torchrun gives a rank."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "localhost", **variables}
    return {name: str(value) for name, value in told.items()}


SLURM = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "2"}
NAMED = [
    pytest.param(of(1, 2, MASTER_PORT=29500), "train_gpt.py · :29500", "env", id="an address alone"),
    pytest.param(
        of(1, 2, MASTER_PORT=29500) | {"MASTER_ADDR": "node3"}, "train_gpt.py · node3:29500", "env", id="a node"
    ),
    pytest.param(
        of(1, 2, MASTER_PORT=41234, TORCHELASTIC_RUN_ID="nightly-7"),
        "train_gpt.py · run nightly-7",
        "torchrun",
        id="torchrun --rdzv-id",
    ),
    pytest.param(
        of(1, 2, MASTER_PORT=29500, TORCHELASTIC_RUN_ID="none"),
        "train_gpt.py · :29500",
        "torchrun",
        id="torchrun without one",
    ),
    pytest.param(
        of(1, 2, MASTER_PORT=41234, TORCHELASTIC_RUN_ID="3f2a91bc-0d1e-4f5a-8b7c-9d0e1f2a3b4c"),
        "train_gpt.py · run 3f2a91bc",
        "torchrun",
        id="torchrun --standalone",
    ),
    pytest.param(
        of(1, 2, MASTER_PORT=29500, TORCHELASTIC_RUN_ID="8812") | SLURM,
        "train_gpt.py · slurm 4711",
        "torchrun",
        id="torchrun under SLURM",
    ),
    pytest.param(
        {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2", **SLURM},
        "train_gpt.py · slurm 4711",
        "srun",
        id="srun",
    ),
    pytest.param(
        {
            "SLURM_PROCID": "1",
            "SLURM_LOCALID": "1",
            "SLURM_NTASKS": "2",
            **SLURM,
            "SLURM_ARRAY_JOB_ID": "4700",
            "SLURM_ARRAY_TASK_ID": "11",
        },
        "train_gpt.py · slurm 4700_11",
        "srun",
        id="srun of an array",
    ),
    pytest.param(
        {
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "2",
            "PMIX_NAMESPACE": "prterun-n1@1",
        },
        "train_gpt.py · run prterun-n1@1",
        "mpirun",
        id="mpirun",
    ),
    pytest.param({"PMI_RANK": "1", "PMI_SIZE": "2"}, "train_gpt.py · 2 ranks", "mpiexec", id="nobody says more"),
]


@pytest.mark.slow(
    "a launcher of each kind",
    kept=(
        "an address alone",
        "torchrun --standalone",
        "torchrun under SLURM",
        "mpirun",
    ),
)
@pytest.mark.parametrize(("variables", "name", "launcher"), NAMED)
def test_a_run_is_called_by_what_all_its_ranks_have_in_common(
    watch: Watched, started: ExitStack, script: Path, variables: dict[str, str], name: str, launcher: str
) -> None:
    for rank in ("0", "1"):
        ranked = {
            key: rank if key.endswith(("RANK", "PROCID", "LOCALID")) else value for key, value in variables.items()
        }
        started.enter_context(Started(sys.executable, str(script), **ranked))
    alone = started.enter_context(Started(sys.executable, str(script)))
    watch.until_seen(2, 1)
    assert set(watch.jobs) == {name, f"train_gpt.py · pid {alone.pid}"}
    job = watch.jobs[name]
    assert (job.ranks, job.world_size, job.launcher) == ((0, 1), 2, launcher)
    assert job.tokens_per_s == pytest.approx(sum(rank.tokens_per_s or 0.0 for rank in watch.of(name)))
    assert watch.jobs[f"train_gpt.py · pid {alone.pid}"].launcher is None


@pytest.mark.slow(
    "test_processes_of_one_allocation_that_no_launcher_told_apart_are_jobs_of_their_own has fewer processes"
)
def test_two_runs_that_would_be_called_the_same_are_told_apart_and_one_that_follows_is_not(
    watch: Watched, started: ExitStack, script: Path
) -> None:
    """A run's id that was copied along with the command, and the first of them killed and started again."""

    def start(port: int, rank: int) -> Started:
        variables = of(rank, 2, MASTER_PORT=port, TORCHELASTIC_RUN_ID="100")
        return started.enter_context(Started(sys.executable, str(script), **variables))

    first = start(29401, 0)
    watch.until_seen(1)
    start(29402, 1)
    watch.until_seen(1, 1)
    names = {"train_gpt.py · run 100", "train_gpt.py · run 100 · :29402"}
    assert set(watch.jobs) == names
    first = [first, start(29401, 1)]
    start(29402, 0)
    watch.until_seen(2, 2)
    assert {rank.pid for rank in watch.of("train_gpt.py · run 100")} == {one.pid for one in first}
    for one in first:
        one.end()
    watch.until(lambda seen: len(seen.live) == 1)
    assert set(watch.jobs) == names, "the one that is left keeps its name"
    again = [start(29403, 0), start(29403, 1)]  # where ranks meet is drawn anew at a restart
    watch.until_seen(2, 2)
    assert set(watch.jobs) == names
    assert {rank.pid for rank in watch.of("train_gpt.py · run 100")} == {one.pid for one in again}


def test_processes_of_one_allocation_that_no_launcher_told_apart_are_jobs_of_their_own(
    watch: Watched, started: ExitStack, script: Path
) -> None:
    pids = []
    for count in (1, 2):
        pids.append(started.enter_context(Started(sys.executable, str(script), SLURM_JOB_ID="4711")).pid)
        watch.until_seen(*[1] * count)
    assert set(watch.jobs) == {"train_gpt.py · slurm 4711", f"train_gpt.py · slurm 4711 · pid {pids[1]}"}
    assert {job.slurm_job_id for job in watch.jobs.values()} == {"4711"}


@pytest.mark.slow(
    "ranks spawned by torch; test_torchrun_s_two_ranks_beside_a_process_of_its_own has ranks of torch"
)
@pytest.mark.torch
def test_ranks_that_only_torch_knows_of_are_one_job_of_the_script_that_spawned_them(
    watch: Watched, started: ExitStack, tmp_path: Path
) -> None:
    (tmp_path / "train_gpt.py").write_text(SPAWNING)
    port = free_port()
    spawn = [sys.executable, str(tmp_path / "train_gpt.py")]
    started.enter_context(Started(*spawn, f"tcp://127.0.0.1:{port}", "2"))
    watch.until_seen(2)
    assert [(job.name, job.ranks) for job in watch.jobs.values()] == [(f"train_gpt.py · :{port}", (0, 1))]


@pytest.mark.slow("test_torchrun_s_two_ranks_beside_a_process_of_its_own finds much of it")
@pytest.mark.torch
def test_a_rank_that_is_learned_late_changes_the_job(
    watch: Watched, started: ExitStack, tmp_path: Path, script: Path
) -> None:
    """It attaches before its process group is there; its neighbour has nothing to do with it."""
    late, go = tmp_path / "late.py", tmp_path / "go"
    late.write_text(
        """
import os, sys, time
import llmtop
llmtop.attach()
while True:
    if os.path.exists(sys.argv[2]) and "dist" not in globals():
        import torch.distributed as dist
        dist.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=1)
    with llmtop.step(tokens=100):
        time.sleep(0.01)
"""
    )
    port = free_port()
    neighbour = started.enter_context(Started(sys.executable, str(script)))
    one = started.enter_context(Started(sys.executable, str(late), f"tcp://127.0.0.1:{port}", str(go)))
    watch.until_seen(1, 1)
    neighbours = f"train_gpt.py · pid {neighbour.pid}"
    assert set(watch.jobs) == {neighbours, f"late.py · pid {one.pid}"}
    go.touch()
    watch.until(lambda seen: set(seen.jobs) == {neighbours, f"late.py · :{port}"})


@pytest.mark.torch
def test_torchrun_s_two_ranks_beside_a_process_of_its_own(
    watch: Watched, started: ExitStack, script: Path
) -> None:
    command = torchrun(script, 2, f"--master-port={free_port()}")
    run = started.enter_context(Started(*command))
    alone = started.enter_context(Started(sys.executable, str(script)))
    watch.until_seen(2, 1)
    port = command[4].partition("=")[2]
    assert set(watch.jobs) == {f"train_gpt.py · :{port}", f"train_gpt.py · pid {alone.pid}"}
    watch.until(lambda seen: all(rank.overhead_seconds for rank in seen.ranks))
    for job in watch.jobs.values():
        assert job.overhead_seconds == max(rank.overhead_seconds or 0.0 for rank in watch.of(job.name))
    run.end()
    watch.until(lambda seen: set(seen.live) == {f"train_gpt.py · pid {alone.pid}"})
    started.enter_context(Started(*command))
    watch.until_seen(2, 1)
    assert set(watch.live) == {f"train_gpt.py · :{port}", f"train_gpt.py · pid {alone.pid}"}


@pytest.mark.slow("test_torchrun_s_two_ranks_beside_a_process_of_its_own finds the same fault")
@pytest.mark.torch
def test_seven_processes_of_three_jobs_that_know_nothing_of_llmtop(
    watch: Watched, started: ExitStack, tmp_path: Path
) -> None:
    path = tmp_path / "train_gpt.py"
    path.write_text(TRAINING)
    under = [sys.executable, "-m", "llmtop", "run", "--"]
    two, four = (
        [*under, *torchrun(path, ranks, *options, arguments=("ddp",))]
        for ranks, options in (
            (2, (f"--master-port={free_port()}",)),
            (4, ("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}", "--rdzv-id=nightly-7")),
        )
    )
    started.enter_context(Started(*two))
    run = started.enter_context(Started(*four))
    alone = started.enter_context(Started(*under, sys.executable, str(path)))
    watch.until_seen(4, 2, 1)
    port = next(word for word in two if word.startswith("--master-port")).partition("=")[2]
    names = {f"train_gpt.py · :{port}": 2, "train_gpt.py · run nightly-7": 4, f"train_gpt.py · pid {alone.pid}": 1}
    _is_right(watch, names)
    run.end()
    watch.until(lambda seen: len(seen.live) == 2)
    _is_right(watch, {name: count for name, count in names.items() if count != 4})
    started.enter_context(Started(*four))
    watch.until_seen(4, 2, 1)
    _is_right(watch, names)


def _is_right(watch: Watched, names: dict[str, int]) -> None:
    assert {name: job.ranks_seen for name, job in watch.live.items()} == names
    for name, count in names.items():
        job, ranks = watch.live[name], watch.of(name)
        assert sorted(rank.pid for rank in ranks) == sorted(job.pids)
        if count > 1:
            assert (job.ranks, job.world_size) == (tuple(range(count)), count)
            assert [rank.rank for rank in ranks] == list(range(count))
        rates = [rank.samples_per_s for rank in ranks]
        assert job.samples_per_s == (None if None in rates else pytest.approx(sum(filter(None, rates))))
        assert min(rank.step or 0 for rank in ranks) == job.step


# --- what a broken training says -------------------------------------------------------------------------------


def member(key: str, rank: int | None, at: float, **fields: object) -> Member:
    told = wire.Hello(**{"command": "python /x/train.py --lr 1", "rank": rank, "started_at": at, **fields})  # type: ignore[arg-type]
    return Member(key, 100 + int(at), bounded_hello(told), live=True)


def test_names_stay_one_line_whatever_a_training_says_of_itself() -> None:
    launch = wire.Launch(program="\x1b[2J" + "x" * 900, run_id="a\nb" * 300, launcher="torchrun", master="\x00")
    names = JobNames().assign_names([member("odd", 0, 1.0, launch=launch), member("plain", None, 2.0)])
    assert names["odd"].isprintable()
    assert len(names["odd"]) < 200
    assert names["plain"] == "train.py · pid 102"


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("/usr/bin/python3.11 -u /x/train.py --lr 1", "train.py"),
        ("python -m my.train --lr 1", "my.train"),
        ("python -c import x", "python"),
        ("/x/serve --port 1", "serve"),
        ("", "python"),
    ],
)
def test_a_command_line_is_called_by_its_program(command: str, program: str) -> None:
    assert program_of(command) == program
