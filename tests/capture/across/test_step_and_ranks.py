"""Which step, and which ranks: the words of --at-step and --ranks; and what one process says to a step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmtop.capture.across import local_job
from llmtop.capture.across.rank_choice import RankChoice, add_reference_ranks, median_rank
from llmtop.capture.across.step_choice import StepChoice, choose_step
from llmtop.capture.base.job import Target
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.protocol import wire
from tests.capture.conftest import Start
from tests.support.preloaded import llmtop
from tests.support.processes import environment, wait_for


class Steps:
    """What a `StepListener` says of one training that has made so many steps of one length."""

    def __init__(self, count: int, seconds: float, by: int = 1) -> None:
        self._steps = [wire.StepDone(by * index, 1, round(seconds * 1e9)) for index in range(count)]
        self._seconds = seconds

    def steps_within(self, _begin: int) -> dict[int, list[wire.StepDone]]:
        return {1: self._steps}

    def median_seconds(self) -> float | None:
        return self._seconds if self._steps else None


@pytest.mark.parametrize(
    ("asked", "seconds", "step"),
    [("+20", 1.0, 119), ("+20", 0.05, 99 + 2 + 60), ("+1", 10.0, 99 + 2 + 1), ("400", 1.0, 400)],
)
def test_it_is_so_far_ahead_that_every_node_has_heard(asked: str, seconds: float, step: int) -> None:
    chosen = choose_step(StepChoice.parse(asked), Steps(100, seconds))  # type: ignore[arg-type]
    assert chosen.step == step
    assert f"step {step}" in chosen.sentence
    assert chosen.seconds == pytest.approx((step - 99) * seconds)


@pytest.mark.parametrize(("asked", "why"), [("99", "has passed"), ("3", "has passed"), ("101", "too early")])
def test_a_step_that_cannot_be_is_refused(asked: str, why: str) -> None:
    with pytest.raises(UnusableInput, match=why):
        choose_step(StepChoice.parse(asked), Steps(100, 1.0))  # type: ignore[arg-type]


def test_before_the_first_step_nothing_can_be_said() -> None:
    with pytest.raises(NotPossibleHere, match="has not finished a step"):
        choose_step(StepChoice.parse("+20"), Steps(0, 1.0))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "+", "-3", "1.5", "+2x", "9" * 20, "١٢"])
def test_what_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(UnusableInput, match="is no step"):
        StepChoice.parse(text)


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("accused", RankChoice(accused=True)),
        ("all", RankChoice(all=True)),
        ("here", RankChoice(here=True)),
        ("7,0,7", RankChoice(ranks=(0, 7))),
        ("node:gpu-17.site", RankChoice(node="gpu-17.site")),
    ],
)
def test_the_words_for_ranks(text: str, choice: RankChoice) -> None:
    assert RankChoice.parse(text) == choice


@pytest.mark.parametrize("text", ["", "0-7", "node:", "rank0", "1,,2", "-1", "٣"])
def test_what_is_no_choice_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(UnusableInput, match="is none of"):
        RankChoice.parse(text)


@pytest.mark.parametrize(
    ("accused", "world", "median", "chosen"),
    [
        ([3], 16, None, (2, 3, 4, 11)),
        ([3], 16, 9, (2, 3, 4, 9)),
        ([3], 16, 4, (2, 3, 4, 11)),
        ([0, 15], 16, None, (0, 1, 8, 14, 15)),
        ([1], 2, None, (0, 1)),
        ([], 16, None, (0, 8)),
        ([99], 16, None, (0, 8)),
    ],
)
def test_the_accused_have_company(
    accused: list[int], world: int, median: int | None, chosen: tuple[int, ...]
) -> None:
    assert add_reference_ranks(accused, world, median) == chosen


@pytest.mark.parametrize(
    ("waits", "usual"),
    [({}, None), ({5: 0.1}, 5), ({0: 0.3, 1: 0.0, 2: 0.2}, 2), ({0: 0.3, 1: 0.0, 2: 0.2, 7: 0.1}, 7)],
)
def test_a_rank_that_waits_as_most_do(waits: dict[int, float], usual: int | None) -> None:
    assert median_rank(waits) == usual


def _target(pid: int, rank: int | None, place: str, store: str | None = None) -> Target:
    hello = wire.Hello(
        pid=pid,
        rank=rank,
        world_size=4,
        command="train.py",
        launch=wire.Launch(master=place),
        store=None if store is None else wire.JobStore(address=store, prefix="/llmtop//0"),
    )
    return Target(pid, rank, hello, Path("/s"))


def test_one_job_is_seen_and_of_several_one_must_be_named() -> None:
    one = [_target(1, 1, "a:1", "a:1"), _target(2, 0, "a:1", "a:1"), _target(9, None, "")]
    job = local_job.find_job(one)
    assert ([target.pid for target in job.targets], job.world_size) == ([2, 1], 4)
    assert job.store == wire.JobStore(address="a:1", prefix="/llmtop//0")
    two = [*one, _target(3, 0, "b:1")]
    with pytest.raises(UnusableInput, match=r"several jobs have ranks here: .* choose one with --pid"):
        local_job.find_job(two)
    assert local_job.find_job(two, 3).store is None
    with pytest.raises(UnusableInput, match="process 9 is not an attached rank"):
        local_job.find_job(two, 9)
    with pytest.raises(NotPossibleHere, match="no rank of a job is attached"):
        local_job.find_job([])


def test_without_a_store_the_same_command_for_every_node_is_said() -> None:
    job = local_job.find_job([_target(3, 0, "b:1")])
    with pytest.raises(NotPossibleHere, match="do not use a supported TCPStore"):
        local_job.open_store(job)
    said = local_job.manual_command(job, 5000)
    assert "srun --overlap --jobid JOB --ntasks-per-node 1 llmtop capture --at-step 5000 --ranks here" in said
    assert "clush" in said


def test_a_script_that_counts_by_tens_is_followed() -> None:
    counted = Steps(100, 1.0, by=10)
    assert choose_step(StepChoice.parse("+20"), counted).step == 990 + 200  # type: ignore[arg-type]
    assert choose_step(StepChoice.parse("1200"), counted).step == 1200  # type: ignore[arg-type]
    with pytest.raises(UnusableInput, match="counts its steps by 10, and 1205 is not one of them"):
        choose_step(StepChoice.parse("1205"), counted)  # type: ignore[arg-type]


def _capture(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmtop", "capture", "--json", "--steps", "2", "--out", str(folder), *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.torch
@pytest.mark.parametrize(
    "counting",
    [
        (),
        pytest.param(
            ("--odd-index",), marks=pytest.mark.slow("a second training, which counts its steps by tens")
        ),
    ],
    ids=["by ones", "by tens"],
)
def test_one_process_begins_at_the_step_that_is_named(
    start: Start, tmp_path: Path, counting: tuple[str, ...]
) -> None:
    training = start("--torch", *counting, RANK="0", WORLD_SIZE="1")
    training.wait_attached()
    training.wait_for_steps(12)

    def captured() -> subprocess.CompletedProcess[str] | None:
        found = _capture(tmp_path, "--at-step", "+5", "--ranks", "here")
        # On a busy machine that step may be over when the request reaches the training.
        return None if "has passed: step" in found.stderr else found

    done = wait_for(captured, what="a capture that was asked for in time")
    assert done is not None
    assert done.returncode == 0, done.stderr
    info = json.loads(done.stdout)["capture"]
    assert info["first_step"] == info["at_step"]
    if counting:
        return
    for words, code, why in (
        (("--at-step", "1", "--ranks", "here"), 2, "has passed"),
        (("--at-step", "+5", "--ranks", "here", "-e", "py-spy"), 2, "does not support --at-step"),
        (("--at-step", "+5", "--rank", "0", "--when", "alert"), 2, "cannot be combined with --when"),
        (("--at-step", "+5", "--rank", "0", "--ranks", "0"), 2, "exclude each other"),
        (("--at-step", "+5", "--ranks", "1"), 2, "rank 1 does not exist"),
    ):
        done = llmtop("capture", "--json", "--steps", "2", "--out", tmp_path, *words, timeout=240)
        assert (done.returncode, why in done.stderr) == (code, True), done.stderr


def test_without_a_job_it_is_said_where_to_call_it(runtime_dir: Path, tmp_path: Path) -> None:
    done = _capture(tmp_path, "--at-step", "+5")
    assert (done.returncode, "no rank of a job is attached on this node" in done.stderr) == (3, True), done.stderr
