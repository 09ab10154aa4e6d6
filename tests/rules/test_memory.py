"""The rules about a training's device memory."""

from __future__ import annotations

from typing import Any

import pytest

from llmtop.model.snapshot import Alert
from llmtop.rules.engine import Rules
from llmtop.rules.memory import MEMORY_GROWTH, MEMORY_PRESSURE, growing_phase, used_pct
from llmtop.rules.state.memory_trend import BUCKETS, MemoryTrend
from llmtop.rules.state.rank import RankState
from tests.support import rule_states
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


# ---- each limit by itself ----

MIB = 1 << 20


def _rising(
    rise: int,
    *,
    seconds: float = 10.0,
    base: int = 0,
    on: dict[str, Any] | None = None,
    unused: bool = False,
    **fields: Any,
) -> RankState:
    """A rank whose allocated (or else unused) bytes rise by so many over seven stretches of three samples each."""
    card = {"mem_total_bytes": 100 * GIB, **on} if on is not None else None
    state = rule_states.rank_state(on=card)
    for sample in range(24):
        held = base + rise * (sample // 3) // 7
        memory = {"memory_allocated_bytes": held + sample % 3}
        if unused:
            memory = {
                "memory_allocated_bytes": GIB,
                "memory_reserved_bytes": held + 2 * GIB,
                "memory_peak_bytes": GIB,
            }
        seen = rank(step=10 + 15 * sample, last_step_at=rule_states.NOW, **{**memory, **fields})
        state.update(seen, rule_states.NOW + seconds * sample)
    return state


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (_rising(GIB, on={}), True),  # 1 % of 100 GiB
        (_rising(GIB - 7, on={}), False),
        (_rising(256 * MIB), True),  # of a GPU of unknown size
        (_rising(256 * MIB - 7), False),
        (_rising(256 * MIB, on={"mem_total_bytes": None}), True),
        (_rising(GIB, on={}, state="stalled"), False),
        (_rising(GIB, on={}, unused=True), True),
        (_rising(GIB - 7, on={}, unused=True), False),
        (_rising(256 * MIB, unused=True), True),
        # Of 21 s: 2 GiB in them fill 30 GiB in 315 s, and 28 GiB in 294 s.
        (_rising(2 * GIB, seconds=1.0, base=68 * GIB, on={}), False),
        (_rising(2 * GIB, seconds=1.0, base=70 * GIB, on={}), True),
        (_rising(2 * GIB, seconds=1.0), False),
    ],
    ids=range(12),
)
def test_growth_counts_from_a_percent_of_the_gpu_on(state: RankState, expected: bool) -> None:
    assert MEMORY_GROWTH.holds(state, False) is expected


@pytest.mark.parametrize(
    ("base", "severity", "until"),
    [
        (43 * GIB, "critical", "GPU full in about 9m 48s"),
        (41 * GIB, "warning", "GPU full in about 10m 09s"),
        (99 * GIB, "critical", "GPU full in about 0"),
    ],
)
def test_growth_is_critical_if_the_gpu_is_full_in_ten_minutes(base: int, severity: str, until: str) -> None:
    """It rises by 20 GiB in 210 s: the 56 GiB that are left last for 588 s, 58 GiB for 609 s."""
    total = 119 * GIB
    state = _rising(20 * GIB, base=base, on={"mem_total_bytes": total})
    shown = MEMORY_GROWTH.describe(state)
    assert shown.severity == severity
    assert shown.points[0].startswith(until)
    assert shown.evidence["growth_seconds"] == 210.0
    assert shown.evidence["growth_steps"] == 315
    assert shown.evidence["growth_bytes"] == 20 * GIB
    assert shown.evidence["growth_bytes_per_step"] == pytest.approx(20 * GIB / 315)
    free = total - base - 20 * GIB - 2
    assert shown.evidence["seconds_until_full"] == pytest.approx(max(free, 0) / (20 * GIB) * 210.0)


def test_growth_is_described_with_its_rate_and_its_phase() -> None:
    state = _rising(315 * MIB, on={"mem_total_bytes": None}, memory_kept_bytes={"forward": MIB})
    shown = MEMORY_GROWTH.describe(state)
    assert (
        "Pid 100 (GPU 2) allocates 1.00 MiB more GPU memory in each step, now 315 MiB; forward keeps"
        in shown.summary
    )
    assert shown.points == ("+1.00 MiB per step", "forward keeps 1.00 MiB per step", "now 315 MiB")
    assert (shown.evidence["growing_phase"], shown.evidence["kept_bytes_per_step"]) == ("forward", MIB)
    assert shown.since == rule_states.NOW
    assert shown.severity == "warning"
    assert shown.evidence["mem_total_bytes"] is None
    bare = MEMORY_GROWTH.describe(_rising(315 * MIB))
    assert bare.summary.endswith("now 315 MiB; the phase that keeps it is unknown.")
    assert (bare.evidence["growing_phase"], bare.evidence["kept_bytes_per_step"]) == (None, None)


def test_fragmentation_is_described_with_what_the_driver_has_left() -> None:
    state = _rising(315 * MIB, unused=True, on={"mem_total_bytes": 9 * GIB, "mem_used_bytes": 9 * GIB - 315 * MIB})
    shown = MEMORY_GROWTH.describe(state)
    assert "reserves 1.00 MiB more GPU memory in each step that no tensor uses (fragmentation)." in shown.summary
    assert "It has 2.31 GiB now, beside a peak of 1.00 GiB in tensors; the GPU is full in about" in shown.summary
    assert shown.evidence["seconds_until_full"] == pytest.approx(210.0)
    assert shown.points[1:] == ("fragmentation, +1.00 MiB per step", "reserved 2.31 GiB, tensor peak 1.00 GiB")
    assert shown.since == rule_states.NOW


@pytest.mark.parametrize(
    ("kept", "step_bytes", "phase"),
    [
        ({"forward": 75, "loss": 25}, 150.0, "forward"),
        ({"forward": 74, "loss": 26}, 100.0, None),
        ({"forward": 75, "loss": 25}, 150.1, None),
        ({"": 100}, 100.0, ""),
        ({}, 100.0, None),
        ({"forward": 100}, None, None),
        ({"forward": 100}, 0.0, None),
    ],
    ids=str,
)
def test_a_phase_explains_growth_with_three_quarters_of_what_is_kept_and_half_of_it(
    kept: dict[str, int], step_bytes: float | None, phase: str | None
) -> None:
    assert growing_phase(kept, step_bytes) == phase


@pytest.mark.parametrize(
    ("later", "fields", "expected"),
    [
        (60.0, {}, True),
        (60.1, {}, False),
        (60.0, {"state": "gone"}, False),
        (600.0, {"state": "gone", "memory_snapshot": "/tmp/a b.pickle"}, True),
    ],
    ids=str,
)
def test_memory_is_short_for_a_minute_after_a_retry(later: float, fields: dict[str, Any], expected: bool) -> None:
    state = rule_states.rank_state(alloc_retries=1, ooms=0)
    state.update(rank(step=99, alloc_retries=3, ooms=0), rule_states.NOW)
    state.update(rank(step=99, alloc_retries=3, ooms=0, **fields), rule_states.NOW + later)
    assert MEMORY_PRESSURE.holds(state, False) is expected


@pytest.mark.parametrize(
    ("on", "held"),
    [
        ({"mem_used_bytes": 75 * GIB, "mem_total_bytes": 100 * GIB}, "75.0 % of 100 GiB GPU memory in use"),
        (
            {"mem_used_bytes": 75 * GIB, "mem_total_bytes": 100 * GIB, "memory_is_system": True},
            "75.0 % of 100 GiB system memory in use",
        ),
        ({}, "GPU memory is full"),
        (None, "GPU memory is full"),
    ],
)
def test_retries_are_described_with_the_memory_in_use(on: dict[str, Any] | None, held: str) -> None:
    state = rule_states.rank_state(on=on, alloc_retries=1, ooms=0, rank=3)
    state.update(rank(step=99, rank=3, alloc_retries=2, ooms=0), rule_states.NOW)
    shown = MEMORY_PRESSURE.describe(state)
    assert shown.points == ("1 allocation failed or retried", held)
    assert shown.summary.startswith("Rank 3 (pid 100")
    assert (held in shown.summary) is ("in use" in held)
    is_known = bool(on)
    assert shown.evidence["mem_used_pct"] == (75.0 if is_known else None)
    assert used_pct(state.gpu) == (75.0 if is_known else None)


def test_an_out_of_memory_error_leads_to_its_snapshot() -> None:
    state = rule_states.rank_state(
        memory_snapshot="/tmp/a b.pickle", memory_peak_bytes=3 * GIB, memory_reserved_bytes=4 * GIB
    )
    shown = MEMORY_PRESSURE.describe(state)
    assert shown.severity == "critical"
    assert shown.next.endswith("llmtop report '/tmp/a b.pickle'")
    assert shown.points == ("ended with an out-of-memory error", "peak 3.00 GiB", "reserved 4.00 GiB")
    assert shown.summary.startswith("Pid 100 ended")
