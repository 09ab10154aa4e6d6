"""Words and advice for a process that computes without training."""

from __future__ import annotations

from typing import Final

from llmtop.model.bottlenecks import BoundId
from llmtop.rules.state.rank import RankState
from llmtop.rules.state.windows import finite_or_none
from llmtop.step_history.whole_steps import covered_seconds

_NEXT: Final[dict[BoundId, str]] = {
    "input_bound": "read and tokenize the next batch in a separate process, while the model computes the current "
    "one; press s for the Python stacks of the data loader",
    "h2d_bound": "keep the KV cache and reused tensors on the GPU; copy the next batch from pinned memory "
    "(non_blocking=True) while the model computes the current one",
    "launch_bound": "use torch.compile, CUDA graphs or larger batches (generate: cache_implementation='static'); "
    "press c to profile the launches",
    "sync_bound": "remove .item(), .cpu() and prints from the decoding loop; test several tokens at once for the "
    "end; press c to profile the waits",
}


BUSY_WITH_REQUESTS_PCT: Final = 80.0
"""Percent of the time in requests. Above it, waits within the requests leave a GPU idle, and not a lack of
requests."""


def has_enough_requests(state: RankState) -> bool:
    """Return True if a process that answers requests had some to answer most of the time; True of all others."""
    rank = state.rank
    if rank.kind != "request":
        return True
    mean = finite_or_none(rank.step_seconds_mean)
    return bool(mean) and 100.0 * covered_seconds(rank.phases) >= BUSY_WITH_REQUESTS_PCT * (mean or 0.0)


def step_noun(state: RankState) -> str:
    """Return the noun for a step of that process."""
    if not state.rank.inference:
        return "step"
    return "request" if state.rank.kind == "request" else "forward pass"


def next_step(state: RankState, bound: BoundId, of_training: str) -> str:
    """Return the next action: `of_training`, or the advice for a process that trains nothing."""
    return _NEXT.get(bound, of_training) if state.rank.inference else of_training
