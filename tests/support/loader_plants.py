"""Sixteen small trainings with a DataLoader and one planted cost each.

python -m tests.support.loader_plants --list
python -m tests.support.loader_plants --write NAME FOLDER
python -m tests.support.loader_plants --measure NAME [SECONDS]

The sources are in tests/support/loader_scripts, the truths in tests/data/loader_plants/truth.json. A plant is
written as train.py, so that its name reveals nothing, with stamps.py. It ends after PLANT_SECONDS (40).
PLANT_STAMPS names a folder for the stamps of its own clocks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).with_name("loader_scripts")
TRUTH = Path(__file__).parents[1] / "data" / "loader_plants" / "truth.json"


def names() -> list[str]:
    """Return the names of all plants."""
    return sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem not in ("__init__", "stamps"))


def truths() -> dict[str, Any]:
    """Return the truth of each plant by name."""
    plants: dict[str, Any] = json.loads(TRUTH.read_text())["plants"]
    return plants


def write(name: str, folder: Path) -> Path:
    """Write train.py and stamps.py of a plant into a folder and return the path of train.py."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(SCRIPTS / "stamps.py", folder / "stamps.py")
    return Path(shutil.copyfile(SCRIPTS / f"{name}.py", folder / "train.py"))


def shares(process: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a process as shares of the seconds between its first and its last stamp."""
    seconds = process["seconds"] or 1.0
    return {
        "seconds": round(seconds, 1),
        "cores": round(process["cpu"] / seconds, 2),
        "parts": {
            name: {
                "share": round(part["wall"] / seconds, 3),
                "cpu_share": round(part["cpu"] / seconds, 3),
                "ms": round(1000 * part["wall"] / part["times"], 2),
                "longest_ms": round(1000 * part["longest"], 1),
                "times": part["times"],
            }
            for name, part in process["parts"].items()
        },
    }


def measure(name: str, seconds: float) -> list[dict[str, Any]]:
    """Run a plant alone and return the shares of each process, the main process first.

    Raises:
        subprocess.CalledProcessError: the training failed.
        subprocess.TimeoutExpired: the training lasted 120 s longer than `seconds`.
    """
    with tempfile.TemporaryDirectory() as folder:
        script = write(name, Path(folder))
        stamps = Path(folder, "stamps")
        stamps.mkdir()
        environment = {**os.environ, "PLANT_SECONDS": str(seconds), "PLANT_STAMPS": str(stamps)}
        subprocess.run(
            [sys.executable, script.name], cwd=folder, env=environment, check=True, timeout=seconds + 120
        )
        processes = [json.loads(path.read_text()) for path in stamps.glob("*.json")]
    processes.sort(key=lambda process: (not process["main"], -process["seconds"]))
    return [{"main": process["main"], **shares(process)} for process in processes]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.loader_plants")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--list", action="store_true", help="print the names of the plants")
    action.add_argument("--write", nargs=2, metavar=("NAME", "FOLDER"), help="write a plant into a folder")
    action.add_argument("--measure", nargs="+", metavar="NAME", help="run a plant and print its shares")
    arguments = parser.parse_args()
    wanted = (arguments.write or arguments.measure or [None])[0]
    if wanted is not None and wanted not in names():
        parser.error(f"no plant is called {wanted!r}; --list prints the names")
    if arguments.list:
        print("\n".join(names()))
    elif arguments.write:
        script = write(wanted, Path(arguments.write[1]))
        print(f"cd {script.parent} && llmtop run -- python {script.name}")
    else:
        seconds = float(arguments.measure[1]) if len(arguments.measure) > 1 else 20.0
        for process in measure(wanted, seconds):
            print(json.dumps(process))


if __name__ == "__main__":
    main()
