"""The logic of the GPU clock, on a GPU in virtual time: what it says is what was planted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import llmtop
from llmtop.instrument.gpu import clock as gpu_clock
from llmtop.instrument.gpu.clock import BUDGET, MAX_PENDING, GpuClock
from llmtop.instrument.gpu.times import gpu_time
from llmtop.instrument.record import periodic, recorder
from llmtop.protocol import wire
from tests.support.phases import begin_phase, end_phase
from tests.support.recorded import Recorded
from tests.support.virtual_gpu import MS, US, VirtualGpu


class Rig:
    """A training on a virtual GPU, recorded by the real recorder."""

    def __init__(self, recorded: Recorded) -> None:
        self.gpu = VirtualGpu()
        self.recorded = recorded
        self.recorder = recorded.recorder
        self.clock = GpuClock(self.gpu)
        self.recorder.attach()
        self.recorder.clock = self.clock
        self.recorder.run_periodic = periodic.PeriodicTasks(self.recorder, listen_to_store=lambda _facts: None)

    def train(self, steps: int, step: Callable[[], None]) -> list[wire.GpuTime]:
        """Run steps and return the GPU times of those that were timed."""
        for _ in range(steps):
            step()
        _, timed = self.clock.timed.read(0)
        return [gpu_time(one, self.recorder.paths.names) for one in timed]

    def batch(self, wait_ns: int) -> None:
        """Wait for a batch as llmtop.loader does."""
        begin_phase("dataload")
        self.gpu.work_on_host(wait_ns)
        end_phase("dataload")


@pytest.fixture
def rig(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> Rig:
    rig = Rig(recorded)
    monkeypatch.setattr(recorder, "perf_counter_ns", rig.gpu.host_ns)
    monkeypatch.setattr(gpu_clock, "perf_counter_ns", rig.gpu.host_ns)
    return rig


def phases(time: wire.GpuTime) -> dict[str, int]:
    return dict(time.phases)


def test_a_healthy_training_has_no_idle_time_however_long_the_host_waits(rig: Rig) -> None:
    def step() -> None:
        # The copy waits for the step before, so the host's clock puts nearly all time into dataload.
        with llmtop.phase("dataload"):
            rig.gpu.synchronise()
            rig.gpu.launch(50 * US)
        with llmtop.step():
            with llmtop.phase("forward"):
                rig.gpu.launch(300 * US, 100)
            with llmtop.phase("backward"):
                rig.gpu.launch(600 * US, 100)
            with llmtop.phase("optimizer"):
                rig.gpu.launch(100 * US, 20)

    times = rig.train(40, step)
    assert len(times) > 20
    last, host = times[-1], rig.recorded.steps[-1]
    assert host.phases[0].host_ns > 0.9 * host.host_ns  # the host's clock says dataload
    assert phases(last)["dataload"] < 0.01 * last.gpu_ns
    assert last.idle_ns is not None
    assert last.idle_ns < 0.01 * last.gpu_ns
    assert phases(last)["forward"] == pytest.approx(30 * MS, rel=0.02)
    assert phases(last)["backward"] == pytest.approx(60 * MS, rel=0.02)
    assert phases(last)["optimizer"] == pytest.approx(2 * MS, rel=0.1)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6, 0.9])
def test_a_starved_training_is_idle_for_the_planted_share(rig: Rig, share: float) -> None:
    work_ns = 40 * MS
    # The host is ready with its launches long before the GPU is done; then it waits for the batch.
    starve_ns = round(work_ns * share / (1 - share))

    def step() -> None:
        rig.gpu.synchronise()
        rig.batch(starve_ns)
        with llmtop.step():
            with llmtop.phase("forward"):
                rig.gpu.launch(work_ns // 200, 80)
            with llmtop.phase("backward"):
                rig.gpu.launch(work_ns // 200, 120)

    times = rig.train(30, step)
    for time in times[1:]:
        assert time.idle_ns is not None
        assert time.idle_ns / time.gpu_ns == pytest.approx(share, abs=0.03)
        assert phases(time)["dataload"] == pytest.approx(time.idle_ns, rel=0.01)


def test_a_loader_that_is_slower_than_the_gpu_starves_it_only_for_the_rest(rig: Rig) -> None:
    def step() -> None:
        rig.batch(50 * MS)
        with llmtop.step(), llmtop.phase("forward"):
            rig.gpu.launch(200 * US, 200)  # 40 ms; the next batch is asked for after 1 ms

    times = rig.train(30, step)
    for time in times[2:]:
        assert time.idle_ns is not None
        assert time.idle_ns / time.gpu_ns == pytest.approx(11 / 51, abs=0.03)
        assert phases(time)["forward"] == pytest.approx(40 * MS, rel=0.02)


def test_where_the_host_sets_the_pace_idle_time_is_not_told(rig: Rig) -> None:
    def step() -> None:
        rig.batch(20 * US)
        with llmtop.step():
            for name in ("forward", "backward", "optimizer"):
                with llmtop.phase(name):
                    rig.gpu.launch(2 * US, 80)

    times = rig.train(3000, step)
    assert times
    for time in times:
        assert time.idle_ns is None
        assert time.host_paced_ns > 0.9 * time.gpu_ns
        assert phases(time)["forward"] == pytest.approx(80 * rig.gpu.launch_ns, rel=0.1)


def test_a_sync_call_at_the_end_of_a_step_is_no_idle_time(rig: Rig) -> None:
    def step() -> None:
        rig.batch(10 * US)
        with llmtop.step():
            with llmtop.phase("forward"):
                rig.gpu.launch(300 * US, 60)
            with llmtop.phase("loss.item"):
                rig.gpu.synchronise()

    for time in rig.train(60, step)[1:]:
        assert time.idle_ns is not None
        assert time.idle_ns < 0.01 * time.gpu_ns


def test_nested_and_repeated_phases_add_up_as_on_the_hosts_clock(rig: Rig) -> None:
    def step() -> None:
        with llmtop.step():
            for _ in range(4):
                with llmtop.phase("micro"), llmtop.phase("forward"):
                    rig.gpu.launch(100 * US, 20)

    time = rig.train(50, step)[-1]
    assert list(phases(time)) == ["micro", "micro/forward"]
    assert phases(time)["micro"] == pytest.approx(8 * MS, rel=0.05)
    assert phases(time)["micro/forward"] <= phases(time)["micro"] <= time.gpu_ns


def test_a_wait_inside_a_phase_around_the_loop_is_still_the_steps_dataload(rig: Rig) -> None:
    def step() -> None:
        with llmtop.phase("epoch"):
            rig.batch(10 * MS)
            with llmtop.step(), llmtop.phase("forward"):
                rig.gpu.launch(100 * US, 20)

    for time in rig.train(20, step)[1:]:
        assert set(phases(time)) == {"dataload", "forward"}
        assert phases(time)["dataload"] == pytest.approx(8 * MS, rel=0.1)
        assert time.gpu_ns == pytest.approx(10 * MS, rel=0.1)


def test_the_wait_at_the_end_of_an_epoch_is_in_no_steps_time(rig: Rig) -> None:
    def step() -> None:
        begin_phase("dataload")
        rig.gpu.work_on_host(300 * MS)
        rig.recorder.cancel_phase("dataload")
        rig.batch(1 * MS)
        with llmtop.step(), llmtop.phase("forward"):
            rig.gpu.launch(100 * US, 100)

    for time in rig.train(20, step):
        assert time.gpu_ns < 20 * MS


@pytest.mark.parametrize("kernel_us", [2, 20, 200, 2000])
def test_events_take_less_than_a_thousandth_of_the_time(rig: Rig, kernel_us: int) -> None:
    spent = 0
    record = rig.gpu.record

    def counted(event: object) -> None:
        nonlocal spent
        before = rig.gpu.now_ns
        record(event)  # type: ignore[arg-type]
        spent += rig.gpu.now_ns - before

    rig.gpu.record = counted  # type: ignore[method-assign]

    def step() -> None:
        rig.batch(20 * US)
        with llmtop.step():
            for name in ("forward", "backward", "optimizer"):
                with llmtop.phase(name):
                    rig.gpu.launch(kernel_us * US, 80)
        rig.gpu.synchronise()

    rig.train(200, step)  # the first few steps find out what it costs
    begun, spent = rig.gpu.now_ns, 0
    times = rig.train(4000, step)
    assert times[-1].index > 3000
    assert spent <= 1.05 * BUDGET * (rig.gpu.now_ns - begun)
    assert rig.gpu.made < 200


def test_nothing_is_asked_of_cuda_while_a_graph_is_being_captured(rig: Rig) -> None:
    def step() -> None:
        with llmtop.step():
            with llmtop.phase("warm up"):
                rig.gpu.launch(100 * US, 100)
            rig.gpu.capturing = capture
            with llmtop.phase("capture"):
                rig.gpu.work_on_host(50 * MS)
        rig.gpu.capturing = False

    capture = False
    before = len(rig.train(20, step))
    capture = True
    during = len(rig.train(20, step))
    capture = False
    after = len(rig.train(20, step))
    assert rig.gpu.asked_while_capturing == 0
    assert before > 10
    assert during <= before + 2  # at most what was under way
    assert after > during + 10


def test_a_step_captured_whole_asks_nothing_of_cuda(rig: Rig) -> None:
    rig.gpu.capturing = True
    assert (
        rig.train(20, lambda: llmtop.step().__enter__().__exit__(None, None, None)) == []  # type: ignore[arg-type]
    )
    assert rig.gpu.asked == 0


def test_a_gpu_that_hangs_gathers_no_events(rig: Rig) -> None:
    rig.gpu.idle_from_ns = 1 << 60

    def step() -> None:
        with llmtop.step(), llmtop.phase("forward"):
            rig.gpu.work_on_host(200 * MS)

    assert rig.train(500, step) == []
    assert rig.gpu.made <= 4 * (MAX_PENDING + 1)


def test_a_device_that_fails_is_the_trainings_own_business(rig: Rig) -> None:
    def step() -> None:
        with llmtop.step(), llmtop.phase("forward"):
            rig.gpu.work_on_host(100 * MS)

    rig.train(5, step)
    rig.gpu.failing = True
    rig.train(5, step)
    assert len(rig.recorded.steps) == 10


def test_a_step_left_by_an_exception_is_not_timed(rig: Rig) -> None:
    @llmtop.step()
    def failing() -> None:
        with llmtop.phase("forward"):
            rig.gpu.launch(1 * MS, 100)
            raise ValueError("nan")

    def step() -> None:
        with pytest.raises(ValueError, match="nan"):
            failing()
        with llmtop.step(), llmtop.phase("backward"):
            rig.gpu.launch(100 * US, 100)

    for time in rig.train(20, step):
        assert list(phases(time)) == ["backward"]
        assert time.gpu_ns < 120 * MS
