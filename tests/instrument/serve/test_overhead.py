"""What llmtop says that it costs: told to monitors, and found out without a trace in the steps."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from collectors.trainings.bounds import Bounds
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
told = [
    {"index": row[0], "took": row[2], "interval": row[3], "tokens": row[4],
     "phases": {names[i]: row[6 + 2 * i : 8 + 2 * i] for i in range(len(names)) if row[7 + 2 * i]}}
    for row in rows
]
print(json.dumps({"steps": told, "heard": heard, "known": r.costs.has_samples, "step_ns": r.costs.step_ns(),
    "phase_ns": r.costs.phase_ns(), "children": sorted(r.root.children), "left_out": r.left_out,
    "periodic_ns": r.costs.periodic_ns}))
"""


def test_what_calls_cost_is_found_out_without_a_trace_in_the_steps(runtime_dir: Path) -> None:
    with Training(COSTS, LLMTOP_DIR=str(runtime_dir)) as training:
        out, err = training.finish()
    assert err == ""
    told = json.loads(out)
    assert told["known"]
    assert min(told["step_ns"], told["phase_ns"], told["periodic_ns"]) > 0
    assert told["children"] == ["dataload", "forward"]
    assert told["left_out"] == {}
    assert told["heard"] == ["dataload", "forward", "attention"] * 10
    steps = told["steps"]
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


@pytest.mark.parametrize("step_ns", [-1, 1 << 60])
def test_what_cannot_be_is_not_taken_in_and_its_neighbours_are(step_ns: int) -> None:
    right = wire.Overhead(step_ns=12_000)
    assert list(Bounds().take([wire.Overhead(step_ns=step_ns), right])) == [right]
