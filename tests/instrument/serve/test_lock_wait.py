"""How the server thread got Python's lock after a sleep.

Expected times are in ms: late after the end of the sleep, and the latest moment that a sample can be of after it.
"""

from __future__ import annotations

import resource
import sys
import time
from types import SimpleNamespace

import pytest

from llmtop.instrument.serve import lock_wait
from llmtop.instrument.serve.lock_wait import LockWait
from llmtop.system import procfs

MS = 1_000_000


@pytest.mark.parametrize(
    ("late", "waits", "without_cpu", "expected"),
    [
        (0.1, 0, 0.0, (False, False, 0.0, None)),
        (30.0, 0, 29.0, (False, False, 0.0, None)),
        (7.0, 2, 0.0, (True, False, 2.0, 5.0)),
        (30.0, 3, 21.0, (True, False, 4.0, 26.0)),
        (3.0, 1, 0.0, (None, True, 0.0, 0.0)),
        (20.0, 2, 18.0, (None, True, 0.0, 18.0)),
        (4.0, 3, 0.0, (None, False, 0.0, 0.0)),
        (20.0, 2, None, (None, False, 0.0, None)),
        (0.1, -1, 0.0, (False, False, 0.0, None)),
        (9.0, -1, 0.0, (None, False, 0.0, None)),
    ],
    ids=[
        *("at once", "late without a CPU", "requested", "requested, and late without a CPU", "given up"),
        *("given up, and late without a CPU", "taken back", "time without a CPU unknown"),
        *("at once, switches not counted", "late, switches not counted"),
    ],
)
def test_time_without_a_cpu_is_no_wait_for_the_lock(
    late: float,
    waits: int,
    without_cpu: float | None,
    expected: tuple[bool | None, bool, float, float | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = {"ns": 0, "switches": 5}
    cpu_waits = iter([1 * MS, None if without_cpu is None else round((1 + without_cpu) * MS)])
    monkeypatch.setattr(sys, "getswitchinterval", lambda: 0.005)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock["ns"])
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_nvcsw=clock["switches"]))
    monkeypatch.setattr(procfs, "own_cpu_wait_ns", lambda: next(cpu_waits))
    wait = LockWait()
    wait.begin(0.05)
    clock["ns"] += round((50 + late) * MS)
    clock["switches"] += 1 + waits
    wait.end(timed_out=True)
    due, latest = 50 * MS, wait.latest_ns
    latest_ms = None if latest is None else (latest - due) / MS
    assert (wait.held, wait.is_given_up, wait.after_request_ns / MS, latest_ms) == expected
    assert wait.was_held_since_ns == (due if waits > 0 else None)


def test_a_sleep_that_an_event_ended_proves_nothing() -> None:
    wait = LockWait()
    wait.begin(0.05)
    wait.end(timed_out=False)
    assert (wait.late_ns, wait.held, wait.is_given_up) == (None, None, False)
    assert wait.was_held_since_ns is wait.latest_ns is None


def test_the_time_without_a_cpu_is_read_only_while_samples_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"ns": 0, "switches": 5, "reads": 0}

    def read() -> int:
        clock["reads"] += 1
        return MS

    def sleep(wait: LockWait, late_ms: int) -> None:
        wait.begin(0.05)
        clock["ns"] += (50 + late_ms) * MS
        clock["switches"] += 3
        wait.end(timed_out=True)

    monkeypatch.setattr(sys, "getswitchinterval", lambda: 0.005)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock["ns"])
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_nvcsw=clock["switches"]))
    monkeypatch.setattr(procfs, "own_cpu_wait_ns", read)
    wait = LockWait()
    for _ in range(3 * lock_wait.READ_SLEEPS):
        sleep(wait, 7)
    assert clock["reads"] == lock_wait.READ_SLEEPS
    assert (wait.held, wait.is_given_up) == (None, False)  # not known this time, but from now on
    sleep(wait, 7)
    assert (wait.held, wait.after_request_ns) == (True, 2 * MS)
