"""llmtop doctor: what this machine allows, and the one command that would change each no."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

import click
import msgspec

from llmtop.capture.base.engine import Check
from llmtop.cli.output import print_json, print_text
from llmtop.errors import EXIT_DONE, LlmtopError
from llmtop.format import printable, size
from llmtop.model.snapshot import LoadingCost
from llmtop.system import procfs
from llmtop.version import __version__

if TYPE_CHECKING:
    from llmtop.capture.base.job import Target
    from llmtop.capture.capabilities import Ability


class EngineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's support of one process."""

    engine: str
    can: bool
    because: str
    command: str = ""
    warning: str = ""


class TrainingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One process that can be captured, or could be."""

    pid: int
    rank: int | None
    command: str | None
    attached: bool
    engines: list[EngineAnswer]


class KernelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One question to the kernel, by bpftrace or BCC."""

    name: str
    command: str
    says: str = ""
    """Empty where it was not asked: that needs root."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; what --json prints."""

    schema: int = 1
    llmtop: str = __version__
    python: str
    checks: list[Check]
    trainings: list[TrainingAnswer]
    notes: list[str]
    loading: LoadingCost | None = None
    """Cost of the data loader of the requested training."""
    kernel: list[KernelAnswer] = []
    """The command that shows the kernel's log, and its output where root may read it."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--loader",
    type=click.IntRange(min=1),
    metavar="PID",
    help="Sample the data loader of this training for a few seconds, and name why it is slow. List the bpftrace "
    "and BCC commands that show more; if llmtop runs as root, run them.",
)
@click.option(
    "--bundle",
    is_flag=True,
    help="Write a redacted archive for a bug report into the current folder, after a list of what it holds.",
)
def doctor(*, as_json: bool, loader: int | None, bundle: bool) -> int:
    """Check what llmtop can do on this machine, and print the command to fix each problem."""
    diagnosis = diagnose()
    if bundle:
        return _write_bundle(diagnosis, as_json=as_json)
    if loader is not None:
        diagnosis = _with_loader(diagnosis, loader)
    if as_json:
        print_json(diagnosis)
        return EXIT_DONE
    for check in diagnosis.checks:
        mark = {True: "ok ", False: "NO ", None: "–  "}[check.ok]
        print_text(f"{mark}  {check.name:<16} {check.says}")
        if check.command:
            print_text(f"{'':<22}to fix: {check.command}")
    print_text()
    for training in diagnosis.trainings:
        _print_training(training)
    if not diagnosis.trainings:
        print_text("No training found. Start one with: llmtop run -- COMMAND (add --nsys for captures with nsys).")
    for note in diagnosis.notes:
        print_text(f"note: {note}")
    if loader is not None:
        _print_loader(diagnosis, loader)
    return EXIT_DONE


def _write_bundle(diagnosis: Diagnosis, *, as_json: bool) -> int:
    from llmtop.cli.doctor.bundle import bundle_parts, new_bundle_path, write_bundle
    from llmtop.cli.printed import BundleWritten

    path, parts = new_bundle_path(), bundle_parts(diagnosis)
    for part in parts:
        print_text(f"{part.name:<34} {part.content}", err=as_json)
    print_text("Secrets, home folder, user and host are masked. Read the files before you send them.", err=as_json)
    write_bundle(path, parts)
    if as_json:
        print_json(BundleWritten(path=str(path), bytes=path.stat().st_size, files=[part.name for part in parts]))
    else:
        print_text(f"written: {printable(str(path))} ({size(path.stat().st_size)})")
    return EXIT_DONE


def _with_loader(diagnosis: Diagnosis, pid: int) -> Diagnosis:
    """Check one training's loader.

    Raises:
        NotPossibleHere: its stacks cannot be read.
    """
    from llmtop.capture.perf import bpf
    from llmtop.capture.py_spy.loading import sample_burst

    cost = sample_burst(pid)
    asked = [
        KernelAnswer(name=question.name, command=shlex.join(words), says=bpf.answer_question(question, pid))
        for question in (() if cost is None else bpf.questions_for(cost.cause))
        if (words := bpf.question_command(question, pid))
    ]
    return msgspec.structs.replace(diagnosis, loading=cost, kernel=asked)


def _print_loader(diagnosis: Diagnosis, pid: int) -> None:
    cost = diagnosis.loading
    if cost is None:
        print_text(f"\npid {pid} does not wait for its data loader: nothing to fix.")
        return
    print_text(f"\npid {pid}: {cost.summary}")
    if cost.advice:
        print_text(f"  fix: {cost.advice}")
    for answer in diagnosis.kernel:
        print_text(f"  {answer.name}: {'' if answer.says else 'sudo '}{answer.command}")
        for line in answer.says.splitlines():
            print_text(f"    {line}")
    if not diagnosis.kernel:
        print_text("  bpftrace and BCC are not installed: sudo apt-get install bpftrace")


def _print_training(training: TrainingAnswer) -> None:
    rank = "" if training.rank is None else f" rank {training.rank}"
    how = "attached" if training.attached else "not attached"
    print_text(f"pid {training.pid}{rank}, {how}: {printable(training.command or '?', 70)}")
    for engine in training.engines:
        print_text(f"  {'ok' if engine.can else 'NO':<4} {engine.engine:<15} {engine.because}")
        if engine.command:
            print_text(f"{'':<22}to fix: {engine.command}")
        if engine.warning:
            print_text(f"{'':<22}warning: {engine.warning}")


def diagnose() -> Diagnosis:
    """Run all checks; takes up to a second, and more where GPU drivers are queried."""
    from llmtop.capture import capabilities, targets
    from llmtop.capture.engines import ENGINES
    from llmtop.cli.doctor import gpu_checks
    from llmtop.launch import uninstrumentable

    checks = [
        *gpu_checks.check_gpus(),
        *(check for engine in ENGINES.values() for check in engine.checks()),
        *_kernels(),
        _runtime_dir(),
        _disk(),
    ]
    known = targets.list_attached()
    others = targets.list_unattached(frozenset(target.pid for target in known))
    trainings = [_training(target, capabilities.list_abilities(target)) for target in (*known, *others)]
    return Diagnosis(
        python=f"{sys.version.split()[0]} at {sys.executable}",
        checks=checks,
        trainings=trainings,
        notes=[
            *(sentence for engine in ENGINES.values() for sentence in engine.orphan_messages()),
            *uninstrumentable.sentences(procfs.own_pids()),
        ],
    )


def _training(target: Target, found: tuple[Ability, ...]) -> TrainingAnswer:
    return TrainingAnswer(
        pid=target.pid,
        rank=target.rank,
        command=target.command,
        attached=target.hello is not None,
        engines=[_engine_answer(one) for one in found],
    )


def _kernels() -> list[Check]:
    """Requirements of llmtop kernel: ncu to measure, ncu-report to read, and access to the GPU's counters."""
    from llmtop.ncu import read, tool

    try:
        ncu = tool.find_ncu()
        found = [Check(name="ncu", ok=True, says=f"{ncu.version} at {ncu.path}")]
    except LlmtopError as error:
        found = [Check(name="ncu", ok=False, says=str(error).partition(": ")[0], command=tool.WHERE)]
    where = read.ncu_report_folder()
    if where is None:
        reads = Check(
            name="ncu-report",
            ok=False,
            says="the Python package ncu-report is not installed; llmtop needs it to read reports of ncu",
            command=read.INSTALL,
        )
    else:
        reads = Check(
            name="ncu-report",
            ok=True,
            says=f"the Python package ncu-report of Nsight Compute is used, in {where}"
            if where
            else "the Python package ncu-report is installed",
        )
    found.append(reads)
    refused = tool.counters_refused()
    if refused:
        found.append(Check(name="ncu counters", ok=False, says=refused, command=tool.REMEDY))
    return found


def _runtime_dir() -> Check:
    from llmtop.protocol import socket_dir

    try:
        directory = socket_dir.runtime_dir()
        socket_dir.check_socket_support(directory)
    except LlmtopError as error:
        return Check(name="sockets", ok=False, says=str(error))
    if not os.path.lexists(directory):
        return Check(
            name="sockets", ok=None, says=f"{directory} does not exist yet; the first attached training creates it"
        )
    return Check(name="sockets", ok=True, says=str(directory))


def _disk() -> Check:
    import shutil
    from pathlib import Path

    from llmtop.capture.base import folder

    free = shutil.disk_usage(Path.cwd()).free
    enough = free >= folder.MIN_FREE_BYTES
    return Check(
        name="disk",
        ok=enough,
        says=f"{size(free)} free for {Path(folder.PARENT).absolute()}",
        command="" if enough else "llmtop captures --remove all",
    )


def _engine_answer(ability: Ability) -> EngineAnswer:
    return EngineAnswer(
        engine=ability.engine,
        can=ability.is_supported,
        because=ability.reason,
        command=ability.command,
        warning=ability.warning,
    )
