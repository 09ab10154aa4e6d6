"""One step, two "nodes", two GPUs with NCCL: python -m tests.gpu.check_at_step --out FILE

Two ranks of DDP on one machine, each a node of its own (a folder of sockets each), below `llmtop run`. Appends a
JSON line a case to the file and exits 1 when one is not as it should be; meant for 150 s. `--backend gloo` tries
it on the CPU.

    both      both ranks begin at the chosen step; how far apart the ends of their collectives are
    one       only rank 1 is captured, from rank 0's node
    past      a step that has passed is refused at once
    log       rank 0 is killed with -9, three times: rank 1 speaks of the store no oftener than without
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from llmtop.trace.files import align
from llmtop.trace.files.open import open_trace
from tests.support.ports import free_port
from tests.support.processes import environment, wait_for
from tests.support.trainings import sockets

TRAINING = """
import os, sys, time, torch
import torch.distributed as dist
gpu = sys.argv[1] == "nccl"
device = torch.device("cuda", 0) if gpu else torch.device("cpu")
dist.init_process_group(sys.argv[1])
wide = 2048 if gpu else 64
model = torch.nn.Sequential(*[torch.nn.Linear(wide, wide) for _ in range(8)]).to(device)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
batch = torch.randn(1024 if gpu else 8, wide, device=device)
while True:
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    open("steps" + os.environ["RANK"], "w").close()
    time.sleep(0.01)
"""
WAIT_S = 60.0
START_S = 180.0
"""Limit until both make steps: a fresh machine imports torch for the first time."""
LOGS = 3
"""Jobs whose rank 0 is killed, with llmtop and without."""


class Job:
    """The two ranks."""

    def __init__(self, folder: Path, backend: str, watched: bool) -> None:
        self.folder = folder
        self.nodes = [folder / "a", folder / "b"]
        port = free_port()
        (folder / "train.py").write_text(TRAINING)
        run = [sys.executable, "-m", "llmtop", "run", "-q", "--"] if watched else []
        self.ranks = []
        for rank, node in enumerate(self.nodes):
            node.mkdir(mode=0o700)
            with (folder / f"rank{rank}.log").open("wb") as log:
                self.ranks.append(
                    subprocess.Popen(
                        [*run, sys.executable, str(folder / "train.py"), backend],
                        env=environment(
                            RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), CUDA_VISIBLE_DEVICES=str(rank),
                            LLMTOP_DIR=str(node), OMP_NUM_THREADS="2",
                        ),
                        cwd=folder, stdout=log, stderr=log, start_new_session=True,
                    )
                )  # fmt: skip

    def capture(self, *words: str) -> tuple[int, Any, str]:
        """Take one from rank 0's node: exit code, facts, what it said."""
        done = subprocess.run(
            [sys.executable, "-m", "llmtop", "capture", "--json", "--steps", "5", *words],
            env=environment(LLMTOP_DIR=str(self.nodes[0])),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr[-600:]

    def end(self) -> None:
        """End both."""
        for one in self.ranks:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
            one.wait(600)


@contextmanager
def job(backend: str, watched: bool = True) -> Iterator[Job]:
    """Two ranks that step."""
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        made = Job(Path(folder), backend, watched)
        try:
            # With llmtop and without from the same moment on: what NCCL writes grows with the time.
            stepping = [made.folder / f"steps{rank}" for rank in range(len(made.nodes))]
            wait_for(lambda: all(file.exists() for file in stepping), START_S, "steps of two ranks")
            if watched:
                wait_for(lambda: all(sockets(node) for node in made.nodes), WAIT_S, "two ranks")
            time.sleep(8.0)
            yield made
        finally:
            made.end()


def captures(backend: str) -> Iterator[dict[str, Any]]:
    """The first three cases."""
    with job(backend) as both:
        code, facts, said = both.capture("--at-step", "+20", "--ranks", "all")
        info = facts["capture"] if facts else {}
        ok = code == 0 and info["ranks"] == [0, 1] and info["first_step"] == info["at_step"]
        found = {"case": "both", "ok": ok, "said": said, "at_step": info.get("at_step")}
        if ok:
            found |= apart(Path(facts["folder"]), backend)
            kept = {name: info[name] for name in ("step_seconds", "notes")}
            found |= {"verdict": facts["report"]["verdict"], **kept}
        yield found
        time.sleep(3.0)  # CUPTI leaves
        code, facts, said = both.capture("--at-step", "+20", "--ranks", "1")
        traces = [path.name for path in Path(facts["folder"], "traces").iterdir()] if facts else []
        yield {
            "case": "one",
            "ok": code == 0 and traces == ["rank1.pt.trace.json"],
            "said": said,
            "traces": traces,
        }
        code, _, said = both.capture("--at-step", "5", "--ranks", "0,1")
        yield {"case": "past", "ok": code == 2 and "has passed" in said, "said": said}


def apart(folder: Path, backend: str, rank: int = 1) -> dict[str, Any]:
    """How far the ends of the collectives of rank 0 and another one are apart, in µs."""
    if backend != "nccl":
        return {}
    one, two = (open_trace(folder / "traces" / f"rank{number}.pt.trace.json") for number in (0, rank))
    shift = (two.origin_unix_ns or 0) - (one.origin_unix_ns or 0)
    ends = [align.collective_ends(trace).ends for trace in (one, two)]
    count = min(map(len, ends))
    apart = (ends[1][-count:] + shift - ends[0][-count:]) / 1000
    return {
        "collectives": [len(each) for each in ends],
        "ends_apart_us_median": float(np.median(apart)) if count else None,
        "offset": str(align.clock_offset(one, two, shift)),
    }


def log(backend: str) -> dict[str, Any]:
    """Rank 0 dies: rank 1's log without llmtop and with it, in turns. How much NCCL writes differs by chance."""
    counts: dict[bool, list[int]] = {False: [], True: []}
    kinds: dict[bool, set[str]] = {False: set(), True: set()}
    for watched in (False, True) * LOGS:
        with job(backend, watched) as both:
            both.ranks[0].kill()
            both.ranks[0].wait(600)
            time.sleep(6.0)
            text = (both.folder / "rank1.log").read_text(errors="replace")
            lines = [line for line in text.splitlines() if "TCPStore" in line]
            counts[watched].append(len(lines))
            kinds[watched] |= {re.sub(r"0x[0-9a-f]+|[0-9]+", "N", line)[-200:] for line in lines}
    return {
        "case": "log",
        "ok": min(counts[True]) <= max(counts[False]),
        "lines_with_TCPStore": counts[True],
        "lines_without_llmtop": counts[False],
        "only_with_llmtop": sorted(kinds[True] - kinds[False]),
        "only_without": sorted(kinds[False] - kinds[True]),
    }


def main() -> int:
    """All cases; appends and judges."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    good = True
    with given.out.open("a") as out:
        for result in [*captures(given.backend), log(given.backend)]:
            text = json.dumps({"check": "at_step", "backend": given.backend, **result})
            print(text, flush=True)
            out.write(text + "\n")
            good = good and bool(result["ok"])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
