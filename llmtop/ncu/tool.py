"""Nsight Compute on this machine: where ncu is, and whether the GPU's counters can be had."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmtop.errors import NotPossibleHere
from llmtop.system import procfs

_PLACES = ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/bin/ncu", "/usr/local/NVIDIA-Nsight-Compute*/ncu")
_VERSION = re.compile(r"Version (\d+(?:\.\d+)+)")
_ANSWER_SECONDS = 60.0
"""ncu is a script around a large program, which a busy disk reads for seconds."""
WHERE = (
    "install Nsight Compute (https://developer.nvidia.com/nsight-compute, or cuda-nsight-compute of CUDA's "
    "packages), or set LLMTOP_NCU to the path of ncu"
)
REMEDY = (
    "run it as root (sudo), or open the counters to all users: echo 'options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia.conf, then reboot; a container is "
    "started with --cap-add=SYS_ADMIN"
)
"""Remedy from NVIDIA's page on ERR_NVGPUCTRPERM."""


@dataclass(frozen=True)
class NcuTool:
    """Executable ncu of Nsight Compute."""

    path: Path
    version: str
    """Version in its output: "2025.3.1.0"."""


def report_reader_folder(environ: Mapping[str, str] | None = None, places: Sequence[str] = _PLACES) -> str | None:
    """Return the folder with ncu_report of an Nsight Compute on this machine; None where none brings it.

    That of the ncu to use comes first. CUDA's `ncu` is a script that starts one elsewhere and has none beside it,
    so the other places are looked at too.

    Args:
        environ: where LLMTOP_NCU and PATH are looked up; None for this process's own.
        places: patterns of absolute paths of ncu.
    """
    environ = os.environ if environ is None else environ
    given, on_path = environ.get("LLMTOP_NCU"), shutil.which("ncu", path=environ.get("PATH"))
    for ncu in [*(Path(one) for one in (given, on_path) if one), *_installed_tools(places)]:
        program = ncu.resolve()
        for folder in (program.parent, program.parent.parent):
            if (folder / "extras" / "python" / "ncu_report.py").is_file():
                return str(folder / "extras" / "python")
    return None


def find_ncu(environ: Mapping[str, str] | None = None) -> NcuTool:
    """Return the ncu to use: `$LLMTOP_NCU`, else the first on PATH, else the newest in NVIDIA's usual places.

    Raises:
        NotPossibleHere: there is none that answers.
    """
    environ = os.environ if environ is None else environ
    given = environ.get("LLMTOP_NCU")
    if given:
        return _usable(Path(given))
    on_path = shutil.which("ncu", path=environ.get("PATH"))
    candidates = [*([Path(on_path)] if on_path else []), *_installed_tools()]
    if not candidates:
        raise NotPossibleHere(f"ncu (Nsight Compute) is not installed: {WHERE}")
    answers = [_try(path) for path in candidates]
    usable = next((one for one in answers if isinstance(one, NcuTool)), None)
    if usable is None:
        raise next(one for one in answers if isinstance(one, NotPossibleHere))
    return usable


def _try(path: Path) -> NcuTool | NotPossibleHere:
    try:
        return _usable(path)
    except NotPossibleHere as refusal:
        return refusal


def _installed_tools(places: Sequence[str] = _PLACES) -> Iterator[Path]:
    for pattern in places:
        yield from sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)


def _usable(path: Path) -> NcuTool:
    try:
        done = subprocess.run(
            [str(path), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotPossibleHere(f"{path} --version did not answer within {_ANSWER_SECONDS:.0f} s: {WHERE}") from None
    except OSError as error:
        raise NotPossibleHere(f"{path} cannot be started: {error.strerror}; {WHERE}") from None
    match = _VERSION.search(done.stdout)
    if match is None:
        raise NotPossibleHere(f"{path} does not answer --version as ncu does: {WHERE}")
    return NcuTool(path, match[1])


def counters_refused() -> str:
    """Return why this process may not read the GPU's counters; "" where nothing is known that forbids it."""
    if not procfs.are_gpu_counters_restricted():
        return ""
    if any(map(procfs.has_capability, (procfs.CAP_SYS_ADMIN, procfs.CAP_PERFMON))):
        return ""
    who = "root without CAP_SYS_ADMIN, as in a container," if os.geteuid() == 0 else "this user"
    return f"the driver allows GPU counters for administrators only, and {who} is not one (ERR_NVGPUCTRPERM)"
