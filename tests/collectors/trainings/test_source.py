"""Real trainings in real processes, as the steps collector tells them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collectors.base.gpu_lookup import GpuLookup
from collectors.base.source import GpuReading, GpuUse
from collectors.trainings import source as steps_module
from collectors.trainings import training as training_module
from collectors.trainings.source import StepsSource
from collectors.trainings.training import Training
from llmtop.model.snapshot import Gpu, Rank, Step
from llmtop.protocol import wire
from tests.support import wire_peer
from tests.support.processes import environment, wait_for

DAY_NS = 86_400 * 10**9

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(autouse=True)
def _quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "ROUND_SECONDS", 0.1)


@pytest.fixture
def train(runtime_dir: Path) -> Iterator[Start]:
    """Start a training with these options and environment; all are killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str, **env: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.toy_training", *options],
                env=environment(LLMTOP_DIR=str(runtime_dir), **env),
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait(100)


class Watch:
    """Calls latest() as the hub does and keeps what came."""

    def __init__(self, source: StepsSource) -> None:
        self.source = source
        self.ranks: dict[int, Rank] = {}
        self.steps: dict[int, list[Step]] = {}

    def look(self) -> Watch:
        reading = self.source.latest()
        self.ranks = {rank.pid: rank for rank in reading.ranks}
        for rank in reading.ranks:
            self.steps.setdefault(rank.pid, []).extend(rank.new_steps)
        return self

    def until(self, condition: Callable[[Watch], object]) -> None:
        wait_for(lambda: condition(self.look()))

    def state(self, pid: int) -> str | None:
        return self.ranks[pid].state if pid in self.ranks else None


@pytest.fixture
def watch(runtime_dir: Path) -> Iterator[Watch]:
    source = StepsSource(runtime_dir)
    source.start()
    yield Watch(source)
    source.close()


def test_a_training_is_found_and_each_step_comes_once(train: Start, watch: Watch) -> None:
    child = train("--steps", "60", "--step-ms", "10", "--tokens", "4096", "--total", "60", "--then", "sleep")
    watch.until(lambda w: child.pid in w.ranks and w.ranks[child.pid].step == 59)
    rank, steps = watch.ranks[child.pid], watch.steps[child.pid]
    assert [step.index for step in steps] == list(range(60))
    assert rank.total_steps == 60
    assert rank.eta_seconds == 0
    assert rank.lost == 0
    assert rank.metrics["loss"] == pytest.approx(1 / 60)
    assert [phase.name for phase in rank.phases] == ["forward", "backward"]
    assert rank.command is not None
    assert "toy_training" in rank.command
    # The rate is over the whole time: what the steps themselves say they took, start to start.
    span = steps[-1].started_at - steps[0].started_at
    assert rank.tokens_per_s == pytest.approx(4096 * 59 / span, rel=0.01)
    assert rank.steps_per_s == pytest.approx(59 / span, rel=0.01)
    assert rank.step_seconds_p50 is not None
    assert 0.010 <= rank.step_seconds_p50 <= rank.step_seconds_p95 <= rank.step_seconds_p99


def test_a_monitor_that_comes_late_gets_the_history_first(
    train: Start, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_module, "HISTORY_SECONDS", 60.0)
    child = train("--steps", "40", "--step-ms", "5", "--then", "sleep")
    assert child.stdout is not None
    while child.stdout.readline() != "done\n":
        pass
    source = StepsSource(runtime_dir)
    source.start()
    wait_for(source.is_settled)
    (rank,) = source.latest().ranks
    assert [step.index for step in rank.new_steps] == list(range(40))
    assert source.latest().ranks[0].new_steps == ()
    source.close()


def test_ranks_of_a_job_come_in_order(train: Start, watch: Watch) -> None:
    for rank in (2, 0, 1):
        train("--step-ms", "20", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="3")
    watch.until(lambda w: len(w.ranks) == 3 and all(rank.step for rank in w.ranks.values()))
    assert [(rank.rank, rank.local_rank, rank.world_size) for rank in watch.ranks.values()] == [
        (0, 0, 3),
        (1, 1, 3),
        (2, 2, 3),
    ]


@pytest.mark.parametrize("estimated", [False, True])
def test_mfu_is_the_models_flops_over_the_peak_of_its_gpu(estimated: bool, runtime_dir: Path) -> None:
    """989.5 TFLOP/s is the H200's dense bf16 peak; 100 tokens a second of 4.9475 TFLOP each are half of it."""
    now = time.time_ns()
    done = [
        wire.StepDone(
            index=i, started_unix_ns=now + (i - 20) * 10**9, host_ns=10**9, interval_ns=10**9, tokens=100
        )
        for i in range(20)
    ]
    greeting = wire.Hello(
        pid=1, gpu_uuid="GPU-1", flops_per_token=4.9475e12, flops_estimated=estimated, dtype="bf16"
    )
    peer = wire_peer.start(
        runtime_dir / "4000000-00000000.sock", wire.encode(greeting) + wire.encode(wire.Steps(steps=done))
    )
    source = StepsSource(
        runtime_dir, GpuLookup(lambda: GpuReading(gpus=(Gpu(index=0, uuid="GPU-1", name="NVIDIA H200"),)))
    )
    source.start()
    rank = wait_for(lambda: next((one for one in source.latest().ranks if one.step == 19), None))
    assert rank.mfu_pct == pytest.approx(50)
    assert rank.mfu_note is not None
    assert "989.5 TFLOP/s" in rank.mfu_note
    assert (rank.mfu_estimated, "estimate" in rank.mfu_note) == (estimated, estimated)
    source.close()
    peer.kill()
    peer.wait(100)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ((True,), "GPU-0"),
        ((True, True), None),  # on two GPUs: which of them it trains on is unknown
        ((False,), None),  # it only draws
        ((), None),
    ],
)
def test_a_training_that_names_no_gpu_is_on_the_one_that_the_driver_lists_it_on(
    runtime_dir: Path, listed: tuple[bool, ...], expected: str | None
) -> None:
    steps = [
        wire.StepDone(index=i, started_unix_ns=i * 10**8, interval_ns=10**8, host_ns=10**8, tokens=10)
        for i in range(20)
    ]
    greeting = wire.Hello(pid=1, flops_per_token=4.9475e12, dtype="bf16")
    peer = wire_peer.start(
        runtime_dir / "4000000-00000000.sock", wire.encode(greeting) + wire.encode(wire.Steps(steps=steps))
    )
    reading = GpuReading(
        gpus=tuple(Gpu(index=i, uuid=f"GPU-{i}", name="NVIDIA H200") for i in range(2)),
        uses=tuple(GpuUse(pid=peer.pid, gpu_uuid=f"GPU-{i}", computes=one) for i, one in enumerate(listed)),
    )
    source = StepsSource(runtime_dir, GpuLookup(lambda: reading))
    source.start()
    rank = wait_for(lambda: next((one for one in source.latest().ranks if one.step == 19), None))
    assert rank.gpu_uuid == expected
    assert (rank.mfu_pct is None) == (expected is None)
    assert ("which GPU" in (rank.mfu_note or "")) == (expected is None)
    source.close()
    peer.kill()
    peer.wait(100)


def test_without_tokens_there_is_no_mfu_and_the_rank_says_why(train: Start, watch: Watch) -> None:
    child = train("--flops-per-token", "1e9", "--step-ms", "10")
    watch.until(lambda w: child.pid in w.ranks and w.ranks[child.pid].mfu_note)
    assert watch.ranks[child.pid].mfu_pct is None
    assert "tokens" in (watch.ranks[child.pid].mfu_note or "")


def test_gaps_between_steps_count_in_the_rate_and_in_the_step(train: Start, watch: Watch) -> None:
    child = train("--step-ms", "10", "--gap-ms", "30", "--tokens", "1000")
    watch.until(lambda w: child.pid in w.ranks and (w.ranks[child.pid].step or 0) > 20)
    rank = watch.ranks[child.pid]
    assert rank.tokens_per_s is not None
    assert rank.tokens_per_s < 1000 / 0.040
    assert rank.step_seconds_p50 is not None
    assert rank.step_seconds_p50 >= 0.040


def test_a_server_of_requests_has_latency_percentiles_and_never_stalls(
    train: Start, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_module, "STALLED_SECONDS", 0.2)
    child = train("--kind", "request", "--steps", "30", "--step-ms", "5", "--then", "sleep")
    watch.until(lambda w: child.pid in w.ranks and w.ranks[child.pid].step == 29)
    time.sleep(0.5)
    rank = watch.look().ranks[child.pid]
    assert rank.kind == "request"
    assert rank.state == "running"
    assert rank.step_seconds_p99 is not None
    assert {step.kind for step in watch.steps[child.pid]} == {"request"}


def test_warm_up_is_marked_and_left_out(train: Start, watch: Watch) -> None:
    child = train("--steps", "20", "--warmup", "5", "--step-ms", "2", "--then", "sleep")
    watch.until(lambda w: child.pid in w.ranks and w.ranks[child.pid].step == 19)
    assert [step.warmup for step in watch.steps[child.pid]] == [True] * 5 + [False] * 15
    assert watch.ranks[child.pid].warmup_steps == 5


def test_a_stopped_process_is_stopped_and_not_stalled_and_goes_on(
    train: Start, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_module, "STALLED_SECONDS", 0.5)
    child = train("--step-ms", "10", "--tokens", "10")
    watch.until(lambda w: w.state(child.pid) == "running" and w.ranks[child.pid].step)
    child.send_signal(signal.SIGSTOP)
    watch.until(lambda w: w.state(child.pid) == "stopped")
    rank = watch.ranks[child.pid]
    assert (rank.tokens_per_s, rank.steps_per_s, rank.eta_seconds) == (None, None, None)
    assert rank.step_seconds_p50 is not None
    child.send_signal(signal.SIGCONT)
    watch.until(lambda w: w.state(child.pid) == "running" and w.ranks[child.pid].tokens_per_s)


def test_a_process_that_steps_no_more_is_stalled(
    train: Start, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_module, "STALLED_SECONDS", 0.5)
    child = train("--steps", "20", "--step-ms", "5", "--then", "sleep")
    watch.until(lambda w: w.state(child.pid) == "stalled")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_killed_is_gone_and_leaves_no_socket(
    train: Start, watch: Watch, runtime_dir: Path, number: int
) -> None:
    child = train("--step-ms", "10")
    watch.until(lambda w: child.pid in w.ranks and w.ranks[child.pid].step)
    child.send_signal(number)
    watch.until(lambda w: w.state(child.pid) == "gone")
    child.wait(100)
    wait_for(lambda: not list(runtime_dir.iterdir()))
    assert watch.look().state(child.pid) == "gone"
    assert watch.source.latest().notes == ()


def test_a_killed_process_that_nobody_has_waited_for_is_gone_as_well(train: Start, watch: Watch) -> None:
    child = train("--step-ms", "10")
    watch.until(lambda w: child.pid in w.ranks)
    child.kill()  # a zombie until the fixture waits for it
    watch.until(lambda w: w.state(child.pid) == "gone")


def test_a_process_that_became_another_program_is_gone(train: Start, watch: Watch, tmp_path: Path) -> None:
    child = train("--until", str(tmp_path / "over"), "--step-ms", "20", "--then", "exec")
    watch.until(lambda w: child.pid in w.ranks)
    (tmp_path / "over").touch()
    watch.until(lambda w: w.state(child.pid) == "gone")
    assert child.poll() is None


@pytest.mark.slow("test_a_process_that_became_another_program_is_gone has such a process without a second attach")
def test_a_process_that_attaches_again_after_exec_is_one_rank(train: Start, watch: Watch, tmp_path: Path) -> None:
    child = train("--until", str(tmp_path / "over"), "--step-ms", "20", "--then", "reattach")
    watch.until(lambda w: child.pid in w.ranks and (w.ranks[child.pid].step or 0) > 20)
    (tmp_path / "over").touch()
    watch.until(lambda w: child.pid in w.ranks and w.ranks[child.pid].step == 9)  # the last of the second
    assert len(watch.source.latest().ranks) == 1


def test_one_that_is_gone_is_forgotten_after_a_while(
    train: Start, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_module, "GONE_SECONDS", 0.5)
    child = train("--step-ms", "10")
    watch.until(lambda w: child.pid in w.ranks)
    child.kill()
    child.wait(100)
    watch.until(lambda w: child.pid not in w.ranks)


def test_two_monitors_at_once_both_see_every_step(train: Start, runtime_dir: Path) -> None:
    sources = [StepsSource(runtime_dir) for _ in range(2)]
    watches = [Watch(source) for source in sources]
    for source in sources:
        source.start()
    child = train("--steps", "50", "--step-ms", "5", "--then", "sleep")
    for one in watches:
        one.until(lambda w: child.pid in w.ranks and w.ranks[child.pid].step == 49)
        assert [step.index for step in one.steps[child.pid]] == list(range(50))
    for source in sources:
        source.close()


def test_ten_thousand_steps_a_second_are_all_told_or_counted_as_lost(train: Start, watch: Watch) -> None:
    child = train("--start-after", "1", "--steps", "30000", "--step-ms", "0", "--then", "sleep")
    watch.until(lambda w: child.pid in w.ranks and w.ranks[child.pid].step == 29_999)
    got = [step.index for step in watch.steps[child.pid]]
    assert got == sorted(set(got))
    assert len(got) + watch.ranks[child.pid].lost == 30_000


def test_engines_that_could_capture_it_are_named(train: Start, watch: Watch) -> None:
    child = train("--step-ms", "10")
    watch.until(lambda w: child.pid in w.ranks and w.ranks[child.pid].capturable)
    assert "py-spy" in watch.ranks[child.pid].capturable


@pytest.mark.slow("64 processes; test_ranks_of_a_job_come_in_order has three")
def test_many_processes_at_once(runtime_dir: Path) -> None:
    """64 attached processes: forked from one, so that the test starts 64 interpreters only once."""
    program = (
        "import os, time, msgspec, nvtx, llmtop\n"  # once, not 64 times
        "for rank in range(64):\n"
        "    if os.fork() == 0:\n"
        "        os.environ['RANK'] = str(rank)\n"
        "        for i in range(100000):\n"
        "            with llmtop.step(): time.sleep(0.5)\n"
        "time.sleep(1000)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], env=environment(LLMTOP_DIR=str(runtime_dir)), start_new_session=True
    )
    source = StepsSource(runtime_dir)
    source.start()
    try:
        wait_for(lambda: sum(rank.step is not None for rank in source.latest().ranks) == 64, 60)
        ranks = source.latest().ranks
        assert len({rank.pid for rank in ranks}) == 64
        assert json.dumps(source.latest().notes) == "[]"
        os.killpg(parent.pid, signal.SIGKILL)
        wait_for(lambda: all(rank.state == "gone" for rank in source.latest().ranks), 60)
        wait_for(lambda: not list(runtime_dir.iterdir()), 60)
    finally:
        source.close()
        os.killpg(parent.pid, signal.SIGKILL) if parent.poll() is None else None
        parent.wait(100)


@pytest.mark.parametrize("set_by", [3600, -3600])
def test_a_step_of_a_training_with_a_clock_of_its_own_is_of_now(set_by: int) -> None:
    """Its clock is days from the monitor's, and the wall clock was set."""
    training = Training(os.getpid())
    began = time.time_ns() - set_by * 10**9
    steps = [wire.StepDone(index=i, started_unix_ns=began + i * 10**7, host_ns=10**7) for i in range(20)]
    training.take_in([wire.Steps(steps=steps, unix_offset_ns=time.time_ns() - time.monotonic_ns() - 5 * DAY_NS)])
    rank = training.take(GpuLookup())
    assert rank.state == "running"
    assert rank.steps_per_s is None or rank.steps_per_s > 0


def test_a_training_with_a_monotonic_clock_of_its_own_is_placed_by_the_wall_clock() -> None:
    """As in a time namespace, after a restore: its clock is days from the monitor's."""
    training = Training(os.getpid())
    began = time.time_ns() - 10**9
    steps = [wire.StepDone(index=i, started_unix_ns=began + i * 10**7, host_ns=10**7) for i in range(20)]
    offset = time.time_ns() - time.monotonic_ns()
    training.take_in([wire.Steps(steps=steps, history=True, unix_offset_ns=offset - 5 * DAY_NS)])
    rank = training.take(GpuLookup())
    assert rank.state == "running"
    assert rank.last_step_at is not None
    assert abs(rank.last_step_at - time.time()) < 60


def test_what_an_out_of_memory_error_has_left_is_told_once_the_process_is_gone(
    train: Start, watch: Watch, runtime_dir: Path
) -> None:
    ended, other = train("--step-ms", "10"), train("--step-ms", "10")
    watch.until(lambda w: all(child.pid in w.ranks and w.ranks[child.pid].step for child in (ended, other)))
    path = runtime_dir / f"{ended.pid}-oom.memory.pickle"
    path.write_bytes(b"")
    assert watch.look().ranks[ended.pid].memory_snapshot is None
    for child in (ended, other):
        child.kill()
        watch.until(lambda w, pid=child.pid: w.state(pid) == "gone")
    assert watch.ranks[ended.pid].memory_snapshot == str(path)
    assert watch.ranks[other.pid].memory_snapshot is None
    assert path.exists()
