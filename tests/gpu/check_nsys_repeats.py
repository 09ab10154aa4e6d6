"""How often one training survives being collected from by nsys: python -m tests.gpu.check_nsys_repeats

Runs trainings of the example GPT under `nsys launch`, without a word of llmtop in them unless --attached, and
collects half a second from each again and again until the time is over or the training is gone: with nsys by hand,
or with --captures by `llmtop capture`, which pauses them for it. Prints one JSON object a training: a letter a
collection ("." whole, "L" kernels are missing, "X" the training ended, "R" it was refused) and what the training
said last. Exits 1 when a letter is not ".".
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from llmtop.analysis.idle.missing_kernels import unrecorded_kernels
from llmtop.errors import UnusableInput
from llmtop.nsys_cli import tool as nsys
from llmtop.trace.files.open import open_trace
from tests.support.processes import REPOSITORY, environment

WINDOW_SECONDS = 0.5
WARM_SECONDS = 25.0
START = ("-f", "true", "--sample=none", "--cpuctxsw=none", "--stop-on-exit=false")


class Repeats(threading.Thread):
    """One training and its collections."""

    def __init__(self, tool: nsys.Nsys, session: str, folder: Path, given: argparse.Namespace) -> None:
        super().__init__()
        self._tool, self._session, self._folder, self._given = tool, session, folder, given
        self.letters = ""
        self.said = ""
        self.refused = ""
        self.paused: list[float] = []

    def run(self) -> None:
        attached = self._given.attached or self._given.captures
        off = {"LLMTOP_PAUSE_PCT": "100"} if attached else {"LLMTOP_OFF": "1"}
        collect = self._capture if self._given.captures else self._collect
        size = ["--cpu", "--batch", "2", "--sequence", "32"] if self._given.cpu else []
        script = [sys.executable, str(REPOSITORY / "examples" / "train_gpt.py"), "--steps", "1000000", "--quiet"]
        log = self._folder / f"{self._session}.log"
        with log.open("wb") as output:
            training = subprocess.Popen(
                [*nsys.launch_command(self._session, nsys=self._tool), *script, *size],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(LLMTOP_DIR=str(self._folder / self._session), PYTHONFAULTHANDLER="1", **off),
            )
            time.sleep(WARM_SECONDS)
            end = time.monotonic() + self._given.seconds
            while time.monotonic() < end and not set(self.letters) & {"X", "R"}:
                self.letters += collect(log)
            self._tool.run("shutdown", f"--session={self._session}", "--kill=sigkill", seconds=60)
            training.wait(60)
        self.said = log.read_text(errors="replace")[-500:]

    def _capture(self, log: Path) -> str:
        """With the command that a user has; the training is found among those of this session's folder."""
        given = (
            "--engine",
            "nsys",
            "--seconds",
            str(WINDOW_SECONDS),
            "--json",
            "--out",
            str(self._folder / "taken"),
        )
        run_dir = str(self._folder / self._session)
        done = subprocess.run(
            [sys.executable, "-m", "llmtop", "capture", *given, *self._always()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment(LLMTOP_DIR=run_dir),
            check=False,
            timeout=3600,
        )
        if "terminated" in log.read_text(errors="replace"):
            return "X"
        if done.returncode:
            self.refused = done.stderr.strip()[-300:]
            return "R"
        facts = json.loads(done.stdout)["capture"]
        self.paused += facts["paused_seconds"]
        return "L" if any("did not record" in note for note in facts["notes"]) else "."

    def _always(self) -> tuple[str, ...]:
        return ("--option", "pause") if self._given.cpu else ()

    def _collect(self, log: Path) -> str:
        output, session = self._folder / self._session, f"--session={self._session}"
        if self._tool.run("start", session, "-o", str(output), *START, seconds=60).returncode:
            return "R"
        time.sleep(WINDOW_SECONDS)
        refused = self._tool.run("stop", session, seconds=180).returncode
        if "terminated" in log.read_text(errors="replace"):  # the word of nsys for a target that is gone
            return "X"
        if refused:
            return "R"
        tables = output.with_suffix(".sqlite")
        export = ("export", "--type=sqlite", "--force-overwrite=true", f"--output={tables}", f"{output}.nsys-rep")
        self._tool.run(*export, seconds=120)
        try:
            return "L" if unrecorded_kernels(open_trace(tables)) else "."
        except UnusableInput:
            return "L"


def main() -> int:
    """Run them side by side; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--trainings", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120.0, help="of collections")
    parser.add_argument("--attached", action="store_true", help="with llmtop in the trainings")
    parser.add_argument("--captures", action="store_true", help="with `llmtop capture`, which pauses them")
    parser.add_argument("--cpu", action="store_true", help="only show that the script runs")
    given = parser.parse_args()
    tool = nsys.find_nsys()
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        all_of_them = [
            Repeats(tool, f"repeats{os.getpid()}n{n}", Path(folder), given) for n in range(given.trainings)
        ]
        for one in all_of_them:
            one.start()
        for one in all_of_them:
            one.join(600)
            paused = [round(seconds, 3) for seconds in sorted(one.paused)[:: max(1, len(one.paused) // 10)]]
            told = {"collections": one.letters, "paused_s": paused, "refused": one.refused, "said": one.said}
            print(json.dumps({"nsys": tool.version_text, **told}), flush=True)
    return 0 if all(set(one.letters) == {"."} for one in all_of_them) else 1


if __name__ == "__main__":
    sys.exit(main())
