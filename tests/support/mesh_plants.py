"""Simulate phase times of large meshes with a planted cause (tests/data/health_plants/README.md).

python -m tests.support.mesh_plants [SEED]

40 cases have a pipeline stage, data rank, expert rank or context rank with more work, 40 have one slow rank, 40
have neither. A step is simulated as micro-batches that pass pipeline stages: tensor-parallel ranks wait for each
other in each micro-batch, stages wait for the slowest stage, data-parallel ranks wait for each other at its end.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

CASES = 40
MESHES = (
    # tp, pp, dp, ep, cp
    (2, 2, 2, 1, 1), (2, 2, 4, 1, 1), (4, 2, 2, 1, 1), (2, 4, 2, 1, 1), (2, 4, 4, 1, 1), (4, 4, 4, 1, 1),
    (8, 2, 4, 1, 1), (8, 4, 4, 1, 1), (4, 4, 16, 1, 1), (8, 8, 4, 1, 1), (8, 4, 16, 1, 1), (8, 8, 8, 1, 1),
    (1, 2, 8, 1, 1), (1, 4, 16, 1, 1), (2, 2, 4, 1, 2), (4, 2, 2, 1, 4), (2, 4, 4, 1, 2), (2, 2, 2, 4, 1),
    (1, 2, 4, 8, 1), (2, 4, 4, 4, 1), (4, 1, 8, 1, 1), (1, 1, 8, 1, 1), (1, 1, 64, 1, 1), (8, 1, 32, 1, 1),
)  # fmt: skip
DIMENSIONS = ("tp", "cp", "ep", "dp", "pp")
"""From the one that changes fastest with the rank: Megatron-Core's default order tp-cp-ep-dp-pp."""


@dataclass(frozen=True)
class MeshTruth:
    """What a monitor must report of a case."""

    kind: str
    """"healthy", "imbalance" or "straggler"."""
    dimension: str | None = None
    """Of an imbalance: the dimension along which work is unequal."""
    coordinates: tuple[int, ...] = ()
    """Of an imbalance: the coordinates with more work."""
    rank: int | None = None
    """Of a straggler."""
    phase: str | None = None
    """Phase in which the cause is: "forward" (and "backward") or "data"."""
    factor: float = 1.0
    """Time of this work, relative to ranks without the plant."""
    since: int = 0
    """First step with the plant."""


@dataclass(frozen=True)
class MeshCase:
    """Steps of all ranks of one training."""

    name: str
    sizes: dict[str, int]
    roles: dict[str, np.ndarray]
    """Coordinate of each rank by dimension ("tp", "pp", "dp", "ep", "cp"): shape (ranks,)."""
    phases: dict[str, np.ndarray]
    """Seconds by phase ("data", "forward", "backward", "optimizer"), waits included: shape (steps, ranks)."""
    waits: dict[str, dict[str, np.ndarray]]
    """Seconds in collectives that wait for other ranks, by phase and dimension: shape (steps, ranks)."""
    tokens: np.ndarray
    """Tokens that the loader gave the rank: shape (steps, ranks). Equal on ranks of one data-parallel rank."""
    truth: MeshTruth


def _roles(sizes: dict[str, int]) -> dict[str, np.ndarray]:
    rest = np.arange(int(np.prod(list(sizes.values()))))
    roles = {}
    for dimension in DIMENSIONS:
        roles[dimension] = rest % sizes[dimension]
        rest = rest // sizes[dimension]
    return roles


def _groups(roles: dict[str, np.ndarray], sizes: dict[str, int], free: tuple[str, ...]) -> np.ndarray:
    """Number of the group of each rank; ranks of a group differ in `free` alone."""
    number = np.zeros(len(roles["tp"]), int)
    for dimension in DIMENSIONS:
        if dimension not in free:
            number = number * sizes[dimension] + roles[dimension]
    return number


def _latest(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Maximum over each group, for each of its ranks: shape (steps, ranks)."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    highest = np.maximum.reduceat(values[:, order], starts, axis=1)
    return highest[:, np.searchsorted(groups[order][starts], groups)]


def _plan(
    rng: np.random.Generator, kind: str, index: int
) -> tuple[dict[str, int], MeshTruth, dict[str, np.ndarray]]:
    """Draw mesh, truth and roles such that the truth can be told from the role's other ranks."""
    dimension = None
    if kind == "imbalance":
        dimension = ("pp", "dp", "pp", "dp", "pp", "dp", "ep", "cp")[index % 8]
    while True:
        sizes = dict(zip(("tp", "pp", "dp", "ep", "cp"), MESHES[int(rng.integers(len(MESHES)))], strict=True))
        roles = _roles(sizes)
        if kind == "imbalance" and sizes[str(dimension)] < 2:
            continue
        same = len(roles["tp"]) // sizes["pp"]
        if dimension == "pp" and same < 2:
            continue
        if kind != "straggler" or same >= 3:
            break
    factor, since = float(rng.uniform(1.2, 2.0)), int(rng.choice([0, 0, 60]))
    if kind == "imbalance":
        size = sizes[str(dimension)]
        heavy = 1 if size < 4 or rng.random() < 0.7 else int(rng.integers(2, size // 2 + 1))
        if dimension == "pp":  # the last stage has the head, the first has the embedding, or a layer more
            first = int(rng.choice([0, size - 1, size - 1, rng.integers(size)]))
            coordinates: tuple[int, ...] = (first,)
        else:
            coordinates = tuple(sorted(int(at) for at in rng.choice(size, heavy, replace=False)))
        return sizes, MeshTruth(kind, dimension, coordinates, None, "forward", factor, since), roles
    if kind == "straggler":
        rank, phase = int(rng.integers(len(roles["tp"]))), str(rng.choice(["forward", "forward", "data"]))
        return sizes, MeshTruth(kind, None, (), rank, phase, factor, since), roles
    return sizes, MeshTruth(kind), roles


def _work(
    rng: np.random.Generator, sizes: dict[str, int], roles: dict[str, np.ndarray], truth: MeshTruth, steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return computing seconds of a step, seconds of its data phase and tokens: shapes (steps, ranks)."""
    ranks = len(roles["tp"])
    since = np.arange(steps)[:, None] >= truth.since
    heavy = np.isin(roles[truth.dimension], truth.coordinates) if truth.dimension else np.zeros(ranks, bool)
    spread = float(rng.choice([0.0, 0.0, 0.05, 0.15]))
    loads = np.exp(
        spread * rng.standard_normal((steps, sizes["dp"]))
    )  # batches of unequal length, equal on average
    tokens = 8192 * loads[:, roles["dp"]]
    expert = np.ones((steps, ranks))
    if truth.dimension == "dp":
        tokens = tokens * np.where(since & heavy, truth.factor, 1)
    elif truth.dimension is not None:
        expert = np.where(since & heavy, truth.factor, 1)
    step_seconds = rng.uniform(0.2, 3)
    noise = rng.uniform(0.005, 0.04)
    own = rng.normal(1, 0.006, ranks)  # equal GPUs differ a little
    if truth.kind == "straggler":  # no own difference may hide the slow rank or imitate it
        own = np.clip(own, 0.985, 1.015)
    stage = 1 + rng.uniform(0, 0.03) * rng.standard_normal(sizes["pp"]).clip(-1, 1)[roles["pp"]]
    compute = step_seconds * tokens / 8192 * expert * own * stage * rng.normal(1, noise, (steps, ranks))
    data = step_seconds * rng.uniform(0.005, 0.03) * rng.lognormal(0, 0.3, (steps, ranks))
    hiccups = rng.random((steps, ranks)) < 0.2 / ranks  # garbage collection, other processes: on any rank
    compute += step_seconds * rng.uniform(0.1, 0.6) * hiccups
    if truth.kind == "straggler":
        slow = since[:, 0]
        if truth.phase == "data":
            data[slow, truth.rank] += step_seconds * (truth.factor - 1)
        else:
            compute[slow, truth.rank] *= truth.factor
    return np.maximum(compute, 1e-4), data, np.round(tokens)


def _simulate(rng: np.random.Generator, kind: str, index: int) -> MeshCase:
    steps = 200
    sizes, truth, roles = _plan(rng, kind, index)
    compute, data, tokens = _work(rng, sizes, roles, truth, steps)
    inner = _groups(roles, sizes, ("tp", "cp", "ep"))  # wait for each other in each layer
    pipeline = _groups(roles, sizes, ("tp", "cp", "ep", "pp"))
    replicas = _groups(roles, sizes, ("dp",))
    micro = int(rng.choice([4, 8, 16])) * max(sizes["pp"] // 4, 1)
    # A rank that gets its batch late starts late; ranks of its inner groups wait for it in the first collective.
    begun = _latest(data, inner) - data
    stage = _latest(compute, inner)
    waiting_inner = stage - compute + begun
    bubble = (sizes["pp"] - 1) / micro
    slowest = _latest(stage, pipeline)
    late = _latest(_latest(data, inner), pipeline) - _latest(data, inner)
    waiting_pp = slowest * (1 + bubble) - stage + late
    finished = data + compute + waiting_inner + waiting_pp
    everyone = _latest(finished, replicas)
    waiting_dp = everyone - finished + 0.01 * slowest * rng.lognormal(0, 0.2, finished.shape)
    names = [dimension for dimension in ("tp", "cp", "ep") if sizes[dimension] > 1]
    if truth.dimension in names:
        names = [truth.dimension]
    share = 1 / max(len(names), 1)
    waits = {
        phase: dict.fromkeys(names, part * share * waiting_inner) | {"pp": part * waiting_pp}
        for phase, part in (("forward", 1 / 3), ("backward", 2 / 3))
    }
    waits["backward"]["dp"] = waiting_dp
    optimizer = 0.02 * compute.mean() * rng.normal(1, 0.05, finished.shape)
    phases = {
        "data": data,
        "forward": (compute + waiting_inner + waiting_pp) / 3,
        "backward": (compute + waiting_inner + waiting_pp) * 2 / 3 + waiting_dp,
        "optimizer": optimizer,
    }
    mesh = "x".join(f"{name}{sizes[name]}" for name in ("tp", "pp", "dp", "ep", "cp") if sizes[name] > 1)
    return MeshCase(f"{index:02d}-{kind}-{mesh}", sizes, roles, phases, waits, tokens, truth)


def meshes(seed: int) -> Iterator[MeshCase]:
    """Yield 40 cases of each kind."""
    for number, kind in enumerate(("imbalance", "straggler", "healthy")):
        for index in range(CASES):
            yield _simulate(np.random.default_rng([seed, number, index]), kind, index)


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    counts: Counter[str] = Counter()
    for case in meshes(seed):
        step = sum(case.phases.values())
        counts[case.truth.kind] += 1
        print(
            case.name,
            case.truth,
            f"step p50 {np.median(step):.2f} s, ranks differ {np.ptp(np.median(step, 0)):.3f} s",
        )
    print(dict(counts))


if __name__ == "__main__":
    main()
