"""Draw the pictures of the trial "low power at full utilization by eye" (docs/measurements.md).

python -m tests.support.low_power_pictures FOLDER

Thirty main screens of eight GPUs without any alert: on 20 of them one GPU spins, on 10 none. A reader who is given
the pictures alone names it. Scenes and truth: tests/data/low_power_pictures/scenes.json.gz.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import sys
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from llmtop.model.snapshot import Gpu, Snapshot
from screenshots.draw import Picture, png, svg
from screenshots.scenes import GIB, scene, uuid
from tests.support.processes import REPOSITORY

SCENES = REPOSITORY / "tests" / "data" / "low_power_pictures" / "scenes.json.gz"
_HOPPER_ONLY = ("sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct")
_NVLINK = ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s")


def gpu(index: int, signals: dict[str, Any], made: dict[str, Any], dice: random.Random) -> Gpu:
    """Return one GPU at one moment, each signal drawn from its mean and spread."""
    values: dict[str, Any] = {}
    for name, given in signals.items():
        mean, spread = given if isinstance(given, list) else (given, 0.0)
        value = max(dice.gauss(mean, spread), 0.0)
        values[name] = min(value, 100.0) if name.endswith("_pct") else value
    values["mem_used_bytes"] = int(values.pop("mem_used_gib") * GIB)
    if not made["gpm"]:
        values = {name: value for name, value in values.items() if name not in (*_HOPPER_ONLY, *_NVLINK)}
    return Gpu(
        index=index,
        uuid=uuid(index),
        name=made["gpu_name"],
        power_limit_watts=float(made["power_limit_watts"]),
        mem_total_bytes=int(made["mem_total_gib"] * GIB),
        pcie_source="gpm" if made["gpm"] else "nvml",
        **values,
    )


def moments(made: dict[str, Any]) -> list[Snapshot]:
    """Return the snapshots of a scene, one a second."""
    dice, seconds, bad = random.Random(made["name"]), made.get("seconds", 150), made.get("bad_from")
    found = []
    for second, moment in enumerate(scene(gpus=8, ranks=8 if made["ranks"] else 0, seconds=seconds)):
        signals = list(made["gpus"])
        if bad and second >= seconds - bad["seconds_before_end"]:
            signals[bad["gpu"]] = bad["entry"]
        found.append(
            replace(moment, alerts=(), gpus=tuple(gpu(i, one, made, dice) for i, one in enumerate(signals)))
        )
    return found


def main(folder: Path) -> int:
    """Draw all of them as PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    for made in json.loads(gzip.decompress(SCENES.read_bytes()))["scenes"]:
        shown = moments(made)
        picture = Picture(made["name"], tuple(made["size"]), lambda shown=shown: shown)  # type: ignore[misc]
        (folder / f"{made['name']}.png").write_bytes(png(asyncio.run(svg(picture))))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
