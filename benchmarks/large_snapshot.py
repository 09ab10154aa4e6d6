"""A snapshot of the allocator as a training of 20 GiB leaves it: a small one of tests/support, many times over.

What makes a real one dear to read is kept as PyTorch has it: each event and block has a dict of its own and, with
what was recorded of it, a list of frames of its own, tens of them; only the frames themselves, one dict for each
place in the code, are shared.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from tests.support.memory_allocator import (
    BACKWARD,
    CALL,
    FORWARD,
    LOSS,
    MODEL_INIT,
    OPTIMIZER_SHORT,
    OPTIMIZER_STATE,
    STEP,
    TORCH,
    ZERO_GRAD,
    Allocator,
    frame,
)

COPIES = 100
ENTRIES = 200_000
"""As many as llmtop records (`MEMORY_ENTRIES` in llmtop/instrument/control/recordings.py)."""
_LAYERS = 35
_FROZEN = 94
_STEPS = 6
_WEIGHT = 600_000
_ACTIVATION = 1_500_000
_RUNNER = 20
"""Frames outside of the model: a launcher, a trainer, wrappers."""
_NATIVE = 50
"""Frames of C++, where a script records those too, as PyTorch's `_record_memory_history` does by default."""
_INNER = 8
"""Modules within modules, two frames each."""
_APART = 1 << 36
"""Bytes between the addresses of two copies."""

Data = dict[str, Any]


def write(path: Path, *, native: bool) -> Path:
    """Make it and write it as PyTorch does.

    Args:
        path: where; it is returned.
        native: whether it has frames of C++, so that no stack is empty; llmtop records none.
    """
    with path.open("wb") as file:
        pickle.dump(_multiplied(_small(), _Frames(_NATIVE if native else 0)), file)
    return path


def _small() -> Data:
    """A training whose layers keep a temporary within each forward pass; some of its weights are frozen."""
    allocator = Allocator()
    take, free = allocator.alloc, allocator.free
    for _ in range(_LAYERS + _FROZEN):
        take(_WEIGHT, MODEL_INIT)
    state: list[int] = []
    allocator.begin_step()
    for _ in range(_STEPS):
        with allocator.phase("forward"):
            saved = []
            for _ in range(_LAYERS):
                short = take(_ACTIVATION, FORWARD)
                saved.append(take(_ACTIVATION, FORWARD))
                free(short, FORWARD)
            loss = take(4, LOSS)
        with allocator.phase("backward"):
            gradients = []
            for address in reversed(saved):
                gradients.append(take(_WEIGHT, BACKWARD))
                free(address)
        with allocator.phase("optimizer"):
            state = state or [take(_WEIGHT, OPTIMIZER_STATE) for _ in range(2 * _LAYERS)]
            free(take(_WEIGHT, OPTIMIZER_SHORT), OPTIMIZER_SHORT)
            for address in gradients:
                free(address, ZERO_GRAD)
        free(loss, STEP)
        allocator.begin_step()
    return allocator.snapshot()


def _multiplied(small: Data, frames: _Frames) -> Data:
    """So many of them side by side in one process, each in address space of its own; the last entries are kept."""
    begun = small["llmtop"]["steps_us"][0]
    trace: list[Data] = []
    living: dict[int, list[Data]] = {}
    for entry in small["device_traces"][0]:
        for copy in range(COPIES):
            event = {**entry, "time_us": _later(entry["time_us"], begun) + copy, "user_metadata": ""}
            event["addr"] += copy * _APART
            # PyTorch looks once when memory is given back, and notes that twice.
            again = entry["action"] == "free_completed"
            event["frames"] = trace[-COPIES]["frames"] if again else frames.listed(entry["frames"], copy)
            if entry["action"] == "alloc":
                living[event["addr"]] = event["frames"]
            trace.append(event)
    return {
        "segments": [
            _moved(segment, copy, living, frames) for copy in range(COPIES) for segment in small["segments"]
        ],
        "device_traces": [trace[-ENTRIES:]],
        "external_annotations": [
            {**one, "time_us": _later(one["time_us"], begun)} for one in small["external_annotations"]
        ],
        "allocator_settings": small["allocator_settings"],
        "llmtop": {"steps_us": [_later(at, begun) for at in small["llmtop"]["steps_us"]]},
    }


def _later(time_us: int, begun: int) -> int:
    return begun + (time_us - begun) * COPIES


def _moved(segment: Data, copy: int, living: dict[int, list[Data]], frames: _Frames) -> Data:
    def moved(block: Data) -> Data:
        address = block["address"] + copy * _APART
        return {**block, "address": address, "frames": living.get(address, [])}

    return {
        **segment,
        "address": segment["address"] + copy * _APART,
        "frames": frames.listed(STEP, copy),
        "blocks": [moved(block) for block in segment["blocks"]],
    }


class _Frames:
    """Lists of frames that share their frames, as deep as real ones; each copy's layers are lines of their own."""

    def __init__(self, native: int) -> None:
        library = f"{TORCH}/lib/libtorch_cuda.so"
        self._native = [frame(library, 0, f"c10::part{number}(at::Tensor const&)") for number in range(native)]
        self._known: dict[tuple[str, int, str], Data] = {}
        self._runner = [frame(f"{TORCH}/distributed/run.py", 800 + line, f"part{line}") for line in range(_RUNNER)]

    def listed(self, frames: list[Data], copy: int) -> list[Data]:
        """A list of its own; an empty one without frames."""
        if not frames:
            return [self._one(one) for one in self._native]
        modules = [
            one
            for inner in range(_INNER if "forward" in frames[0]["name"] else 0)
            for one in (frame(f"/home/me/layers/part{inner}.py", 60 + copy, "forward"), CALL)
        ]
        return [self._one(one) for one in (*self._native, *frames, *modules, *self._runner)]

    def _one(self, one: Data) -> Data:
        return self._known.setdefault((one["filename"], one["line"], one["name"]), {**one})
