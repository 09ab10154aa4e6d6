"""Changing parts of a process's Hello."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmtop.system.wall_clock import WallClock

if TYPE_CHECKING:
    from llmtop.instrument.identity.launcher_env import LauncherEnv, Store

DEFAULT_WARMUP_STEPS = 10
"""First steps left out of rates and percentiles: compilation, autotuning, the allocator's first growth."""


class Facts:
    """Set from any thread; `version` grows with every change, so that the server knows when to say Hello again."""

    def __init__(self) -> None:
        self.version = 0
        self.kind = "step"
        self.kind_since = 0
        """Number of steps that had finished when the kind was set."""
        self.total_steps: int | None = None
        self.warmup_steps: int | None = None
        self.flops_per_token: float | None = None
        self.dtype: str | None = None
        self.seen_total_steps: int | None = None
        """These four come from hooks; values given by the script take precedence."""
        self.seen_flops_per_token: float | None = None
        self.seen_dtype: str | None = None
        self.accumulation_steps: int | None = None
        self.flops_unknown: str | None = None
        """Why hooks, which have seen the model, do not know its operations."""
        self.rank: int | None = None
        self.local_rank: int | None = None
        self.world_size: int | None = None
        self.launch: LauncherEnv | None = None
        self.roles: dict[str, int] = {}
        """Coordinates in parallel groups by their names; read by the server thread."""
        self.store: Store | None = None
        """Where captures of several nodes are asked for; None: nowhere."""
        self.gpu_uuid: str | None = None
        self.gpu_model: str | None = None
        self.auto = False
        self.inference = False
        """True if hooks see requests to a model, or a loop of forward passes, and no training."""
        self.started_at = 0.0
        self.wall_clock = WallClock()
        """Asked by the server thread alone. Steps go back in time where the wall clock was set back, and only
        there."""

    def changed(self) -> None:
        """Send Hello to all monitors again, at the next turn of the server."""
        self.version += 1

    def set_kind(self, kind: str, since: int) -> None:
        """Set the kind of the steps of this process.

        Args:
            kind: "step" or "request".
            since: number of finished steps (`Ring.count`), which keep the kind that they had.
        """
        if kind != self.kind:
            self.kind, self.kind_since = kind, since
            self.changed()

    def steps_in_all(self) -> int | None:
        """Return the length of the run in steps: as given, else as observed."""
        return self.seen_total_steps if self.total_steps is None else self.total_steps

    def warmup(self) -> int:
        """Return the warm-up steps to leave out: as given, else ten, but never more than a tenth of a run of known
        length.

        Of inference none: a script may make a single request, and what its first one takes is what its user waits.
        """
        if self.warmup_steps is not None:
            return self.warmup_steps
        if self.inference:
            return 0
        total = self.steps_in_all()
        if total is not None:
            return min(DEFAULT_WARMUP_STEPS, total // 10)
        return DEFAULT_WARMUP_STEPS
