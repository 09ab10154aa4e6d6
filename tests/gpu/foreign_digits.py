"""Pictures of noise in the file format of MNIST, for scripts that would download it."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

_FILES = (("train-images-idx3-ubyte", 60_000, 3), ("train-labels-idx1-ubyte", 60_000, 1))
_TESTS = (("t10k-images-idx3-ubyte", 10_000, 3), ("t10k-labels-idx1-ubyte", 10_000, 1))


def write_raw(folder: Path) -> None:
    """Write the four files: a magic number with the number of axes, their lengths, the bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, count, axes in (*_FILES, *_TESTS):
        shape = (count, 28, 28)[:axes]
        head = struct.pack(f">{1 + axes}I", 0x0800 + axes, *shape)
        (folder / name).write_bytes(
            head + rng.integers(0, 256 if axes > 1 else 10, shape, dtype=np.uint8).tobytes()
        )
