"""What llmtop says that it costs: told to monitors, and found out without a trace in the steps."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collectors.trainings.bounds import Bounds
from llmtop.instrument.serve.overhead import hot_path_ns
from llmtop.protocol import wire
from tests.support.trainings import STEPPING, Heard, Training, connect

COSTS = """
import json, sys, time
import llmtop
from llmtop.instrument.record import costs, recorder
costs.SOON_NS = costs.LATER_NS = 0
r = recorder.get()
heard = []

class Annotation:
    def __init__(self, name):
        heard.append(name)
    def __enter__(self):
        return self
    def __exit__(self, *error):
        pass

def run(steps):
    for _ in range(steps):
        r.periodic_in = 1  # a sample after each step
        with llmtop.phase("dataload"):
            time.sleep(0.0005)
        with llmtop.step(tokens=7):
            with llmtop.phase("forward"):
                time.sleep(0.001)
                with llmtop.phase("attention"):
                    pass

run(20)
r.annotate_with(Annotation)
run(10)
r.annotate_with(None)
first, rows = r.ring.read(0, 100)
names = r.paths.names
found = [
    {"index": row[0], "took": row[2], "interval": row[3], "tokens": row[4],
     "phases": {names[i]: row[6 + 2 * i : 8 + 2 * i] for i in range(len(names)) if row[7 + 2 * i]}}
    for row in rows
]
print(json.dumps({"steps": found, "heard": heard, "known": r.costs.has_samples, "cold_ns": r.costs.cold_ns(),
    "warm_ns": r.costs.warm_ns(), "children": sorted(r.root.children), "left_out": r.left_out,
    "periodic_ns": r.costs.periodic_ns}))
"""


def test_what_calls_cost_is_found_out_without_a_trace_in_the_steps(runtime_dir: Path) -> None:
    with Training(COSTS, LLMTOP_DIR=str(runtime_dir)) as training:
        out, err = training.finish()
    assert err == ""
    found = json.loads(out)
    assert found["known"]
    assert min(found["cold_ns"], found["warm_ns"], found["periodic_ns"]) > 0
    assert found["children"] == ["dataload", "forward"]
    assert found["left_out"] == {}
    assert found["heard"] == ["dataload", "forward", "attention"] * 10
    steps = found["steps"]
    assert [step["index"] for step in steps] == list(range(30))
    for step in steps:
        assert step["tokens"] == 7
        phases = step["phases"]
        assert {name: count for name, (_, count) in phases.items()} == {
            "dataload": 1, "forward": 1, "forward/attention": 1,
        }  # fmt: skip
        assert phases["dataload"][0] + phases["forward"][0] <= step["took"]
        assert phases["forward"][0] >= 1_000_000
    for before, after in pairwise(steps):
        assert after["interval"] >= before["took"], "a step's beginning is not moved back into the one before"


TAKEN = """
import sys, threading, time
from types import SimpleNamespace
from llmtop.instrument.record.taken_time import TakenTime, processor_ns, thread_clock

costs = SimpleNamespace(native_id=threading.get_native_id(), others=[])
clock = thread_clock(costs.native_id)
taken = TakenTime(SimpleNamespace(costs=costs))
stop = threading.Event()

def beside():
    taken.begin()
    if sys.argv[1] == "holds":
        sum(range(5_000_000))
    until = processor_ns(clock) + 50_000_000
    while sys.argv[1] == "sleeps" and processor_ns(clock) < until:
        time.sleep(0.01)
    taken.end()
    stop.set()

sys.setswitchinterval(100)
thread = threading.Thread(target=beside)
thread.start()
while not stop.is_set():
    sum(range(1000))
    time.sleep(0)
print(len(costs.others), taken.busy_ns, taken.ran_ns, processor_ns(thread_clock(1 << 22)))
"""


@pytest.mark.parametrize("other", ["holds", "sleeps"])
def test_a_training_waits_for_a_thread_that_holds_the_lock_and_for_no_other(other: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TAKEN, other], capture_output=True, text=True, check=True, timeout=240
    )
    others, busy, ran, of_no_thread = map(int, done.stdout.split())
    assert (others, of_no_thread) == (1, 0)
    assert busy > 0
    assert (ran >= 50_000_000) == (other == "sleeps")


@pytest.mark.slow("waits for two messages, which come seconds apart")
def test_a_monitor_is_told_again_and_again(runtime_dir: Path) -> None:
    with Training(STEPPING, LLMTOP_DIR=str(runtime_dir)) as training, connect(runtime_dir, training) as connection:
        heard = Heard(connection)

        def told() -> list[int]:
            return [message.step_ns for message in heard.messages if isinstance(message, wire.Overhead)]

        heard.until(lambda: len(told()) >= 2)
        longest = max(step.interval_ns or 0 for step in heard.steps)
        assert all(0 < one < longest for one in told())


def test_a_server_of_requests_that_overlap_says_nothing_of_it(runtime_dir: Path) -> None:
    requests = STEPPING.replace("tokens=10", 'tokens=10, kind="request"')
    with Training(requests, LLMTOP_DIR=str(runtime_dir)) as training, connect(runtime_dir, training) as connection:
        heard = Heard(connection)
        heard.until(lambda: len(heard.steps) > 400)
        assert not [message for message in heard.messages if isinstance(message, wire.Overhead)]


def _hot_path_us(gap_us: float, *, auto: bool = False, phase_us: float = 250.0) -> float:
    """Of steps with four phases, where a call takes 2 µs with cold caches and 0.5 µs with warm ones."""
    row = (0, 0, 1e3 * (4 * phase_us + 5 * gap_us), 0, None, None, *4 * (1e3 * phase_us, 1))
    nodes = {str(place): SimpleNamespace(slot=2 * place) for place in range(4)}
    recorder: Any = SimpleNamespace(
        ring=SimpleNamespace(count=64, read=lambda first, limit: (first, limit * [row])),
        root=SimpleNamespace(children=nodes),
        facts=SimpleNamespace(auto=auto),
        manual_used=not auto,
        watch=None,
    )
    costs: Any = SimpleNamespace(cold_ns=lambda: 2000.0, warm_ns=lambda: 500.0)
    return hot_path_ns(recorder, costs) / 1e3


def test_time_between_phases_that_follow_each_other_says_what_a_phase_costs() -> None:
    # Two phases for the step itself and four more; GAP_FACTOR is 2.4.
    assert _hot_path_us(1.0) == pytest.approx(6 * 2.4 * 1.0)
    assert _hot_path_us(0.8) == pytest.approx(6 * 2.4 * 0.8)


def test_code_of_the_script_between_phases_is_not_taken_for_llmtop() -> None:
    assert _hot_path_us(100.0) == pytest.approx(6 * 2.0)
    assert _hot_path_us(0.0) == pytest.approx(6 * 2.0)


def test_hooks_have_other_code_between_their_phases() -> None:
    assert _hot_path_us(1.0, auto=True) == pytest.approx((2 + 4 * 3.8) * 2.0)


def test_short_phases_leave_the_caches_as_they_are() -> None:
    # 17 µs between two calls: in the middle between 10 µs, where all is kept, and 24 µs, where all is lost.
    assert _hot_path_us(0.0, phase_us=42.5) == pytest.approx(6 * (0.5 * 2.0 + 0.5 * 1.7 * 0.5))
    assert _hot_path_us(0.0, phase_us=5.0) == pytest.approx(6 * 1.7 * 0.5)


@pytest.mark.parametrize("step_ns", [-1, 1 << 60])
def test_what_cannot_be_is_not_taken_in_and_its_neighbours_are(step_ns: int) -> None:
    right = wire.Overhead(step_ns=12_000)
    assert list(Bounds().take([wire.Overhead(step_ns=step_ns), right])) == [right]
