"""Reports of the live rules on the planted curves (tests/data/health_plants), counted by kind.

    python -m tests.support.run_health_plants [SEED] [FIRST LAST] [--public]

Prints JSON: per kind how many events were reported right, under a wrong kind or step, or not at all; false
reports with their series; and the number of values judged.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from typing import Any, Final

from llmtop.model.health import LoggedSeries
from llmtop.model.snapshot import Host, Rank, Snapshot
from llmtop.rules.engine import Rules
from tests.support import health_plants

KINDS: Final = {
    "non_finite": "nonfinite",
    "loss_spike": "loss_spike",
    "grad_norm_jump": "grad_norm_jump",
    "loss_scale_collapse": "loss_scale_collapse",
    "loss_flat": "loss_stuck",
    "ranks_diverged": "ranks_differ",
}
EACH: Final = 5
"""Logged values in one snapshot."""


def _cleaned(values: Any) -> tuple[float | None, ...]:
    return tuple(float(one) if math.isfinite(one) else None for one in values)


def reports(plant: Any) -> list[tuple[str, str, int, int | None]]:
    """Return what the rules report on a series: kind, metric, step, rank."""
    rules, found = Rules(off=()), {}
    steps = [int(step) for step in plant.steps]
    ranks = max(len(values) for values in plant.values.values())
    for begin in range(0, len(steps), EACH):
        part = slice(begin, begin + EACH)
        chunk = tuple(steps[part])
        made = []
        for number in range(ranks):
            logged = [
                LoggedSeries(name=name, steps=chunk, values=_cleaned(values[min(number, len(values) - 1)][part]))
                for name, values in plant.values.items()
            ]
            if plant.lr is not None:
                logged.append(LoggedSeries(name="lr", steps=chunk, values=_cleaned(plant.lr[part])))
            made.append(
                Rank(
                    pid=100 + number,
                    host="node",
                    job="run",
                    rank=number if ranks > 1 else None,
                    world_size=ranks,
                    step=chunk[-1],
                    attached_at=1.0,
                    new_values=tuple(logged),
                )
            )
        moment = Snapshot(time=1000.0 + 2.0 * begin, host=Host(name="node"), ranks=tuple(made))
        for alert in rules.apply(moment).alerts:
            if alert.id in KINDS:
                evidence = alert.evidence
                whole = evidence.get("ranks") == ranks
                report = KINDS[alert.id], str(evidence["metric"]), int(evidence["step"])
                found.setdefault(report, None if whole else evidence.get("rank"))
    return [(*report, rank) for report, rank in found.items()]


def _fits(report: tuple[str, str, int, int | None], event: Any) -> bool:
    kind, metric, step, _rank = report
    return bool(kind == event.kind and metric == event.metric and event.step <= step <= event.until)


def judge(plants: list[Any]) -> dict[str, Any]:
    """Return the counts over some series."""
    right: Counter[str] = Counter()
    missed: list[str] = []
    wrong_rank: list[str] = []
    false: list[str] = []
    values = 0
    for plant in plants:
        told = reports(plant)
        for event in plant.truth:
            hits = [report for report in told if _fits(report, event)]
            if not hits:
                missed.append(
                    f"{plant.name} {plant.family} {event.kind} {event.metric} {event.step}-{event.until} {told}"
                )
                continue
            right[event.kind] += 1
            if event.rank is not None and len(plant.values[event.metric]) > 1 and hits[0][3] != event.rank:
                wrong_rank.append(f"{plant.name} {event.kind} rank {event.rank}: {hits[0][3]}")
        events = [*plant.truth, *plant.tolerated]
        false += [
            f"{plant.name} {plant.family} {plant.features} {report}"
            for report in told
            if not any(_fits(report, event) for event in events)
        ]
        values += plant.healthy_values() if hasattr(plant, "healthy_values") else 0
    return {
        "events": sum(len(plant.truth) for plant in plants),
        "right": dict(right),
        "missed": missed,
        "wrong_rank": wrong_rank,
        "false": false,
        "healthy_values": values,
    }


def main() -> None:
    """Run the plants of a seed and print the counts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("last", type=int, nargs="?", default=1000)
    parser.add_argument("--public", action="store_true")
    options = parser.parse_args()
    plants = health_plants.public() if options.public else health_plants.series(options.seed)
    print(json.dumps(judge(list(plants)[options.first : options.last]), indent=1))


if __name__ == "__main__":
    main()
