"""Severity of GPU errors: Xids by number, all else by what is lost.

An error text (`Gpu.error`) is made of the collectors' own sentences, joined by `JOINT`; recordings hold them too.
"""

from __future__ import annotations

import re

from llmtop.model.severity import severity_rank

TYPE_CHECKING = False  # the process that asks the driver loads no more than it must
if TYPE_CHECKING:
    from typing import Final

    from llmtop.model.severity import Severity

JOINT: Final = "; "
_XID: Final = re.compile(r"^Xid (\d{1,6})\b")

_PROGRAM: Final = " (caused by a program)"

# Meanings and severity after NVIDIA's catalogue for Ampere and newer GPUs, column "Resolution Bucket (Immediate
# Action)": https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. What needs a reset of the GPU or
# of the machine, or ended a program for a fault of the hardware, is critical; what a program brings on itself
# (RESTART_APP, marked) is a warning, for the GPU is well; what is to be ignored is one too, as long as something
# was repaired or lost. Some are workflows: 48, which ends in a reset, and NVLink's, where a link may be gone.
XIDS: Final[dict[int, tuple[Severity, str]]] = {
    8: ("warning", "the work of a program on the GPU did not end in time"),
    11: ("warning", "the GPU received an invalid command" + _PROGRAM),
    13: ("warning", "a kernel failed, most often by an invalid memory access" + _PROGRAM),
    25: ("warning", "the GPU received an illegal command" + _PROGRAM),
    31: ("warning", "a kernel used an invalid memory address (page fault)" + _PROGRAM),
    32: ("warning", "the command buffer of a program is corrupted" + _PROGRAM),
    37: ("warning", "the firmware of the driver failed" + _PROGRAM),
    38: ("warning", "the firmware of the driver failed"),
    43: ("warning", "a kernel failed and the driver stopped it" + _PROGRAM),
    44: ("warning", "the GPU failed while it switched between programs"),
    45: ("info", "the driver removed the GPU work of a program that was killed or failed" + _PROGRAM),
    46: ("critical", "the GPU does not process work any more: reset the GPU"),
    48: ("critical", "the GPU memory has an uncorrectable (double-bit) error"),
    54: ("warning", "a power cable of the GPU is not connected"),
    61: ("critical", "a microcontroller in the GPU stopped: reset the GPU"),
    62: ("critical", "a microcontroller in the GPU halted: reset the GPU"),
    63: ("warning", "a faulty memory row will be replaced by a spare one at the next GPU reset"),
    64: ("critical", "a faulty memory row could not be replaced: no spare row is left, or the repair failed"),
    68: ("warning", "the video decoder of the GPU failed"),
    69: ("warning", "the graphics engine received an invalid command" + _PROGRAM),
    74: ("critical", "an NVLink connection between GPUs failed"),
    79: ("critical", "the GPU cannot be reached over PCIe (it has fallen off the bus)"),
    80: ("warning", "a command was corrupted on its way to the GPU"),
    92: ("warning", "the GPU memory has unusually many corrected errors"),
    94: ("critical", "uncorrectable memory error: the driver ended the one program that it concerns"),
    95: ("critical", "uncorrectable memory error that may concern every program on the GPU: reset the GPU"),
    109: ("critical", "the switch between two programs timed out: reset the GPU"),
    110: ("critical", "the GPU reported a security fault: reset the GPU"),
    119: ("critical", "the management processor of the GPU (GSP) did not reply"),
    120: ("critical", "the management processor of the GPU (GSP) failed"),
    121: ("warning", "an error on the link between CPU and GPU (C2C) was corrected"),
    136: ("critical", "an NVLink connection could not be set up and is down"),
    137: ("warning", "a program's memory access over NVLink failed" + _PROGRAM),
    140: ("critical", "the GPU memory has an error that was not corrected"),
    143: ("critical", "the GPU could not be initialised"),
    **dict.fromkeys((144, 146, 147, 148, 150), ("critical", "an NVLink connection reported an error")),
    145: ("critical", "an NVLink connection reported a link error"),
    149: ("critical", "the NVLink interface of the GPU reported an error"),
    154: ("warning", "the GPU needs a recovery action: nvidia-smi -q names it (GPU Recovery Action)"),
}

_BEGINNINGS: Final[tuple[tuple[str, Severity], ...]] = (
    # What is lost: the GPU, or the work and data on it.
    ("the driver has not answered", "critical"),
    ("the driver no longer lists this GPU", "critical"),
    ("the driver finds no GPU there", "critical"),
    ("the NVIDIA kernel module is not loaded", "critical"),
    ("GPU is lost", "critical"),
    ("GPU must be reset", "critical"),
    ("a power cable of the GPU", "critical"),
    ("a memory row could not be remapped", "critical"),
)
_UNKNOWN: Final[tuple[Severity, str]] = ("warning", "its meaning is in the Xid catalogue of NVIDIA")
_UNCORRECTABLE: Final = re.compile(r"^\d+ uncorrectable memory error")


def xid_text(number: int) -> str:
    """Return an Xid with its short meaning."""
    return f"Xid {number}: {XIDS.get(number, _UNKNOWN)[1]}"


def xids_in(error: str) -> list[int]:
    """Return the Xid numbers of an error text, in its order: the newest is the last."""
    found = (_XID.match(sentence) for sentence in error.split(JOINT))
    return [int(one[1]) for one in found if one]


def severity_of(error: str) -> Severity:
    """Return the severity of a GPU's error text: that of its most severe sentence.

    What is known by no number and no sentence is a warning: an event, with no sign that the GPU is lost.
    """
    return max(map(_sentence_severity, error.split(JOINT)), key=severity_rank)


def is_program_error(error: str) -> bool:
    """Return True if all of it is what a program brought on itself: the GPU is well."""
    numbers = [_XID.match(sentence) for sentence in error.split(JOINT)]
    return all(found and _PROGRAM in XIDS.get(int(found[1]), _UNKNOWN)[1] for found in numbers)


def _sentence_severity(sentence: str) -> Severity:
    xid = _XID.match(sentence)
    if xid:
        return XIDS.get(int(xid[1]), _UNKNOWN)[0]
    if _UNCORRECTABLE.match(sentence):
        return "critical"
    return next((severity for beginning, severity in _BEGINNINGS if sentence.startswith(beginning)), "warning")
