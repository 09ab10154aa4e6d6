"""How often `llmtop bench` decides wrongly: equal benches called a regression, planted ones of 6% missed.

Drawn from runs of real trainings (tests/support/resampled_runs.py), five runs of 40 steps on each side, at a limit
of 3%. "h100" are runs of a GPU, whole; "typical" has noise larger than theirs; the others are as recorded on a
machine that others use as well, where most must be called undecidable, and nothing else is asked than no false
alarm. Beside it the plain bootstrap over runs, which nobody corrected for there being five of them.

    python -m benchmarks.bench_decisions FILE     # the same, of what tests/gpu/check_bench.py wrote on a GPU
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.result import Result
from llmtop.bench.baseline import counted_runs
from llmtop.bench.comparing import choose_metric, compare_runs
from llmtop.bench.statistics.intervals import CONFIDENCE
from tests.support.resampled_runs import LEFT_WHOLE, Pool, outcome, pairs_of, plain_bootstrap, pool_of, pools

PAIRS = 400
SLOWER = 0.06
LEAST_RUNS = 20
"""Of a pool: ten are drawn for a pair, and two pairs are not to be of the same."""
MOST_ALARMS = 2.0
"""Percent of equal pairs that may be called a regression in two looks: 5 runs, then 10 where 5 are undecidable."""
MOST_MISSED = 5.0
"""Percent of planted pairs with typical noise that may not be called a regression."""
TRUTH_OUTSIDE = 100.0 * (1.0 - CONFIDENCE)


def run() -> Iterable[Result]:
    """See the module."""
    for name, pool in pools().items():
        on_a_gpu = name == LEFT_WHOLE
        yield from pool_results(name, pool, promised=on_a_gpu or name == "typical", whole=on_a_gpu)


def pool_results(name: str, pool: Pool, *, promised: bool, whole: bool = False) -> Iterator[Result]:
    """False alarms and misses for one pool; `promised`: whether a planted one must be found; `whole`: its runs."""
    for runs, interleaved in ((5, False), (5, True), (3, False)):
        how = f"{name}, {runs} runs{', interleaved' if interleaved else ''}"
        equal = outcome(pool, PAIRS, runs=runs, interleaved=interleaved, whole=whole)
        planted = outcome(pool, PAIRS, runs=runs, interleaved=interleaved, slower=SLOWER, whole=whole)
        alarms = 100.0 * equal.decisions["regression"] / PAIRS
        missed = 100.0 - 100.0 * planted.decisions["regression"] / PAIRS
        said = f"ok {equal.decisions['ok']}, undecidable {equal.decisions['undecidable']} of {PAIRS}"
        yield Result(f"{how}: false alarms", alarms, "%", MOST_ALARMS, said)
        limit = MOST_MISSED if promised and runs == 5 else None
        said = f"ok {planted.decisions['ok']}, undecidable {planted.decisions['undecidable']}"
        yield Result(f"{how}: 6% not found", missed, "%", limit, said)
        outside = 100.0 * (1.0 - (equal.covered + planted.covered) / 2.0)
        yield Result(f"{how}: intervals without the truth", outside, "%", None, f"{TRUTH_OUTSIDE:.0f}% are meant")
    for interleaved in (False, True):
        looks = outcome(pool, PAIRS, runs=5, then=10, interleaved=interleaved, whole=whole)
        how = f"{name}, 5 then 10 runs{', interleaved' if interleaved else ''}"
        said = f"ok {looks.decisions['ok']}, undecidable {looks.decisions['undecidable']} of {PAIRS}"
        yield Result(f"{how}: false alarms", 100.0 * looks.decisions["regression"] / PAIRS, "%", MOST_ALARMS, said)
    plain = outcome(pool, PAIRS, compare=plain_bootstrap, whole=whole)
    yield Result(f"{name}, 5 runs: the same, plain bootstrap", 100.0 * (1.0 - plain.covered), "%", None, "")


def measured_results(file: Path) -> Iterator[Result]:
    """What each measured pair is decided to be, then the same as of a pool, drawn from runs without a plant."""
    pairs = pairs_of(file)
    for number, pair in enumerate(pairs, 1):
        sides = counted_runs(pair.a), counted_runs(pair.b)
        found = compare_runs(*sides, against="a", metric=choose_metric(None, *sides), limit=3.0)
        worse = found.changes[0].worse_pct if found.changes else math.nan
        yield Result(f"pair {number} ({pair.kind}): {found.decision}", worse, "% worse", None, found.reason)
    plain = [pair.a for pair in pairs] + [pair.b for pair in pairs if pair.kind == "equal"]
    once = {bench.started_at: bench for bench in plain}  # pairs share a side
    pool = pool_of(list(once.values()))
    if len(pool) >= LEAST_RUNS:
        yield from pool_results("measured", pool, promised=True, whole=True)


if __name__ == "__main__":
    for result in measured_results(Path(sys.argv[1])):
        print(json.dumps({"name": result.name, "value": result.value, "unit": result.unit, "note": result.note}))
