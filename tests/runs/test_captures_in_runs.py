"""Time that captures by llmtop take from a training: named in its run, and no fault of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmtop.instrument.record.capture_holds import CaptureHolds
from llmtop.instrument.run_log.sums import Sums
from llmtop.naming.own_phases import OUTSIDE
from llmtop.runs import ledger, records, store
from tests.runs.test_run_files import finish, start
from tests.support.preloaded import llmtop
from tests.support.processes import environment, wait_for

HELD = """
import sys, time, llmtop
from llmtop.instrument.record.recorder import get
for number in range(int(sys.argv[1])):
    with llmtop.step():
        with llmtop.phase("forward"):
            time.sleep(float(sys.argv[2]) + (1.0 if number == 12 else 0.0))
    if number == 11:
        stamps = [time.monotonic()]
        get().holds.begin("torch.profiler")
        stamps.append(time.monotonic())
        time.sleep(1.5)
    elif number == 12:
        stamps.append(time.monotonic())
        get().holds.end()
        print(*stamps, time.monotonic(), flush=True)
"""
USUAL = 0.25
"""Seconds of a usual step at most, on a busy machine as well: a step that was held is longer than that by less."""


def held(line: str) -> tuple[float, float]:
    """The least and the most seconds of the stretch, by the stamps around its begin and its end."""
    before, begun, ending, ended = map(float, line.split())
    return ending - begun, ended - before


def rows(*lengths: tuple[float, float]) -> Iterator[records.StepRow]:
    """Yield steps of (seconds before, seconds)."""
    at = 0.0
    for number, (before, seconds) in enumerate(lengths):
        at += before
        yield (number, int(at * 1e9), int(seconds * 1e9), None, None, None, [("forward", int(seconds * 5e8), 1)])
        at += seconds


@pytest.mark.parametrize(
    ("held", "taken", "stalled"),
    [
        ([], 0.0, 98.0),
        ([(10.0, 50.0)], 40.0, 59.0),
        ([(10.0, 25.0), (25.0, 50.0)], 40.0, 59.0),
        ([(10.0, 50.0), (50.0, 111.0)], 99.0, 0.0),
    ],
)
def test_a_step_that_a_capture_held_did_not_stand_still(
    held: list[tuple[float, float]], taken: float, stalled: float
) -> None:
    """Ten steps of 1 s; 40 s between two steps, and a step of 60 s."""
    sums = Sums(0.0, 0.0)
    for begun, ended in held:
        records.add_hold(sums.state, records.Hold(begun=begun, ended=ended))
    sums.add(list(rows(*[(0.0, 1.0)] * 10, (40.0, 1.0), (0.0, 60.0), (0.0, 1.0))), 0)
    state = sums.sums()
    assert state.capture_seconds + sum(state.capture_parts.values()) == pytest.approx(taken, abs=0.5)
    assert sum(state.stalls.values()) == pytest.approx(stalled, abs=1.5)
    if not stalled:
        assert state.capture_parts[OUTSIDE] == pytest.approx(state.capture_parts["forward"], rel=0.1)


def test_the_time_of_a_capture_is_a_class_of_its_own(tmp_path: Path) -> None:
    least, most = held(finish(start(tmp_path / "runs", 40, 0.02, HELD))[0])
    (run,) = store.list_runs(tmp_path / "runs")
    found = ledger.ledger_of(run)
    assert least - USUAL <= found.seconds[ledger.CAPTURE] <= most + 0.01
    assert found.seconds[ledger.PRODUCTIVE] <= found.rank_seconds - found.seconds[ledger.CAPTURE]
    assert sum(found.seconds.values()) == pytest.approx(found.rank_seconds, rel=0.005)
    steps = [row for _, row in run.processes[0].last_steps()]
    assert [row[0] for row in steps if row[3] is None] == [0, 12, 13]
    shown = llmtop("runs", "show", env=environment(LLMTOP_RUNS=str(tmp_path / "runs"))).stdout
    assert "captures by llmtop" in shown


@pytest.mark.slow("test_the_time_of_a_capture_is_a_class_of_its_own finds the same fault")
def test_sums_that_a_killed_process_did_not_write_know_its_captures(tmp_path: Path) -> None:
    process = start(tmp_path / "runs", 4000, 0.02, HELD)
    assert process.stdout is not None
    least, most = held(process.stdout.readline())
    wait_for(lambda: ledger_seconds(tmp_path / "runs") >= least - USUAL)
    process.kill()
    process.communicate(timeout=240)
    assert least - USUAL <= ledger_seconds(tmp_path / "runs") <= most + 0.01


def ledger_seconds(runs: Path) -> float:
    """Return the seconds of captures in the only run; 0 before there is one."""
    return sum(ledger.ledger_of(run).seconds[ledger.CAPTURE] for run in store.list_runs(runs))


def test_a_stretch_under_way_is_known_in_parts() -> None:
    holds = CaptureHolds()
    assert not holds.overlap(0, 1 << 62)
    holds.begin("nsys")
    (part,) = holds.since(0)
    assert holds.overlap(part.ended_ns, 1 << 62)
    assert not holds.overlap(0, part.begun_ns)
    holds.end()
    (rest,) = holds.since(part.ended_ns)
    assert rest.begun_ns == part.begun_ns
    assert not holds.since(rest.ended_ns)
    assert not holds.overlap(rest.ended_ns, 1 << 62)
