"""Memory snapshots on a GPU: a leak, fragmentation, an out-of-memory error and a healthy training, each planted;
and one of a training that holds 20 GiB in many pieces.

    python -m tests.gpu.check_memory [--out FOLDER] [large]

With `large` the last one alone. Says for each what `llmtop report` and `llmtop compare` make of it, how long that
took, how large the files are, and what a recorded history costs a step. Exit code 1 where a line or a cause is
not named.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SCRIPT = """
import sys, time, torch, torch.nn.functional as F
way, steps = sys.argv[1], int(sys.argv[2])
width = 2048
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(),
    torch.nn.Linear(4 * width, width)) for _ in range(8)]).cuda()
if way == "large":
    width = 768
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(3000)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
losses, held, times = [], [], []
if way == "fragmented":
    pieces = [torch.empty(48 << 20, dtype=torch.uint8, device="cuda") for _ in range(100)]
    while pieces:
        pieces.pop()
        held.append(torch.empty(26 << 20, dtype=torch.uint8, device="cuda"))  # LINE fragmented
for step in range(steps):
    begun = time.perf_counter()
    batch = torch.randn(512, width, device="cuda")
    out = model(batch)
    loss = F.mse_loss(out, batch)  # LINE leak
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if way == "leak":
        losses.append(loss)
    if way == "oom" and step == 20:
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")  # LINE oom
    torch.cuda.synchronize()
    times.append(time.perf_counter() - begun)
print("median", sorted(times[20:])[len(times[20:]) // 2] if len(times) > 20 else None, flush=True)
"""
LLMTOP = [sys.executable, "-m", "llmtop"]


def line_of(mark: str) -> int:
    """The number of the line of the script that is marked so."""
    return next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if f"# LINE {mark}" in line)


def say(*words: object) -> None:
    """A line at once."""
    print(*words, flush=True)


class Check:
    """The trainings, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "planted.py"
        self.script.write_text(SCRIPT)
        self.environment = {**os.environ, "LLMTOP_DIR": str(folder / "run")}
        self.failed: list[str] = []

    def start(self, way: str, steps: int, *options: str) -> subprocess.Popen[str]:
        """Start it below llmtop run."""
        command = [*LLMTOP, "run", *options, "--", sys.executable, str(self.script), way, str(steps)]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def llmtop(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of llmtop's to its end."""
        command = [*LLMTOP, *arguments]
        return subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=False,
            timeout=300,
        )

    def expect(self, name: str, good: bool, found: object) -> None:
        """Note whether it is as it must be."""
        say("ok  " if good else "FAIL", name, "" if good else found)
        self.failed += [] if good else [name]

    def capture(self, pid: int, name: str) -> Path:
        """One capture of six steps, and how long its report takes."""
        out = self.folder / name
        deadline = time.monotonic() + 120
        while True:
            done = self.llmtop(
                "capture", "--engine", "memory", "--pid", str(pid), "--steps", "6", "--out", str(out)
            )
            if done.returncode == 0 or time.monotonic() > deadline:
                break
            time.sleep(1)
        files = sorted(out.rglob("*.memory.pickle"))
        if not files:
            raise SystemExit(f"no capture of {name}: {done.stdout}{done.stderr}")
        begun = time.monotonic()
        brief = self.llmtop("report", str(files[0])).stdout
        say(f"{name}: {files[0].stat().st_size >> 10} KiB, reported in {time.monotonic() - begun:.2f} s\n{brief}")
        return files[0]

    def report(self, path: Path) -> Any:
        """The report as data."""
        return json.loads(self.llmtop("report", str(path), "--json").stdout)

    def captured(self, way: str, captures: int, pause: float = 5.0) -> list[Path]:
        """Captures of one training, some seconds apart."""
        child = self.start(way, 1_000_000)
        try:
            time.sleep(20)
            found = []
            for number in range(captures):
                found.append(self.capture(child.pid, f"{way}{number}"))
                time.sleep(pause)
            return found
        finally:
            child.kill()
            child.communicate(timeout=600)

    def large(self) -> None:
        """How long the report of 20 GiB takes, beside what `python -m benchmarks memory` makes up."""
        (path,) = self.captured("large", 1)
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        (device,) = self.report(path)["devices"]
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - begun
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        blocks = sum(one["blocks"] for one in device["holders"])
        reserved = device["reserved_bytes"] / 2**30
        what = f"{reserved:.1f} GiB, {device['events']:,} events, {blocks:,} blocks"
        say(f"{what}: {wall:.2f} s, {seconds:.2f} s of CPU time")
        self.expect("20 GiB and more", reserved >= 20, reserved)
        self.expect("reported within 5 s of CPU time", seconds <= 5, seconds)


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("part", nargs="?", choices=("large",))
    given = parser.parse_args()
    folder = given.out or Path(tempfile.mkdtemp(prefix="llmtop-memory-"))
    folder.mkdir(parents=True, exist_ok=True)
    check = Check(folder)
    check.large()
    if given.part is None:
        planted(check)
    if check.failed:
        raise SystemExit(1)


def planted(check: Check) -> None:
    """All but the large one."""
    one, two = check.captured("leak", 2)
    found = json.loads(check.llmtop("compare", str(one), str(two), "--json").stdout)
    check.expect("leak", found["verdict"] == "leak", found["summary"])
    check.expect("its line", f"planted.py:{line_of('leak')} " in found["summary"], found["summary"])
    (healthy,) = check.captured("healthy", 1)
    report = check.report(healthy)
    ids = [finding["id"] for finding in report["findings"]]
    check.expect("nothing wrong in a healthy one", not {"memory_leak", "fragmentation"} & set(ids), ids)
    held = {one["name"]: one for one in report["devices"][0]["holders"]}
    weights = 8 * (2 * 4 * 2048 * 2048 + 5 * 2048) * 4
    for name, wanted in (("parameters", weights), ("optimizer", 2 * weights)):
        got = held.get(name, {}).get("bytes", 0)
        check.expect(f"{name} hold {wanted >> 20} MiB", abs(got - wanted) < 0.02 * wanted, f"{got >> 20} MiB")
    got = held.get("gradients", {}).get("peak_bytes", 0)
    check.expect("gradients at the peak", got <= 1.05 * weights, f"{got >> 20} of {weights >> 20} MiB")
    (fragmented,) = check.captured("fragmented", 1)
    ids = [finding["id"] for finding in check.report(fragmented)["findings"]]
    check.expect("fragmentation", "fragmentation" in ids, ids)
    for options in ((), ("--memory-history",)):
        child = check.start("oom", 1000, *options)
        _, error = child.communicate(timeout=300)
        say(error[-600:])
        path = check.folder / "run" / f"{child.pid}-oom.memory.pickle"
        check.expect(f"snapshot of the error {options}", path.exists(), error[-300:])
        if path.exists():
            report = check.report(path)
            said = report["findings"][0]["summary"]
            check.expect("the error's line", f"planted.py:{line_of('oom')} " in said, said)
    for options in ((), ("--memory-history",), (), ("--memory-history",)):
        out, _ = check.start("healthy", 300, *options).communicate(timeout=600)
        say(f"a step with {options or 'no history'}: {out.strip()} s")


if __name__ == "__main__":
    main()
