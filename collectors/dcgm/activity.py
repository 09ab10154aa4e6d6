"""SM, tensor and memory activity, PCIe and NVLink rates by DCGM, for GPUs whose driver gives none.

NVML has such counters from Hopper on (GPM). On Ampere and Ada DCGM alone reads them, one program at a time, so
llmtop asks the dcgm-exporter that a node of a cluster has anyway. Its values are as old as its own collection,
every 30 s by default.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from collectors.base import pipeline
from collectors.dcgm.page import URL, DcgmPage
from collectors.gpu import dcgm_names
from collectors.gpu.bounds import plausible_values
from llmtop import config
from llmtop.errors import UnusableInput
from llmtop.model.signals import SIGNALS
from llmtop.model.snapshot import Gpu, Snapshot

VARIABLE: Final = "LLMTOP_DCGM"
"""The URL of its metrics, or "none": it is then not asked. Wins over the configuration."""
NONE: Final = "none"
PATIENCE_SECONDS = 4.0
"""For so long a GPU may lack SM activity before DCGM is asked: GPM needs two samples."""
POLL_SECONDS, RETRY_SECONDS = 5.0, 60.0
"""Time between two polls, and where the last one had no useful answer."""
RETENTION_SECONDS = 12.0
"""Age at which values are dropped."""
STALE_SECONDS = 90.0
"""Lines that carry a time stamp are left out when that is older: three times the exporter's own interval."""

_FACTORS: Final = {"%": 100.0, "B/s": 1.0}
"""To the unit of the field: DCGM gives shares as ratios and, despite the names that end in BYTES, rates."""
FIELDS: Final[Mapping[str, tuple[str, float]]] = {
    signal.dcgm: (signal.field, _FACTORS[signal.unit]) for signal in SIGNALS if signal.dcgm
}
"""The snapshot's field by DCGM's name, and the factor to its unit."""
_ACTIVITY: Final = tuple(signal.field for signal in SIGNALS if signal.dcgm and signal.unit == "%")
_LINE: Final = re.compile(
    rf"^({'|'.join(FIELDS)})\{{([^}}\n]*)\}}[ \t]+(\S+)(?:[ \t]+(\d{{1,15}}))?[ \t]*$", re.MULTILINE
)
_LABEL: Final = re.compile(r'(\w+)="([^"]{0,128})"')

Place = tuple[str, str]
"""A GPU's UUID and, of a MIG instance of it, the GPU instance's id; else ""."""


class DcgmActivity:
    """A stage of the live pipeline. Asking is done by a thread that lives as long as the question."""

    def __init__(self, url: str | None = None) -> None:
        """Prepare to ask.

        Args:
            url: of the exporter's metrics; by default $LLMTOP_DCGM, else the configuration, else the usual port,
                if root or this user listens there.
        """
        named_url = url or configured_url()
        self._page: DcgmPage | None = None
        self._fault: str | None = None
        if named_url != NONE:
            try:
                self._page = DcgmPage(named_url)
            except UnusableInput as error:
                self._fault = f"{VARIABLE}: {error}"
        self._lock = threading.Lock()
        self._asking = False
        self._next = 0.0
        self._lacking: dict[str, float] = {}
        self._found: tuple[float, Mapping[Place, Mapping[str, float]]] = (0.0, {})

    def __repr__(self) -> str:
        return "DCGM's activity"

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with DCGM's values for GPUs whose driver gives no SM activity."""
        if self._fault is not None:
            return pipeline.with_note(snapshot, self._fault)
        lacking = self._gpus_without_activity(snapshot.gpus)
        if not lacking or self._page is None:
            return snapshot
        now = time.monotonic()
        with self._lock:
            if not self._asking and now >= self._next:
                self._asking = True
                threading.Thread(
                    target=self._ask, args=(self._page,), name="llmtop-dcgm-activity", daemon=True
                ).start()
            at, values = self._found
        if self._page.ignored is not None:
            snapshot = pipeline.with_note(snapshot, self._page.ignored.sentence(f"set {VARIABLE}={URL}"))
        if not values or now - at > RETENTION_SECONDS:
            return snapshot
        return replace(
            snapshot,
            gpus=tuple(_with_missing_values(gpu, values) if gpu.uuid in lacking else gpu for gpu in snapshot.gpus),
        )

    def _gpus_without_activity(self, gpus: Iterable[Gpu]) -> set[str]:
        """Return the GPUs without SM activity for a while, though their driver answers."""
        now = time.monotonic()
        silent = [
            one.uuid for one in gpus if one.vendor == "NVIDIA" and not one.error and one.sm_active_pct is None
        ]
        self._lacking = {uuid: self._lacking.get(uuid, now) for uuid in silent}
        return {uuid for uuid, since in self._lacking.items() if now - since >= PATIENCE_SECONDS}

    def _ask(self, page: DcgmPage) -> None:
        found: Mapping[Place, Mapping[str, float]] = {}
        try:
            found = parse_activity(page.ask(), time.time())
        finally:
            now = time.monotonic()
            with self._lock:
                self._asking = False
                self._next = now + (POLL_SECONDS if found else RETRY_SECONDS)
                if found or now - self._found[0] > RETENTION_SECONDS:
                    self._found = now, found
                elif self._found[1]:
                    self._next = now + POLL_SECONDS  # it answered a moment ago


def configured_url() -> str | None:
    """Return the URL that the user configured, or `NONE`; None without configuration."""
    return os.environ.get(VARIABLE) or config.current().dcgm


def parse_activity(text: str, now: float) -> dict[Place, dict[str, float]]:
    """Values by GPU, and by field of `llmtop.model.snapshot.Gpu`, from an exporter's text.

    What cannot be is left out (DCGM writes "blank" as 140737488355328), and what is older than `STALE_SECONDS` by
    its own stamp.

    Args:
        text: in Prometheus' format.
        now: unix seconds.
    """
    found: dict[Place, dict[str, float]] = {}
    for name, labels, number, stamp in _LINE.findall(text):
        if stamp and now - int(stamp) / 1000 > STALE_SECONDS:
            continue
        told = dict(_LABEL.findall(labels))
        uuid = told.get("UUID")
        try:
            value = float(number)
        except ValueError:
            continue
        if uuid and math.isfinite(value):
            field, factor = FIELDS[name]
            found.setdefault((uuid, told.get(dcgm_names.INSTANCE_LABEL, "")), {})[field] = value * factor
    sound = {place: plausible_values(values, {}) for place, values in found.items()}
    return {place: values for place, values in sound.items() if values}


def _with_missing_values(gpu: Gpu, values: Mapping[Place, Mapping[str, float]]) -> Gpu:
    """Return the GPU with what it lacks; what the driver itself gives stays."""
    instance = "" if gpu.mig_gpu_instance is None else str(gpu.mig_gpu_instance)
    told = values.get((gpu.mig_parent_uuid or gpu.uuid, instance), {})
    fresh: dict[str, object] = {name: value for name, value in told.items() if getattr(gpu, name) is None}
    if any(name in fresh for name in _ACTIVITY):
        fresh["activity_source"] = "dcgm"
    if any(name.startswith("pcie_") for name in fresh):
        if gpu.pcie_source is None:
            fresh["pcie_source"] = "dcgm"
        else:  # the sum of only one direction would be mislabelled
            fresh = {name: value for name, value in fresh.items() if not name.startswith("pcie_")}
    return replace(gpu, **fresh) if fresh else gpu
