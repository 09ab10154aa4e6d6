"""Compare reports with the judgements of public captures (tests/data/judged, docs/measurements.md).

python -m tests.support.judged_captures FOLDER [--list]

FOLDER has the judged files under the `id` of their entries; they are not part of this repository. Prints how many
verdicts are right, wrong and abstained, how often steps were found where there are some or none, how many GPU busy
shares agree, how much of the required advice is there and how much of the forbidden is said; --list adds a line
for each that is not right. Exit code 0 whatever the counts are.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.judged_advice import advice_counts
from tests.support.processes import REPOSITORY

JUDGEMENTS = REPOSITORY / "tests" / "data" / "judged" / "judgements.jsonl.gz"
VERDICTS = {
    "gpu_compute": {"gpu_bound", "memory_bound"},
    "launch_bound": {"launch_bound"},
    "input": {"input_bound"},
    "synchronisation": {"sync_bound"},
    "copies": {"h2d_bound"},
    "communication": {"communication_bound"},
}
"""What a report calls each cause. A file without GPU work has no verdict at all."""
ABSTAINED = {"unknown", "idle"}
SECONDS = 300
BUSY_POINTS = 3.0
"""Percentage points by which two GPU busy shares may differ."""


def judgements() -> list[dict[str, Any]]:
    """Return the entries, a dictionary for each file."""
    with gzip.open(JUDGEMENTS, "rt") as lines:
        return [json.loads(line) for line in lines]


def report_of(path: Path) -> dict[str, Any] | str:
    """Return the report as `llmtop report --json` prints it, or the sentence of its refusal."""
    command = [sys.executable, "-m", "llmtop", "report", "--json", str(path)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS, cwd=REPOSITORY
        )
    except subprocess.TimeoutExpired:
        return f"no report within {SECONDS} s"
    if done.returncode:
        return f"exit code {done.returncode}: {done.stderr.strip()}"
    found = json.loads(done.stdout)
    return found if isinstance(found, dict) else "several reports"


def text_of(path: Path) -> str:
    """Return all of the report as text in one line, or the sentence of its refusal."""
    command = [sys.executable, "-m", "llmtop", "kernel" if path.suffix == ".ncu-rep" else "report"]
    command += [str(path)] if path.suffix == ".ncu-rep" else ["--full", str(path)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS, cwd=REPOSITORY
        )
    except subprocess.TimeoutExpired:
        return ""
    return " ".join((done.stdout or done.stderr).split())


def verdict_result(entry: dict[str, Any], report: dict[str, Any] | str) -> str:
    """Return right, wrong, abstained or refused."""
    if isinstance(report, str):
        return "refused"
    said, cause = report.get("verdict"), entry["cause"]
    also = entry.get("also_acceptable") or []
    accepted = set().union(*(VERDICTS.get(one, set()) for one in (cause, *also)))
    without_verdict = cause not in VERDICTS or any(one not in VERDICTS for one in also)
    if said is None or said in ABSTAINED:
        return "right" if without_verdict else "abstained"
    return "right" if said in accepted else "wrong"


def steps_result(entry: dict[str, Any], report: dict[str, Any] | str) -> str:
    """Return right, invented, missed, or "" where there is nothing to compare."""
    if isinstance(report, str) or entry["has_steps"] not in (True, False):
        return ""
    found = bool((report.get("steps") or {}).get("count"))
    if found == entry["has_steps"]:
        return "right"
    return "invented" if found else "missed"


def busy_result(entry: dict[str, Any], report: dict[str, Any] | str) -> str:
    """Return right or wrong of the first device's busy share, or "" where one of the two has none."""
    if isinstance(report, str) or entry.get("gpu_busy_pct") is None or not report.get("devices"):
        return ""
    shares = [one["busy_pct"] for one in report["devices"] if one.get("busy_pct") is not None]
    if not shares:
        return ""
    near = any(abs(share - entry["gpu_busy_pct"]) <= BUSY_POINTS for share in shares)
    return "right" if near else "differs (other windows count as well)"


def main() -> None:
    """Compare all files of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    counts: dict[str, Counter[str]] = {name: Counter() for name in ("verdict", "steps", "busy", "advice")}
    for entry in judgements():
        path = arguments.folder / entry["id"]
        if not path.exists():
            counts["verdict"]["no file"] += 1
            continue
        report = report_of(path)
        advised, missing = advice_counts(entry, {} if isinstance(report, str) else report, text_of(path))
        counts["advice"] += advised
        results = {
            "verdict": verdict_result(entry, report),
            "steps": steps_result(entry, report),
            "busy": busy_result(entry, report),
        }
        for name, result in results.items():
            counts[name][result] += bool(result)
        if arguments.list and {*results.values()} - {"right", ""}:
            said = report if isinstance(report, str) else f"{report.get('verdict')}: {report.get('summary')}"
            print(f"{entry['id']}: {results} judged {entry['cause']} {entry.get('also_acceptable') or ''}; {said}")
        if arguments.list and missing:
            print(f"{entry['id']}: advice {'; '.join(missing)}")
        sys.stdout.flush()
    for name, found in counts.items():
        print(name, dict(found))


if __name__ == "__main__":
    main()
