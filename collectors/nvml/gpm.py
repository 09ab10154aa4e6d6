"""GPM: counters of Hopper and newer GPUs, which show whether a GPU works or is only busy by GPU-Util.

NVML computes shares of time and rates from two samples of hardware counters, taken at least 100 ms apart. One pair
costs 0.17 ms on an H200, where NVML's own PCIe call blocks for 42 ms.
"""

from __future__ import annotations

import math
import time

import pynvml

from collectors.nvml.calls import ABSENT, Caller, raw
from llmtop.model.signals import MIB, SIGNALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

APART_SECONDS = 0.1
"""NVML's own minimum between two samples."""
_ROUNDING = 1e-9
"""Percent or MiB: an idle unit of an H200 reads up to 1e-14 below zero."""
_FACTORS = {"%": 1, "B/s": MIB}
"""To the unit of the field, from NVML's."""
_METRICS: tuple[tuple[str, int, int], ...] = tuple(
    (signal.field, metric, _FACTORS[signal.unit])
    for signal in SIGNALS
    if signal.gpm and (metric := getattr(pynvml, f"NVML_GPM_METRIC_{signal.gpm}", None)) is not None
)
"""Snapshot field, NVML metric, factor to the field's unit; without metrics that are newer than the binding."""


class Gpm:
    """The counters of one GPU or MIG instance, for use by one thread."""

    def __init__(self, call: Caller, take: Callable[[Any], Any]) -> None:
        """Prepare.

        Args:
            call: of the thread that will read.
            take: fills a sample (nvmlGpmSampleGet or nvmlGpmMigSampleGet); None when refused.
        """
        self._call, self._take = call, take
        self._samples: list[Any] = []
        self._older_at: float | None = None
        self._values: dict[str, float | None] = {}
        self._ask = pynvml.c_nvmlGpmMetricsGet_t()
        self._ask.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._ask.numMetrics = len(_METRICS)
        for i, (_, metric, _) in enumerate(_METRICS):
            self._ask.metrics[i].metricId = metric

    def read(self) -> dict[str, float | None]:
        """Snapshot fields over the time since the last sample; empty until there are two, or when refused.

        When the last sample is younger than `APART_SECONDS` the values of the last pair stand.
        """
        if not self._samples and not self._allocate():
            return {}
        if self._older_at is not None and time.monotonic() - self._older_at < APART_SECONDS:
            return self._values
        older, newer = self._samples
        if self._take(newer) is None:
            self._older_at, self._values = None, {}
            return {}
        self._values = {} if self._older_at is None else self._compute(older, newer)
        self._samples = [newer, older]
        self._older_at = time.monotonic()
        return self._values

    def free(self) -> None:
        """Free the samples of NVML; `read` starts anew after it."""
        for sample in self._samples:
            self._call("nvmlGpmSampleFree", sample)
        self._samples, self._older_at, self._values = [], None, {}

    def _allocate(self) -> bool:
        first, second = self._call("nvmlGpmSampleAlloc"), self._call("nvmlGpmSampleAlloc")
        self._samples = [sample for sample in (first, second) if sample is not None]
        if len(self._samples) < 2:
            self.free()
        return bool(self._samples)

    def _compute(self, older: Any, newer: Any) -> dict[str, float | None]:
        self._ask.sample1, self._ask.sample2 = older, newer
        if self._call("nvmlGpmMetricsGet", self._ask) is None:
            return {}
        return {
            name: _value(raw(metric, "nvmlReturn"), raw(metric, "value"), factor)
            for (name, _, factor), metric in zip(_METRICS, self._ask.metrics, strict=False)
        }


def _value(answer: int, value: float, factor: int) -> float | None:
    """A metric can be refused for itself, and reads NaN where its unit is powered down or shared.

    An idle unit reads -0, or what rounding leaves below it.
    """
    if answer != pynvml.NVML_SUCCESS or math.isnan(value):
        return None
    return 0.0 if -_ROUNDING < value <= 0 else value * factor


def supported(call: Caller, handle: Any) -> bool | None:
    """Return True if this GPU has GPM; None when the driver would not say now."""
    answer = call("nvmlGpmQueryDeviceSupport", handle)
    if answer is not None:
        return bool(answer.isSupportedDevice)
    return False if call.refusals["nvmlGpmQueryDeviceSupport"] in ABSENT else None
