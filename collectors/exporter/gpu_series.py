"""GPUs under the names and labels of dcgm-exporter, so that what reads those reads ours.

`Hostname` became `hostname` in dcgm-exporter of May 2026: both are given. Its labels `device` and `pci_bus_id`
are in no snapshot, and left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, UntypedMetricFamily

from collectors.exporter.totals import label
from collectors.gpu import dcgm_names
from llmtop.hardware.gpu_errors import xids_in
from llmtop.model.signals import SERIES, Series, Signal
from llmtop.model.snapshot import Gpu

_LABELS: Final = ("gpu", "UUID", "modelName", "GPU_I_PROFILE", dcgm_names.INSTANCE_LABEL, "Hostname", "hostname")
_PROFILE: Final = re.compile(r"MIG (\d+g\.\d+gb\S*)")
XID: Final = "DCGM_FI_DEV_XID_ERRORS"


def _value(signal: Signal, series: Series, gpu: Gpu) -> float | None:
    known: float | None = getattr(gpu, signal.field)
    if known is None or not series.less:
        return None if known is None else known * series.factor
    subtracted: float | None = getattr(gpu, series.less)
    return None if subtracted is None else max(0, known - subtracted) * series.factor


class LastXids:
    """The last Xid of each GPU; as DCGM's, it stays."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def update(self, gpus: Collection[Gpu]) -> None:
        """Update from the GPUs' current values; GPUs that have gone are dropped."""
        for gpu in gpus:
            found = xids_in(gpu.error or "")
            if found:
                self._last[gpu.uuid] = found[-1]
        self._last = {gpu.uuid: self._last[gpu.uuid] for gpu in gpus if gpu.uuid in self._last}

    def latest(self, uuid: str) -> int | None:
        """None while none was seen."""
        return self._last.get(uuid)


_FRAMEBUFFER: Final = "DCGM_FI_DEV_FB_"
"""Left out where these are the system's memory: the names of the series promise the GPU's own."""


def families(
    gpus: Collection[Gpu], host: str, xids: LastXids, others: Collection[tuple[str, str]]
) -> Iterator[GaugeMetricFamily | UntypedMetricFamily]:
    """Yield the series of these GPUs; what is absent is left out.

    Args:
        gpus: of a snapshot.
        host: the node's name.
        xids: what they have reported so far.
        others: pairs of UUID and name that a dcgm-exporter on this node gives, which are left to it.
    """
    labels: dict[str, list[str]] = {}
    for gpu in gpus:
        mine = _labels(gpu, host)
        if mine not in labels.values():  # compute instances of one MIG instance have the same: DCGM knows none
            labels[gpu.uuid] = mine
    for signal, series in SERIES:
        family = (UntypedMetricFamily if series.untyped else GaugeMetricFamily)(
            series.name, series.help, labels=_LABELS
        )
        for gpu in gpus:
            value = _value(signal, series, gpu) if gpu.uuid in labels else None
            if gpu.memory_is_system and series.name.startswith(_FRAMEBUFFER):
                continue
            if (
                value is not None
                and (_parent(gpu), series.name) not in others
                and not _is_from_dcgm(gpu, series.name)
            ):
                family.add_metric(labels[gpu.uuid], value)
        if family.samples:
            yield family
    errors = GaugeMetricFamily(XID, "Value of the last XID error encountered", labels=_LABELS)
    for gpu in gpus:
        last = xids.latest(gpu.uuid)
        if last is not None and gpu.uuid in labels and (_parent(gpu), XID) not in others:
            errors.add_metric(labels[gpu.uuid], last)
    if errors.samples:
        yield errors


def _is_from_dcgm(gpu: Gpu, name: str) -> bool:
    """Return True if the value came from a dcgm-exporter, which exports it itself."""
    source = gpu.pcie_source if name.startswith("DCGM_FI_PROF_PCIE_") else gpu.activity_source
    return source == "dcgm" and name.startswith("DCGM_FI_PROF_")


def _parent(gpu: Gpu) -> str:
    return gpu.mig_parent_uuid or gpu.uuid


def _labels(gpu: Gpu, host: str) -> list[str]:
    profile = _PROFILE.search(gpu.name) if gpu.mig_parent_uuid is not None else None
    instance = "" if gpu.mig_gpu_instance is None else str(gpu.mig_gpu_instance)
    return [str(gpu.index), _parent(gpu), label(gpu.name), profile[1] if profile else "", instance, host, host]
