"""The measured captures under tests/data."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
HEALTHY = DATA / "h200" / "nsys" / "healthy.sqlite.gz"
LAUNCH_BOUND = DATA / "h200" / "nsys" / "launch_bound.sqlite.gz"
TWO_GPUS = DATA / "h200x2" / "nsys" / "healthy.sqlite.gz"
KINETO = DATA / "h200" / "kineto" / "healthy_with_input_cost.json.gz"


def unpacked(packed: Path, folder: Path) -> Path:
    """A copy of a gzipped file in `folder`, unpacked."""
    target = folder / packed.name.removesuffix(".gz")
    with gzip.open(packed) as source, target.open("wb") as plain:
        shutil.copyfileobj(source, plain)
    return target
