"""Hold what llmtop says of planted steps against their truth (docs/measurements.md).

python -m tests.support.step_plants outside|loader [SECONDS [PLANT…]]

Each plant is a training on the CPU under `llmtop run`: in 20 one statement outside the phases takes most of the
step, in 16 the data loader is slow for one cause. Sources and truths: tests/data/step_plants. After SECONDS (15)
of steps `llmtop --json` is read for 12 s. For `outside` the answer is judged by the line, for `loader` it is
printed beside the truth, which is in words.
"""

from __future__ import annotations

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

DATA = REPOSITORY / "tests" / "data" / "step_plants"
_LIVE_SECONDS = 12
"""How long a monitor watches: its stacks are sampled in turns."""


def plants(kind: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return source and truth of the plants of a kind ("outside" or "loader") by name."""
    sources = json.loads(gzip.decompress((DATA / "plants.json.gz").read_bytes()))
    truths = json.loads((DATA / "truth.json").read_text())
    return {name: (sources[name], truths[name]) for name in sorted(sources) if name.startswith(f"{kind}/")}


def observe(source: str, name: str, seconds: float) -> dict[str, Any]:
    """Run a plant and return the rank of the last snapshot, with the alerts under "alerts"."""
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
            last = _watch([*llmtop, "--json", "--interval", "1"], env, folder)
        finally:
            os.killpg(training.pid, signal.SIGKILL)
            training.wait(60)
    return {**last["ranks"][0], "alerts": last["alerts"]}


def _watch(command: list[str], env: dict[str, str], folder: str) -> dict[str, Any]:
    """Return the last snapshot of a monitor that watches for `_LIVE_SECONDS`."""
    with subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, text=True) as monitor:
        assert monitor.stdout is not None
        lines = [monitor.stdout.readline() for _ in range(_LIVE_SECONDS)]
        monitor.terminate()
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def verdict(rank: dict[str, Any], truth: dict[str, Any]) -> str:
    """Return "right", "wrong" or "abstained": whether the first cause is a line of the truth, within 5 lines."""
    causes = rank.get("outside_causes") or []
    found = re.search(r"\.py:(\d+)(?:-(\d+))?", causes[0]["what"]) if causes else None
    if found is None:
        return "abstained"
    first, last = int(found[1]), int(found[2] or found[1])
    allowed = [truth["lines"], *truth["call_lines_also_right"]]
    is_right = last - first < 5 and any(first <= end and begin <= last for begin, end in allowed)
    return "right" if is_right else "wrong"


def main(arguments: list[str]) -> None:
    """Run the plants that are named, or all of a kind, and print one line each."""
    kind, seconds = arguments[0], float(arguments[1]) if len(arguments) > 1 else 15.0
    for name, (source, truth) in plants(kind).items():
        if len(arguments) > 2 and name not in arguments[2:]:
            continue
        rank = observe(source, name, seconds)
        if kind == "outside":
            said = [f"{one['what']} {1e3 * one['seconds']:.1f} ms" for one in rank.get("outside_causes") or []]
            print(f"{verdict(rank, truth):<10} {name} truth {truth['lines']} said {said}", flush=True)
        else:
            said = [alert["summary"] for alert in rank["alerts"]]
            print(
                f"{name}\n  truth: {truth['cause']}; {truth['place']}\n  said: {rank.get('loading')} {said}",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
