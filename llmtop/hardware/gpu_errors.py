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
    8: ("warning", "the GPU stopped processing a program's work"),
    11: ("warning", "invalid or corrupted work" + _PROGRAM),
    13: ("warning", "graphics engine exception" + _PROGRAM),
    25: ("warning", "invalid or illegal work" + _PROGRAM),
    31: ("warning", "memory page fault: a kernel used a bad address" + _PROGRAM),
    32: ("warning", "the command buffer of a program is corrupted" + _PROGRAM),
    37: ("warning", "driver firmware error" + _PROGRAM),
    38: ("warning", "driver firmware error"),
    43: ("warning", "the driver stopped a kernel after a fault" + _PROGRAM),
    44: ("warning", "the GPU failed while it switched between programs"),
    45: ("info", "the driver removed the work of a program that was killed or failed" + _PROGRAM),
    46: ("critical", "the GPU stopped processing: reset the GPU"),
    48: ("critical", "uncorrectable (double-bit) memory error"),
    54: ("warning", "auxiliary power is not connected"),
    61: ("critical", "a microcontroller in the GPU stopped at a breakpoint"),
    62: ("critical", "a microcontroller in the GPU halted: reset the GPU"),
    63: ("warning", "a faulty memory row was marked for remapping at the next GPU reset"),
    64: ("critical", "a faulty memory row could not be marked for remapping"),
    68: ("warning", "video processor exception"),
    69: ("warning", "graphics engine class error" + _PROGRAM),
    74: ("critical", "NVLink error"),
    79: ("critical", "the GPU has fallen off the bus"),
    80: ("warning", "work was corrupted on its way to the GPU"),
    92: ("warning", "high rate of correctable memory errors"),
    94: ("critical", "contained memory error: the driver ended one program"),
    95: ("critical", "uncontained memory error: reset the GPU"),
    109: ("critical", "the switch between two programs timed out: reset the GPU"),
    110: ("critical", "security fault: reset the GPU"),
    119: ("critical", "the system processor of the GPU (GSP) did not answer"),
    120: ("critical", "the system processor of the GPU (GSP) failed"),
    121: ("warning", "an error on the link between CPU and GPU (C2C) was corrected"),
    136: ("critical", "NVLink link training failed, so the link is down"),
    137: ("warning", "a program's memory access over NVLink failed" + _PROGRAM),
    140: ("critical", "unrecovered memory error"),
    143: ("critical", "the GPU could not be initialised"),
    **dict.fromkeys((144, 146, 147, 148, 150), ("critical", "NVLink error")),
    145: ("critical", "NVLink link error"),
    149: ("critical", "NVLink interface error"),
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
_UNKNOWN: Final[tuple[Severity, str]] = ("warning", "see the Xid catalogue of NVIDIA")
_UNCORRECTABLE: Final = re.compile(r"^\d+ uncorrectable memory error")


def xid_text(number: int) -> str:
    """An Xid with its short meaning."""
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
    """Whether all of it is what a program brought on itself: the GPU is well."""
    numbers = [_XID.match(sentence) for sentence in error.split(JOINT)]
    return all(found and _PROGRAM in XIDS.get(int(found[1]), _UNKNOWN)[1] for found in numbers)


def _sentence_severity(sentence: str) -> Severity:
    xid = _XID.match(sentence)
    if xid:
        return XIDS.get(int(xid[1]), _UNKNOWN)[0]
    if _UNCORRECTABLE.match(sentence):
        return "critical"
    return next((severity for beginning, severity in _BEGINNINGS if sentence.startswith(beginning)), "warning")
