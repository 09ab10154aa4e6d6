"""Checks of llmtop doctor for accelerators: which are shown, which are not, and how to change that."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llmtop.capture.base.engine import Check
from llmtop.extras import pip_command
from llmtop.system import procfs

if TYPE_CHECKING:
    from collectors.base.source import GpuReading
    from llmtop.model.snapshot import Gpu

_ASK_SECONDS = 3.0
"""Time for the drivers to list their devices."""
_UNTRIED: Final = "support is not tested on hardware, only with a simulated amdsmi library"
_TPU_UNTRIED: Final = "support is not tested on hardware, only with tpu-info and a simulated libtpu"
_INTEL: Final = "0x8086"


def check_gpus() -> list[Check]:
    """Check the GPUs of each vendor in turn; takes up to five seconds where there are GPUs, and next to nothing
    elsewhere."""
    from collectors.amd import presence
    from collectors.tpu import presence as tpu_presence

    nvidia = procfs.driver_version()
    other = presence.may_have_gpus() or tpu_presence.chip_count() > 0
    reading = _reading() if nvidia is not None or other else None
    shown = () if reading is None else reading.gpus
    found = [*_driver(nvidia, any_other=other)]
    mine = [gpu for gpu in shown if gpu.vendor == "NVIDIA" and gpu.mig_parent_uuid is None]
    if mine:
        found.append(activity_check(mine))
    found.append(_amd([gpu for gpu in shown if gpu.vendor == "AMD"], reading))
    found.append(tpu_check([gpu for gpu in shown if gpu.vendor == "Google"], reading))
    return [*found, *_others()]


def _driver(version: str | None, *, any_other: bool) -> list[Check]:
    if version is None:
        return [Check(name="driver", ok=None if any_other else False, says="no NVIDIA driver is loaded")]
    models = procfs.gpu_models()
    names = ", ".join(f"{models.count(name)} x {name}" for name in dict.fromkeys(models)) or "none"
    return [
        Check(name="driver", ok=True, says=f"NVIDIA {version}"),
        Check(name="GPUs", ok=bool(models), says=names),
    ]


def _reading() -> GpuReading:
    from collectors.driver.all_gpus import AllGpus

    source = AllGpus(0.2)
    source.start()
    try:
        until = time.monotonic() + _ASK_SECONDS
        while True:
            reading = source.latest()
            known = reading.settled and bool(reading.gpus or reading.notes)
            if known or time.monotonic() > until:
                return reading
            time.sleep(0.05)
    finally:
        source.close()


def activity_check(gpus: list[Gpu]) -> Check:
    """Return what provides SM, tensor and memory activity: the driver, else the node's dcgm-exporter."""
    name = "SM activity"
    lacking = [gpu for gpu in gpus if gpu.sm_active_pct is None]
    if not lacking:
        return Check(name=name, ok=True, says="available for all GPUs (GPM of the driver)")
    from collectors.dcgm.activity import NONE, VARIABLE, configured_url, parse_activity
    from collectors.dcgm.page import URL, DcgmPage
    from llmtop.errors import UnusableInput

    url = configured_url()
    which = ", ".join(gpu.number for gpu in lacking)
    if url == NONE:
        return Check(name=name, ok=False, says=f"unavailable for GPU {which}; dcgm-exporter is disabled",
                     command=f"unset {VARIABLE}, and remove dcgm from config.toml")  # fmt: skip
    try:
        page = DcgmPage(url)
        told = {place[0] for place in parse_activity(page.ask(), time.time())}
    except UnusableInput as error:
        return Check(name=name, ok=False, says=str(error), command=f"set {VARIABLE}")
    url = url or URL
    if page.ignored is not None:
        command = f"export {VARIABLE}={url}"
        return Check(name=name, ok=False, says=page.ignored.sentence(f"set {VARIABLE}={url}"), command=command)
    left = [gpu.number for gpu in lacking if gpu.uuid not in told]
    if not left:
        return Check(name=name, ok=True, says=f"available for GPU {which} through dcgm-exporter ({url})")
    return Check(
        name=name,
        ok=False,
        says=f"unavailable for GPU {', '.join(left)}: GPM needs Hopper or newer, and no dcgm-exporter at "
        f"{url} exposes DCGM_FI_PROF_SM_ACTIVE for it",
        command=f"run dcgm-exporter on this node with its profiling fields, and set {VARIABLE}=URL",
    )


def _amd(shown: list[Gpu], reading: GpuReading | None) -> Check:
    from collectors.amd import presence

    name, count, library = "AMD GPUs", presence.gpu_count(), presence.library()
    if shown:
        return Check(name=name, ok=True, says=f"{_names(shown)} ({_UNTRIED})")
    if not count and library is None:
        return Check(name=name, ok=None, says=f"none found by amdsmi ({_UNTRIED})")
    if not presence.has_binding():
        says = "the AMD driver or library is installed, the Python package amdsmi is not"
        return Check(name=name, ok=False, says=says, command=pip_command("amd"))
    return Check(name=name, ok=False, says=_note(reading, "AMD: ") or "amdsmi did not reply")


def tpu_check(shown: list[Gpu], reading: GpuReading | None) -> Check:
    """Return whether TPUs are read, and what would change that.

    Args:
        shown: TPUs that the monitor shows.
        reading: of all GPUs; None: there is none.
    """
    from collectors.tpu import presence

    name, count = "TPUs", presence.chip_count()
    if shown:
        note = _note(reading, "TPU: ")
        return Check(name=name, ok=True, says=f"{_names(shown)} ({_TPU_UNTRIED})" + (f"; {note}" if note else ""))
    if not count:
        return Check(name=name, ok=None, says=f"none found by tpu-info ({_TPU_UNTRIED})")
    if not presence.has_binding():
        says = f"{count} found, but the Python package tpu-info is not installed"
        return Check(name=name, ok=False, says=says, command=pip_command("tpu"))
    return Check(name=name, ok=False, says=_note(reading, "TPU: ") or "tpu-info did not reply")


def _names(shown: list[Gpu]) -> str:
    """Return the GPUs as "8 x AMD Instinct MI300X"."""
    names = [gpu.name for gpu in shown]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _note(reading: GpuReading | None, head: str) -> str:
    """Return the first note of one driver's; "" where it has none."""
    notes = () if reading is None else reading.notes
    return next((note.removeprefix(head) for note in notes if note.startswith(head)), "")


def _others() -> list[Check]:
    """Accelerators of which nothing is shown."""
    found = []
    if any(_vendor(file) == _INTEL for file in Path("/sys/class/drm").glob("card[0-9]*/device/vendor")):
        found.append("Intel GPUs")
    return [Check(name="accelerators", ok=None, says=f"{' and '.join(found)} are not supported")] if found else []


def _vendor(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""
