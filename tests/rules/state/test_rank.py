"""State of one rank, and of the ranks that train together."""

from __future__ import annotations

import math

import pytest

from llmtop.model.snapshot import Change, Phase, Rank, Step
from llmtop.rules.state.gpu import GpuState
from llmtop.rules.state.rank import JobState, RankState, group_jobs, rank_key
from tests.support.snapshots import gpu, rank

NOW = 1000.0


def _state(now: float = NOW, **fields: object) -> RankState:
    seen = rank(**{"step": 20, "last_step_at": now, **fields})
    state = RankState(seen, now)
    state.update(seen, now)
    return state


def _step(index: int, seconds: float = 0.5, interval: float | None = None, **fields: object) -> Step:
    return Step(
        **{"index": index, "started_at": float(index), "seconds": seconds, "interval_seconds": interval, **fields}
    )


def _with_steps(*steps: Step, **fields: object) -> RankState:
    return _state(new_steps=steps, **fields)


# ---- whether it makes steps ----


@pytest.mark.parametrize(
    ("fields", "is_working", "is_stepping"),
    [
        ({}, True, True),
        ({"state": "stalled"}, False, False),
        ({"state": "gone"}, False, False),
        ({"step": None}, False, False),
        ({"step": 0}, True, True),
        ({"kind": "request"}, False, False),
        ({"inference": True}, True, False),
        ({"kind": "request", "inference": True}, True, False),
        ({"last_step_at": NOW - 10.0}, True, True),
        ({"last_step_at": NOW - 10.1}, False, False),
        ({"last_step_at": NOW - 10.1, "inference": True}, False, False),
    ],
)
def test_a_rank_steps_while_it_runs_and_its_last_step_is_recent(
    fields: dict[str, object], is_working: bool, is_stepping: bool
) -> None:
    state = _state(**fields)
    assert (state.is_working, state.is_stepping) == (is_working, is_stepping)


@pytest.mark.parametrize(
    ("ago", "fields", "expected"),
    [
        (5.0, {}, True),
        (5.0, {"step_seconds_p50": 0.0}, True),
        (5.1, {}, False),
        (12.0, {"step_seconds_p50": 4.0}, True),
        (12.1, {"step_seconds_p50": 4.0}, False),
        (12.0, {"step_seconds": 4.0}, True),
        (12.1, {"step_seconds": 4.0}, False),
        (12.0, {"step_seconds_p50": math.nan, "step_seconds": 4.0}, True),
        (12.0, {"step_seconds_p50": 1.0, "step_seconds": 4.0}, False),
    ],
)
def test_three_usual_steps_may_take_longer(ago: float, fields: dict[str, object], expected: bool) -> None:
    assert _state(last_step_at=NOW - ago, **fields).has_stepped_within(5.0) is expected


def test_steps_of_unknown_length_do_not_lengthen_the_time() -> None:
    assert not _state(last_step_at=NOW - 2.0).has_stepped_within(1.0)


def test_without_the_time_of_a_step_the_time_counts_at_which_steps_came() -> None:
    state = _with_steps(_step(20), last_step_at=None)
    state.update(rank(step=20), NOW + 5.0)
    assert state.seen_at == NOW
    assert state.has_stepped_within(5.0)
    assert not state.has_stepped_within(4.9)


@pytest.mark.parametrize(
    ("is_raised", "ago", "expected"),
    [
        (False, 3.0, False),
        (False, 3.1, True),
        (True, 10.0, False),
        (True, 10.1, True),
    ],
)
def test_a_rank_is_silent_after_three_seconds_and_its_alerts_after_ten(
    is_raised: bool, ago: float, expected: bool
) -> None:
    assert _state(last_step_at=NOW - ago).is_silent(is_raised) is expected


@pytest.mark.parametrize("fields", [{"state": "paused"}, {"step": None}, {"kind": "request"}, {"inference": True}])
def test_only_a_training_that_runs_is_silent(fields: dict[str, object]) -> None:
    assert not _state(last_step_at=NOW - 100.0, **fields).is_silent(False)


def test_times_of_the_rank_follow_a_wall_clock_that_was_set() -> None:
    change = Change(since_step=3, since=1500.0, before_seconds=1.0, after_seconds=2.0)
    seen = rank(step=20, last_step_at=1600.0, last_work_at=1550.0, change=change)
    state = RankState(seen, NOW)
    state.update(seen, NOW, 600.0)
    assert (state.last_step_at, state.last_work_at, state.changed_at) == (1000.0, 950.0, 900.0)
    assert state.unshifted(700.0) == 100.0
    assert (state.unshifted(None), state.unshifted(math.nan)) == (None, None)
    assert state.has_stepped_within(0.5)
    bare = _state(last_step_at=None)
    assert (bare.last_step_at, bare.last_work_at, bare.changed_at) == (None, None, None)


# ---- its steps ----


def test_the_gap_before_a_step_is_what_its_interval_has_beyond_the_step_before() -> None:
    state = _with_steps(
        _step(1), _step(2, 0.5, 0.75), _step(3, 0.5, 0.25), _step(4, 0.5, math.nan), _step(6, 0.5, 9.0)
    )
    assert [one.index for one in state.steps] == [1, 2, 3, 4, 6]
    assert [one.gap for one in state.steps] == [0.0, 0.25, 0.0, 0.0, 0.0]
    assert [one.total for one in state.steps] == [0.5, 0.75, 0.5, 0.5, 0.5]


def test_steps_of_the_warm_up_count_for_the_gap_alone() -> None:
    state = _with_steps(_step(1, warmup=True), _step(2, 0.5, 0.75), _step(3, 0.0), _step(4, 0.5, 1.0))
    assert [(one.index, one.gap) for one in state.steps] == [(2, 0.25), (4, 1.0)]


def test_a_step_that_comes_again_is_left_out() -> None:
    state = _with_steps(_step(1), _step(2), _step(2), _step(1), _step(3))
    assert [one.index for one in state.steps] == [1, 2, 3]


@pytest.mark.parametrize("index", [1, 2])
def test_steps_that_count_anew_replace_those_before(index: int) -> None:
    state = _with_steps(_step(1), _step(2), _step(index, started_at=50.0))
    assert [one.index for one in state.steps] == [index]
    assert state.steps[0].gap == 0.0


def test_the_last_64_steps_are_kept() -> None:
    state = _with_steps(*(_step(index) for index in range(100)))
    assert [one.index for one in state.steps] == list(range(36, 100))
    state.update(rank(step=100, new_steps=(_step(100),)), NOW + 1.0)
    assert [one.index for one in state.steps] == list(range(37, 101))


@pytest.mark.parametrize(("count", "expected"), [(1, [5]), (2, [4, 5]), (9, [1, 2, 3, 4, 5])])
def test_recent_steps_are_the_last_ones_oldest_first(count: int, expected: list[int]) -> None:
    state = _with_steps(*(_step(index) for index in range(1, 6)))
    assert [one.index for one in state.recent(count)] == expected


def test_late_gpu_times_go_to_their_step_and_keep_its_gap() -> None:
    state = _with_steps(_step(1), _step(2, 0.5, 0.75), _step(3))
    timed = Phase(name="forward", host_seconds=0.3, gpu_seconds=0.25)
    for index in (2, 9, 0):
        state.update(rank(step=3, gpu_updates=(_step(index, phases=(timed,)),)), NOW + 1.0)
    assert [one.gpu for one in state.steps] == [None, {"compute": 0.25}, None]
    assert [one.gap for one in state.steps] == [0.0, 0.25, 0.0]
    assert [one.total for one in state.steps] == [0.5, 0.75, 0.5]


def test_late_gpu_times_reach_the_first_and_the_last_step() -> None:
    state = _with_steps(_step(1), _step(2), _step(4))
    timed = Phase(name="forward", host_seconds=0.5, gpu_seconds=0.25)
    late = tuple(_step(index, phases=(timed,)) for index in (1, 3, 4))
    state.update(rank(step=4, gpu_updates=late), NOW + 1.0)
    assert [one.gpu is not None for one in state.steps] == [True, False, True]


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"step_seconds_p50": 0.5, "step_seconds": 9.0}, 0.5),
        ({"step_seconds": 2.0}, 2.0),
        ({"step_seconds_p50": math.nan, "step_seconds": 2.0}, 2.0),
        ({}, None),
        ({"step": None, "step_seconds": 2.0}, None),
    ],
)
def test_without_single_steps_the_usual_one_stands_for_them(
    fields: dict[str, object], seconds: float | None
) -> None:
    found = _state(**fields).recent(8)
    assert [(one.index, one.total, one.gap) for one in found] == ([] if seconds is None else [(20, seconds, 0.0)])


def test_the_usual_step_is_no_shorter_than_its_phases() -> None:
    phases = (
        Phase(name="forward", host_seconds=0.4),
        Phase(name="forward/attention", host_seconds=0.3),
        Phase(name="backward", host_seconds=0.5),
    )
    (found,) = _state(step_seconds=0.6, gpu_idle_pct=50.0, phases=phases).recent(8)
    assert found.total == pytest.approx(0.9)
    assert found.idle == pytest.approx(0.3)
    (longer,) = _state(step_seconds=2.0, phases=phases).recent(8)
    assert (longer.total, longer.idle) == (2.0, None)


def test_the_mean_step_of_the_window_needs_phases() -> None:
    phases = (Phase(name="forward", host_seconds=0.4),)
    (found,) = _state(step_seconds_mean=1.5, step_seconds_p50=1.0, phases=phases).window_means()
    assert found.total == 1.5
    assert _state(step_seconds_mean=1.5).window_means() == []
    assert _state(step_seconds_p50=1.5, phases=phases).window_means() == []


def test_of_a_request_its_phases_count_and_not_the_wait_for_it() -> None:
    phases = (Phase(name="prefill", host_seconds=0.2), Phase(name="decode", host_seconds=0.3))
    steps = (
        _step(1, 5.0, kind="request", phases=phases),
        _step(2, 5.0, kind="request"),
        _step(3, 5.0, kind="request", phases=phases, warmup=True),
    )
    state = _with_steps(*steps, kind="request", inference=True)
    assert [(one.index, one.total) for one in state.steps] == [(1, pytest.approx(0.5))]
    assert not _with_steps(*steps, kind="request").steps


@pytest.mark.parametrize("fields", [{"kind": "request"}, {"inference": True}])
def test_a_process_that_begins_to_compute_otherwise_begins_anew(fields: dict[str, object]) -> None:
    state = _with_steps(_step(1), _step(2))
    before = state.memory
    state.update(rank(step=2), NOW + 1.0)
    assert (len(state.steps), state.memory) == (2, before)
    state.update(rank(step=2, **fields), NOW + 2.0)
    assert len(state.steps) == 0
    assert state.memory is not before


def test_its_memory_and_its_logged_values_are_watched() -> None:
    state = _state(alloc_retries=1, metrics={"loss": 2.5})
    state.update(rank(step=20, alloc_retries=4, metrics={"loss": 2.5}), NOW + 1.0)
    assert state.memory.failures == 3
    assert state.health.shown == {"loss": ("loss", 2.5)}


def test_what_a_rule_computed_is_dropped_with_the_next_snapshot() -> None:
    state = _state()
    state.judged_by = []
    state.update(rank(step=20), NOW + 1.0)
    assert state.judged_by is None
    assert state.now == NOW + 1.0


# ---- names ----


@pytest.mark.parametrize(
    ("fields", "on", "label", "role_label", "location"),
    [
        ({}, None, "pid 100", "pid 100", ""),
        ({"rank": 0}, None, "rank 0", "rank 0", "pid 100"),
        ({"rank": 3}, 2, "rank 3", "rank 3", "pid 100, GPU 2"),
        (
            {"rank": 3, "roles": {"pp": 1, "tp": 0}},
            2,
            "rank 3",
            "rank 3 (pp 1, tp 0)",
            "pp 1, tp 0, pid 100, GPU 2",
        ),
        ({}, 2, "pid 100", "pid 100", "GPU 2"),
    ],
)
def test_a_rank_is_called_by_number_roles_process_and_gpu(
    fields: dict[str, object], on: int | None, label: str, role_label: str, location: str
) -> None:
    state = _state(**fields)
    state.gpu = None if on is None else GpuState(gpu(on), NOW)
    assert (state.label, state.role_label, state.location) == (label, role_label, location)


def test_an_alert_points_to_the_gpu_that_is_known() -> None:
    state = _state(gpu_uuid="GPU-far")
    assert state.alert_target() == ("GPU-far", 100)
    assert state.concerned_keys() == {state.key}
    state.gpu = GpuState(gpu(2), NOW)
    assert state.alert_target() == (gpu(2).uuid, 100)
    assert state.concerned_keys() == {state.key, gpu(2).uuid}


@pytest.mark.parametrize(("attached_at", "at"), [(5.0, 5.0), (None, 0.0), (math.nan, 0.0)])
def test_the_key_of_a_process_has_the_time_at_which_it_attached(attached_at: float | None, at: float) -> None:
    assert rank_key(rank(7, attached_at=attached_at)) == ("node", 7, at)


# ---- jobs ----


def _member(number: int | None, pid: int = 0, **fields: object) -> RankState:
    seen = {
        "rank": number,
        "world_size": 4,
        "job": "run",
        "step": 1,
        "attached_at": 1.0,
        "last_step_at": NOW,
        **fields,
    }
    state = RankState(rank(pid or 100 + (number or 0), **seen), NOW)
    state.update(state.rank, NOW)
    return state


def _pids(jobs: list[JobState]) -> list[list[int]]:
    return [[state.rank.pid for state in job.ranks] for job in jobs]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([_member(0), _member(1)], [[100, 101]]),
        ([_member(1), _member(0, job="other")], [[101], [100]]),
        ([_member(0), _member(None, 7)], [[100], [7]]),
        ([_member(0, world_size=2), _member(1, world_size=2)], [[100, 101]]),
        ([_member(0, world_size=1), _member(1, world_size=1)], [[100], [101]]),
        ([_member(0, world_size=None), _member(1, world_size=None)], [[100], [101]]),
        ([_member(0), _member(1), _member(0, 200, attached_at=2.0)], [[100, 101], [200]]),
        (
            [_member(0, state="gone"), _member(1, attached_at=5.0), _member(0, 200, attached_at=6.0)],
            [[101, 200], [100]],
        ),
        ([_member(1, state="gone"), _member(0, attached_at=5.0)], [[100, 101]]),
        ([_member(2, 300), _member(1, 250, attached_at=None)], [[250, 300]]),
    ],
)
def test_a_job_has_each_rank_once(members: list[RankState], expected: list[list[int]]) -> None:
    found = sorted(_pids(group_jobs(members)))
    assert found == sorted(expected)


@pytest.mark.parametrize(("sizes", "expected"), [((None, None), 2), ((8, 8), 8), ((1, 1), 2), ((None, 16), 16)])
def test_the_world_of_a_job_is_at_least_what_is_seen(sizes: tuple[int | None, ...], expected: int) -> None:
    job = JobState([_member(place, world_size=size) for place, size in enumerate(sizes)])
    assert job.world_size == expected


def test_a_job_is_silent_if_one_of_its_ranks_is() -> None:
    recent, old = _member(0), _member(1, last_step_at=NOW - 5.0)
    assert JobState([recent, old]).is_silent(False)
    assert not JobState([recent, old]).is_silent(True)
    assert not JobState([recent]).is_silent(False)


def test_a_job_stands_for_its_ranks() -> None:
    second, first = _member(1, gpu_uuid="GPU-b"), _member(0, gpu_uuid="GPU-a")
    job = JobState([second, first])
    assert job.alert_target() == ("GPU-b", 101)
    assert job.concerned_keys() == {first.key, second.key}
    assert job.key == first.key
    assert job.is_updated


def test_a_job_with_other_ranks_keeps_what_its_rules_know() -> None:
    before, after = JobState([_member(0)]), JobState([_member(0), _member(1)])
    before.memo, before.imbalance = object(), object()
    after.keep(before)
    assert (after.memo, after.imbalance, after.losses) == (before.memo, before.imbalance, before.losses)


@pytest.mark.parametrize(("count", "is_found"), [(1, False), (2, True)])
def test_a_job_compares_the_losses_of_its_ranks(count: int, is_found: bool) -> None:
    members = [_member(place) for place in range(count)]
    job = JobState(members)
    for step in range(103):
        for place, state in enumerate(members):
            state.health.new_losses = [("loss", step, 1.0 if step < 100 else 1.0 + place)]
        job.compare_losses()
    assert (job.losses.divergence is not None) is is_found


def test_a_rank_that_counts_anew_is_another_process() -> None:
    seen: Rank = rank(7, attached_at=5.0)
    assert RankState(seen, NOW).key == rank_key(seen)
    assert RankState(seen, NOW).is_updated
