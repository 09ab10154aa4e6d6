"""Judgement of one kernel that ncu measured: the limiter, the roofline, the readings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from llmtop.ncu.limiter import LimiterId, limiter
from llmtop.ncu.profile import KernelProfile
from llmtop.ncu.readings import CounterReading, readings
from llmtop.ncu.roofline import RooflinePoint, roofline_point


class KernelJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of a kernel; what `llmtop kernel --json` prints of it."""

    kernel: str
    demangled: str
    gpu: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    seconds: float | None
    """Duration under ncu, which empties the caches before each pass."""
    limiter: LimiterId
    word: str
    """The limiter as it is said."""
    sentence: str
    todo: str
    roofline: RooflinePoint | None
    readings: tuple[CounterReading, ...]


class NcuReport(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels of an .ncu-rep, in the order in which they ran."""

    schema: int = 1
    source: str
    kernels: tuple[KernelJudgement, ...]
    left_out: int = 0
    """Kernels beyond the first two hundred."""
    place: int | None = None
    """Index of the reported kernel in the file, from 0; None where all are reported."""
    note: str = ""
    """True if the kernel that was wanted is among them."""


class NcuReports(msgspec.Struct, frozen=True, kw_only=True):
    """Several files of ncu; what `llmtop kernel A B --json` prints."""

    schema: int = 1
    reports: list[NcuReport]


def judge_kernel(kernel: KernelProfile) -> KernelJudgement:
    """Return what limits a kernel, with the evidence."""
    found = limiter(kernel)
    return KernelJudgement(
        kernel=kernel.name,
        demangled=kernel.demangled,
        gpu=kernel.gpu,
        grid=kernel.grid,
        block=kernel.block,
        seconds=kernel.seconds,
        limiter=found.id,
        word=found.word,
        sentence=found.sentence,
        todo=found.todo,
        roofline=roofline_point(kernel),
        readings=readings(kernel),
    )


def ncu_report(path: Path, kernels: Sequence[KernelProfile], left_out: int = 0) -> NcuReport:
    """Return all kernels of a report, judged.

    Args:
        path: of the report.
        kernels: all that were read of it.
        left_out: how many more it has.
    """
    return NcuReport(source=str(path), kernels=tuple(map(judge_kernel, kernels)), left_out=left_out)


def ncu_report_of_one(path: Path, kernels: Sequence[KernelProfile], place: int, note: str) -> NcuReport:
    """Return one kernel of a report, judged.

    Args:
        path: of the report.
        kernels: all that were read of it.
        place: index of the reported one.
        note: why that one was chosen.
    """
    return NcuReport(source=str(path), kernels=(judge_kernel(kernels[place]),), place=place, note=note)
