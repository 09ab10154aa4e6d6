"""Hold what llmtop says of planted steps against their truth (docs/measurements.md).

python -m tests.support.step_plants outside|loader [SECONDS [PLANT…]] [--set 1|2|3|4|5|6|7|8] [--keep FOLDER]

Each plant is a training on the CPU under `llmtop run`. In set 1 one statement outside the phases takes most of the
step in 20 plants, and the data loader is slow for one cause in 16. In set 2 such a statement takes 15 to 60 % of
the step in 20 plants and a few percent in two, and the loader is not the problem in three of 16. Set 3 has the
same shares of a step, at most 3 % in the two, and the loader is not the problem in four of 16. Set 4 has the same
shares of a step, less than 3 % in two, and no plants of the loader. Set 5 is like set 4; in `outside/s08.py` the
loader takes a part of the step as well. Sets 6 and 8 are like set 5, with that plant being `outside/s15.py` and
`outside/s14.py`; set 7 is like set 4. Sources and truths: tests/data/step_plants, and step_plants_2 to
step_plants_8 beside it.

After SECONDS (15) of steps `llmtop --json` is read for 12 s. For `outside` the answer is judged by the line, for
`loader` it is printed beside the truth, which is in words. With --keep the last snapshot of each plant is written
to FOLDER.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.processes import REPOSITORY

DATA = REPOSITORY / "tests" / "data"
FOLDERS = {
    1: "step_plants",
    2: "step_plants_2",
    3: "step_plants_3",
    4: "step_plants_4",
    5: "step_plants_5",
    6: "step_plants_6",
    7: "step_plants_7",
    8: "step_plants_8",
}
_LIVE_SECONDS = 12
"""How long a monitor watches: its stacks are sampled in turns."""


def plants(kind: str, number: int = 1) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return source and truth of the plants of a kind ("outside" or "loader") by name, from a numbered set."""
    folder = DATA / FOLDERS[number]
    sources = json.loads(gzip.decompress((folder / "plants.json.gz").read_bytes()))
    truths = json.loads((folder / "truth.json").read_text())
    return {name: (sources[name], truths[name]) for name in sorted(sources) if name.startswith(f"{kind}/")}


def observe(source: str, name: str, seconds: float) -> dict[str, Any]:
    """Run a plant and return the last snapshot of a monitor beside it."""
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        script = Path(folder) / name.partition("/")[2]
        script.write_text(source)
        env = {**os.environ, "LLMTOP_DIR": folder}
        llmtop = [sys.executable, "-m", "llmtop"]
        training = subprocess.Popen(
            [*llmtop, "run", "--", sys.executable, "-W", "ignore", str(script)],
            env=env,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            assert training.stdout is not None
            assert training.stdout.readline() == "go\n"
            time.sleep(seconds)
            return _watch([*llmtop, "--json", "--interval", "1"], env, folder)
        finally:
            os.killpg(training.pid, signal.SIGKILL)
            training.wait(60)


def _watch(command: list[str], env: dict[str, str], folder: str) -> dict[str, Any]:
    """Return the last snapshot of a monitor that watches for `_LIVE_SECONDS`."""
    with subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, text=True) as monitor:
        assert monitor.stdout is not None
        lines = [monitor.stdout.readline() for _ in range(_LIVE_SECONDS)]
        monitor.terminate()
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def verdict(rank: dict[str, Any], truth: dict[str, Any]) -> str:
    """Return "right", "wrong" or "abstained": whether the first cause is a line of the truth, within 5 lines.

    Where the truth has no lines, an alert with a line of a script is wrong.
    """
    if truth["lines"] is None:
        is_named = any(re.search(r"\.py:\d", alert["summary"]) for alert in rank["alerts"])
        return "wrong" if is_named else "right"
    causes = rank.get("outside_causes") or []
    pattern = r"\.py:(\d+)(?:-(\d+))?(?: and (\d+)(?:-(\d+))?)? "
    found = re.search(pattern, f"{causes[0]['what']} ") if causes else None
    if found is None:
        return "abstained"
    ranges = [(int(one), int(other or one)) for one, other in (found.group(1, 2), found.group(3, 4)) if one]
    allowed = [truth["lines"], *truth["call_lines_also_right"]]
    are_few = all(last - first < 5 for first, last in ranges)
    is_right = are_few and any(first <= end and begin <= last for begin, end in allowed for first, last in ranges)
    return "right" if is_right else "wrong"


def main() -> None:
    """Run the plants that are named, or all of a kind, and print one line each."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.step_plants")
    parser.add_argument("kind", choices=("outside", "loader"))
    parser.add_argument("seconds", nargs="?", type=float, default=15.0, help="seconds of steps before the monitor")
    parser.add_argument("names", nargs="*", metavar="PLANT", help="such as outside/p01.py (all)")
    parser.add_argument("--set", dest="number", type=int, choices=FOLDERS, default=1)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the last snapshots here")
    arguments = parser.parse_args()
    for name, (source, truth) in plants(arguments.kind, arguments.number).items():
        if arguments.names and name not in arguments.names:
            continue
        last = observe(source, name, arguments.seconds)
        if arguments.keep:
            arguments.keep.mkdir(parents=True, exist_ok=True)
            path = arguments.keep / f"{name.replace('/', '_').removesuffix('.py')}.json"
            path.write_text(json.dumps(last, indent=1))
        rank = {**(last["ranks"] or [{}])[0], "alerts": last["alerts"]}
        if arguments.kind == "outside":
            said = [f"{one['what']} {1e3 * one['seconds']:.1f} ms" for one in rank.get("outside_causes") or []]
            print(f"{verdict(rank, truth):<10} {name} truth {truth['lines']} said {said}", flush=True)
        else:
            said = [alert["summary"] for alert in rank["alerts"]]
            print(
                f"{name}\n  truth: {truth['cause']}; {truth['place']}\n  said: {rank.get('loading')} {said}",
                flush=True,
            )


if __name__ == "__main__":
    main()
