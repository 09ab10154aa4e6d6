"""What a training does in no phase, told by itself and shown by a monitor."""

from __future__ import annotations

import gc
import re
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

from collectors.trainings.bounds import MAX_CAUSES, MAX_WORDS, Bounds
from collectors.trainings.gpu_waits import MOST_MESSAGES
from collectors.trainings.outside_causes import CAUSES_SECONDS, MOST_CAUSES, OutsideCauses
from llmtop.instrument.serve.stacks.stack_words import MAX_FRAMES, StackDescriber
from llmtop.protocol import wire
from llmtop.protocol.training_facts import CODE_AFTER, SampledStep
from tests.support.processes import wait_for
from tests.support.trainings import Heard, Training, connect

LOOP = """
import gc, json, time, llmtop
def log():
    time.sleep(0.02)
def waits():
    for _ in range(2): log()
class Big: pass
held = [[Big() for _ in range(300_000)], []]
held[1].append(held)
while True:
    with llmtop.step():
        with llmtop.phase("forward"):
            time.sleep(0.01)  # never told of
    {between}
"""


def _is_named(what: str) -> bool:
    return bool(what) and not what.startswith("code after")


def _told(runtime_dir: Path, training: Training, times: int = 3) -> dict[str, int]:
    """Return the sum of so many messages, at least one of which has a line: on a busy machine most samples have
    none."""
    with connect(runtime_dir, training) as connection:
        heard = Heard(connection)

        def outside() -> list[wire.Outside]:
            return [message for message in heard.messages if isinstance(message, wire.Outside)]

        heard.until(
            lambda: len(outside()) >= times and any(any(map(_is_named, one.found)) for one in outside()), 60
        )
    found: dict[str, int] = {}
    for message in outside():
        for what, ns in message.found.items():
            found[what] = found.get(what, 0) + ns
    return found


def test_the_line_is_told_that_the_host_stands_at_between_steps(runtime_dir: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP.format(between="log()"))
    with Training(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')") as training:
        found = _told(runtime_dir, training)
    assert max(found, key=lambda what: found[what]) == "train.py:4 time.sleep(0.02)"
    # What is in a phase is the phase's; on a busy machine a sample may have its time some milliseconds late.
    assert sum(share for what, share in found.items() if "0.01" in what) < 0.1 * max(found.values())


@pytest.mark.slow("trains for seconds; test_collections_are_one_cause_with_the_line_that_starts_most has the rule")
@pytest.mark.parametrize(
    ("between", "cause"),
    [
        ("gc.collect()", "gc.collect()"),
        pytest.param(
            "held[1].append([[] for _ in range(3000)])",
            "garbage collection",
            marks=pytest.mark.slow("the automatic collection takes the same way"),
        ),
    ],
)
def test_collections_of_garbage_are_told(between: str, cause: str, runtime_dir: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    # Every second thousand of new lists sets off one of all generations.
    script.write_text(
        "import gc\ngc.set_threshold(700, 1, 1)\n" * ("collect" not in between) + LOOP.format(between=between)
    )
    with Training(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')") as training:
        found = _told(runtime_dir, training, 5)
    # On a busy machine the line of most samples is not known.
    most = max(filter(_is_named, found), key=lambda what: found[what])
    assert cause in most, found
    assert cause != "gc.collect()" or re.match(r"train\.py:(?:\d+-)?14 ", most), found


@pytest.mark.slow(
    "trains for seconds; test_what_kept_the_lock_has_the_unseen_time_after_the_same_phase has the rule"
)
def test_code_of_python_is_not_charged_to_the_call_that_gives_up_the_lock(
    runtime_dir: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    # Code of some 20 ms: samples of what keeps the lock for less than 5 ms (the switch interval) have no line.
    script.write_text(
        LOOP.format(between="encode()\n    sha256(DATA)").replace(
            "class Big",
            "from hashlib import sha256; DATA = bytes(4000)\ndef encode():\n"
            "    for i in range(1_000_000): i + 1\nclass Big",
            1,
        )
    )
    with Training(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')") as training:
        found = _told(runtime_dir, training, 5)
    most = max((what for what in found if ".py:" in what), key=lambda what: found[what])
    assert re.match(r"train\.py:(?:9|17)(?:-\d+)? ", most), found
    # A busy machine may take the CPU from the thread in that call, where the lock is free.
    charged = sum(ns for what, ns in found.items() if what.startswith("train.py:18 "))
    assert charged < found[most] / 10, found


def _sampled(
    found: dict[str, int], kept_after: dict[str, str], unit_seconds: float = 1.0
) -> list[tuple[str, float, int | None]]:
    """Return causes of a second in which each unit of time is one sample, and so many seconds of each step."""
    causes = OutsideCauses()
    (taken,) = Bounds().take([wire.Outside(found=found, samples=sum(found.values()), kept_after=kept_after)])
    assert isinstance(taken, wire.Outside)
    causes.add(taken)
    causes.step_ended()
    outside = unit_seconds * sum(found.values())
    return [(one.what, round(one.seconds, 4), one.samples) for one in causes.figures(outside, 15.0)]


LOOP_LINE, MATMUL, UNSEEN = "train.py:15 push(heap, x)", "train.py:26 a @ b", "code after the phase optimizer"


def test_what_kept_the_lock_has_the_unseen_time_after_the_same_phase() -> None:
    found = {LOOP_LINE: 3, UNSEEN: 2, MATMUL: 4}
    assert _sampled(found, {LOOP_LINE: "optimizer"}) == [(LOOP_LINE, 5.0, 3), (MATMUL, 4.0, 4)]
    assert _sampled(found, {LOOP_LINE: "forward"}) == [(MATMUL, 4.0, 4), (LOOP_LINE, 3.0, 3), (UNSEEN, 2.0, 2)]


def test_no_line_has_more_unseen_time_than_it_was_seen_for() -> None:
    found = {LOOP_LINE: 3, UNSEEN: 8}
    assert _sampled(found, {LOOP_LINE: "optimizer"}) == [(LOOP_LINE, 6.0, 3), (UNSEEN, 5.0, 8)]


def test_five_milliseconds_of_each_step_are_never_seen() -> None:
    """Code that keeps the lock for 8 ms: a sampler requests it after 5 ms, so only in the first 3 ms in time."""
    found = {LOOP_LINE: 3, UNSEEN: 6}
    assert _sampled(found, {LOOP_LINE: "optimizer"}, 0.001) == [(LOOP_LINE, 0.008, 3), (UNSEEN, 0.001, 6)]


def test_one_sample_shows_nothing_of_the_unseen_time() -> None:
    found = {LOOP_LINE: 1, UNSEEN: 5}
    assert _sampled(found, {LOOP_LINE: "optimizer"}) == [(UNSEEN, 5.0, 5), (LOOP_LINE, 1.0, 1)]
    assert _sampled(found | {LOOP_LINE: 2}, {LOOP_LINE: "optimizer"})[0] == (LOOP_LINE, 4.0, 2)


def test_time_from_before_a_place_was_known_goes_to_the_lines_seen_later() -> None:
    """Three of eight samples without a line are from then: the others were without one for another reason."""
    line = "train.py:45-46 forget(tokens)"

    def causes_of(placed_after: dict[str, str], early: dict[str, int], seen: int = 4) -> dict[str, float]:
        causes = OutsideCauses()
        found = {line: seen, UNSEEN: 8}
        message = wire.Outside(found=found, samples=8 + seen, placed_after=placed_after, early=early)
        (taken,) = Bounds().take([message])
        assert isinstance(taken, wire.Outside)
        causes.add(taken)
        causes.step_ended()
        return {one.what: round(one.seconds, 4) for one in causes.figures(8.0 + seen, 15.0)}

    assert causes_of({line: "optimizer"}, {"optimizer": 3}) == {line: 7.0, UNSEEN: 5.0}
    assert causes_of({line: "optimizer"}, {"backward": 3}) == {line: 4.0, UNSEEN: 8.0}
    assert causes_of({line: "backward"}, {"optimizer": 3}) == {line: 4.0, UNSEEN: 8.0}
    assert causes_of({line: "optimizer"}, {"optimizer": 99}) == {line: 12.0}
    assert causes_of({line: "optimizer"}, {"optimizer": 3}, seen=1) == {line: 1.0, UNSEEN: 8.0}, (
        "one sample shows nothing"
    )


def test_lines_after_one_phase_share_its_unseen_time() -> None:
    found = {LOOP_LINE: 6, "train.py:9 sort()": 2, UNSEEN: 4}
    after = {LOOP_LINE: "optimizer", "train.py:9 sort()": "optimizer", "never found": "optimizer"}
    assert _sampled(found, after) == [(LOOP_LINE, 9.0, 6), ("train.py:9 sort()", 3.0, 2)]


def test_a_line_is_one_cause_whatever_call_of_it_is_seen() -> None:
    causes = OutsideCauses()
    found = {"train.py:84 loss": 2, "train.py:84 cross_entropy(x)": 3, "train.py:81 encode(x)": 4, "": 1}
    causes.add(wire.Outside(over_ns=10, found=found))
    causes.step_ended()
    assert [(cause.what, round(cause.seconds, 3)) for cause in causes.figures(1.0, 10.0)] == [
        ("train.py:84 cross_entropy(x)", 0.5),
        ("train.py:81 encode(x)", 0.4),
    ]


def test_collections_are_one_cause_with_the_line_that_starts_most() -> None:
    causes = OutsideCauses()
    started = "garbage collection, started in train.py"
    causes.add(
        wire.Outside(
            found={f"{started}:23 loads(x)": 5, f"{started}:42 rows": 3, "train.py:42 rows": 2}, samples=10
        )
    )
    causes.step_ended()
    first, second = causes.figures(1.0, 15.0)
    assert (first.what, first.seconds, first.samples) == (f"{started}:23 loads(x)", pytest.approx(0.8), 8)
    assert (second.what, second.samples) == ("train.py:42 rows", 2)
    causes.add(wire.Outside(found={f"{started}:50 loss": 9}, samples=9))
    causes.add(wire.Outside(found={f"{started}:42 rows": 5}, samples=5))
    causes.step_ended()
    assert causes.figures(1.0, 15.0)[0].what == "garbage collection", "no line has most of them"


def test_a_look_keeps_nothing_alive_and_changes_nothing() -> None:
    class Tensor:
        pass

    begun, end, gone = threading.Event(), threading.Event(), threading.Event()

    def training() -> None:
        held = Tensor()
        weakref.finalize(held, gone.set)
        begun.set()
        end.wait(100)

    thread = threading.Thread(target=training)
    callbacks, was_enabled = len(gc.callbacks), gc.isenabled()
    gc.disable()
    try:
        thread.start()
        begun.wait(100)
        describer = StackDescriber()
        ident = thread.ident or 0
        wait_for(lambda: (first := describer.describe(ident, 0)) and first.words.endswith("end.wait(100)"))
        for step in range(20):
            seen = describer.describe(ident, step)
            assert seen is not None
            assert seen.words.startswith("test_outside_causes.py:")
            assert seen.words.endswith("end.wait(100)")
        end.set()
        thread.join(100)
        assert gone.wait(100), "without a collection of garbage"
    finally:
        if was_enabled:
            gc.enable()
    assert len(gc.callbacks) == callbacks
    assert describer.describe(thread.ident or 0, 21) is None


def test_a_deep_stack_and_odd_code_are_looked_at_all_the_same() -> None:
    describer, seen = StackDescriber(), []
    thread = threading.get_ident()

    def look(deep: int) -> None:
        if deep:
            look(deep - 1)
        else:
            done = threading.Thread(target=lambda: seen.append(describer.describe(thread, 0)))
            done.start()
            done.join(100)

    look(3 * MAX_FRAMES)
    made: dict[str, object] = {"look": look, "__name__": 7}
    exec(compile("def odd():\n    look(0)\n", "no such\x1bfile.py", "exec"), made)
    made["odd"]()  # type: ignore[operator]
    assert len(seen) == 2
    assert all(one is not None and one.waits_for == "" for one in seen)
    assert sys.getrecursionlimit() >= MAX_FRAMES


def test_causes_are_parts_of_the_time_outside() -> None:
    causes = OutsideCauses()
    assert causes.figures(0.1, 15.0) == ()
    causes.add(wire.Outside(over_ns=10**9, found={"a": 3 * 10**8, "b": 10**8}))
    causes.add(wire.Outside(over_ns=10**9, found={"a": 3 * 10**8, "c": 10**8}))
    assert causes.figures(0.08, 15.0) == (), "no step has ended since"
    causes.step_ended()
    causes.add(wire.Outside(over_ns=10**9, found={"hangs here": 10**9}))
    first, second, third = causes.figures(0.08, 15.0)
    assert (first.what, first.seconds) == ("a", pytest.approx(0.06))
    assert {second.what, third.what} == {"b", "c"}
    assert second.seconds == third.seconds == pytest.approx(0.01)
    assert causes.figures(None, None) == causes.figures(0.0, 15.0) == ()


def test_a_publisher_that_tells_too_much_is_cut_down() -> None:
    odd = {f"{number} " + "x" * 1000: 10**8 for number in range(500)} | {"": 1, "never": -5, "huge": 1 << 62}
    (taken,) = Bounds().take([wire.Outside(over_ns=-1, found=odd)])
    assert isinstance(taken, wire.Outside)
    assert len(taken.found) == MAX_CAUSES
    assert all(0 < len(what) <= MAX_WORDS for what in taken.found)
    assert taken.over_ns == 0
    causes = OutsideCauses()
    for _ in range(2000):
        causes.add(taken)
    causes.step_ended()
    assert len(causes.figures(1.0, 1e9)) == MOST_CAUSES
    (standing,) = Bounds().take([wire.StalledAt(where="y" * 10_000)])
    assert isinstance(standing, wire.StalledAt)
    assert len(standing.where) == MAX_WORDS


def _busy(slept_us: int = 0, queued_us: int = 9000) -> SampledStep:
    return SampledStep(900_000, 0, 100_000, 1000 * slept_us, 1000 * queued_us)


def _work_pct(*steps: SampledStep, overhead: float | None = None) -> float | None:
    causes = OutsideCauses()
    (taken,) = Bounds().take([wire.Outside(sampled=list(steps))])
    assert isinstance(taken, wire.Outside)
    causes.add(taken)
    return causes.work_pct(15.0, overhead)


def test_what_was_before_the_window_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    unseen, moved_on, late_alone = f"{CODE_AFTER}forward", OutsideCauses(), OutsideCauses()
    moved_on.add(
        wire.Outside(
            found={"a.py:1 f": 10**9, "b.py:2 g": 10**9, unseen: 10**9},
            samples=9,
            kept_after={"a.py:1 f": "forward"},
            placed_after={"b.py:2 g": "forward"},
            early={"forward": 10**8},
            sampled=[SampledStep(10**6, 0, 0, 0, 10**9)] * 10,
        )
    )
    moved_on.step_ended()
    now[0] += CAUSES_SECONDS + 1
    for causes in (moved_on, late_alone):
        found = {"b.py:2 g": 10**8, unseen: 3 * 10**8}
        causes.add(wire.Outside(found=found, samples=7, early={"forward": 10**8}, sampled=[_busy()] * 5))
        causes.step_ended()
    assert moved_on.figures(0.1, 15.0) == late_alone.figures(0.1, 15.0)
    assert [one.what for one in late_alone.figures(0.1, 15.0)] == ["code after the phase forward", "b.py:2 g"]
    assert moved_on.work_pct(15.0, None) == late_alone.work_pct(15.0, None) == 10.0


def test_no_more_messages_are_kept_than_fit() -> None:
    causes = OutsideCauses()
    for _ in range(MOST_MESSAGES + 100):
        causes.add(wire.Outside(found={"a.py:1 f": 10**6}, samples=1))
        causes.step_ended()
    (only,) = causes.figures(0.1, 1e9)
    assert only.samples == MOST_MESSAGES


def test_the_share_of_the_work_outside_has_no_waits_for_a_cpu() -> None:
    assert _work_pct(*[_busy()] * 20) == pytest.approx(10.0)
    assert _work_pct(*[_busy()] * 20, overhead=50e-6) == pytest.approx(100 * 50 / 950)
    assert _work_pct(*[_busy()] * 4) is None, "too few"
    assert _work_pct(*[_busy(queued_us=100)] * 20) is None, "the clock tells it"
    assert _work_pct() is None


def test_a_sleep_outside_counts_where_most_steps_have_it() -> None:
    """Python's lock, held by a thread that lacks a CPU, is a long sleep in few steps."""
    assert _work_pct(*[_busy()] * 15, *[_busy(20_000)] * 5) == pytest.approx(10.0)
    assert _work_pct(*[_busy()] * 5, *[_busy(1000)] * 15) == pytest.approx(100 * 1.1 / 2.0)


def test_sampled_steps_that_cannot_be_are_left_out() -> None:
    bad = SampledStep(-1, 0, 1 << 60, 0, 5)
    assert _work_pct(*[_busy()] * 20, *[bad] * 9) == pytest.approx(10.0)
    (huge,) = Bounds().take([wire.Outside(sampled=[_busy()] * 100_000)])
    assert isinstance(huge, wire.Outside)
    assert len(huge.sampled) <= MAX_CAUSES


BUSY = """
import llmtop
while True:
    with llmtop.step():
        with llmtop.phase("forward"):
            sum(range(60_000))
    sum(range(60_000))
"""


@pytest.mark.slow("trains for seconds; test_the_share_of_the_work_outside_has_no_waits_for_a_cpu has the rule")
def test_a_training_separates_its_waits_for_a_cpu(runtime_dir: Path) -> None:
    with Training(BUSY) as training, connect(runtime_dir, training) as connection:
        heard = Heard(connection)

        def sampled() -> list[SampledStep]:
            return [one for told in heard.messages if isinstance(told, wire.Outside) for one in told.sampled]

        heard.until(lambda: len(sampled()) >= 8, 60)
    shares = sorted(one.ran_outside_ns / (one.ran_outside_ns + one.ran_inside_ns) for one in sampled())
    assert 0.3 < shares[len(shares) // 2] < 0.7, "half of its processor time, whatever else the machine runs"
