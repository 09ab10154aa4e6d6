"""Draw 120 main screens that hold every pair of values of six things a screen depends on.

python -m tests.support.pairwise_screens FOLDER [NUMBER ...]

Size, GPUs, ranks, alerts, colours and generation of GPU. Each screen is FOLDER/NUMBER.txt, with its row of the
table in the first line, and NUMBER.png where resvg is installed. Made-up snapshots go through the real rules, so
alerts, states and figures of one screen belong together.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from msgspec.structs import replace

from llmtop.hardware import clock_events
from llmtop.model.jobs import job_totals
from llmtop.model.snapshot import Gpu, Phase, Rank, RankState, Snapshot
from llmtop.rules.engine import Rules
from screenshots.scenes import GIB, START, scene, uuid

COUNT, SECONDS, BAD_SECONDS = 120, 90, 40
"""Screens; seconds of history; how long before the end things go wrong."""

_BAD_FROM = START + SECONDS - BAD_SECONDS


class Case(NamedTuple):
    """One screen."""

    size: tuple[int, int]
    gpus: int
    ranks: str
    alert: str
    look: str
    kind: str


SIZES = ((60, 15), (80, 24), (100, 30), (120, 30), (160, 40), (200, 50), (250, 60))
GPUS = (0, 1, 2, 4, 8, 16)
RANKS = ("none", "one", "eight", "some dead")
ALERTS = ("none", "warning", "critical", "several")
LOOKS = ("llmtop-dark", "llmtop-light", "llmtop-contrast", "16 colors", "mono", "ascii")
KINDS: dict[str, dict[str, Any]] = {
    "V100": {"name": "Tesla V100-SXM2-32GB", "limit": 300.0, "memory": 32.0, "gpm": False, "nvlink": False},
    "A100": {"name": "NVIDIA A100-SXM4-80GB", "limit": 400.0, "memory": 80.0, "gpm": False, "nvlink": True},
    "H100": {"name": "NVIDIA H100 80GB HBM3", "limit": 700.0, "memory": 80.0, "gpm": True, "nvlink": True},
    "consumer": {
        "name": "NVIDIA GeForce RTX 4090",
        "limit": None,
        "memory": 24.0,
        "gpm": False,
        "nvlink": False,
    },
    "MIG": {"name": "NVIDIA H100 80GB HBM3", "limit": 700.0, "memory": 80.0, "gpm": True, "nvlink": True},
}
_NO_DRIVER = "No NVIDIA driver: libnvidia-ml.so.1 was not found. On a machine with a GPU, install the driver."
_GPM = ("sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct")
_NVLINK = ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s")
_OF_A_PART = ("uuid", "index", "mem_used_bytes", "mem_total_bytes", "pcie_source")
"""Fields that the driver gives of a MIG instance too."""


def cases() -> list[Case]:
    """The rows of the table: few enough that each pair of values occurs, and at least `COUNT` of them."""
    values = (SIZES, GPUS, RANKS, ALERTS, LOOKS, tuple(KINDS))
    missing = {
        (one, a, other, b) for one, other in combinations(range(6), 2) for a in values[one] for b in values[other]
    }
    dice, found, every = random.Random(1), [], list(product(*values))

    def covered(case: tuple[Any, ...]) -> set[tuple[Any, ...]]:
        return {(i, case[i], j, case[j]) for i, j in combinations(range(6), 2)} & missing

    while missing or len(found) < COUNT:
        case = max(dice.sample(every, 400), key=lambda one: len(covered(one)))
        missing -= covered(case)
        found.append(Case(*case))
    return found


@lru_cache(maxsize=256)
def moments(gpus: int, ranks: str, alert: str, kind: str) -> tuple[Snapshot, ...]:
    """The snapshots of a case, one a second, as the rules leave them."""
    rules, world = Rules(), {"none": 0, "one": 1}.get(ranks, 8)
    notes = () if gpus else (_NO_DRIVER,)
    made = scene(gpus=gpus, ranks=world, seconds=SECONDS, notes=notes)
    return tuple(rules.apply(_moment(one, second, ranks, alert, kind)) for second, one in enumerate(made))


def _moment(moment: Snapshot, second: int, ranks: str, alert: str, kind: str) -> Snapshot:
    bad = second >= SECONDS - BAD_SECONDS
    found = [_rank(one, ranks, alert, len(moment.gpus), bad=bad) for one in moment.ranks]
    if bad and alert in ("warning", "several") and found:
        found[0] = _starved(found[0])
    gpus = [_gpu(one, kind) for one in moment.gpus]
    if bad and gpus and alert in ("warning", "several"):
        if sum(one.gpu_uuid == gpus[0].uuid for one in found) == 1:
            gpus[0] = _waiting(gpus[0])
        gpus[0] = _hot(gpus[0])
    if bad and gpus and alert in ("critical", "several"):
        gpus[-1] = _spinning(gpus[-1]) if kind != "consumer" else replace(gpus[-1], error="GPU is lost")
    shown = [part for gpu in gpus for part in (_parts(gpu) if kind == "MIG" else [gpu])]
    of_parts = {gpu.mig_parent_uuid: gpu.uuid for gpu in reversed(shown) if gpu.mig_parent_uuid}
    found = [replace(one, gpu_uuid=of_parts.get(one.gpu_uuid, one.gpu_uuid)) for one in found]
    used = {one.gpu_uuid for one in found}
    return replace(
        moment,
        gpus=tuple(shown),
        ranks=tuple(found),
        jobs=job_totals(found),
        alerts=(),
        processes=tuple(one for one in moment.processes if not found or one.gpu_uuid in used),
    )


def _rank(rank: Rank, ranks: str, alert: str, gpus: int, *, bad: bool) -> Rank:
    """With a job; of some that die the last two stand still and one is gone. Ranks beyond the GPUs share them."""
    name = "train_gpt.py · :29500" if rank.world_size != 1 else f"train_gpt.py · pid {rank.pid}"
    own = None if not gpus else uuid((rank.rank or 0) % gpus)
    rank = replace(rank, job=name, gpu_uuid=own, window_seconds=15.0, outside_seconds=0.0003)
    if not gpus:
        rank = replace(
            rank,
            gpu_idle_pct=None,
            gpu_busy_pct=None,
            gpu_busy_source=None,
            mfu_pct=None,
            memory_allocated_bytes=None,
            memory_reserved_bytes=None,
            phases=tuple(Phase(name=one.name, host_seconds=one.host_seconds) for one in rank.phases),
        )
    if alert in ("critical", "several") and not gpus and rank.rank == 0 and bad:
        return replace(rank, state="stalled", new_steps=(), steps_per_s=None, last_step_at=_BAD_FROM)
    dies = ranks == "some dead" and bad
    if dies and rank.rank == 7:
        return replace(rank, state="gone", new_steps=(), last_step_at=_BAD_FROM)
    if dies and rank.rank in (5, 6):
        state: RankState = "stalled" if rank.rank == 6 else "stopped"
        return replace(rank, state=state, new_steps=(), steps_per_s=None, last_step_at=_BAD_FROM)
    steps = tuple(replace(one, phases=rank.phases) for one in rank.new_steps)
    return replace(rank, new_steps=steps, last_step_at=rank.new_steps[-1].started_at + rank.new_steps[-1].seconds)


def _starved(rank: Rank) -> Rank:
    """Most of each step is spent in the data loader."""
    phases = tuple(
        replace(one, host_seconds=0.44, gpu_seconds=None if one.gpu_seconds is None else 0.377)
        if one.name == "dataload"
        else one
        for one in rank.phases
        if "/" not in one.name
    )
    steps = tuple(replace(one, seconds=0.49, interval_seconds=0.49, phases=phases) for one in rank.new_steps[:2])
    slow = {"step_seconds": 0.49, "step_seconds_p50": 0.49, "step_seconds_p95": 0.5, "tokens_per_s": 33_000.0}
    idle = {} if rank.gpu_uuid is None else {"gpu_idle_pct": 77.0, "gpu_busy_pct": 23.0}
    return replace(rank, phases=phases, new_steps=steps, steps_per_s=2.0, **slow, **idle)


def _gpu(gpu: Gpu, kind: str) -> Gpu:
    """The GPU as the driver of that generation gives it."""
    made = KINDS[kind]
    absent = (() if made["gpm"] else _GPM) + (() if made["nvlink"] and made["gpm"] else _NVLINK)
    share = (gpu.power_watts or 0.0) / 700.0
    return replace(
        gpu,
        name=made["name"],
        power_limit_watts=made["limit"],
        power_watts=share * (made["limit"] or 450.0),
        mem_total_bytes=int(made["memory"] * GIB),
        mem_used_bytes=int(made["memory"] * 0.8 * GIB),
        pcie_source="gpm" if made["gpm"] else "nvml",
        clock_event_reasons=(),
        **dict.fromkeys(absent),
    )


def _parts(gpu: Gpu) -> list[Gpu]:
    """The GPU split into two MIG instances, of which the driver gives memory alone."""
    whole = replace(gpu, util_pct=None, mem_util_pct=None)
    known = {name: getattr(gpu, name) for name in _OF_A_PART}
    half = {"mem_used_bytes": known["mem_used_bytes"] // 2, "mem_total_bytes": known["mem_total_bytes"] // 2}
    return [
        whole,
        *(
            Gpu(
                **{**known, **half, "uuid": f"MIG-{gpu.index}-{place}"},
                name=f"{gpu.name} MIG 3g.40gb",
                mig_parent_uuid=gpu.uuid,
                mig_index=place,
            )
            for place in range(2)
        ),
    ]


def _waiting(gpu: Gpu) -> Gpu:
    """Without work for 77 % of the time, as its only rank says."""
    shares = {name: 0.23 * (getattr(gpu, name) or 0.0) for name in _GPM if getattr(gpu, name) is not None}
    return replace(gpu, util_pct=23.0, mem_util_pct=6.0, power_watts=0.5 * (gpu.power_watts or 0.0), **shares)


def _hot(gpu: Gpu) -> Gpu:
    return replace(
        gpu,
        temperature_c=88.0,
        sm_clock_mhz=1100.0,
        power_watts=0.6 * (gpu.power_watts or 0.0),
        clock_event_reasons=(clock_events.HW_SLOWDOWN, clock_events.HW_THERMAL),
    )


def _spinning(gpu: Gpu) -> Gpu:
    idle = {name: 0.6 for name in _GPM if getattr(gpu, name) is not None}
    return replace(
        gpu, util_pct=100.0, mem_util_pct=0.0, power_watts=0.17 * (gpu.power_limit_watts or 450), **idle
    )


async def drawn(case: Case) -> tuple[str, str]:
    """The screen as text and as SVG."""
    from screenshots.draw import StaticFeed
    from tests.tui.driving import text
    from tui.app import LlmtopApp
    from tui.paint.palette import TERMINAL_THEME

    plain = case.look in ("16 colors", "mono", "ascii")
    with patch.dict(os.environ, {"NO_COLOR": ""} if case.look in ("mono", "ascii") else {}):
        app = LlmtopApp(
            StaticFeed(list(moments(case.gpus, case.ranks, case.alert, case.kind))),
            ascii=case.look == "ascii",
            theme=TERMINAL_THEME if plain else case.look,
        )
    async with app.run_test(size=case.size) as pilot:
        await pilot.pause()
        return text(app), app.export_screenshot(title=f"{case.look}")


def chosen(numbers: list[int]) -> Iterator[tuple[int, Case]]:
    """The cases of these numbers, or all."""
    yield from ((number, case) for number, case in enumerate(cases(), 1) if not numbers or number in numbers)


def main(folder: Path, numbers: list[int]) -> int:
    """Draw them."""
    from screenshots.draw import png

    os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
    folder.mkdir(parents=True, exist_ok=True)
    for number, case in chosen(numbers):
        said, svg = asyncio.run(drawn(case))
        (folder / f"{number:03}.txt").write_text(f"{number}: {' | '.join(map(str, case))}\n{said}\n")
        try:
            (folder / f"{number:03}.png").write_bytes(png(svg))
        except ImportError:
            continue
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [int(one) for one in sys.argv[2:]]))
