"""Size of a rank's run, and the time to open many: python -m benchmarks.runs_on_disk [--days 30] [--ranks 64].

One day is made by the writer's own sums, steps of 1 s with ten phases and four logged values. Further days and
ranks repeat it at later times: as one run, or with --daily as a run a day. The first `llmtop runs` makes the
index, the first `show` keeps the recomputed alerts in it; all commands are new processes.
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
from typing import Any

from msgspec.structs import replace

from llmtop.instrument.run_log.sums import Sums
from llmtop.recording.members import pack
from llmtop.runs import folder, index, records

MINUTES = 24 * 60
LAST_SECONDS = 180
"""A process keeps two to four minutes in full."""
PHASES = (
    *("dataload", "h2d", "forward", "forward/attention", "forward/mlp"),
    *("backward", "communication", "optimizer", "clip", "log"),
)


Day = tuple[list[tuple[list[records.Record], float]], records.State]
"""Of one day: the records of each member with the second at which they end, and the sums at its end."""


def day() -> Day:
    """Return the records of one day, from second 0 on, and the sums at its end."""
    random.seed(3)
    sums, members = Sums(0.0, 0.0), []
    for minute in range(MINUTES):
        for second in range(60):
            number = minute * 60 + second
            spent = [(name, int(8e7 * random.gauss(1, 0.02)), 1) for name in PHASES]
            sums.add([(number, int(number * 1e9), int(9.9e8), int(1e9), 4096.0, None, spent)], 0)
        sums.now((minute + 1) * 60.0, (minute + 1) * 60.0)
        values = {name: random.random() for name in ("loss", "lr", "grad_norm", "tokens")}
        every_tenth = minute % 10 == 9
        made = sums.end_minute(values, repeat_names=every_tenth)
        kept = sums.take_kept()
        made += [] if kept is None else [kept]
        made += [sums.sums()] if every_tenth else []
        members.append((made, (minute + 1) * 60.0))
    return members, sums.sums()


def days_packed(made: Day, days: int, begun: float) -> tuple[bytes, records.State]:
    """Return the members of some days, one after the other, and the sums at their end.

    Args:
        made: one day.
        days: how many.
        begun: unix time at which the first begins.
    """
    members, state = made
    packed, whole = bytearray(), state
    for number in range(days):
        seconds, steps = number * 86400.0, number * MINUTES * 60
        whole = _later(state, seconds, begun)
        whole = replace(
            whole,
            **{
                name: getattr(state, name) * (number + 1)
                for name in ("steps", "intervals", "step_seconds", "tokens")
            },
            interval_seconds=state.interval_seconds * (number + 1),
            phases={name: spent * (number + 1) for name, spent in state.phases.items()},
            histogram=[(bucket, count * (number + 1)) for bucket, count in state.histogram],
            last_index=(state.last_index or 0) + steps,
        )
        for rows, second in members:
            at = begun + seconds + second
            shifted: list[records.Record] = []
            for row in rows:
                one: Any = row
                if isinstance(one, records.State):
                    one = whole
                elif isinstance(one, records.Minute):
                    one = replace(_later(one, seconds, begun), first=one.first + steps, last=one.last + steps)
                elif isinstance(one, records.KeptSteps):
                    moved = int((begun + seconds) * 1e9)
                    one = replace(one, steps=[(row[0] + steps, row[1] + moved, *row[2:]) for row in one.steps])
                shifted.append(one)
            packed += pack(records.lines_of(shifted), at, at, len(shifted))
    return bytes(packed), whole


def _later(one: Any, seconds: float, begun: float) -> Any:
    moved = {name: getattr(one, name) + seconds for name in ("mono", "last_mono") if getattr(one, name, None)}
    return replace(one, at=one.at + seconds + begun, **moved)


def main() -> None:
    """Print size and times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--daily", action="store_true")
    options = parser.parse_args()
    made_day = day()
    print(f"{len(days_packed(made_day, 1, 0.0)[0]) / (1 << 20):.2f} MiB per rank and day", flush=True)
    with tempfile.TemporaryDirectory() as made:
        runs = options.days if options.daily else 1
        for number in range(runs):
            write_run(Path(made), number, 1 if options.daily else options.days, options.ranks, made_day)
        for action in (["list"], ["list"], ["show"], ["show"], ["show", "--json"]):
            what = "" if (Path(made) / index.NAME).exists() else ", the index is made"
            begun, before = time.monotonic(), os.times()
            subprocess.run(
                [sys.executable, "-m", "llmtop", "runs", *action],
                env={**os.environ, "LLMTOP_RUNS": made}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                check=True, timeout=600,
            )  # fmt: skip
            now = os.times()
            used = now.children_user + now.children_system - before.children_user - before.children_system
            clock = time.monotonic() - begun
            print(f"llmtop runs {' '.join(action)}: {clock:.2f} s, processor {used:.2f} s{what}", flush=True)
        print(f"{(Path(made) / index.NAME).stat().st_size / (1 << 20):.1f} MiB of index", flush=True)


def write_run(runs: Path, number: int, days: int, ranks: int, made: Day) -> None:
    """Write a run of some days; `number` tells it from the others. It ends within the last 60 days."""
    rng = random.Random(number)
    run = runs / folder.RunKey("id", f"bench{number}", "").folder_name
    run.mkdir()
    begun = time.time() - 86400.0 * 60 + 86400.0 * number
    members, state = days_packed(made, days, begun)
    for rank in range(ranks):
        start = records.Start(source="id", run=f"bench{number}", rank=rank, at=begun, world_size=ranks)
        name = folder.FileName(rank, int(begun * 1000), 100 + rank, f"{rank:08x}").text
        with (run / (name + folder.RUN)).open("wb") as file:
            file.write(pack(records.lines_of([start]), begun, begun, 1))
            file.write(members)
            end = records.End(at=state.at, mono=state.mono)
            file.write(pack(records.lines_of([state, end]), state.at, state.at, 2))
        write_last(run / (name + folder.LAST[0]), start, state, rng)


def write_last(path: Path, start: records.Start, state: records.State, rng: random.Random) -> None:
    """Write the file of the last minutes of a process: each step, in a member per second."""
    begun = state.at - LAST_SECONDS
    with path.open("wb") as file:
        file.write(pack(records.lines_of([start]), begun, begun, 1))
        for second in range(LAST_SECONDS):
            at, number = begun + second, state.steps - LAST_SECONDS + second
            spent = [(name, int(8e7 * rng.gauss(1, 0.02)), 1) for name in PHASES]
            row = (number, int(at * 1e9), int(9.9e8), int(1e9), 4096.0, None, spent)
            kept = records.RecentSteps(
                first=number, steps=[row], mono_offset_ns=int((state.at - state.mono) * 1e9)
            )
            file.write(
                pack(records.lines_of([kept, records.Values(at=at, values={"loss": 1 / (number + 1)})]), at, at, 2)
            )
        file.write(pack(records.lines_of([records.End(at=state.at, mono=state.mono)]), state.at, state.at, 1))


if __name__ == "__main__":
    main()
