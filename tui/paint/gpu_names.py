"""Numbers and counts of GPUs on the screen; MIG instances are distinct from their parent GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from llmtop.model.snapshot import Gpu
from tui.paint.gpu_metrics import short_name


def labels(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return each GPU's number by its UUID: the driver's index; "0:1" is the second MIG instance of GPU 0.

    The driver lists all instances after their GPU. Where that one is not shown, some of its instances may not be
    either, so that counting would name the wrong one: they get the beginning of their UUID instead.
    """
    whole = {gpu.uuid for gpu in gpus if gpu.mig_parent_uuid is None}
    seen: Counter[str] = Counter()
    found: dict[str, str] = {}
    for gpu in gpus:
        if gpu.mig_parent_uuid is None:
            found[gpu.uuid] = str(gpu.index)
            continue
        place = str(seen[gpu.mig_parent_uuid])
        part = place if gpu.mig_parent_uuid in whole else gpu.uuid.removeprefix("MIG-")[:4]
        found[gpu.uuid] = f"{gpu.index}:{part}"
        seen[gpu.mig_parent_uuid] += 1
    return found


def sort_value(label: str | None) -> float | None:
    """Return where a GPU stands among all by its label; "0:1", a MIG instance, after "0". None without a label."""
    index, _, part = (label or "").partition(":")
    if not index.isdecimal():
        return None
    return int(index) + (int(part) + 1) / 1000 if part.isdecimal() else float(index)


def label(gpu: Gpu, gpus: Sequence[Gpu]) -> str:
    """Return the number of a GPU among these, as it is written on the screen."""
    return labels(gpus).get(gpu.uuid, str(gpu.index))


def gpu_counts(gpus: Sequence[Gpu]) -> str:
    """ "2 × H200", "1 × H200, 3 MIG instances", "4 GPUs" of several models; empty without any."""
    whole = [gpu for gpu in gpus if gpu.mig_parent_uuid is None]
    names = {short_name(gpu.name) for gpu in whole}
    parts = len(gpus) - len(whole)
    told = []
    if whole:
        told.append(f"{len(whole)} × {names.pop()}" if len(names) == 1 else f"{len(whole)} GPUs")
    if parts:
        told.append(f"{parts} MIG instance{'' if parts == 1 else 's'}")
    return ", ".join(told)
