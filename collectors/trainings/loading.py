"""Samples the loader of a training whose steps wait for data, and adds the result to the snapshot.

A training that does not wait is never sampled. One that waits is, for three seconds per minute, from outside and
without a pause (py-spy and /proc). One training at a time.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from msgspec.structs import replace

from llmtop.errors import LlmtopError
from llmtop.model.snapshot import LoadingCost, Rank, Snapshot
from llmtop.naming.phase_names import role_of
from llmtop.rules.recent_steps import WAITED_PCT

SAMPLING_SECONDS: Final = 60.0
BUSY_PCT: Final = 100.0 - WAITED_PCT[0]
"""A GPU that is busier than that does not wait for its data."""


class LoaderCosts:
    """A stage of the live pipeline. Sampling runs in a thread of its own that ends with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looking = False
        self._next: dict[int, float] = {}
        self._found: dict[int, LoadingCost] = {}

    def __repr__(self) -> str:
        return "what loaders cost"

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with what is known of the loaders of trainings that wait for them."""
        waiting = {rank.pid: rank for rank in snapshot.ranks if is_waiting_for_data(rank)}
        now = time.monotonic()
        with self._lock:
            self._found = {pid: cost for pid, cost in self._found.items() if pid in waiting}
            due = [pid for pid in waiting if now >= self._next.get(pid, 0.0)]
            if due and not self._looking:
                pid = min(due, key=lambda one: self._next.get(one, 0.0))
                self._looking = True
                self._next[pid] = now + SAMPLING_SECONDS
                rank = waiting[pid]
                mean = rank.step_seconds_mean or rank.step_seconds_p50
                threading.Thread(target=self._sample, args=(pid, mean), name="llmtop-loading", daemon=True).start()
            found = dict(self._found)
        if not found:
            return snapshot
        ranks = tuple(replace(rank, loading=found.get(rank.pid)) for rank in snapshot.ranks)
        return replace(snapshot, ranks=ranks)

    def _sample(self, pid: int, step_seconds: float | None) -> None:
        from llmtop.capture.py_spy.loading import sample_burst

        cost = None
        try:
            cost = sample_burst(pid, step_seconds)
        except LlmtopError:
            pass  # key s shows why it cannot be read
        finally:
            with self._lock:
                self._looking = False
                if cost is not None:
                    self._found[pid] = cost


def is_waiting_for_data(rank: Rank) -> bool:
    """Return True if its steps wait for data as long as the alert asks for, and no GPU is seen to be kept busy."""
    step = rank.step_seconds_mean or rank.step_seconds_p50
    if rank.state != "running" or not step:
        return False
    if rank.gpu_busy_pct is not None and not rank.gpu_busy_bound and rank.gpu_busy_pct > BUSY_PCT:
        return False
    waited = sum(one.host_seconds for one in rank.phases if "/" not in one.name and role_of(one.name) == "input")
    return 100.0 * waited / step >= WAITED_PCT[0]
