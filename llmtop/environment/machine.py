"""The machine that a command runs on, from the kernel's files and nvidia-smi."""

from __future__ import annotations

import functools
import os
import platform
import re
from collections import Counter
from pathlib import Path
from typing import Final

from llmtop.environment.model import Machine
from llmtop.environment.programs import run_for_text
from llmtop.redaction.secret_filter import without_secrets
from llmtop.system import procfs

_QUERIED: Final = (
    "index", "name", "uuid", "pci.bus_id", "vbios_version", "memory.total", "power.limit", "power.default_limit",
    "power.max_limit", "clocks.max.sm", "clocks.max.memory", "clocks.applications.graphics",
    "clocks.applications.memory", "persistence_mode", "compute_mode", "mig.mode.current", "ecc.mode.current",
    "pcie.link.gen.max", "pcie.link.width.max",
)  # fmt: skip
_CONTAINER_VARIABLES: Final = {
    "APPTAINER_CONTAINER": "image",
    "SINGULARITY_CONTAINER": "image",
    "CONTAINER_IMAGE": "image",
    "SLURM_CONTAINER": "image",
    "NVIDIA_PRODUCT_NAME": "product",
    "NVIDIA_PYTORCH_VERSION": "product version",
    "NVIDIA_BUILD_ID": "build",
}
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@functools.cache
def read_machine() -> Machine:
    """Facts of the machine; read once per process."""
    listed = run_for_text(["nvidia-smi", f"--query-gpu={','.join(_QUERIED)}", "--format=csv,noheader"])
    return Machine(
        host=platform.node(),
        system=_system(),
        kernel=platform.release(),
        cpu=procfs.cpu_model() or platform.machine(),
        cpus=os.cpu_count(),
        cpus_allowed=len(os.sched_getaffinity(0)),
        cpu_governor=_governors(),
        numa_nodes=_numa_nodes(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        driver=procfs.driver_version(),
        cuda=_cuda_of_driver(),
        gpus=[dict(zip(_QUERIED, _cells(line), strict=False)) for line in (listed or "").splitlines()],
        gpu_topology=run_for_text(["nvidia-smi", "topo", "-m"]),
        nvlink=run_for_text(["nvidia-smi", "nvlink", "--status"]),
        container=read_container(),
        notes=[] if listed is not None else ["nvidia-smi is not here or does not answer: no limits, no topology"],
    )


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _system() -> str | None:
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', _text("/etc/os-release"), re.MULTILINE)
    return found[1] if found else None


def _governors() -> dict[str, int]:
    paths = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return dict(Counter(word for path in paths if (word := _text(path).strip())))


def _numa_nodes() -> dict[str, str]:
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))
    return {node.name: _text(node / "cpulist").strip() for node in nodes}


def _cuda_of_driver() -> str | None:
    found = re.search(r"CUDA Version:\s*([\d.]+)", run_for_text(["nvidia-smi"]) or "")
    return found[1] if found else None


def read_container() -> dict[str, str]:
    """Return the facts that are visible from inside. Most containers know neither image nor digest."""
    found: dict[str, str] = {}
    if Path("/.dockerenv").exists():
        found["kind"] = "docker"
    podman = _text("/run/.containerenv")
    if podman or Path("/run/.containerenv").exists():
        found["kind"] = "podman"
        found |= {
            name: value.strip('"')
            for name, _, value in (line.partition("=") for line in podman.splitlines())
            if name in ("image", "imageid", "engine")
        }
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        found["kind"] = "kubernetes"
    for variable, name in _CONTAINER_VARIABLES.items():
        if value := os.environ.get(variable):
            found.setdefault(name, without_secrets(value))
    digest = _DIGEST.search(found.get("image", "") + found.get("imageid", ""))
    if digest:
        found["digest"] = digest[0]
    return found
