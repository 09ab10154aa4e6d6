"""Size of a rank's run, and the time to open many: python -m benchmarks.runs_on_disk [--days 30] [--ranks 64].

One day is made by the writer's own sums, steps of 1 s with ten phases and four logged values. Further days and
ranks repeat its members: as one run, or with --daily as a run a day. The first `llmtop runs` makes the index; then
`llmtop runs` and `llmtop runs show` are timed, all in new processes.
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
from llmtop.runs import folder, index, records

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
    parser.add_argument("--daily", action="store_true")
    options = parser.parse_args()
    members, state = day()
    print(f"{len(members) / (1 << 20):.2f} MiB per rank and day", flush=True)
    with tempfile.TemporaryDirectory() as made:
        runs = options.days if options.daily else 1
        for number in range(runs):
            write_run(Path(made), number, 1 if options.daily else options.days, options.ranks, (members, state))
        for action in (["list"], ["list"], ["show"], ["show", "--json"]):
            what = "" if (Path(made) / index.NAME).exists() else ", the index is made"
            begun = time.monotonic()
            subprocess.run(
                [sys.executable, "-m", "llmtop", "runs", *action],
                env={**os.environ, "LLMTOP_RUNS": made}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                check=True, timeout=600,
            )  # fmt: skip
            print(f"llmtop runs {' '.join(action)}: {time.monotonic() - begun:.2f} s{what}", flush=True)
        print(f"{(Path(made) / index.NAME).stat().st_size / (1 << 20):.1f} MiB of index", flush=True)


def write_run(runs: Path, number: int, days: int, ranks: int, day_made: tuple[bytes, records.State]) -> None:
    """Write a run of some days; `number` tells it from the others."""
    members, state = day_made
    run = runs / folder.RunKey("id", f"bench{number}", "").folder_name
    run.mkdir()
    begun = time.time() - 86400.0 * 60 + 86400.0 * number
    for rank in range(ranks):
        start = records.Start(source="id", run=f"bench{number}", rank=rank, at=begun, world_size=ranks)
        name = folder.FileName(rank, int(begun * 1000), 100 + rank, f"{rank:08x}").text
        with (run / (name + folder.RUN)).open("wb") as file:
            file.write(pack(records.lines_of([start]), begun, begun, 1))
            for _ in range(days):
                file.write(members)
            end = records.End(at=state.at, mono=state.mono)
            file.write(pack(records.lines_of([state, end]), state.at, state.at, 2))


if __name__ == "__main__":
    main()
