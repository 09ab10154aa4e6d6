"""Which of the machine's GPUs are shown."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from llmtop.errors import UnusableInput
from llmtop.snapshot import Gpu, Rank

_INDEX = re.compile(r"^\d{1,4}$")
_UUID = re.compile(r"^(GPU|MIG)-[0-9a-fA-F][0-9a-fA-F/-]*$")


@dataclass(frozen=True)
class GpuSelection:
    """All GPUs, those that attached trainings use, or the ones named by index or by the beginning of a UUID.

    A MIG instance goes with its GPU when that is chosen, and can be named alone by its own UUID.
    """

    mode: str = "all"
    """"all", "attached" or "given"."""
    wanted: tuple[str, ...] = ()
    why: str = ""
    """Who chose, if it was not the person at the screen."""

    @classmethod
    def parse(cls, text: str) -> GpuSelection:
        """Read what `--gpus` takes.

        Raises:
            UnusableInput: an entry is neither an index nor a UUID.
        """
        text = text.strip()
        if text in ("all", "attached"):
            return cls(mode=text)
        wanted = tuple(part.strip() for part in text.split(","))
        for part in wanted:
            if not (_INDEX.match(part) or _UUID.match(part)):
                raise UnusableInput(
                    f"--gpus takes indices and UUIDs as nvidia-smi -L lists them (0,2 or GPU-1a2b…), "
                    f'"all" or "attached"; {part!r} is none of them'
                )
        return cls(mode="given", wanted=wanted)

    @classmethod
    def default(cls) -> GpuSelection:
        """The GPUs that CUDA_VISIBLE_DEVICES lets a program started from this shell use; all, if it is not set.

        Like CUDA, takes the entries up to the first that is none. Where that leaves no GPU, as for a shell that
        wants none (an empty value, or -1), all are shown: a monitor without GPUs would be of no use.

        CUDA numbers GPUs by speed unless CUDA_DEVICE_ORDER is PCI_BUS_ID; on machines with GPUs of one kind, the
        rule for training, both orders are the same.
        """
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return cls()
        entries = (part.strip() for part in visible.split(","))
        named = tuple(takewhile(lambda part: _INDEX.match(part) or _UUID.match(part), entries))
        return cls(mode="given" if named else "all", wanted=named, why="CUDA_VISIBLE_DEVICES")

    def __str__(self) -> str:
        return ",".join(self.wanted) if self.mode == "given" else self.mode

    def choose(self, gpus: tuple[Gpu, ...], ranks: Sequence[Rank]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
        """The GPUs to show, in their order, and sentences on what was asked for and is not there."""
        if self.mode == "all" and self.why and gpus:
            return gpus, (f"{self.why} lets programs started here use no GPU; all are shown",)
        if self.mode == "all" or not gpus:
            return gpus, ()
        if self.mode == "attached":
            return _attached(gpus, ranks)
        chosen = {gpu.uuid for gpu in gpus if any(_names(want, gpu) for want in self.wanted)}
        missing = [want for want in self.wanted if not any(_names(want, gpu) for gpu in gpus)]
        notes: tuple[str, ...] = (
            (f"no GPU here is called {', '.join(missing)}; there are {_span(gpus)} (nvidia-smi -L lists them)",)
            if missing
            else ()
        )
        shown = _with_instances(gpus, chosen)
        if self.why and len(shown) < len(gpus):
            notes += (f"only GPU {self} is shown, as {self.why} says; --gpus all shows {_span(gpus)}",)
        return shown, notes


def _attached(gpus: tuple[Gpu, ...], ranks: Sequence[Rank]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    used = {rank.gpu_uuid for rank in ranks if rank.gpu_uuid is not None and rank.state != "gone"}
    chosen = {gpu.uuid for gpu in gpus if gpu.uuid in used}
    if not chosen:
        return gpus, ("no attached training says which GPU it uses, so all are shown",)
    return _with_instances(gpus, chosen), ()


def _names(want: str, gpu: Gpu) -> bool:
    if _INDEX.match(want):
        return gpu.mig_parent_uuid is None and gpu.index == int(want)
    return gpu.uuid.startswith(want)


def _with_instances(gpus: tuple[Gpu, ...], chosen: set[str]) -> tuple[Gpu, ...]:
    return tuple(gpu for gpu in gpus if gpu.uuid in chosen or gpu.mig_parent_uuid in chosen)


def _span(gpus: tuple[Gpu, ...]) -> str:
    return ", ".join(str(gpu.index) for gpu in gpus if gpu.mig_parent_uuid is None)
