"""Which of the machine's GPUs are shown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from llmtop.errors import UnusableInput
from llmtop.model.snapshot import Gpu, Rank
from llmtop.naming import gpu_entries, variable_names
from llmtop.naming.lazy_pattern import lazy_pattern

_INDEX = lazy_pattern(f"^{gpu_entries.INDEX}$")
_UUID = lazy_pattern(f"^{gpu_entries.UUID}$")
_ROCM_UUID = lazy_pattern(r"^GPU-((?:(?:3[0-9]|6[1-6])-?){16})$")
"""Pattern of ROCm's UUID: each byte is a hexadecimal digit in ASCII."""
_CUDA_INDEX = lazy_pattern(r"^\+?(\d{1,9})")
"""CUDA reads the number at the beginning of an entry and takes no offence at the rest."""
_OLD_MIG = lazy_pattern(r"^MIG-(GPU-[0-9a-fA-F-]+)/(\d{1,4})/(\d{1,4})$")
"""CUDA's name of a MIG instance under drivers before 470: GPU, GPU instance, compute instance."""
_VISIBLE = variable_names.CUDA_DEVICES


@dataclass(frozen=True)
class GpuSelection:
    """All GPUs, those that attached trainings use, or the ones named by index or by the beginning of a UUID.

    A MIG instance goes with its GPU when that is chosen, and can be named alone by its own UUID. An index stays
    the GPU that it was when it was first seen: a driver that has lost a GPU gives its number to another.
    """

    mode: str = "all"
    """"all", "attached" or "given"."""
    wanted: tuple[str, ...] = ()
    visible: str | None = None
    """The value of CUDA_VISIBLE_DEVICES, where that chose and not the person at the screen."""
    _uuids: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    """UUIDs by index, of the GPUs that have been seen."""

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
        """Return the GPUs that CUDA_VISIBLE_DEVICES lets a program started from this shell use; all, if it is not
        set.

        As CUDA reads it, where that can be known before the GPUs are: the first entry decides whether all are
        numbers or UUIDs, the first that is neither ends the list, and one that comes twice means no GPU at all.
        Where that leaves no GPU (an empty value, or -1), all are shown: a monitor without GPUs would be of no use.

        CUDA numbers GPUs by speed unless CUDA_DEVICE_ORDER is PCI_BUS_ID; on machines with GPUs of one kind, the
        rule for training, both orders are the same.
        """
        visible = os.environ.get(_VISIBLE)
        if visible is None:
            return cls()
        named = _cuda_visible_entries(visible)
        return cls(mode="given" if named else "all", wanted=named, visible=visible)

    def __str__(self) -> str:
        return ",".join(self.wanted) if self.mode == "given" else self.mode

    def choose(self, gpus: tuple[Gpu, ...], ranks: Sequence[Rank]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
        """Return the GPUs to show, in their order, and sentences on what was asked for and is not there."""
        if not gpus:
            return gpus, ()
        if self.mode == "attached":
            return _gpus_of_ranks(gpus, ranks)
        if self.mode == "all":
            return gpus, () if self.visible is None else (self._none_visible(),)
        if self.visible is not None:
            return self._choose_as_cuda(gpus)
        found = {want: self._matching_uuids(want, gpus) for want in self.wanted}
        missing = [want for want, uuids in found.items() if not uuids]
        notes: tuple[str, ...] = (
            (f"no GPU here is called {', '.join(missing)}; there are {_span(gpus)} (nvidia-smi -L lists them)",)
            if missing
            else ()
        )
        return _with_instances(gpus, set().union(*found.values())), notes

    def _choose_as_cuda(self, gpus: tuple[Gpu, ...]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
        """CUDA stops at the first entry that names no GPU here, or more than one."""
        usable: list[str] = []
        chosen: set[str] = set()
        for want in self.wanted:
            uuids = self._matching_uuids(want, gpus)
            if len(uuids) != 1:
                break
            usable.append(want)
            chosen |= uuids
        shown = _with_instances(gpus, chosen)
        if not shown:
            return gpus, (self._none_visible(),)
        stopped = self.wanted[len(usable) :]
        why = f" (CUDA stops at {stopped[0]}, which is no GPU here)" if stopped else ""
        if len(shown) == len(gpus) and not why:
            return shown, ()
        only = "only GPU" if len(shown) < len(gpus) else "GPU"
        said = f"{only} {','.join(usable)} is shown, as {_VISIBLE} says{why}; --gpus all shows {_span(gpus)}"
        return shown, (said,)

    def _none_visible(self) -> str:
        value = f" ({self.visible})" if self.visible else ""
        return f"{_VISIBLE}{value} lets programs started here use no GPU; all are shown"

    def _matching_uuids(self, want: str, gpus: tuple[Gpu, ...]) -> set[str]:
        """Return the UUIDs of the GPUs that an index or (the beginning of) a UUID means."""
        if not _INDEX.match(want):
            return _uuids_with_prefix(want, gpus)
        if want not in self._uuids:
            # A GPU without a known UUID yet may turn out to be any.
            found = [gpu for gpu in gpus if gpu.mig_parent_uuid is None and gpu.index == int(want)]
            if not found or found[0].uuid.startswith("unknown-"):
                return {gpu.uuid for gpu in found}
            self._uuids[want] = found[0].uuid
        return {self._uuids[want]} & {gpu.uuid for gpu in gpus}


def with_whole_uuids(ranks: tuple[Rank, ...], gpus: tuple[Gpu, ...]) -> tuple[Rank, ...]:
    """Return the trainings with the GPU's own UUID where CUDA_VISIBLE_DEVICES gave them a shorter or an older
    name."""
    known = {gpu.uuid for gpu in gpus}
    return tuple(_with_whole_uuid(rank, gpus) if _is_unknown(rank, known) else rank for rank in ranks)


def _is_unknown(rank: Rank, known: set[str]) -> bool:
    return rank.gpu_uuid is not None and rank.gpu_uuid not in known


def _with_whole_uuid(rank: Rank, gpus: tuple[Gpu, ...]) -> Rank:
    found = _uuids_with_prefix(_hip_uuid_text(rank.gpu_uuid or ""), gpus)
    return replace(rank, gpu_uuid=found.pop()) if len(found) == 1 else rank


def _hip_uuid_text(uuid: str) -> str:
    """PyTorch on ROCm takes the sixteen characters of HIP's UUID for sixteen bytes, and writes these in hex."""
    match = _ROCM_UUID.match(uuid)
    return uuid if match is None else "GPU-" + bytes.fromhex(match[1].replace("-", "")).decode("ascii")


def _uuids_with_prefix(want: str, gpus: tuple[Gpu, ...]) -> set[str]:
    old = _OLD_MIG.match(want)
    if old is None:
        return {gpu.uuid for gpu in gpus if gpu.uuid.lower().startswith(want.lower())}
    parent, ids = old[1].lower(), (int(old[2]), int(old[3]))
    return {
        gpu.uuid
        for gpu in gpus
        if (gpu.mig_parent_uuid or "").lower() == parent
        and (gpu.mig_gpu_instance, gpu.mig_compute_instance) == ids
    }


def _cuda_visible_entries(visible: str) -> tuple[str, ...]:
    """Return the entries up to the first of another kind than the first one; none where one comes twice."""
    entries = [part.strip() for part in visible.split(",")]
    by_uuid = bool(_UUID.match(entries[0]))
    named: list[str] = []
    for entry in entries:
        number = _CUDA_INDEX.match(entry)
        if by_uuid:
            name = entry if _UUID.match(entry) else None
        else:
            name = None if number is None else str(int(number[1]))
        if name is None:
            break
        if name in named:
            return ()
        named.append(name)
    return tuple(named)


def _gpus_of_ranks(gpus: tuple[Gpu, ...], ranks: Sequence[Rank]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    used = {rank.gpu_uuid for rank in ranks if rank.gpu_uuid is not None and rank.state != "gone"}
    chosen = {gpu.uuid for gpu in gpus if gpu.uuid in used}
    if not chosen:
        return gpus, ("no attached training says which GPU it uses, so all are shown",)
    return _with_instances(gpus, chosen), ()


def _with_instances(gpus: tuple[Gpu, ...], chosen: set[str]) -> tuple[Gpu, ...]:
    return tuple(gpu for gpu in gpus if gpu.uuid in chosen or gpu.mig_parent_uuid in chosen)


def _span(gpus: tuple[Gpu, ...]) -> str:
    return ", ".join(str(gpu.index) for gpu in gpus if gpu.mig_parent_uuid is None)
