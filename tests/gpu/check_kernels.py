"""llmtop kernel on a GPU whose counters can be read: a GPT's three hottest kernels, and two with a planted fault.

    python -m tests.gpu.check_kernels [--out FILE] [--folder FOLDER]

Needs ncu, ncu-report (pip's, or the one of that Nsight Compute), torch and CuPy; takes some two minutes. The GPT
is captured by torch.profiler under `llmtop run`; `llmtop kernel … --top 3 --run --yes` then measures it. Each is
held against ncu's own page: throughputs, duration, and with them the place under the roofs. One JSON object a
kernel is appended to FILE. Exit code 1 where a limiter, a kernel or a place is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmtop.errors import LlmtopError
from llmtop.ncu import tool
from llmtop.ncu.command import LaunchFilter
from llmtop.ncu.run import run

_WORKLOADS = [sys.executable, "-m", "tests.gpu.ncu_workloads"]
_STEPS = 12
"""Of the GPT under ncu: more than are passed over, and an end of its own if ncu should not end it."""
_RIGHT = {"GEMM": "compute", "elementwise": "memory", "optimizer": "memory", "normalisation": "memory"}
_LATENCY_BELOW = 60.0
"""Per cent of both throughputs: below, ncu's own page calls it latency, whatever kind of kernel it is."""
_PLANTED = {
    "planted_uncoalesced": ("uncoalesced", "uncoalesced", 1 << 26),
    "planted_conflicts": ("conflicts", "bank conflicts", 2000 * 132 * 8 * 1024),
}
"""Kernel: its workload, its limiter, the FLOPs of a launch."""
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "byte/s": 1.0, "Kbyte/s": 1e3}
_UNITS |= {"Mbyte/s": 1e6, "Gbyte/s": 1e9, "Tbyte/s": 1e12, "%": 1.0}


def _llmtop(*arguments: object, seconds: float = 400.0) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "llmtop", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)


def captured(folder: Path) -> Path:
    """A capture of the GPT, which is ended afterwards."""
    words = [sys.executable, "-m", "llmtop", "run", "--", *_WORKLOADS, "gpt", "1000000"]
    training = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            time.sleep(5)
            how = ("--engine", "torch.profiler", "--steps", 4, "--out", folder)
            done = _llmtop("capture", "--pid", training.pid, *how)
            found = sorted(path.parent for path in folder.glob("*/report.json"))
            if done.returncode == 0 and found:
                return found[0]
        raise SystemExit(f"no capture: {done.stderr}")
    finally:
        training.kill()
        training.wait(600)


def page(report: Path, ncu: tool.NcuTool, place: int = 0) -> dict[str, float]:
    """ncu's own page on one kernel of a report, in seconds, bytes a second and percent."""
    said = subprocess.run(
        [str(ncu.path), "-i", str(report), "--page", "details"],
        capture_output=True,
        text=True,
        check=True,
        timeout=3600,
    ).stdout
    found: dict[str, float] = {}
    of_each = re.split(r"(?m)^  \S.*\), Context \d+, Stream \d+", said)[1:]
    for line in of_each[place].splitlines():
        match = re.match(r"^ {4}(\S.*?) {2,}(\S+) +([\d,.]+)$", line)
        if match and match[2] in _UNITS:
            name = f"{match[1]} rate" if match[2].endswith("byte/s") else match[1]
            found.setdefault(name, float(match[3].replace(",", "")) * _UNITS[match[2]])
    return found


def against(kernel: dict[str, Any], by_ncu: dict[str, float], flops: float | None) -> dict[str, Any]:
    """Our figures beside ncu's, and whether the place under the roofs is within a tenth."""
    readings = {one["name"]: one["value"] for one in kernel["readings"]}
    point = kernel["roofline"]
    row: dict[str, Any] = {
        "kernel": kernel["kernel"],
        "limiter": kernel["limiter"],
        "sentence": kernel["sentence"],
        "grid": kernel["grid"],
        "seconds": [kernel["seconds"], by_ncu.get("Duration")],
        "sm": [readings.get("compute (SM) throughput"), by_ncu.get("Compute (SM) Throughput")],
        "dram": [readings.get("DRAM throughput"), by_ncu.get("DRAM Throughput")],
        "l2": [readings.get("L2 throughput"), by_ncu.get("L2 Cache Throughput")],
        "roofline": point,
    }
    if point is not None:
        theirs = by_ncu["Memory Throughput rate"]
        row["bytes_per_s"] = [point["bytes_per_s"], theirs]
        wanted = flops / by_ncu["Duration"] if flops else None
        if point["tensor"]:  # of a tensor kernel ncu's page has the share of the roof
            share = by_ncu["Compute (SM) Throughput"]
            row["roof_pct"] = [point["roof_pct"], share]
            row["within_tenth"] = _near(point["roof_pct"], share) and _near(point["bytes_per_s"], theirs)
        elif wanted is not None:
            row["flops_per_s"] = [point["flops_per_s"], wanted]
            row["within_tenth"] = _near(point["flops_per_s"], wanted) and _near(point["bytes_per_s"], theirs)
    return row


def _near(ours: float, theirs: float) -> bool:
    return abs(ours - theirs) <= 0.1 * theirs


def hot(capture: Path, folder: Path, ncu: tool.NcuTool) -> list[dict[str, Any]]:
    """The capture's three hottest, by llmtop kernel."""
    kinds = json.loads(_llmtop("kernel", capture, "--top", 3, "--json").stdout)["kernels"]
    done = _llmtop(
        "kernel", capture, "--top", 3, "--run", "--yes", "--timeout", 60, "--out", folder, "--json", "--",
        *_WORKLOADS, "gpt", _STEPS,
    )  # fmt: skip
    if done.returncode:
        return [{"kernel": one["kernel"], "failed": done.stderr[-1000:]} for one in kinds]
    rows = []
    for told, report in zip(kinds, json.loads(done.stdout)["reports"], strict=True):
        by_ncu = page(Path(report["source"]), ncu, report["place"])
        row = against(report["kernels"][0], by_ncu, None)
        row |= {"wanted": told["kernel"], "note": report["note"], "command": told["command"]}
        slow = max(by_ncu[name] for name in ("Compute (SM) Throughput", "Memory Throughput")) < _LATENCY_BELOW
        wanted = "latency" if slow else _RIGHT.get(told["kind"], "?")
        row["right"] = wanted == row["limiter"] and not report["note"].startswith("None of")
        rows.append(row)
    return rows


def planted(folder: Path, ncu: tool.NcuTool) -> list[dict[str, Any]]:
    """The two with a fault, the second launch of three."""
    rows = []
    for name, (workload, limiter, flops) in _PLANTED.items():
        written = run(ncu, LaunchFilter(name, 1, 1), folder / workload, [*_WORKLOADS, workload], 60.0)
        (kernel,) = json.loads(_llmtop("kernel", written, "--json").stdout)["kernels"]
        row = against(kernel, page(written, ncu), flops)
        rows.append(row | {"right": row["limiter"] == limiter})
    return rows


def _tried(part: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    try:
        return part()
    except (LlmtopError, subprocess.SubprocessError, ValueError, LookupError) as error:
        return [{"failed": f"{type(error).__name__}: {error}"}]


def main() -> int:
    """Run both; returns the exit code."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, help="append the results there")
    options.add_argument("--folder", type=Path, help="where reports and the capture go")
    chosen = options.parse_args()
    folder = (chosen.folder or Path(tempfile.mkdtemp(prefix="llmtop-kernels-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    ncu = tool.find_ncu(os.environ)
    rows = _tried(lambda: planted(folder, ncu)) + _tried(lambda: hot(captured(folder), folder, ncu))
    for row in rows:
        row["ncu"] = ncu.version
        row["at_seconds"] = round(time.monotonic() - began, 1)
        print(json.dumps(row))
        if chosen.out is not None:
            with chosen.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    wrong = [row for row in rows if not row.get("right") or row.get("within_tenth") is False]
    return 1 if wrong or len(rows) < 5 else 0


if __name__ == "__main__":
    sys.exit(main())
