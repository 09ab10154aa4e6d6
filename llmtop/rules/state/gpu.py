"""State of one GPU for the rules: its latest values, cleaned, and their means over the last seconds."""

from __future__ import annotations

from collections.abc import Hashable
from math import isfinite
from typing import Final

from llmtop.hardware.gpu_specs import pcie_bytes_per_s
from llmtop.model.snapshot import Gpu
from llmtop.rules.state.windows import RecentValues, finite_or_none

WINDOW_SECONDS: Final = 3.0
"""Over which means are taken: NVML averages over up to 1 s itself, and steps of 100 ms alias with GPM at 10 Hz."""
STALE_SECONDS: Final = 15.0
"""A sample older than this is stale (a driver call hangs)."""

MEASURES: Final = (
    "util_pct",
    "mem_util_pct",
    "power_watts",
    "sm_active_pct",
    "tensor_active_pct",
    "dram_active_pct",
    "pcie_rx_bytes_per_s",
    "sm_clock_mhz",
)
_EMPTY_SAMPLE: Final = Gpu(index=0, uuid="", name="")


class GpuState:
    """One GPU over time. Fields with the name of a `Gpu` field hold its latest value, None where it is absent."""

    __slots__ = (
        "_changed",
        "_sampled",
        "computing",
        "error_text",
        "foreign_pids",
        "gpu",
        "is_updated",
        "mem_used_bytes",
        "mem_util_pct",
        "pids",
        "power_share_pct",
        "rank_pids",
        "reasons",
        "sm_active_pct",
        "step_pids",
        "temperature_c",
        "util_pct",
        "windows",
    )

    def __init__(self, gpu: Gpu, now: float) -> None:
        self.gpu = gpu
        self.windows = {name: RecentValues(WINDOW_SECONDS) for name in MEASURES}
        self.pids: list[int] = []
        """Processes on it that can be seen from here."""
        self.foreign_pids: list[int] = []
        """Pids that only the driver knows: for example the host's pids of another container."""
        self.rank_pids: list[int] = []
        """Attached trainings on it that are alive."""
        self.step_pids: list[int] = []
        """Processes among them that report steps or requests."""
        self.computing = 0
        """Number of processes that compute on it, as the driver lists them."""
        self.error_text = ""
        """The last error, kept for as long as its alert is up."""
        self.reasons: frozenset[str] | None = None
        self.util_pct: float | None = None
        self.mem_util_pct: float | None = None
        self.mem_used_bytes: int | None = None
        self.sm_active_pct: float | None = None
        self.temperature_c: float | None = None
        self.power_share_pct: float | None = None
        """Power as a share of this GPU's limit."""
        self.is_updated = True
        """True if this snapshot brought a new sample, or the news that there has been none for long."""
        self._sampled: float | None = None
        self._changed = now

    def update(self, gpu: Gpu, now: float) -> None:
        """Take the GPU as the snapshot at `now` has it. A sample that has got stale counts as no values at all."""
        self.gpu = gpu
        self.pids, self.foreign_pids, self.rank_pids, self.step_pids, self.computing = [], [], [], [], 0
        self.error_text = gpu.error or self.error_text
        new = gpu.sampled_at is None or gpu.sampled_at != self._sampled
        if new:
            self._sampled, self._changed = gpu.sampled_at, now
        stale = now - self._changed > STALE_SECONDS
        self.is_updated = new or stale or gpu.error is not None
        if not self.is_updated:
            return
        values = _EMPTY_SAMPLE if stale else gpu
        self.util_pct = finite_or_none(values.util_pct)
        self.mem_util_pct = finite_or_none(values.mem_util_pct)
        self.mem_used_bytes = values.mem_used_bytes
        self.sm_active_pct = finite_or_none(values.sm_active_pct)
        self.temperature_c = finite_or_none(values.temperature_c)
        self.power_share_pct = share_pct(values.power_watts, values.power_limit_watts)
        self.reasons = None if values.clock_event_reasons is None else frozenset(values.clock_event_reasons)
        for name, window in self.windows.items():
            value = getattr(values, name)
            if value is None or not isfinite(value):
                window.clear()
            else:
                window.add(now, value)

    @property
    def key(self) -> Hashable:
        """The GPU's UUID."""
        return self.gpu.uuid

    def concerned_keys(self) -> frozenset[Hashable]:
        """Return the keys that an alert about this GPU concerns: the GPU alone."""
        return frozenset((self.gpu.uuid,))

    def alert_target(self) -> tuple[str | None, int | None]:
        """Return the GPU's UUID, and the pid of the attached training on it when there is exactly one."""
        return self.gpu.uuid, self.rank_pids[0] if len(self.rank_pids) == 1 else None

    @property
    def label(self) -> str:
        """How a person calls it: "GPU 3", "GPU 3:1" for MIG instance 1 of it."""
        return f"GPU {self.gpu.number}"

    def mean(self, name: str) -> float | None:
        """Return the mean of a measure over the last seconds, None while it is absent."""
        return self.windows[name].mean()

    @property
    def link_bytes_per_s(self) -> float | None:
        """Return the highest rate of the PCIe link one way, from its present generation and width."""
        return pcie_bytes_per_s(self.gpu.pcie_gen, self.gpu.pcie_width)


def share_pct(part: float | None, whole: float | None) -> float | None:
    """`part` as a percentage of `whole`; None when either is absent or the whole is not positive."""
    part, whole = finite_or_none(part), finite_or_none(whole)
    return 100.0 * part / whole if part is not None and whole is not None and whole > 0 else None
