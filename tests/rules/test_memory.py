"""The rules about a training's device memory."""

from __future__ import annotations

import pytest

from llmtop.model.snapshot import Alert
from llmtop.rules.engine import Rules
from llmtop.rules.state.memory_trend import BUCKETS, MemoryTrend
from tests.support.snapshots import gpu, rank, snapshot

GIB = 1 << 30
TOTAL = 140 * GIB


class Training:
    """A training on one GPU that is looked at once a second, and makes some steps meanwhile."""

    def __init__(self, steps_per_second: int = 2) -> None:
        self.rules, self.seconds, self.steps_per_second = Rules(), 0, steps_per_second
        self.sampled_at: float | None = None
        """When the driver last answered; None: just now."""

    def look(self, allocated: int = 20 * GIB, used: int = 30 * GIB, **fields: object) -> list[Alert]:
        """The alerts a second later."""
        self.seconds += 1
        board = gpu(mem_used_bytes=used, mem_total_bytes=TOTAL, sampled_at=self.sampled_at)
        process = rank(
            gpu_uuid=board.uuid, step=self.steps_per_second * self.seconds,
            memory_allocated_bytes=allocated, warmup_steps=3, **fields,
        )  # fmt: skip
        return list(self.rules.apply(snapshot(1000.0 + self.seconds, gpus=(board,), ranks=(process,))).alerts)


def test_a_stretch_ends_with_the_sample_at_which_its_steps_and_seconds_are_full() -> None:
    """Three samples of 30 steps and 20 s are one; eight that rise are a growth."""
    trend = MemoryTrend()
    known = []
    for sample in range(3 * BUCKETS):
        seen = rank(step=10 + 15 * sample, warmup_steps=3, memory_allocated_bytes=sample)
        trend.add(1000.0 + 10.0 * sample, seen)
        known.append([(one.steps, one.seconds) for one in trend.growths()])
    of_eight = (45 * (BUCKETS - 1), 30.0 * (BUCKETS - 1))
    assert known[-1] == [of_eight, of_eight], "of 2 s and of 20 s"
    assert not any(known[:-1])


def test_a_rise_began_with_the_last_stretch_that_did_not_rise() -> None:
    trend = MemoryTrend()
    floors = [7, 7, *range(8, 16)]
    for sample in range(3 * len(floors)):
        held = rank(step=10 + 15 * sample, warmup_steps=3, memory_allocated_bytes=floors[sample // 3])
        trend.add(1000.0 + 10.0 * sample, held)
    assert {rise.since for rise in trend.growths()} == {1030.0}
    assert {(rise.first_bytes, rise.last_bytes) for rise in trend.growths()} == {(8, 15)}


def test_retries_that_rise_are_memory_pressure_for_a_minute() -> None:
    training = Training()
    full = {"used": int(0.97 * TOTAL)}
    assert not any(training.look(alloc_retries=7, ooms=0, **full) for _ in range(60)), "history, and merely full"
    (alert,) = training.look(alloc_retries=9, ooms=0, **full)
    assert (alert.id, alert.severity) == ("memory_pressure", "warning")
    assert alert.evidence["allocator_failures"] == 2
    assert "97.0 % of 140 GiB" in alert.summary
    alerts = [training.look(alloc_retries=9, ooms=0, **full) for _ in range(80)]
    assert alerts[50]
    assert not alerts[-1]


def test_memory_in_use_is_absent_once_the_driver_is_silent() -> None:
    training = Training()
    training.sampled_at = 1001.0
    full = {"used": int(0.97 * TOTAL)}
    training.look(alloc_retries=7, ooms=0, **full)
    (alert,) = training.look(alloc_retries=9, ooms=0, **full)
    assert "97.0 % of 140 GiB" in alert.summary
    for _ in range(20):
        (alert,) = training.look(alloc_retries=9, ooms=0, **full)
    assert "in use" not in alert.summary
    assert "mem_used_bytes" not in alert.evidence
    assert alert.evidence["mem_total_bytes"] == TOTAL


def test_an_out_of_memory_error_is_told_though_it_came_before_the_first_look() -> None:
    (alert,) = Training().look(alloc_retries=1, ooms=1)
    assert alert.id == "memory_pressure"


def test_absent_memory_figures_raise_nothing() -> None:
    rules = Rules()
    for second in range(400):
        assert not rules.apply(snapshot(1000.0 + second, ranks=(rank(step=2 * second),))).alerts


def test_a_floor_that_rises_for_minutes_is_growth_with_its_rate() -> None:
    training = Training()
    found = [training.look(allocated=20 * GIB + second * (GIB // 32) + second % 3 * GIB) for second in range(240)]
    assert not any(found[:120]), "two minutes are no trend"
    (alert,) = found[-1]
    assert (alert.id, alert.severity) == ("memory_growth", "warning")
    assert abs(alert.evidence["growth_bytes_per_step"] - GIB / 64) < GIB / 640
    assert alert.evidence["growth_steps"] >= 200


@pytest.mark.parametrize(("growth_pct", "has_alert"), [(0.8, False), (1.3, True)])
def test_growth_raises_the_alert_from_one_percent_of_the_gpu_memory_on(growth_pct: float, has_alert: bool) -> None:
    """Between the floors of the first and the last of eight stretches of 20 s."""
    training = Training()
    each_second = int(growth_pct / 100 * TOTAL / (7 * 21))
    found = [training.look(allocated=20 * GIB + second * each_second) for second in range(200)]
    assert any(found) is has_alert


def test_a_leak_that_is_about_to_fill_the_gpu_is_told_within_half_a_minute() -> None:
    training = Training(steps_per_second=16)
    found = [training.look(allocated=20 * GIB + second * GIB + second % 2 * (GIB // 2)) for second in range(32)]
    (alert,) = found[-1]
    assert (alert.id, alert.severity) == ("memory_growth", "critical")
    assert alert.evidence["growth_seconds"] < 30
    assert abs(alert.evidence["growth_bytes_per_step"] - GIB / 16) < GIB / 160
    assert abs(alert.evidence["seconds_until_full"] - (TOTAL / GIB - 51)) < 5


MIB = 1 << 20


@pytest.mark.parametrize(
    ("kept", "words", "phase"),
    [
        ({"forward": 16 * MIB, "optimizer": MIB}, "forward keeps 16.0 MiB per step.", "forward"),
        ({"": 16 * MIB}, "code outside of phases keeps 16.0 MiB per step.", "code outside of phases"),
        ({"forward": 9 * MIB, "optimizer": 7 * MIB}, "the phase that keeps it is unknown.", None),
        ({"forward": 2 * MIB}, "the phase that keeps it is unknown.", None),
        ({}, "the phase that keeps it is unknown.", None),
    ],
    ids=["one phase", "outside", "two phases", "a part of the growth", "not measured"],
)
def test_growth_names_the_phase_that_explains_it(kept: dict[str, int], words: str, phase: str | None) -> None:
    training = Training()
    found = [training.look(20 * GIB + second * 32 * MIB, memory_kept_bytes=kept) for second in range(240)]
    (alert,) = found[-1]
    assert alert.summary.endswith(words)
    assert alert.evidence.get("growing_phase") == phase
    assert alert.evidence.get("kept_bytes_per_step") == (None if phase is None else 16 * MIB)


def test_reserved_memory_that_tensors_never_use_is_fragmentation() -> None:
    training = Training()
    found = []
    for second in range(240):
        reserved = 40 * GIB + second * (GIB // 16)
        found.append(
            training.look(
                used=reserved + 2 * GIB, memory_reserved_bytes=reserved, memory_peak_bytes=30 * GIB + second * MIB,
            )
        )  # fmt: skip
    assert not any(found[:120])
    (alert,) = found[-1]
    assert (alert.id, alert.severity) == ("memory_growth", "warning")
    assert "fragmentation" in alert.summary
    assert "expandable_segments" in alert.next
    assert alert.evidence["growth_bytes_per_step"] == pytest.approx((GIB / 16 - MIB) / 2, rel=0.01)
    left = (TOTAL - 42 * GIB - 239 * GIB / 16) / (GIB / 16 - MIB)
    assert alert.evidence["seconds_until_full"] == pytest.approx(left, rel=0.01)


def test_a_peak_that_rises_with_what_is_reserved_is_no_fragmentation() -> None:
    training = Training()
    for second in range(400):
        size = 40 * GIB + second * (GIB // 16)
        assert not training.look(memory_reserved_bytes=size, memory_peak_bytes=size - GIB)


def test_a_brief_rise_that_would_take_long_to_fill_the_gpu_is_not_told() -> None:
    training = Training(steps_per_second=16)
    for second in range(60):
        assert not training.look(allocated=20 * GIB + second * (GIB // 4))


def test_a_brief_rise_of_the_floor_alone_is_chance() -> None:
    training = Training(steps_per_second=16)
    for second in range(60):
        floor = 20 * GIB + second * GIB
        assert not training.look(allocated=floor if second % 3 else 90 * GIB)


def test_memory_that_goes_up_and_down_or_settles_is_no_growth() -> None:
    swinging, settling = Training(), Training()
    for second in range(600):
        assert not swinging.look(allocated=20 * GIB + second % 37 * (GIB // 4))
        assert not settling.look(allocated=20 * GIB + min(second, 60) * (GIB // 8))


def test_a_training_that_starts_over_begins_anew() -> None:
    training = Training()
    for second in range(150):
        training.look(allocated=20 * GIB + second * (GIB // 32))
    for second in range(100):
        assert not training.look(allocated=25 * GIB + second * (GIB // 32), attached_at=2000)


def test_a_process_that_an_out_of_memory_error_ended_leads_to_its_snapshot() -> None:
    training = Training()
    assert not training.look(state="gone"), "it ended as trainings do"
    (alert,) = training.look(state="gone", memory_snapshot="/tmp/a folder/7-oom.memory.pickle")
    assert (alert.id, alert.severity) == ("memory_pressure", "critical")
    assert alert.next == "read the snapshot, run: llmtop report '/tmp/a folder/7-oom.memory.pickle'"
    assert alert.evidence["memory_snapshot"] == "/tmp/a folder/7-oom.memory.pickle"
