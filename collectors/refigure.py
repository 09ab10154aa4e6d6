"""Recomputed step figures of a recording: it shows the figures that this version computes."""

from __future__ import annotations

from msgspec.structs import replace

from collectors.trainings.step_figures import StepFigures, steps_left
from llmtop.model.snapshot import Rank, Snapshot


class RecomputeFigures:
    """A stage for recordings: the ranks' figures are those of the steps that the recording holds.

    Another version may have made them over another stretch. What a recording has no steps for stays as it was
    recorded.
    """

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, int, float], StepFigures] = {}

    def __repr__(self) -> str:
        return "the figures of recorded steps"

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with its ranks' figures made anew."""
        known, self._ranks = self._ranks, {}
        ranks = []
        for rank in snapshot.ranks:
            key = rank.host, rank.pid, rank.attached_at or 0.0
            steps = self._ranks[key] = known.get(key) or StepFigures()
            for step in rank.new_steps:
                steps.add(step)
            for step in rank.gpu_updates:
                steps.update(step)
            ranks.append(with_figures(rank, steps))
        return replace(snapshot, ranks=tuple(ranks))


def with_figures(rank: Rank, steps: StepFigures) -> Rank:
    """Return the rank with the figures of its steps; as it is before there are any."""
    if not steps.figures():
        return rank
    told = steps.rank_fields(running=rank.state == "running", left=steps_left(rank.total_steps, rank.step))
    before, now = rank.tokens_per_s, told["tokens_per_s"]
    mfu = rank.mfu_pct * now / before if rank.mfu_pct is not None and before and now is not None else None
    return replace(rank, **told, mfu_pct=mfu)
