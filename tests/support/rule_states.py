"""States that rules judge, after one snapshot: a GPU whose means are its latest values, and a rank with steps."""

from __future__ import annotations

from typing import Any, Final

from llmtop.model.snapshot import Phase, Step
from llmtop.rules.state.gpu import GpuState
from llmtop.rules.state.rank import RankState
from tests.support.snapshots import gpu, rank

NOW: Final = 1000.0
STEP_SECONDS: Final = 10.0


def gpu_state(index: int = 2, **values: Any) -> GpuState:
    """Return a GPU with a power limit of 700 W after one sample."""
    board = gpu(index, **{"power_limit_watts": 700.0, **values})
    state = GpuState(board, NOW)
    state.update(board, NOW)
    return state


def rank_state(*steps: Step, on: dict[str, Any] | None = None, pid: int = 100, **fields: Any) -> RankState:
    """Return a rank after the snapshot at `NOW`.

    Args:
        steps: finished by then.
        on: values of its GPU; None: it has no GPU.
        pid: of the process.
        fields: of the rank.
    """
    seen = rank(pid, **{"step": 99, "last_step_at": NOW, "new_steps": steps, **fields})
    state = RankState(seen, NOW)
    state.update(seen, NOW)
    state.gpu = None if on is None else gpu_state(**on)
    return state


def steps_of(
    host: dict[str, float], gpu: dict[str, float] | None = None, count: int = 8, **fields: Any
) -> list[Step]:
    """Return steps of ten seconds.

    Args:
        host: percent of the step in each phase, by the host's clock.
        gpu: the same by CUDA events; None: no step was timed.
        count: of steps.
        fields: of each step.
    """
    phases = tuple(
        Phase(
            name=name,
            host_seconds=pct / 100 * STEP_SECONDS,
            gpu_seconds=None if gpu is None else gpu.get(name, 0.0) / 100 * STEP_SECONDS,
        )
        for name, pct in host.items()
    )
    return [
        Step(**{"index": index, "started_at": float(index), "seconds": STEP_SECONDS, "phases": phases, **fields})
        for index in range(count)
    ]
