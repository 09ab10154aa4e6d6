"""How trainings on a GPU end while they are captured: python -m tests.gpu.check_exit --out FILE [--cpu] [NAME ...]

Appends one JSON object a check to the file, and prints it; exits 1 when one has not `ok`. Some minutes in all.

- torch.profiler: the ways of `tests.support.endings`, once each by hand and three of them below `llmtop run`: exit
  code as without llmtop, the capture's last state, nothing left in the folder, seconds over those without.
- memory: the history of the allocator, in four ways. `--cpu` has a stand-in for it.
- torchrun: one of two ranks raises while both are recorded; NCCL with two GPUs, else gloo.
- many: 300 steps with many kernels are recorded when the script ends: how long stopping the profiler takes.
- nsys: with an nsys on PATH, in `$LLMTOP_NSYS` or .cache, collecting 500 steps when the script ends or raises.

`--cpu` is the dry run on a machine without a GPU; `CHECK_EXIT_WAY=SIGINT` runs one way of the first check alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support import endings
from tests.support.endings import PROGRAM, WAYS, Ready, Way
from tests.support.nsys import find_nsys
from tests.support.processes import REPOSITORY, environment

MAX_EXTRA_SECONDS = 2.0
Row = dict[str, Any]


def _judged(way: Way, ending: endings.Ending, bare: endings.Ending, **more: object) -> Row:
    extra = ending.seconds - bare.seconds
    told = way.state is None or ending.states[-1:] == [way.state]
    return {
        **more,
        "way": way.name,
        "ok": ending.code == bare.code and told and not ending.left and extra <= MAX_EXTRA_SECONDS,
        "code": ending.code,
        "code_without": bare.code,
        "states": ending.states,
        "detail": ending.detail,
        "left": ending.left,
        "extra_seconds": round(extra, 3),
    }


def torch_profiler(gpu: bool) -> Iterator[Row]:
    """Each way once by hand, three below `llmtop run`."""
    options = ["--gpu"] if gpu else []
    for way in WAYS:
        if os.environ.get("CHECK_EXIT_WAY", way.name) != way.name:
            continue
        with tempfile.TemporaryDirectory(prefix="lt-") as place:
            bare = endings.bare(way, Path(place), *options)
        for run in (False, True) if way.name in ("500 steps asked for", "raise", "SIGINT") else (False,):
            with tempfile.TemporaryDirectory(prefix="lt-") as place, tempfile.TemporaryDirectory() as folder:
                ending = endings.end(way, Path(place), Path(folder), *options, run=run)
                yield _judged(way, ending, bare, run=run)


def memory(gpu: bool) -> Iterator[Row]:
    """Four ways with the history of the allocator."""
    options = ["--gpu"] if gpu else ["--fake-cuda"]
    for way in WAYS:
        if way.name in ("3 steps left of 5", "no further step", "raise", "fork"):
            with tempfile.TemporaryDirectory(prefix="lt-") as place, tempfile.TemporaryDirectory() as folder:
                bare = endings.bare(way, Path(place), *options[:1] * gpu)
                yield _judged(way, endings.end(way, Path(place), Path(folder), *options, engine="memory"), bare)


def torchrun(gpu: bool) -> Iterator[Row]:
    """A rank that crashes."""
    with tempfile.TemporaryDirectory(prefix="lt-") as place, tempfile.TemporaryDirectory() as folder:
        ending = endings.crash_a_rank(Path(place), Path(folder), *(["--gpu"] if gpu else []))
        ok = ending.code == 1 and ending.states[-1:] == ["failed"]
        yield {
            "way": "a rank crashes",
            "ok": ok,
            "code": ending.code,
            "states": ending.states,
            "seconds": ending.seconds,
        }


def many(gpu: bool) -> Iterator[Row]:
    """A long recording is dropped at the end."""
    way = Way("300 steps recorded", 0, "failed", steps=500, after=("step 300", "return"))
    options = ["--gpu"] if gpu else []
    with tempfile.TemporaryDirectory(prefix="lt-") as place, tempfile.TemporaryDirectory() as folder:
        bare = endings.bare(way, Path(place), *options)
        yield _judged(way, endings.end(way, Path(place), Path(folder), *options), bare)


def nsys(gpu: bool) -> Iterator[Row]:
    """The script ends while nsys collects."""
    found = find_nsys()
    if found is None:
        yield {"way": "nsys", "ok": True, "skipped": "no nsys on this machine"}
        return
    for word, code in (("return", 0), ("raise", 1)):
        yield _under_nsys(found, word, code, ["--gpu"] if gpu else [])


def _under_nsys(found: str, word: str, code: int, options: list[str]) -> Row:
    nvtx = REPOSITORY / ".cache" / "nvtx-0.2.10"  # the newest that nsys 2023 records
    path = os.pathsep.join([*([str(nvtx)] if nvtx.is_dir() else []), str(REPOSITORY)])
    with tempfile.TemporaryDirectory(prefix="lt-") as place, tempfile.TemporaryDirectory() as folder:
        variables = {"LLMTOP_DIR": place, "PYTHONPATH": path, "LLMTOP_NSYS": found}
        argv = [sys.executable, "-m", "llmtop", "run", "--nsys", "--", *PROGRAM, "--plain", *options]
        with Ready(argv, **variables) as training:
            asked = ["--pid", str(training.pid), "--engine", "nsys", "--steps", "500", "--out", folder, "--json"]
            capture = subprocess.Popen(
                [sys.executable, "-m", "llmtop", "capture", *asked],
                env=environment(**variables),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            with capture:
                for _ in range(60):
                    training.tell("step 2")  # it is paused at a step's end where nsys needs that
                    time.sleep(0.1)
                begun = time.monotonic()
                training.tell(word)
                ended = training.wait(endings.LONG_SECONDS)
                seconds = time.monotonic() - begun
                _, said = capture.communicate(timeout=endings.LONG_SECONDS)
    ok = ended == code and capture.returncode in (0, 3)
    return {"way": f"nsys, {word}", "ok": ok, "code": ended, "seconds": seconds, "capture": said[-300:]}


CHECKS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "torch.profiler": torch_profiler,
    "memory": memory,
    "torchrun": torchrun,
    "many": many,
    "nsys": nsys,
}


def main() -> int:
    """Run those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *CHECKS], metavar="NAME", help=", ".join(CHECKS))
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    good = True
    for name in options.names or CHECKS:
        rows = CHECKS[name](not options.cpu)
        while True:
            try:
                row = next(rows, None)
            except (
                AssertionError,
                OSError,
                subprocess.SubprocessError,
            ) as error:  # of one check; the others go on
                row = {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
                rows = iter(())
            if row is None:
                break
            line = json.dumps({"check": name, **row})
            print(line, flush=True)
            with options.out.open("a") as file:
                file.write(line + "\n")
            good &= bool(row["ok"])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
