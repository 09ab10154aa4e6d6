"""Armed captures: what fires them, and what keeps them in bounds."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest

from llmtop.capture import trigger
from llmtop.capture.base import folder
from llmtop.capture.base.job import Plan, Target
from llmtop.capture.base.step_listener import StepListener
from llmtop.capture.trigger import AlertCondition, Firing, NewAlerts, SlowStep, TriggerLimits
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.model.snapshot import Alert, Host, Snapshot
from llmtop.protocol import wire
from tests.capture.conftest import Start
from tests.capture.training_socket import training_at
from tests.capture.windows import NO_SAMPLES, sampled
from tests.support.processes import wait_for


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("step > 2x", SlowStep(medians=2.0)),
        ("step>1.5x", SlowStep(medians=1.5)),
        (" step > 800ms ", SlowStep(seconds=0.8)),
        ("step > 1.5s", SlowStep(seconds=1.5)),
        ("alert", AlertCondition()),
        ("alert:input_bound", AlertCondition("input_bound")),
    ],
)
def test_conditions_are_read(text: str, condition: trigger.Condition) -> None:
    assert trigger.parse(text) == condition
    assert trigger.parse(str(condition)) == condition


@pytest.mark.parametrize(
    "text", ["", "step", "step > x", "step > 1x", "step > 0.5x", "step < 2x", "alert:", "alert:A B"]
)
def test_what_is_no_condition_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UnusableInput, match="step > 2x"):
        trigger.parse(text)


def plan(target: Target, parent: Path, seconds: float = 0.3) -> Plan:
    return Plan("py-spy", (target,), parent, seconds=seconds)


def fired(target: Target, captures: Path, slow: SlowStep, limits: TriggerLimits) -> list[tuple[float, Firing]]:
    """When and what fires for a slow step, once more with a longer window where py-spy took no sample in one.

    Args:
        target: whose steps are listened to.
        captures: gets a folder of captures for each length of the windows.
        slow: the condition.
        limits: of all captures.
    """
    return sampled(
        lambda seconds: [
            (time.monotonic(), one)
            for one in trigger.capture_on_conditions(
                plan(target, captures / f"{seconds}", seconds), [slow], limits
            )
        ],
        lambda found: not any(NO_SAMPLES in one.error for _, one in found),
    )


@pytest.mark.slow("test_an_armed_capture_fires_and_prints_its_result finds the same fault")
def test_a_slow_step_fires_and_the_capture_says_why(start: Start, captures: Path) -> None:
    training = start("--step-ms", "20", "--slow-every", "25")
    target = training.wait_attached()
    ((_, one),) = fired(target, captures, SlowStep(medians=3.0), TriggerLimits(captures=1))
    # On a busy machine any step may be the first slow one.
    said = re.match(r"step > 3x: step \d+ of pid \d+ took ([\d.]+) (m?s), the \d+ before it", one.reason)
    assert said is not None, one.reason
    assert float(said[1]) / (1000 if said[2] == "ms" else 1) >= 3 * 0.02
    assert one.result is not None
    assert one.result.info.reason == one.reason
    training.wait_for_steps(3)


class NeverCancelled(threading.Event):
    """Counts how often an armed trigger has waited for it, and makes a file after ten times."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file, self.times = file, 0

    def wait(self, timeout: float | None = None) -> bool:
        self.times += 1
        if self.times == 10:
            self.file.touch()
        return super().wait(timeout)


def test_an_even_training_fires_nothing(start: Start, captures: Path, tmp_path: Path) -> None:
    end = tmp_path / "end"
    target = start("--step-ms", "20", "--until", str(end)).wait_attached()
    with pytest.raises(NotPossibleHere, match="ended before the condition held"):
        list(
            trigger.capture_on_conditions(
                plan(target, captures), [SlowStep(seconds=60.0)], TriggerLimits(), cancelled=NeverCancelled(end)
            )
        )
    assert not captures.exists()


@pytest.mark.slow("two captures; test_a_failed_capture_is_told_and_the_trigger_stays_armed fires twice")
def test_it_fires_at_most_so_often_and_waits_in_between(start: Start, captures: Path) -> None:
    target = start("--step-ms", "20", "--slow-every", "15").wait_attached()
    limits = TriggerLimits(captures=2, cooldown_seconds=1.0)
    (at, first), (later, second) = fired(target, captures, SlowStep(medians=2.0), limits)
    assert first.result is not None
    assert second.result is not None
    assert later - at >= 1.0
    assert len(folder.list_infos(first.result.folder.parent)) == 2


def test_a_failed_capture_is_told_and_the_trigger_stays_armed(
    start: Start, captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = start("--step-ms", "20", "--slow-every", "15").wait_attached()
    real, calls = trigger.take.take, []

    def fail_first(*arguments: object, **more: object) -> object:
        calls.append(1)
        if len(calls) % 2:
            raise NotPossibleHere("the disk is full")
        return real(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(trigger.take, "take", fail_first)
    limits = TriggerLimits(captures=2, cooldown_seconds=0)
    found = fired(target, captures, SlowStep(medians=2.0), limits)
    assert [one.error for _, one in found] == ["the disk is full", ""]


def test_the_disk_limit_disarms_it(start: Start, captures: Path) -> None:
    captures.mkdir()
    (captures / "old").write_bytes(b"x" * 1000)
    target = start().wait_attached()
    with pytest.raises(NotPossibleHere, match=r"take 1000 B, the limit is 500 B: remove some .*--disk-limit"):
        list(
            trigger.capture_on_conditions(
                plan(target, captures), [SlowStep(medians=2.0)], TriggerLimits(disk_bytes=500)
            )
        )


def test_disarming_ends_it_at_once(start: Start, captures: Path) -> None:
    target = start().wait_attached()
    cancelled = threading.Event()
    threading.Timer(0.3, cancelled.set).start()
    assert (
        list(
            trigger.capture_on_conditions(
                plan(target, captures), [SlowStep(seconds=99.0)], TriggerLimits(), cancelled=cancelled
            )
        )
        == []
    )


def test_a_process_without_steps_is_refused_a_step_condition(start: Start, captures: Path) -> None:
    training = start("--plain")
    with pytest.raises(NotPossibleHere, match="reports no steps"):
        list(
            trigger.capture_on_conditions(
                plan(Target(training.pid), captures), [SlowStep(medians=2.0)], TriggerLimits()
            )
        )


def snapshot(*alerts: Alert) -> Snapshot:
    return Snapshot(time=1.0, host=Host(name="h"), alerts=alerts)


def alert(id: str, pid: int = 1) -> Alert:
    return Alert(id=id, severity="warning", since=1.0, summary=f"{id} holds", pid=pid)


def test_only_an_alert_that_is_new_fires_and_may_come_again() -> None:
    present = [snapshot(alert("straggler"))]
    new = NewAlerts(AlertCondition(), lambda: present[0])
    assert new.check() is None, "it was there when the trigger was armed"
    present[0] = snapshot(alert("straggler"), alert("input_bound"))
    assert new.check() == "alert: input_bound holds"
    assert new.check() is None
    present[0] = snapshot()
    assert new.check() is None
    present[0] = snapshot(alert("straggler"))
    assert new.check() == "alert: straggler holds"


def test_other_alerts_do_not_fire_a_named_one() -> None:
    present = [snapshot()]
    new = NewAlerts(AlertCondition("input_bound"), lambda: present[0])
    present[0] = snapshot(alert("straggler"))
    assert new.check() is None
    present[0] = snapshot(alert("straggler"), alert("input_bound"))
    assert new.check() == "alert:input_bound: input_bound holds"


def test_a_wall_clock_that_is_set_back_hides_no_slow_step(tmp_path: Path) -> None:
    """And fires for no step twice."""
    path = tmp_path / "7.sock"
    with training_at(path) as greeted:
        watch = StepListener([(7, path)])
        training = greeted.result(60)
    hour, ms = 3600 * 10**9, 10**6
    began = time.time_ns()
    offset = began - time.monotonic_ns()

    def heard(indices: range, *, moved: int, took: int = 10) -> None:
        steps = [
            wire.StepDone(index=i, started_unix_ns=began - hour + moved + i * 20 * ms, host_ns=took * ms)
            for i in indices
        ]
        before = len(watch.steps_within(0)[7])
        training.sendall(wire.encode(wire.Steps(steps=steps, unix_offset_ns=offset - hour + moved)))
        wait_for(lambda: len(watch.steps_within(0)[7]) == before + len(steps))

    slow = trigger.SlowSteps(SlowStep(medians=3.0), watch)
    heard(range(1, 41), moved=0)  # the clock was right an hour ago, when the training attached
    assert slow.check() is None
    heard(range(41, 42), moved=-hour, took=100)
    assert "step 41 of pid 7" in (slow.check() or "")
    heard(range(42, 44), moved=-hour)
    assert slow.check() is None
    watch.close()
    training.close()
