"""Run the checks of this folder that are due, the most valuable first: make gpu-day, or python -m tests.gpu.day

    python -m tests.gpu.day              one slice of what is due here, then its rows in docs/measurements.md
    python -m tests.gpu.day --plan       what is due, and a command for each slice, for a machine without git
    python -m tests.gpu.day --out FILE --commit HASH --checks NAME...   such a slice: one JSON object a check
    python -m tests.gpu.day --table FILE...      the rows of such files
    python -m tests.gpu.day --dry-run    without a GPU: every check is imported, and the table is printed

A check is due if docs/measurements.md has no row of it, or if the code that it judges has changed since the commit
in its row. A slice takes `--minutes` (9) at most: no check begins for which they do not leave its usual time, so
the same command continues. A plan has 40 minutes at most. Checks that need more GPUs than there are stay due.
Exit codes: 0 nothing is due any more, 1 a check failed, 3 more is due: run it again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.gpu.eight import CASES
from tests.support import checkout
from tests.support.processes import REPOSITORY

DOCUMENT: Final = REPOSITORY / "docs" / "measurements.md"
HEADING: Final = "## Checks on GPUs"
COLUMNS: Final = ("date", "hardware", "commit", "check", "result")
SLICE_MINUTES: Final = 9.0
DAY_SECONDS: Final = 40 * 60.0
GIT_SECONDS: Final = 60.0
RESULT_CHARACTERS: Final = 160
NOT_DONE: Final = 3


@dataclass(frozen=True)
class Check:
    """One program of this folder."""

    name: str
    """Of its module, without check_."""
    seconds: float
    """Its usual time, the first import of torch included."""
    judges: tuple[str, ...]
    """The code whose changes make it due."""
    arguments: tuple[str, ...] = ()
    """{out} is a new path."""
    gpus: int = 1


CHECKS: Final = (
    Check("collectors", 75, ("collectors/nvml", "collectors/gpu", "llmtop/model/signals.py")),
    Check("monitor", 120, ("llmtop/rules", "collectors/hub.py", "collectors/gpu_busy.py")),
    Check("gpu_clock", 330, ("llmtop/instrument/gpu", "llmtop/instrument/record")),
    Check("health", 150, ("llmtop/instrument/auto/training/learning_signs.py", "llmtop/instrument/gpu")),
    Check("kept_memory", 130, ("llmtop/instrument/gpu/kept_memory.py", "llmtop/rules/memory.py")),
    Check("hang", 120, ("llmtop/rules/collective_hang.py", "collectors/nccl_ras"), gpus=2),
    Check("ranks", 420, ("llmtop/rules/straggler.py", "llmtop/instrument/arrival"), ("--out", "{out}"), gpus=2),
    Check("postmortem", 230, ("llmtop/postmortem",), gpus=2),
    Check("capture", 240, ("llmtop/capture", "llmtop/nsys_cli")),
    Check("kernels", 150, ("llmtop/ncu", "llmtop/cli/report/kernel.py"), ("--out", "{out}")),
    Check(
        "busy",
        330,
        ("collectors/gpu_busy.py", "llmtop/model/bottlenecks.py"),
        ("healthy", "deep", "layers", "starved", "graphs", "shared"),
    ),
    Check("memory", 240, ("llmtop/memory", "llmtop/instrument/control/allocator_snapshot.py")),
    Check("operators", 60, ("llmtop/analysis/work",)),
    Check("ops", 150, ("llmtop/instrument/control/op_ranges.py", "llmtop/trace/nsys"), ("--out", "{out}")),
    Check("inference", 150, ("llmtop/instrument/auto/inference",), ("--seconds", "10")),
    Check("at_step", 150, ("llmtop/capture/across", "llmtop/protocol/job_store.py"), ("--out", "{out}"), gpus=2),
    Check("launch", 180, ("llmtop/launch",)),
    Check("exit", 240, ("llmtop/instrument/control", "llmtop/instrument/ending.py"), ("--out", "{out}")),
    Check("driver_process", 75, ("collectors/driver",)),
    Check("after_capture", 180, ("llmtop/instrument/control/cupti.py", "llmtop/capture/in_process")),
    Check("watching", 330, ("llmtop/instrument/serve",), ("--rounds", "4")),
    Check("situations", 200, ("tui/panes", "llmtop/rules"), ("--out", "{out}"), gpus=2),
    Check("jax", 180, ("llmtop/integrations/jax.py", "llmtop/trace/xla")),
    Check("pid_namespace", 45, ("collectors/nvml",)),
    Check("bench", 300, ("llmtop/bench",), ("--out", "{out}", "--runs", "3")),
    Check("nsys_repeats", 120, ("llmtop/capture/nsys",), ("--captures", "--attached", "--seconds", "60")),
    Check("eight", 500, ("collectors", "llmtop/capture/across"), ("--out", "{out}", "--limit", "480"), gpus=2),
)
"""The most valuable first: what a user looks at all the time, then what names a rank, then captures."""

BY_HAND: Final = frozenset({"truth"})
"""Loads data sets first, and its verdicts are judged by a person."""


@dataclass(frozen=True)
class Row:
    """What became of one check."""

    date: str
    hardware: str
    commit: str
    check: str
    result: str


def read_rows(text: str) -> list[Row]:
    """Return the rows of the table in a document."""
    section = text.partition(f"{HEADING}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return [Row(*one) for one in cells if len(one) == len(COLUMNS)]


def write_rows(text: str, rows: Iterable[Row]) -> str:
    """Return a document with these rows, each in place of the row of the same check, in the order of `CHECKS`."""
    known = {row.check: row for row in (*read_rows(text), *rows)}
    order = {check.name: place for place, check in enumerate(CHECKS)}
    table = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    ordered = sorted(known.values(), key=lambda row: order.get(row.check, len(order)))
    table += [f"| {' | '.join(asdict(row).values())} |" for row in ordered]
    before, _, after = text.partition(f"{HEADING}\n")
    section, next_heading, rest = after.partition("\n## ")
    words = [line for line in section.strip("\n").splitlines() if not line.startswith("|")]
    parts = [before.rstrip("\n"), HEADING, "\n".join(words).strip("\n"), "\n".join(table)]
    return "\n\n".join(part for part in parts if part) + "\n" + next_heading + rest


def due(rows: list[Row]) -> list[Check]:
    """Return the checks without a row, and those whose code has changed since the commit of their row."""
    known = {row.check: row for row in rows}
    return [one for one in CHECKS if one.name not in known or has_changed(one.judges, known[one.name].commit)]


def has_changed(paths: tuple[str, ...], commit: str) -> bool:
    """Return True if a file below these paths has changed since the commit, also if it is unknown here."""
    done = subprocess.run(
        ["git", "log", "-1", "--format=%h", f"{commit}..HEAD", "--", *paths],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=GIT_SECONDS,
    )  # fmt: skip
    return done.returncode != 0 or bool(done.stdout.strip())


def slices(checks: list[Check], seconds: float) -> list[list[Check]]:
    """Return the checks in groups that each take so many seconds at most; one that takes longer is alone."""
    found: list[list[Check]] = []
    for check in checks:
        if not found or sum(one.seconds for one in found[-1]) + check.seconds > seconds:
            found.append([])
        found[-1].append(check)
    return found


def run(
    check: Check, hardware: str, commit: str, seconds: float, *, is_dry: bool, kept: Path | None = None
) -> Row:
    """Run a check and judge it by its exit code and the `ok` of what it prints.

    Args:
        check: which.
        hardware: the words for the machine.
        commit: the hash of the code.
        seconds: after which it is ended, and has failed.
        is_dry: only import it.
        kept: a folder for what it prints, in a file NAME.txt; None keeps nothing.
    """
    module = f"tests.gpu.check_{check.name}"
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        arguments = [one.replace("{out}", f"{folder}/out") for one in check.arguments]
        command = [sys.executable, "-c", f"import {module} as check; assert callable(check.main)"]
        if not is_dry:
            command = [sys.executable, "-m", module, *arguments]
        printed = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
        if kept is not None:  # written as it comes: the machine may be taken away before the check ends
            printed = stack.enter_context((kept / f"{check.name}.txt").open("w+", errors="replace"))
        try:
            done = subprocess.run(
                command, cwd=REPOSITORY, stdout=printed, stderr=subprocess.STDOUT, check=False, timeout=seconds
            )
            code = done.returncode
        except subprocess.TimeoutExpired:
            result = f"failed: not done within {seconds:.0f} s"
        else:
            printed.seek(0)
            result = "imported" if is_dry and code == 0 else judged(code, printed.read())
    return Row(datetime.date.today().isoformat(), hardware, commit[:12], check.name, result)


def judged(code: int, output: str) -> str:
    """Return the result of a check in one cell of a table."""
    oks = re.findall(r'"ok": (true|false)', output)
    cases = re.findall(rf"^{CASES}(.+)$", output, re.MULTILINE)
    counted = f"{oks.count('true')} of {len(oks)} as planted" if oks else cases[-1] if cases else "as expected"
    if code == 0:
        return counted
    lines = output.strip().splitlines() or ["no output"]
    failed = [line for line in lines if '"ok": false' in line] or lines
    text = f"failed (exit code {code}): {counted + ', ' if oks or cases else ''}{failed[-1]}"
    return re.sub(r"[|\s]+", " ", text)[:RESULT_CHARACTERS]


def hardware_here() -> tuple[int, str]:
    """Return how many GPUs there are, and the words for them."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, check=False, timeout=GIT_SECONDS,
        )  # fmt: skip
    except OSError:
        return 0, "no GPU"
    lines = done.stdout.strip().splitlines() if done.returncode == 0 else []
    if not lines:
        return 0, "no GPU"
    name, _, driver = lines[0].partition(", ")
    return len(lines), f"{len(lines)} x {name}, driver {driver}"


def _run_slice(
    checks: list[Check], options: argparse.Namespace, gpus: int, hardware: str
) -> tuple[list[Row], bool]:
    until, rows, is_done = time.monotonic() + options.minutes * 60, [], True
    for check in checks:
        left = until - time.monotonic()
        if (check.gpus > gpus and not options.dry_run) or check.seconds > left:
            is_done = False
            continue
        row = run(
            check,
            hardware,
            options.commit or checkout.commit(),
            left,
            is_dry=options.dry_run,
            kept=options.out and options.out.parent,
        )
        rows.append(row)
        print(json.dumps(asdict(row)), flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    return rows, is_done


def _print_plan(checks: list[Check], seconds: float) -> None:
    total, commit = 0.0, checkout.commit()
    chosen: list[Check] = []
    left_out: list[Check] = []
    for check in checks:
        fits = total + check.seconds <= DAY_SECONDS
        total += check.seconds if fits else 0.0
        (chosen if fits else left_out).append(check)
    for gpus in (1, 2):
        for number, group in enumerate(slices([one for one in chosen if one.gpus == gpus], seconds), 1):
            names = " ".join(one.name for one in group)
            print(f"# {gpus} GPU, slice {number}: {sum(one.seconds for one in group) / 60:.1f} min")
            print(f"python -m tests.gpu.day --out $OUT/{gpus}-{number}.jsonl --commit {commit} --checks {names}")
    if left_out:
        print(f"# left for another day: {' '.join(one.name for one in left_out)}")


def main() -> int:
    """Plan, run or write what is due."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.day")
    parser.add_argument("--minutes", type=float, default=SLICE_MINUTES, help="of this slice (default: 9)")
    parser.add_argument("--plan", action="store_true", help="print what is due, and a command for each slice")
    parser.add_argument("--dry-run", action="store_true", help="only import the checks, and print the table")
    parser.add_argument("--checks", nargs="+", choices=[one.name for one in CHECKS], metavar="NAME")
    parser.add_argument("--commit", help="default: that of the checkout")
    parser.add_argument(
        "--out",
        type=Path,
        help="append the rows to this file, and what each check prints to NAME.txt beside it; the document stays",
    )
    parser.add_argument("--table", nargs="+", type=Path, metavar="FILE", help="write the rows of these files")
    options = parser.parse_args()
    text = DOCUMENT.read_text()
    if options.table:
        lines = [line for file in options.table for line in file.read_text().splitlines()]
        DOCUMENT.write_text(write_rows(text, [Row(**json.loads(line)) for line in lines]))
        return 0
    checks = [one for one in CHECKS if one.name in options.checks] if options.checks else due(read_rows(text))
    if options.plan:
        _print_plan(checks, options.minutes * 60)
        return 0
    gpus, hardware = hardware_here()
    if not gpus and not options.dry_run:
        parser.error(
            "nvidia-smi lists no GPU here. Pass --plan for the commands of another machine, or --dry-run."
        )
    rows, is_done = _run_slice(checks, options, gpus, hardware)
    if options.dry_run:
        print(write_rows(text, rows).partition(HEADING)[2])
    elif options.out is None:
        DOCUMENT.write_text(write_rows(text, rows))
    if any(row.result.startswith("failed") for row in rows):
        return 1
    return 0 if is_done else NOT_DONE


if __name__ == "__main__":
    sys.exit(main())
