"""The rules about whether a training learns, on curves whose events are known."""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from llmtop.model.health import LoggedSeries
from llmtop.model.snapshot import Alert, Gpu, Host, Rank, Snapshot
from llmtop.recording.reader_writer import Reader
from llmtop.rules.engine import Rules
from llmtop.rules.health import HEALTH_RULES
from llmtop.rules.rule import AlertText
from llmtop.rules.state.gpu import GpuState
from llmtop.rules.state.metric_curve import Excursion
from llmtop.rules.state.rank import JobState
from llmtop.rules.state.training_health import HealthEvent
from tests.support.processes import REPOSITORY
from tests.support.rule_states import NOW, gpu_state, rank_state

HEALTH = {"non_finite", "loss_spike", "grad_norm_jump", "loss_scale_collapse", "loss_flat", "ranks_diverged"}
STEPS = 1500
AT = 900

Curves = dict[str, list[float | None]]


def curves(seed: int, noise: float = 0.02, **more: list[float | None]) -> Curves:
    """A loss that falls as a power of the step, and a gradient norm."""
    rng = random.Random(seed)
    return {
        "loss": [(2.0 + 6.0 * (1 + step / 20) ** -0.5) * math.exp(rng.gauss(0, noise)) for step in range(STEPS)],
        "grad_norm": [math.exp(rng.gauss(0, 0.2)) for _ in range(STEPS)],
        **more,
    }


def told(*ranks: Curves, each: int = 10, only_last: bool = False) -> dict[str, Alert]:
    """The first alert of each id, after snapshots of so many steps each."""
    rules, found = Rules(off=()), {}
    for begin in range(0, STEPS, each):
        steps, time = tuple(range(begin, begin + each)), 1000.0 + begin / 5
        made = tuple(
            Rank(
                pid=100 + number,
                host="node",
                rank=number if len(ranks) > 1 else None,
                world_size=len(ranks),
                gpu_uuid=f"GPU-{number}",
                job="run",
                step=steps[-1],
                last_step_at=time,
                attached_at=1.0,
                metrics={name: values[steps[-1]] for name, values in one.items()},
                new_values=()
                if only_last
                else tuple(
                    LoggedSeries(name=name, steps=steps, values=tuple(values[begin : begin + each]))
                    for name, values in one.items()
                ),
            )
            for number, one in enumerate(ranks)
        )
        gpus = tuple(Gpu(index=number, uuid=f"GPU-{number}", name="H100") for number in range(len(ranks)))
        for alert in rules.apply(Snapshot(time=time, host=Host(name="node"), gpus=gpus, ranks=made)).alerts:
            if alert.id in HEALTH:
                found.setdefault(alert.id, alert)
    return found


def changed(values: list[float | None], change: Callable[[int, float], float | None]) -> list[float | None]:
    """The values with `change(steps since AT, value)` from step `AT` on."""
    return values[:AT] + [change(place, value or 0.0) for place, value in enumerate(values[AT:])]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [0.004, 0.06])
def test_a_healthy_training_raises_nothing(seed: int, noise: float) -> None:
    assert told(curves(seed, noise)) == {}


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_one_value_that_is_not_finite_is_found(name: str, value: float | None) -> None:
    one = curves(1)
    one[name] = changed(one[name], lambda since, usual: value if since == 0 else usual)
    found = told(one)
    assert set(found) == {"non_finite"}
    alert = found["non_finite"]
    assert alert.severity == "critical"
    assert (alert.evidence["step"], alert.evidence["metric"]) == (AT, name)
    assert alert.evidence["usual_low"] < one[name][AT - 1] * 1.5 < alert.evidence["usual_high"] * 2
    assert "GPU 0" in alert.next


def test_one_overflow_below_a_loss_scale_is_its_search_and_three_are_an_alert() -> None:
    scale: list[float | None] = [65536.0] * STEPS
    once, thrice = curves(1, loss_scale=scale), curves(1, loss_scale=scale)
    once["grad_norm"] = changed(once["grad_norm"], lambda since, usual: None if since == 0 else usual)
    thrice["grad_norm"] = changed(thrice["grad_norm"], lambda since, usual: None if since < 3 else usual)
    assert told(once) == {}
    assert told(thrice)["non_finite"].evidence["metric"] == "grad_norm"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("height", [1.4, 3.0])
def test_a_spike_is_found_with_its_step_and_its_usual_range(seed: int, height: float) -> None:
    one = curves(seed)
    usual = one["loss"][AT]
    one["loss"] = changed(one["loss"], lambda since, loss: loss * (1 + (height - 1) * math.exp(-since / 15)))
    found = told(one)
    assert set(found) == {"loss_spike"}
    evidence = found["loss_spike"].evidence
    assert evidence["step"] == AT
    assert evidence["usual_low"] < usual < evidence["usual_high"] < evidence["value"]


def test_a_loss_that_does_not_come_back_is_critical() -> None:
    one = curves(3)
    one["loss"] = changed(one["loss"], lambda since, loss: loss * min(1 + since / 20, 4))
    rules_found = told(one)
    assert rules_found["loss_spike"].severity == "warning"
    assert "restart from a checkpoint" in rules_found["loss_spike"].next


def test_a_gradient_norm_that_jumps_is_found() -> None:
    one = curves(4)
    one["grad_norm"] = changed(one["grad_norm"], lambda since, norm: norm * 12 if since == 0 else norm)
    found = told(one)
    assert set(found) == {"grad_norm_jump"}
    assert found["grad_norm_jump"].evidence["step"] == AT


@pytest.mark.parametrize(("floor", "reported"), [(1e-7, set()), (0.0, set()), (0.3, {"grad_norm_jump"})])
def test_the_norm_of_a_batch_learned_by_heart_is_not_judged(floor: float, reported: set[str]) -> None:
    one = curves(1)
    # As Adam on one batch with MSE: loss and norm fall by orders of magnitude, and then the norm alone jumps.
    one["loss"] = [3.0 * math.exp(-step / 20) + floor * (1 + step % 7 / 100) for step in range(STEPS)]
    one["grad_norm"] = [
        2.0 * math.exp(-min(step, 200) / 20) * (norm or 0.0) for step, norm in enumerate(one["grad_norm"])
    ]
    one["grad_norm"] = changed(one["grad_norm"], lambda since, usual: 0.05 if since < 3 else usual)
    assert set(told(one)) - {"loss_flat"} == reported


def test_a_restart_of_the_learning_rate_is_no_spike_and_neither_is_a_warm_up() -> None:
    rate: list[float | None] = [
        1e-3 * min((step + 1) / 200, 1.0) * (1 - step % AT / STEPS) for step in range(STEPS)
    ]
    one = curves(5, lr=rate)
    one["loss"] = changed(one["loss"], lambda since, loss: loss * (1 + 0.5 * math.exp(-since / 40)))
    one["loss"][60:90] = [(loss or 0.0) * 1.5 for loss in one["loss"][60:90]]
    assert told(one) == {}


def test_a_rise_that_may_follow_an_unknown_learning_rate_is_not_judged() -> None:
    one = curves(5)
    one["loss"] = changed(one["loss"], lambda since, loss: loss * (1 + 0.4 * min(since / 60, 1.0)))
    assert told(one) == {}
    known = {**one, "lr": [1e-3] * STEPS}
    assert set(told(known)) == {"loss_spike"}


def test_a_loss_scale_collapses_and_one_that_searches_its_limit_does_not() -> None:
    searching: list[float | None] = [65536.0 / (2 if step % 600 > 300 else 1) for step in range(STEPS)]
    assert told(curves(6, loss_scale=searching)) == {}
    falling = changed(searching, lambda since, scale: scale / 2 ** min(since // 10, 10))
    alert = told(curves(6, loss_scale=falling))["loss_scale_collapse"]
    assert alert.evidence["step"] in range(AT, AT + 50)
    first: list[float | None] = [65536.0 / 2 ** min(step // 2, 8) for step in range(STEPS)]
    assert told(curves(6, loss_scale=first)) == {}, "it looks for its first limit"


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_that_stays_the_same_is_flat_since_the_step_at_which_it_stopped(seed: int) -> None:
    one = curves(seed)
    stuck = one["loss"][AT]
    one["loss"] = changed(one["loss"], lambda _since, _loss: stuck)
    found = told(one)
    assert set(found) == {"loss_flat"}
    assert found["loss_flat"].evidence["step"] == AT


def test_a_loss_that_jumps_to_a_level_and_stays_there_is_flat_and_one_that_never_falls_too() -> None:
    rng = random.Random(2)
    one = curves(3)
    one["loss"] = changed(one["loss"], lambda _since, _loss: 10.37 * math.exp(rng.gauss(0, 0.003)))
    assert told(one)["loss_flat"].evidence["step"] == AT
    never = {"loss": [10.37 * math.exp(rng.gauss(0, 0.003)) for _ in range(STEPS)]}
    assert told(never)["loss_flat"].evidence["step"] == 0


@pytest.mark.parametrize("decay", [60, 150, 400])
def test_a_loss_that_converges_is_not_flat(decay: int) -> None:
    rng = random.Random(3)
    loss: list[float | None] = [
        (1.0 + 4.0 * math.exp(-step / decay)) * math.exp(rng.gauss(0, 0.02)) for step in range(STEPS)
    ]
    assert told({"loss": loss}) == {}


def test_the_rank_whose_loss_was_equal_and_differs_is_named() -> None:
    one = curves(7)
    odd = {**one, "loss": changed(one["loss"], lambda _since, loss: loss * 1.003)}
    found = told(one, odd, one, one)
    assert set(found) == {"ranks_diverged"}
    assert found["ranks_diverged"].evidence["rank"] == 1
    assert found["ranks_diverged"].evidence["step"] == AT
    assert found["ranks_diverged"].pid == 101


@pytest.mark.parametrize("ranks", [2, 4])
def test_losses_that_differ_in_the_fifth_digit_are_shown_with_it(ranks: int) -> None:
    one = curves(7)
    other = {**one, "loss": [(value or 0.0) * (1 + 2e-5 * (step >= AT)) for step, value in enumerate(one["loss"])]}
    words = told(*[one] * (ranks - 1), other)["ranks_diverged"].summary.rstrip(".").replace(",", "").split()
    shown = {float(word) for word in words if re.fullmatch(r"\d\.\d+", word)}
    assert len(shown) == 2
    assert 1.0 < max(shown) / min(shown) < 1.0001


def test_local_losses_of_ranks_differ_from_the_first_step_and_raise_nothing() -> None:
    assert told(curves(8), curves(9)) == {}


def test_ranks_that_share_an_event_share_an_alert() -> None:
    one = curves(1)
    one["loss"] = changed(one["loss"], lambda since, loss: None if since >= 5 else loss)
    first = {**one, "loss": changed(one["loss"], lambda since, loss: None if since >= 3 else loss)}
    alert = told(one, one, first, one)["non_finite"]
    assert alert.evidence["rank"] == 2
    assert alert.evidence["step"] == AT + 3
    every = told(one, one, one, one)["non_finite"]
    assert "all 4 ranks" in every.summary


def test_a_stream_with_the_last_values_alone_is_judged_too() -> None:
    one = curves(1)
    one["loss"] = changed(one["loss"], lambda since, loss: loss * 3 if since < 100 else loss)
    found = told(one, each=5, only_last=True)
    assert set(found) == {"loss_spike"}
    assert found["loss_spike"].evidence["step"] in range(AT, AT + 10)


def test_steps_that_count_anew_begin_anew() -> None:
    """A training goes back to its checkpoint: its loss is higher again, which is no spike."""
    rules, one = Rules(off=()), curves(1)
    for number, begin in enumerate((*range(0, STEPS, 10), *range(300, 900, 10))):
        series = LoggedSeries(
            name="loss", steps=tuple(range(begin, begin + 10)), values=tuple(one["loss"][begin : begin + 10])
        )
        rank = Rank(pid=1, host="node", step=begin + 9, attached_at=1.0, new_values=(series,))
        moment = Snapshot(time=1000.0 + 2 * number, host=Host(name="node"), ranks=(rank,))
        assert not [alert for alert in rules.apply(moment).alerts if alert.id in HEALTH]


def test_a_fall_that_slows_down_is_no_spike() -> None:
    """The demo's loss falls ever more slowly; a trend that is continued promises less than what comes."""
    rules, last = Rules(off=()), math.inf
    with contextlib.closing(Reader(REPOSITORY / "llmtop" / "data" / "demo.llmtop.gz")) as reader:
        for _, snapshot in reader.snapshots():
            loss = next((rank.metrics.get("loss") for rank in snapshot.ranks), None)
            if loss is not None and loss > 1.5 * last:
                break  # another model
            last = loss or last
            assert "loss_spike" not in {alert.id for alert in rules.apply(snapshot).alerts}
    assert last < 0.01


@pytest.mark.parametrize("seed", [15, 16, 17, 19, 23, 25])
def test_the_noise_of_small_batches_once_the_loss_has_fallen_is_no_spike(seed: int) -> None:
    rng = random.Random(seed)
    # The sum of few squared errors beside a mean that vanishes: skewed, and relatively wider than before.
    loss: list[float | None] = [
        4 * math.exp(-step / 60) * math.exp(rng.gauss(0, 0.1)) + rng.gammavariate(4, 0.1) for step in range(STEPS)
    ]
    assert told({"loss": loss}) == {}


@pytest.mark.parametrize("seed", [7005, 7009, 7012, 7024])
def test_the_squared_error_of_one_sample_a_batch_is_no_spike(seed: int) -> None:
    """Chi-square noise: seven standard deviations are exceeded once in 1,800 values."""
    rng = random.Random(seed)
    assert told({"loss": [4 * math.exp(-step / 60) + rng.gauss(0, 1) ** 2 for step in range(STEPS)]}) == {}


@pytest.mark.parametrize("seed", range(4))
def test_a_rise_that_lasts_is_a_spike_also_in_the_noise_of_small_batches(seed: int) -> None:
    rng = random.Random(seed)
    loss: list[float | None] = [rng.gammavariate(4, 0.1) for _ in range(STEPS)]
    loss = changed(loss, lambda since, value: value + 5.0 * math.exp(-since / 15))
    found = told({"loss": loss})
    assert set(found) == {"loss_spike"}
    assert AT <= found["loss_spike"].evidence["step"] <= AT + 1


def test_another_training_in_the_same_process_is_no_spike() -> None:
    """All of the demo: its second model has 127 tokens per step instead of 16,384, and begins with a high loss."""
    rules, losses = Rules(off=()), []
    with contextlib.closing(Reader(REPOSITORY / "llmtop" / "data" / "demo.llmtop.gz")) as reader:
        for _, snapshot in reader.snapshots():
            losses += [rank.metrics.get("loss") or 0.0 for rank in snapshot.ranks]
            assert not HEALTH & {alert.id for alert in rules.apply(snapshot).alerts}
    assert max(losses[-80:]) < 1 < max(losses[100:])


# ---- events in words, and how long they stay ----

RULES = {rule.id: rule for rule in HEALTH_RULES}


def job(
    *events: dict[str, HealthEvent], age: float = 0.0, on: dict[int, GpuState] | None = None, **fields: Any
) -> JobState:
    """Ranks with these events; the fields are those of each rank."""
    states = []
    for place, one in enumerate(events):
        number = place if len(events) > 1 else None
        state = rank_state(pid=100 + place, **{"rank": number, "world_size": len(events), **fields})
        state.health.events.update(one)
        state.gpu = (on or {}).get(place)
        states.append(state)
    found = JobState(states)
    found.now = NOW + age
    return found


def event(step: int = 900, value: float | None = 3.0, **fields: Any) -> HealthEvent:
    return HealthEvent(**{"metric": "loss", "step": step, "value": value, "seen_at": NOW, **fields})


def excursion(points: int = 5, is_open: bool = True) -> Excursion:
    return Excursion(
        step=900,
        value=8.25,
        usual_low=1.0,
        usual_high=2.0,
        spread=0.1,
        last_step=901,
        points=points,
        is_open=is_open,
    )


@pytest.mark.parametrize(
    ("one", "age", "state", "expected"),
    [
        (event(), 60.0, "running", True),
        (event(), 60.1, "running", False),
        (event(is_open=True), 9e9, "running", True),
        (event(is_open=True), 60.1, "gone", False),
        (event(is_open=True), 60.0, "gone", True),
        (event(excursion=excursion()), 9e9, "running", True),
        (event(is_open=True, excursion=excursion(is_open=False)), 60.1, "running", False),
    ],
)
def test_an_event_of_one_step_stays_for_a_minute(one: HealthEvent, age: float, state: str, expected: bool) -> None:
    assert RULES["loss_spike"].holds(job({"loss_spike": one}, age=age, state=state), False) is expected
    assert not RULES["loss_flat"].holds(job({"loss_spike": one}, age=age, state=state), False)


@pytest.mark.parametrize(
    ("steps", "where", "named", "ranks"),
    [
        ((900,), "on pid 100", None, 1),
        ((900, 901), "on rank 0 (pid 100)", 0, 1),
        ((901, 900), "on rank 1 (pid 101)", 1, 1),
        ((900, 900), "on all 2 ranks", 0, 2),
        ((901, 900, 900, 900), "on rank 1 and 2 more of 4 ranks", 1, 3),
        ((901, 900, 900), "on rank 1 and 1 more of 3 ranks", 1, 2),
    ],
)
def test_the_ranks_of_the_earliest_step_are_named(
    steps: tuple[int, ...], where: str, named: int | None, ranks: int
) -> None:
    shown = RULES["grad_norm_jump"].describe(
        job(*({"grad_norm_jump": event(step, metric="grad_norm")} for step in steps))
    )
    assert shown.summary == f"The gradient norm jumped to 3 at step 900 {where}."
    assert (shown.evidence["rank"], shown.evidence["ranks"], shown.evidence["step"]) == (named, ranks, 900)
    assert shown.points == ("norm jumped to 3 at step 900", where.partition(" (")[0])


@pytest.mark.parametrize(
    ("one", "severity", "value", "last"),
    [
        (event(excursion=excursion(99)), "warning", "8.25", "the loss is still high"),
        (event(excursion=excursion(100)), "critical", "8.25", "the loss is still high"),
        (event(excursion=excursion(100, is_open=False)), "warning", "8.25", "the loss is normal again"),
        (event(), "warning", "3", "the loss is normal again"),
    ],
)
def test_a_spike_that_lasts_for_a_hundred_values_is_critical(
    one: HealthEvent, severity: str, value: str, last: str
) -> None:
    one.usual = 1.0, 2.0
    shown = RULES["loss_spike"].describe(job({"loss_spike": one}))
    assert shown.severity == severity
    assert shown.summary == f"The loss rose to {value} at step 900 on pid 100; usual: 1 to 2."
    assert shown.points == (f"loss rose to {value} at step 900", "on pid 100", "usual: 1 to 2", last)
    assert shown.next.startswith("restart from" if severity == "critical" else "check the data of step 900")
    assert (shown.evidence["usual_low"], shown.evidence["usual_high"], shown.evidence["value"]) == (1.0, 2.0, 3.0)


def test_a_norm_that_jumped_is_described_by_its_furthest_value() -> None:
    one = event(metric="grad_norm", excursion=excursion())
    assert "jumped to 8.25" in RULES["grad_norm_jump"].describe(job({"grad_norm_jump": one})).summary


@pytest.mark.parametrize(
    ("metric", "is_open", "words"),
    [
        ("loss", True, "The loss is NaN or Inf since step 900"),
        ("grad_norm", False, "The gradient norm is NaN or Inf at step 900"),
        ("loss_scale", False, "The loss scale is NaN or Inf at step 900"),
    ],
)
def test_a_value_that_is_not_finite_is_named(metric: str, is_open: bool, words: str) -> None:
    shown = RULES["non_finite"].describe(job({"non_finite": event(value=None, metric=metric, is_open=is_open)}))
    assert shown.summary.startswith(words)
    assert (shown.evidence["value"], shown.evidence["metric"]) == ("not finite", metric)
    assert shown.severity == "critical"


@pytest.mark.parametrize(
    ("on", "fields", "words"),
    [
        (None, {}, "check the memory errors of its machine"),
        (None, {"gpu_uuid": "GPU-far"}, "check the Xid and ECC errors of its GPU"),
        (gpu_state(2), {}, "check the Xid and ECC errors of GPU 2"),
        (gpu_state(2, error="Xid 79"), {}, "GPU 2 reports Xid 79"),
    ],
)
def test_where_one_rank_is_concerned_its_hardware_is_checked(
    on: GpuState | None, fields: dict[str, Any], words: str
) -> None:
    cards = {} if on is None else {0: on}
    nan = {"non_finite": event(value=None)}
    assert RULES["non_finite"].describe(job(nan, on=cards, **fields)).next.endswith(words)
    assert RULES["non_finite"].describe(job(nan, {}, on=cards, **fields)).next.endswith(words)
    assert words not in RULES["non_finite"].describe(job(nan, nan, on=cards, **fields)).next


@pytest.mark.parametrize(("value", "severity"), [(1.0, "warning"), (0.5, "critical"), (None, "warning")])
def test_a_loss_scale_below_one_is_critical(value: float | None, severity: str) -> None:
    one = event(value=value, metric="loss_scale")
    assert RULES["loss_scale_collapse"].describe(job({"loss_scale_collapse": one})).severity == severity


def test_a_flat_loss_is_a_note_with_its_value() -> None:
    shown = RULES["loss_flat"].describe(job({"loss_flat": event(is_open=True)}))
    assert (shown.severity, shown.points[0], shown.points[-1]) == (
        "info",
        "loss is unchanged since step 900",
        "loss 3",
    )
    assert shown.since == NOW


def test_the_begin_is_no_later_than_the_snapshot() -> None:
    late = event(seen_at=NOW + 5.0)
    assert RULES["loss_flat"].describe(job({"loss_flat": late})).since == NOW


def diverged(*values: float, on: dict[int, GpuState] | None = None) -> AlertText:
    """The alert on losses that were equal for 100 steps, and then had these values for three."""
    found = job(*({} for _ in values), on=on)
    for step in range(103):
        for place, state in enumerate(found.ranks):
            state.health.new_losses = [("loss", step, 2.0 if step < 100 else values[place])]
        found.compare_losses()
    assert RULES["ranks_diverged"].holds(found, False)
    return RULES["ranks_diverged"].describe(found)


@pytest.mark.parametrize(
    ("values", "who", "numbers", "points", "rank", "odd"),
    [
        (
            (2.0, 2.5, 2.0),
            "The loss of rank 1 differs from that of the other 2 ranks",
            "2.5, the others 2.",
            ("rank 1 has 2.5", "the others have 2"),
            1,
            1,
        ),
        (
            (2.5, 3.0, 2.0, 2.0, 2.0),
            "The losses of 2 of 5 ranks differ from that of the others",
            "2.5, the others 2.",
            ("rank 0 has 2.5", "the others have 2"),
            0,
            2,
        ),
        ((2.0, 2.5), "The losses of 2 ranks differ from each other", "from 2 to 2.5.", ("2 ranks",), None, 2),
        (
            (2.0, 2.0001, 2.0),
            "The loss of rank 1 differs from that of the other 2 ranks",
            "2.0001, the others 2.",
            ("rank 1 has 2.0001", "the others have 2"),
            1,
            1,
        ),
        (
            (math.nan, math.nan, 2.5, 3.0),
            "The losses of 4 ranks differ from each other",
            "from 2.5 to 3.",
            ("4 ranks",),
            None,
            4,
        ),
    ],
    ids=str,
)
def test_ranks_whose_losses_differ_are_described_by_their_majority(
    values: tuple[float, ...], who: str, numbers: str, points: tuple[str, ...], rank: int | None, odd: int
) -> None:
    shown = diverged(*values)
    assert shown.summary == f"{who} since step 100, after 100 equal steps: {numbers}"
    assert shown.points == ("losses of ranks differ, step 100", *points, "equal for 100 steps before")
    assert (shown.evidence["rank"], shown.evidence["ranks"], shown.evidence["equal_steps"]) == (rank, odd, 100)
    assert shown.evidence["usual_low"] == shown.evidence["usual_high"] == (None if rank is None else 2.0)
    assert ("their GPUs" in shown.next) is (rank is None)
    assert (shown.subject_rank is None) is (rank is None)
