"""Size of a rank's run, and the time to open many: python -m benchmarks.runs_on_disk [--days 30] [--ranks 64].

One day is made by the writer's own sums, steps of 1 s with ten phases and four logged values; further days and
ranks repeat its members. Opening is `llmtop runs` and `llmtop runs show`, in new processes.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from llmtop.instrument.run_log.sums import Sums
from llmtop.recording.members import pack
from llmtop.runs import folder, records

MINUTES = 24 * 60
PHASES = (
    *("dataload", "h2d", "forward", "forward/attention", "forward/mlp"),
    *("backward", "communication", "optimizer", "clip", "log"),
)


def day() -> tuple[bytes, records.State]:
    """Return the members of one day and the sums at its end."""
    random.seed(3)
    sums, found = Sums(0.0, 1.7e9), b""
    for minute in range(MINUTES):
        for second in range(60):
            number = minute * 60 + second
            spent = [(name, int(8e7 * random.gauss(1, 0.02)), 1) for name in PHASES]
            row = (number, int(1.7e18 + number * 1e9), int(9.9e8), int(1e9), 4096.0, None, spent)
            sums.add([row], int(1.7e18))
        sums.now((minute + 1) * 60.0, 1.7e9 + (minute + 1) * 60)
        values = {name: random.random() for name in ("loss", "lr", "grad_norm", "tokens")}
        every_tenth = minute % 10 == 9
        made = sums.end_minute(values, repeat_names=every_tenth)
        kept = sums.take_kept()
        made += [] if kept is None else [kept]
        made += [sums.sums()] if every_tenth else []
        found += pack(records.lines_of(made), sums.state.at, sums.state.at, len(made))
    return found, sums.sums()


def main() -> None:
    """Print size and times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=64)
    options = parser.parse_args()
    members, state = day()
    print(f"{len(members) / (1 << 20):.2f} MiB per rank and day", flush=True)
    with tempfile.TemporaryDirectory() as made:
        run = Path(made) / folder.RunKey("id", "bench", "").folder_name
        run.mkdir()
        for rank in range(options.ranks):
            start = records.Start(source="id", run="bench", rank=rank, at=1.7e9, world_size=options.ranks)
            name = folder.FileName(rank, int(1.7e12), 100 + rank, f"{rank:08x}").text
            with (run / (name + folder.RUN)).open("wb") as file:
                file.write(pack(records.lines_of([start]), 1.7e9, 1.7e9, 1))
                for _ in range(options.days):
                    file.write(members)
                end = records.End(at=state.at, mono=state.mono)
                file.write(pack(records.lines_of([state, end]), state.at, state.at, 2))
        for action in (["list"], ["show"], ["show", "--json"]):
            begun = time.monotonic()
            subprocess.run(
                [sys.executable, "-m", "llmtop", "runs", *action],
                env={**os.environ, "LLMTOP_RUNS": made}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                check=True, timeout=600,
            )  # fmt: skip
            print(f"llmtop runs {' '.join(action)}: {time.monotonic() - begun:.2f} s", flush=True)


if __name__ == "__main__":
    main()
