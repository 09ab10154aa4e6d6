"""Where a run of check_eight.py happens: how many GPUs, real or not, and where things go."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.gpu.check_capture import old_nvtx
from tests.gpu.eight.recordings import Recordings
from tests.support import nvml_stub
from tests.support.processes import environment


@dataclass(frozen=True)
class Setting:
    """What all parts share."""

    gpus: int
    backend: str
    """"nccl"; "gloo": ranks on the CPU, and a stand-in for the driver."""
    folder: Path
    """For logs, captures and recordings as they are written."""
    recordings: Recordings
    scenario: nvml_stub.Scenario = field(default_factory=nvml_stub.Scenario)

    @property
    def real(self) -> bool:
        """Whether there are GPUs."""
        return self.backend == "nccl"

    @cached_property
    def driver(self) -> dict[str, str]:
        """Variables that lead a monitor to the driver."""
        if self.real:
            return {}
        self.scenario.count = self.gpus
        path = self.scenario.write(self.folder / "scenario")
        own = nvml_stub.environment(nvml_stub.build(), path)
        return {name: own[name] for name in ("LD_LIBRARY_PATH", nvml_stub.SCENARIO_VARIABLE)}

    def monitor(self, sockets: Path, **extra: str) -> dict[str, str]:
        """The environment of a monitor of the trainings below `sockets`."""
        return environment(LLMTOP_DIR=str(sockets), **self.driver, **extra)

    def training(self, sockets: Path, **extra: str) -> dict[str, str]:
        """The environment of a training below `sockets`."""
        order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if self.real else {}
        path = os.pathsep.join([*old_nvtx(not self.real), environment()["PYTHONPATH"]])
        return environment(LLMTOP_DIR=str(sockets), OMP_NUM_THREADS="1", PYTHONPATH=path, **order, **extra)

    def scratch(self) -> tempfile.TemporaryDirectory[str]:
        """A folder whose path is short enough for sockets."""
        return tempfile.TemporaryDirectory(prefix="lt-")


@dataclass(frozen=True)
class Case:
    """One thing that is run and judged."""

    part: str
    name: str
    seconds: float
    """What it takes on a machine on which torch was imported before; it is not begun with less time left."""
    run: Callable[[float], dict[str, Any]]
    """From the seconds that are left to the row that is written; `ok` in it."""


def forget_own_folder() -> None:
    """So that no training of somebody else is seen."""
    os.environ.pop("LLMTOP_DIR", None)
