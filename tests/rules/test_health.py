"""The rules about whether a training learns, on curves whose events are known."""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Callable

import pytest

from llmtop.model.health import LoggedSeries
from llmtop.model.snapshot import Alert, Gpu, Host, Rank, Snapshot
from llmtop.recording.reader_writer import Reader
from llmtop.rules.engine import Rules
from tests.support.processes import REPOSITORY

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
