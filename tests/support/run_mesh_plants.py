"""Reports of the live rules on the planted meshes (tests/data/health_plants), counted by kind.

python -m tests.support.run_mesh_plants [SEED] [FIRST LAST]
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any, Final

from llmtop.model.snapshot import Host, Phase, Rank, Snapshot, Step
from llmtop.rules.engine import Rules
from tests.support import mesh_plants

EACH: Final = 10
NAMES: Final = {"data": "dataload"}


def reports(plant: Any) -> dict[str, dict[str, Any]]:
    """Return the evidence of `imbalance` and `straggler`, as they were reported last."""
    rules, found = Rules(off=()), {}
    count, ranks = next(iter(plant.phases.values())).shape
    time = 1000.0
    waits = {name: sum(by.values()) for name, by in plant.waits.items()} if plant.waits else {}
    for begin in range(0, count, EACH):
        made = []
        seconds_each = sum(values[begin : begin + EACH] for values in plant.phases.values())
        ends = time + seconds_each.mean(1).cumsum()
        for rank in range(ranks):
            steps = []
            for place in range(begin, min(begin + EACH, count)):
                wait = {name: float(waits[name][place, rank]) if name in waits else 0.0 for name in plant.phases}
                phases = [
                    Phase(name=NAMES.get(name, name), host_seconds=float(values[place, rank]) - wait[name])
                    for name, values in plant.phases.items()
                ]
                phases.append(Phase(name="communication", host_seconds=sum(wait.values())))
                seconds = sum(phase.host_seconds for phase in phases)
                steps.append(
                    Step(
                        index=place,
                        started_at=float(ends[place - begin]) - seconds,
                        seconds=seconds,
                        interval_seconds=seconds,
                        phases=tuple(phases),
                    )
                )
            step = float(seconds_each[:, rank].mean())
            tokens = None if plant.tokens is None else float(plant.tokens[begin : begin + EACH, rank].mean())
            made.append(
                Rank(
                    pid=1000 + rank,
                    host="node",
                    job="run",
                    rank=rank,
                    world_size=ranks,
                    roles={name: int(values[rank]) for name, values in plant.roles.items()},
                    step=steps[-1].index,
                    step_seconds_p50=step,
                    steps_per_s=1 / step,
                    tokens_per_s=None if tokens is None else tokens / step,
                    last_step_at=float(ends[-1]),
                    attached_at=1.0,
                    new_steps=tuple(steps),
                )
            )
        time = float(ends[-1])
        for alert in rules.apply(Snapshot(time=time, host=Host(name="node"), ranks=tuple(made))).alerts:
            if alert.id in ("imbalance", "straggler"):
                found[alert.id] = dict(alert.evidence)
    return found


def main() -> None:
    """Run the plants of a seed and print the counts."""
    seed, first, last = (
        (int(one) for one in (*sys.argv[1:], "1", "0", "120")[:3])
        if len(sys.argv) > 3
        else (
            int(sys.argv[1]) if len(sys.argv) > 1 else 1,
            0,
            120,
        )
    )
    counts: Counter[str] = Counter()
    wrong = []
    for number, plant in enumerate(list(mesh_plants.meshes(seed))[first:last], first):
        told, truth = reports(plant), plant.truth
        kind = truth.kind if hasattr(truth, "kind") else truth["kind"]
        told_kind = "+".join(sorted(told)) or "healthy"
        if kind == "straggler" and told_kind == kind:
            wanted = truth.rank if hasattr(truth, "rank") else truth["rank"]
            told_kind = kind if told["straggler"]["rank"] == wanted else "other rank"
        counts[f"{kind}: {told_kind}"] += 1
        if kind != told_kind:
            wrong.append(f"{number} {dict(plant.sizes)} {truth} -> {told}"[:400])
    print(json.dumps({"counts": dict(counts), "wrong": wrong}, indent=1))


if __name__ == "__main__":
    main()
