"""Save the output of commands and screens under a fixed clock, to compare two versions byte by byte.

    python -m tests.support.frozen_output save FOLDER
    python -m tests.support.frozen_output compare BEFORE AFTER

A change that must not be seen by a user leaves both folders equal.
"""

from __future__ import annotations

import filecmp
import gzip
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY / "tests" / "data"
NOW = 1_790_000_000.0
"""Unix time at which every command runs."""

_START = """\
import random, sys, time
time.time = lambda: {now!r}
time.time_ns = lambda: int({now!r} * 1e9)
random.seed(0)
sys.argv = {argv!r}
{call}
"""
_COMMAND = "from llmtop.__main__ import main\nsys.exit(main())"
_SCREEN = """\
import asyncio, os
os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", TZ="UTC")
from screenshots import draw
picture = next(one for one in draw.PICTURES if one.name == sys.argv[1])
os.environ.update(picture.environment)
print(asyncio.run(draw.svg(picture)))
"""
_UNPACKED = {
    "nsys.sqlite": "h200/nsys/healthy.sqlite.gz",
    "launch.sqlite": "h200/nsys/launch_bound.sqlite.gz",
    "two.sqlite": "h200x2/nsys/healthy.sqlite.gz",
    "kineto.json": "h200/kineto/healthy_with_input_cost.json.gz",
    "jax.trace.json": "jax/cpu_window.trace.json.xz",
    "xla.trace.json": "torch_xla/cpu_sync.trace.json.xz",
    "gpt.ncu-rep": "ncu/gpt0.ncu-rep.xz",
    "conflicts.ncu-rep": "ncu/conflicts.ncu-rep.xz",
}
_LABELLED = {
    "straggler": ("kineto-ddp_straggler.rank0.json", "kineto-ddp_straggler.rank1.json"),
    "input": ("kineto-input_bare.rank0.json",),
    "workers": ("kineto-input_workers.rank0.json",),
    "sync": ("nsys-sync_bare.sqlite",),
    "h2d": ("nsys-h2d_bare.sqlite",),
}
_REPORTED = (*list(_UNPACKED)[:6], *_LABELLED, "demo.llmtop.gz")
COMMANDS: tuple[str, ...] = (
    *(f"report {name}" for name in _REPORTED),
    *(f"report --json {name}" for name in _REPORTED),
    "report --full straggler",
    "report --full nsys.sqlite",
    "report --markdown launch.sqlite",
    "report --html page.html kineto.json",
    "compare nsys.sqlite launch.sqlite",
    "compare --full --json nsys.sqlite launch.sqlite",
    "compare input workers",
    "compare --fail-over 3 launch.sqlite nsys.sqlite",
    "kernel --json gpt.ncu-rep",
    "kernel conflicts.ncu-rep",
    "kernel launch.sqlite",
    "replay --json demo.llmtop.gz",
    "doctor",
    "captures --json",
    "export --rules",
    "completion bash",
    "cluster --once",
    "report absent.json",
    "bench --runs 0 true",
    *(
        f"{name} --help"
        for name in ("", "live", "run", "capture", "report", "compare", "bench", "kernel", "record")
    ),
    *(f"{name} --help" for name in ("replay", "demo", "export", "cluster", "doctor", "captures", "completion")),
)


def normalised(text: str) -> str:
    """The text without what differs from run to run: ids of drawings, pids, folders, versions of this machine."""
    text = re.sub(r"terminal-\d+", "terminal-N", text)
    text = re.sub(r"\b(pid|PID) \d+", r"\1 N", text)
    text = re.sub(r"/[\w./-]*(llmtop-frozen-\w+|\.venv|\.cache)", "FOLDER", text)
    text = text.replace(str(REPOSITORY), "REPOSITORY")
    text = re.sub(r"NO&#160;DATA&#160;for&#160;\d+s", "NO DATA for Ns", text)
    return re.sub(r"\b\d+(\.\d+)?( |&#160;)(GiB|MiB)( |&#160;)free", "N free", text)


def prepare(folder: Path) -> None:
    """Unpack the files that the commands read."""
    for name, source in _UNPACKED.items():
        with (gzip if source.endswith(".gz") else lzma).open(DATA / source) as packed:
            (folder / name).write_bytes(packed.read())
    with tarfile.open(DATA / "labelled" / "tuning.tar.xz") as archive:
        for name, members in _LABELLED.items():
            for member in members:
                archive.extract(member, folder / name)
    shutil.copy(REPOSITORY / "llmtop" / "data" / "demo.llmtop.gz", folder)


def _output(call: str, argv: list[str], folder: Path, within: Path) -> str:
    program = _START.format(now=NOW, argv=argv, call=call)
    environment = {
        "PATH": "/usr/bin:/bin", "HOME": str(folder), "XDG_STATE_HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "LLMTOP_DIR": str(folder / "sockets"), "TZ": "UTC", "LANG": "C.UTF-8", "COLUMNS": "100", "LINES": "40",
        "PYTHONHASHSEED": "0", "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=within, env=environment, capture_output=True, text=True, timeout=300,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return f"exit {done.returncode}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"


def save(into: Path) -> None:
    """Save the output of every command and the drawing of every screen into the folder."""
    from screenshots.draw import PICTURES

    into.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="llmtop-frozen-"))
    prepare(folder)

    def command(line: str) -> None:
        text = _output(_COMMAND, ["llmtop", *line.split()], folder, folder)
        name = re.sub(r"[^\w.-]+", "_", line).strip("_") or "help"
        (into / f"{name}.txt").write_text(normalised(text))

    def screen(name: str) -> None:
        (into / f"{name}.svg").write_text(normalised(_output(_SCREEN, ["draw", name], folder, REPOSITORY)))

    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2))) as workers:
        list(workers.map(command, COMMANDS))
        list(workers.map(screen, [picture.name for picture in PICTURES]))
    (into / "page.html").write_text(normalised((folder / "page.html").read_text()))
    shutil.rmtree(folder)


def differing(before: Path, after: Path) -> list[str]:
    """Names of files that differ or are in one folder only."""
    names = sorted({path.name for path in (*before.iterdir(), *after.iterdir())})
    _, different, missing = filecmp.cmpfiles(before, after, names, shallow=False)
    return sorted(different + missing)


if __name__ == "__main__":
    if sys.argv[1] == "save":
        save(Path(sys.argv[2]))
    else:
        found = differing(Path(sys.argv[2]), Path(sys.argv[3]))
        print("\n".join(found) or "equal")
        sys.exit(bool(found))
