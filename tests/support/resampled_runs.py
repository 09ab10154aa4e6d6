"""Pairs of benches drawn from runs of real trainings, to see how often a comparison is wrong.

A pool is runs in the order in which they were made. For each pair, runs are drawn from it, and each is put
together anew of blocks of its own steps, or stays whole; the candidate's are longer by a known share, or by
nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from llmtop.bench.model.results import Bench
from llmtop.bench.statistics.decide import Decision, decide
from llmtop.bench.statistics.intervals import CONFIDENCE, ChangeInterval, RunSample, change_interval
from llmtop.bench.statistics.step_statistics import metric_named, step_statistic
from tests.support.data import DATA

Pool = list[NDArray[np.float64]]
LEFT_WHOLE = "h100"
"""The pool whose runs stay as they were measured; see `outcome`."""
Interval = Callable[[Sequence[RunSample], Sequence[RunSample]], ChangeInterval]
_BLOCK = 10


def pools() -> dict[str, Pool]:
    """The recorded runs (tests/data/README.md says of what), and "typical": their noise, as large as on a GPU.

    What they were recorded on is shared with others and far noisier than a GPU. There steps of one run vary by 0.1
    to 2% (tests/data/h200, h200x2), so 2% are taken, and 1% from run to run; how noise is shaped (its outliers,
    what neighbouring steps have in common, what drifts from run to run) stays as it was recorded.
    """
    with np.load(DATA / "bench_runs.npz") as data:
        found = {name: [row / 1e6 for row in data[name].astype(float)] for name in data.files}
    return {"typical": _scaled(found["waiting"], between=0.01, within=0.02), **found}


def _scaled(pool: Pool, between: float, within: float) -> Pool:
    """The same runs with other standard deviations, of logarithms, from run to run and from step to step."""
    logs = np.log(np.stack(pool))
    levels = logs.mean(axis=1, keepdims=True)
    steps, middle = logs - levels, levels.mean()
    levels = middle + (levels - middle) * between / levels.std(ddof=1)
    return list(np.exp(levels + steps * within / steps.std()))


class MeasuredPair(msgspec.Struct):
    """A line of what tests/gpu/check_bench.py writes: two benches, and what was planted in the second."""

    kind: str
    a: Bench
    b: Bench


def pairs_of(file: Path) -> list[MeasuredPair]:
    """All pairs of such a file."""
    return [
        msgspec.json.decode(line, type=MeasuredPair) for line in file.read_bytes().splitlines() if line.strip()
    ]


def pool_of(benches: Sequence[Bench]) -> Pool:
    """The runs that llmtop bench measured, in the order in which they were made."""
    runs = [run for found in benches for run in found.runs if run.attached and run.window is not None]
    return [
        np.array(run.window.step_seconds) for run in sorted(runs, key=lambda run: run.started_at) if run.window
    ]


@dataclass
class Outcome:
    """What became of many pairs."""

    decisions: Counter[str]
    covered: float
    """The share of intervals that held what was planted."""


def outcome(
    pool: Pool,
    pairs: int,
    *,
    slower: float = 0.0,
    limit: float = 3.0,
    runs: int = 5,
    then: int | None = None,
    steps: int = 40,
    metric: str = "steps_per_s",
    interleaved: bool = False,
    compare: Interval | None = None,
    whole: bool = False,
) -> Outcome:
    """Compare `pairs` pairs of benches.

    Args:
        pool: what runs are drawn from.
        pairs: how many.
        slower: share by which the candidate's steps are longer (0.06).
        limit: percent.
        runs: on each side.
        then: runs on each side of a second bench where the first is undecidable, as its advice has it; None: one
            bench.
        steps: of each.
        metric: what is decided by.
        interleaved: take runs that were made one after the other, in turns, and compare them as pairs.
        compare: another way to make the interval; None: the one in use.
        whole: leave runs as they were measured. Where a host launches ahead of a GPU, a long step is followed by
            short ones, and blocks put together anew have noise that no run had.
    """
    random = np.random.default_rng(7)
    judged, planted = metric_named(metric), math.log1p(slower)
    figure = step_statistic(judged)
    assert figure is not None
    decisions: Counter[str] = Counter()
    covered = 0
    for _ in range(pairs):
        for count in (runs, then or 0):
            before, after = _drawn_runs(len(pool), count, interleaved, random)
            own = None if whole else random
            baseline = [_run(pool[place], steps, 1.0, figure, own) for place in before]
            candidate = [_run(pool[place], steps, 1.0 + slower, figure, own) for place in after]
            if compare is None:
                found = change_interval(baseline, candidate, figure, paired=interleaved)
            else:
                found = compare(baseline, candidate)
            decision = decide(found, judged, limit).decision
            if decision is not Decision.UNDECIDABLE or then is None:
                break
        decisions[decision.value] += 1
        change = -planted if judged.more_is_better else planted
        covered += found.low <= change <= found.high
    return Outcome(decisions, covered / pairs)


def _drawn_runs(
    count: int, runs: int, interleaved: bool, random: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Which runs of the pool are the baseline's and the candidate's: any, or some in a row, in turns (ABBA)."""
    if not interleaved:
        drawn = random.choice(count, 2 * runs, replace=False).tolist()
        return drawn[:runs], drawn[runs:]
    first = int(random.integers(count - 2 * runs + 1))
    order = [(first + 2 * turn, first + 2 * turn + 1) for turn in range(runs)]
    order = [two if turn % 2 == 0 else two[::-1] for turn, two in enumerate(order)]
    return [one for one, _ in order], [other for _, other in order]


def _run(
    recorded: NDArray[np.float64],
    steps: int,
    factor: float,
    figure: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    random: np.random.Generator | None,
) -> RunSample:
    if random is None:
        return RunSample(float(figure(recorded * factor)), recorded * factor)
    starts = random.integers(len(recorded), size=math.ceil(steps / _BLOCK))
    places = (starts[:, None] + np.arange(_BLOCK)).ravel()[:steps] % len(recorded)
    made = recorded[places] * factor
    return RunSample(float(figure(made)), made)


def plain_bootstrap(baseline: Sequence[RunSample], candidate: Sequence[RunSample]) -> ChangeInterval:
    """Runs drawn with replacement, and the quantiles of the result: nothing is corrected."""
    random = np.random.default_rng(1)
    before, after = (np.log([run.value for run in side]) for side in (baseline, candidate))
    drawn = [side[random.integers(len(side), size=(2000, len(side)))].mean(axis=1) for side in (before, after)]
    low, high = np.quantile(drawn[1] - drawn[0], [0.5 - CONFIDENCE / 2.0, 0.5 + CONFIDENCE / 2.0])
    usual = change_interval(baseline, candidate, None)
    return usual._replace(low=float(low), high=float(high))
