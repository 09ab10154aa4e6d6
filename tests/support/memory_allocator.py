"""Snapshots of an allocator that never was: made by a small model of PyTorch's, in the form that PyTorch gives.

None of it was recorded on a GPU. The model keeps segments of at least 2 MiB (20 MiB for pieces over 1 MiB), splits
and joins blocks, rounds to 512 bytes, and writes the history that the real one writes, with frames as Python
has them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TORCH = "/venv/lib/python3.11/site-packages/torch"
MIB = 1 << 20


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    """One frame as a snapshot has it."""
    return {"filename": file, "line": line, "name": name}


MAIN = frame("/home/me/train.py", 90, "<module>")
CALL = frame(f"{TORCH}/nn/modules/module.py", 1780, "_call_impl")
LINEAR = [frame(f"{TORCH}/nn/modules/linear.py", 125, "forward"), CALL]
MODEL_INIT = [
    frame(f"{TORCH}/nn/modules/linear.py", 106, "__init__"),
    frame("/home/me/model.py", 12, "__init__"),
    MAIN,
]
FORWARD = [*LINEAR, frame("/home/me/model.py", 31, "forward"), CALL, frame("/home/me/train.py", 40, "step"), MAIN]
LOSS = [frame(f"{TORCH}/nn/functional.py", 3500, "cross_entropy"), frame("/home/me/train.py", 42, "step"), MAIN]
BACKWARD: list[dict[str, Any]] = []
"""Of autograd's own thread: no Python."""
OPTIMIZER_STATE = [
    frame(f"{TORCH}/optim/adamw.py", 160, "_init_group"),
    frame(f"{TORCH}/optim/adamw.py", 230, "step"),
    frame("/home/me/train.py", 46, "step"),
    MAIN,
]
OPTIMIZER_SHORT = [
    frame(f"{TORCH}/optim/adamw.py", 600, "_multi_tensor_adamw"),
    frame("/home/me/train.py", 46, "step"),
    MAIN,
]
ZERO_GRAD = [frame(f"{TORCH}/optim/optimizer.py", 990, "zero_grad"), frame("/home/me/train.py", 47, "step"), MAIN]
STEP = [frame("/home/me/train.py", 44, "step"), MAIN]


@dataclass
class _Block:
    address: int
    bytes: int
    requested: int = 0
    frames: list[dict[str, Any]] = field(default_factory=list)
    used: bool = False


@dataclass
class Allocator:
    """One device."""

    capacity: int = 80 << 30
    now_us: int = 1_700_000_000_000_000
    recording: bool = True
    segments: list[list[_Block]] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    steps_us: list[int] = field(default_factory=list)
    _next: int = 0x7F0000000000

    def alloc(self, size: int, frames: list[dict[str, Any]]) -> int:
        """Take so many bytes; the address of them."""
        rounded = max(512, -(-size // 512) * 512)
        block = self._fitting(rounded) or self._segment(rounded, size, frames)
        block.used, block.requested, block.frames = True, size, frames if self.recording else []
        self._note("alloc", block.address, size, frames)
        return block.address

    def free(self, address: int, frames: list[dict[str, Any]] | None = None) -> None:
        """Give back what lies there, and join it with free neighbours."""
        for blocks in self.segments:
            for place, block in enumerate(blocks):
                if block.address == address and block.used:
                    self._note("free_requested", address, block.requested, frames or [])
                    self._note("free_completed", address, block.requested, frames or [])
                    block.used, block.requested, block.frames = False, 0, []
                    self._join(blocks, place)
                    return
        raise AssertionError(f"nothing is allocated at {address:#x}")

    def begin_step(self) -> None:
        """A step begins; at last the end of the last one."""
        self.steps_us.append(self.now_us)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What happens within belongs to a phase of this name."""
        self.annotations.append({"name": name, "stage": "START", "device": 0, "time_us": self.now_us})
        yield
        self.annotations.append({"name": name, "stage": "END", "device": 0, "time_us": self.now_us})
        self.now_us += 10

    def snapshot(self) -> dict[str, Any]:
        """As `torch.cuda.memory._snapshot` gives it, with what llmtop adds."""
        return {
            "segments": [self._told(blocks) for blocks in self.segments],
            "device_traces": [list(self.trace)],
            "external_annotations": list(self.annotations),
            "allocator_settings": {"expandable_segments": False},
            "llmtop": {"steps_us": list(self.steps_us)},
        }

    def write(self, path: Path) -> Path:
        """The snapshot as a file."""
        path.write_bytes(pickle.dumps(self.snapshot()))
        return path

    def forget_history(self) -> None:
        """As if the recording began now: no events, and blocks without stacks."""
        self.trace.clear()
        self.annotations.clear()
        self.steps_us.clear()
        for blocks in self.segments:
            for block in blocks:
                block.frames = []

    def _note(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        self.now_us += 10
        if self.recording:
            entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.now_us}
            self.trace.append({**entry, "frames": frames, "compile_context": "N/A"})

    def _fitting(self, size: int) -> _Block | None:
        large = size > MIB
        fits = [
            (block.bytes, number, place)
            for number, blocks in enumerate(self.segments)
            if (sum(one.bytes for one in blocks) > 2 * MIB) == large
            for place, block in enumerate(blocks)
            if not block.used and block.bytes >= size
        ]
        if not fits:
            return None
        _, number, place = min(fits)
        return self._split(self.segments[number], place, size)

    def _segment(self, size: int, asked: int, frames: list[dict[str, Any]]) -> _Block:
        large = size > MIB
        taken = 2 * MIB if not large else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        reserved = sum(block.bytes for blocks in self.segments for block in blocks)
        if reserved + taken > self.capacity:
            entry = {"action": "oom", "device_free": self.capacity - reserved, "size": asked, "stream": 0}
            self.now_us += 10
            self.trace.append({**entry, "time_us": self.now_us, "frames": frames})
            raise MemoryError(f"{asked} bytes")
        blocks = [_Block(self._next, taken)]
        self._next += taken + 2 * MIB
        self.segments.append(blocks)
        self._note("segment_alloc", blocks[0].address, taken, frames)
        return self._split(blocks, 0, size)

    @staticmethod
    def _split(blocks: list[_Block], place: int, size: int) -> _Block:
        block = blocks[place]
        least = 512 if sum(one.bytes for one in blocks) <= 2 * MIB else MIB
        if block.bytes - size >= least:
            blocks.insert(place + 1, _Block(block.address + size, block.bytes - size))
            block.bytes = size
        return block

    @staticmethod
    def _join(blocks: list[_Block], place: int) -> None:
        for left in (place, place - 1):
            if 0 <= left < len(blocks) - 1 and not blocks[left].used and not blocks[left + 1].used:
                blocks[left].bytes += blocks.pop(left + 1).bytes

    @staticmethod
    def _told(blocks: list[_Block]) -> dict[str, Any]:
        total = sum(block.bytes for block in blocks)
        used = sum(block.bytes for block in blocks if block.used)
        return {
            "device": 0,
            "address": blocks[0].address,
            "total_size": total,
            "allocated_size": used,
            "active_size": used,
            "requested_size": sum(block.requested for block in blocks),
            "stream": 0,
            "segment_type": "large" if total > 2 * MIB else "small",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [
                {
                    "address": block.address,
                    "size": block.bytes,
                    "requested_size": block.requested,
                    "state": "active_allocated" if block.used else "inactive",
                    "frames": block.frames,
                }
                for block in blocks
            ],
        }


@dataclass
class Training:
    """A training of some layers, as its allocations go."""

    allocator: Allocator
    layers: int = 4
    weight: int = 8 * MIB
    activation: int = 16 * MIB
    leak: list[dict[str, Any]] | None = None
    """The stack of which each step keeps a loss."""
    queue: int = 0
    """So many of the last losses are kept."""
    _optimizer: list[int] = field(default_factory=list)
    _losses: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for _ in range(self.layers):
            self.allocator.alloc(self.weight, MODEL_INIT)

    def steps(self, count: int) -> None:
        """Train so many steps, with a boundary before the first and after each."""
        self.allocator.begin_step()
        for _ in range(count):
            self._step()
            self.allocator.begin_step()

    def _step(self) -> None:
        take, free = self.allocator.alloc, self.allocator.free
        with self.allocator.phase("forward"):
            saved = [take(self.activation, FORWARD) for _ in range(self.layers)]
            loss = take(4, self.leak or LOSS)
        with self.allocator.phase("backward"):
            gradients = []
            for address in reversed(saved):
                short = take(self.activation, BACKWARD)
                gradients.append(take(self.weight, BACKWARD))
                free(address)
                free(short)
        with self.allocator.phase("optimizer"):
            if not self._optimizer:
                self._optimizer = [take(self.weight, OPTIMIZER_STATE) for _ in range(2 * self.layers)]
            free(take(self.weight, OPTIMIZER_SHORT))
            for address in gradients:
                free(address, ZERO_GRAD)
        self._losses.append(loss)
        if self.leak is None and len(self._losses) > self.queue:
            free(self._losses.pop(0))
