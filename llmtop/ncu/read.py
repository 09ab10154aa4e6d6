"""An .ncu-rep as profiles of kernels, read without Nsight Compute."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.extras import how_to_install
from llmtop.format import printable
from llmtop.naming import file_names
from llmtop.ncu import extract, tool
from llmtop.ncu.profile import KernelProfile
from llmtop.system.inputs import open_input

SUFFIX = file_names.NCU_REPORT
INSTALL = how_to_install("kernels")
_MAGIC = b"NVR\0"
_SECONDS = 120.0
"""A report of one kernel takes 0.2 s, one of hundreds some seconds."""


class _Extracted(msgspec.Struct):
    kernels: list[KernelProfile] = []
    left_out: int = 0
    error: str = ""


def library() -> str | None:
    """Return where ncu_report is; None where it is not installed. Loads nothing."""
    found = importlib.util.find_spec("ncu_report")
    return found.origin if found is not None else None


def ncu_report_folder() -> str | None:
    """Return where ncu_report can be imported from: "" where it is installed, else the folder of an Nsight
    Compute that brings one; None where it cannot be had."""
    return "" if library() is not None else tool.report_reader_folder()


def read(path: Path) -> tuple[list[KernelProfile], int]:
    """Return the kernels of a report, in the order in which they ran, and how many more were left out.

    Args:
        path: the report.

    Raises:
        UnusableInput: no report of ncu, damaged, or without any kernel.
        NotPossibleHere: ncu_report is not here.
    """
    with open_input(path) as file:
        head = file.read(len(_MAGIC))
    if head != _MAGIC:
        raise UnusableInput(f"{path} is no report of ncu ({SUFFIX})")
    python_path = ncu_report_folder()
    if python_path is None:
        raise NotPossibleHere(f"{path} is read with NVIDIA's ncu-report, which is not installed here: {INSTALL}")
    found = _extract(path, python_path)
    if found.error:
        raise UnusableInput(f"{path} cannot be read by ncu-report: {printable(found.error, 200)}")
    if not found.kernels:
        raise UnusableInput(f"{path} is cut short, damaged or empty: ncu-report finds no kernel in it")
    if not any(kernel.numbers for kernel in found.kernels):
        raise UnusableInput(f"{path} is damaged: ncu-report finds kernels in it, but none of their counters")
    return found.kernels, found.left_out


def _extract(path: Path, python_path: str) -> _Extracted:
    environment = dict(os.environ)
    if python_path:
        environment["PYTHONPATH"] = os.pathsep.join([python_path, *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [sys.executable, str(Path(extract.__file__)), str(path.absolute())],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            env=environment,
        )
        return msgspec.json.decode(done.stdout, type=_Extracted)
    except subprocess.TimeoutExpired:
        raise UnusableInput(f"{path}: ncu-report was not done with it within {_SECONDS:.0f} s") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        words = done.stderr.decode(errors="replace").strip().splitlines()
        why = printable(words[-1], 160) if words else f"it ended with code {done.returncode}"
        if "ModuleNotFoundError" in why or "ImportError" in why:
            raise NotPossibleHere(f"ncu-report does not load here ({why}): {INSTALL}") from None
        raise UnusableInput(f"{path} is damaged: ncu-report failed at it ({why})") from None
