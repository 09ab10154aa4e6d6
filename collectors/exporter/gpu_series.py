"""GPUs under the names and labels of dcgm-exporter, so that what reads those reads ours.

`Hostname` became `hostname` in dcgm-exporter of May 2026: both are given. Its labels `device` and `pci_bus_id`
are in no snapshot, and left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily, UntypedMetricFamily

from collectors.exporter.totals import label
from llmtop.hardware.gpu_errors import xids_in
from llmtop.model.snapshot import Gpu

_MIB: Final = 1 << 20
_LABELS: Final = ("gpu", "UUID", "modelName", "GPU_I_PROFILE", "GPU_I_ID", "Hostname", "hostname")
_PROFILE: Final = re.compile(r"MIG (\d+g\.\d+gb\S*)")
XID: Final = "DCGM_FI_DEV_XID_ERRORS"


class _Field(NamedTuple):
    name: str
    help: str
    value: Callable[[Gpu], float | None]
    counts: bool = False
    """Whether it is a counter. DCGM's have no `_total`, which Prometheus' client adds: they go without a type."""


def _scaled(field: str, factor: float) -> Callable[[Gpu], float | None]:
    def value(gpu: Gpu) -> float | None:
        known: float | None = getattr(gpu, field)
        return None if known is None else known * factor

    return value


def _free(gpu: Gpu) -> float | None:
    if gpu.mem_total_bytes is None or gpu.mem_used_bytes is None:
        return None
    return max(0, gpu.mem_total_bytes - gpu.mem_used_bytes) / _MIB


FIELDS: Final = (
    _Field("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %)", _scaled("util_pct", 1)),
    _Field("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %)", _scaled("mem_util_pct", 1)),
    _Field("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W)", _scaled("power_watts", 1)),
    _Field("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "Power limit (in W)", _scaled("power_limit_watts", 1)),
    _Field("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy (in mJ)", _scaled("energy_joules", 1000), counts=True),
    _Field("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB)", _scaled("mem_used_bytes", 1 / _MIB)),
    _Field("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB)", _free),
    _Field("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz)", _scaled("sm_clock_mhz", 1)),
    _Field("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C)", _scaled("temperature_c", 1)),
    _Field("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C)", _scaled("mem_temperature_c", 1)),
    _Field("DCGM_FI_PROF_SM_ACTIVE", "Ratio of cycles an SM has work", _scaled("sm_active_pct", 0.01)),
    _Field("DCGM_FI_PROF_SM_OCCUPANCY", "Ratio of resident warps", _scaled("sm_occupancy_pct", 0.01)),
    _Field("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of tensor cycles", _scaled("tensor_active_pct", 0.01)),
    _Field("DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of cycles with memory traffic", _scaled("dram_active_pct", 0.01)),
)


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


def families(
    gpus: Collection[Gpu], host: str, xids: LastXids, others: Collection[tuple[str, str]]
) -> Iterator[GaugeMetricFamily | UntypedMetricFamily]:
    """The series of these GPUs; what is absent is left out.

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
    for field in FIELDS:
        family = (UntypedMetricFamily if field.counts else GaugeMetricFamily)(
            field.name, field.help, labels=_LABELS
        )
        for gpu in gpus:
            value = field.value(gpu) if gpu.uuid in labels else None
            if (
                value is not None
                and (_parent(gpu), field.name) not in others
                and not _is_from_dcgm(gpu, field.name)
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
    """Whether the value came from a dcgm-exporter, which exports it itself."""
    return gpu.activity_source == "dcgm" and name.startswith("DCGM_FI_PROF_")


def _parent(gpu: Gpu) -> str:
    return gpu.mig_parent_uuid or gpu.uuid


def _labels(gpu: Gpu, host: str) -> list[str]:
    profile = _PROFILE.search(gpu.name) if gpu.mig_parent_uuid is not None else None
    instance = "" if gpu.mig_gpu_instance is None else str(gpu.mig_gpu_instance)
    return [str(gpu.index), _parent(gpu), label(gpu.name), profile[1] if profile else "", instance, host, host]
