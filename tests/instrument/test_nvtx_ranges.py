"""The ranges that a real nsys records of an attached training."""

from __future__ import annotations

import itertools
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from llmtop.nsys_cli.words import is_launcher_timeout
from tests.support.nsys import NO_NSYS, find_nsys
from tests.support.processes import REPOSITORY, environment
from tests.support.trainings import Training

OLD_NVTX = REPOSITORY / ".cache" / "nvtx-0.2.10"
"""nsys 2023.4 records nvtx up to 0.2.10 only."""
LOADED = "import sys, llmtop\nwith llmtop.step(), llmtop.phase('a'): pass\nprint('nvtx' in sys.modules)"


@pytest.mark.parametrize(
    ("extra", "loaded"),
    [
        ({}, "False\n"),
        ({"LLMTOP_NVTX": "1"}, "True\n"),
        ({"NVTX_INJECTION64_PATH": "/nonexistent/libToolsInjection64.so"}, "True\n"),
        ({"NSYS_PROFILING_SESSION_ID": "7"}, "True\n"),
    ],
)
def test_nvtx_is_loaded_only_where_a_tool_may_listen(
    runtime_dir: Path, extra: dict[str, str], loaded: str
) -> None:
    with Training(LOADED, **extra) as training:
        assert training.finish() == (loaded, "")


SCRIPT = """
import asyncio, sys
import llmtop
from llmtop.instrument.record.recorder import get, phase_of

def loop(steps):
    for batch in llmtop.loader(range(steps)):
        with llmtop.step():
            with llmtop.phase("forward"), llmtop.phase("attention"):
                pass
            try:
                with llmtop.phase("backward"):
                    raise ValueError
            except ValueError:
                pass

if sys.argv[1] == "loop":
    loop(5)
    with llmtop.phase("epoch"):
        loop(2)
elif sys.argv[1] == "hooks":
    get().facts.auto = True
    get().attach()
    import nvtx
    for _ in range(3):
        nvtx.push_range("the script's own")
        get().begin_step()
        nvtx.pop_range()
        phase_of("forward").__enter__()
        phase_of("forward").__exit__(None, None, None)
        nvtx.push_range("another")
        get().end_step()
        nvtx.pop_range()
else:
    async def serve(number):
        with llmtop.step(kind="request"):
            with llmtop.phase("prefill"):
                await asyncio.sleep(0.01 * number)
    async def server():
        await asyncio.gather(*(serve(number) for number in range(3)))
    asyncio.run(server())
"""


@pytest.mark.slow("a plain loop; each starts nsys", kept=("loop-expected0",))
@pytest.mark.nsys
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (
            "loop",
            # The first wait comes before the process attaches, with its first step; two find the end of the data.
            {"step": 7, "dataload": 8, "forward": 7, "attention": 7, "backward": 7, "epoch": 1},
        ),
        ("hooks", {"step": 3, "forward": 3, "the script's own": 3, "another": 3}),
        ("requests", {"step": 3, "prefill": 3}),
    ],
)
def test_nsys_records_each_step_and_phase_once_and_closed(
    runtime_dir: Path, tmp_path: Path, how: str, expected: dict[str, int]
) -> None:
    nsys = find_nsys()
    if nsys is None:
        pytest.skip(NO_NSYS)
    if not OLD_NVTX.is_dir():
        pytest.skip("no nvtx 0.2.10: tests/fetch_nsys.sh brings it to .cache")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [
        nsys,
        "profile",
        "--trace=nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--export=sqlite",
    ]
    environ = environment(PYTHONPATH=os.pathsep.join([str(OLD_NVTX), str(REPOSITORY)]))
    for number in itertools.count():
        report = tmp_path / f"report{number}"
        done = subprocess.run(
            [*command, "-o", report, sys.executable, script, how],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        if not is_launcher_timeout(done.stdout + done.stderr):
            break
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(report.with_suffix(".sqlite")) as database:
        ranges = database.execute(
            "SELECT coalesce(text, value), start, end FROM NVTX_EVENTS "
            "LEFT JOIN StringIds ON textId = StringIds.id WHERE eventType IN (59, 60)"
        ).fetchall()
    assert Counter(name for name, _, _ in ranges) == expected
    assert all(end is not None and end >= start for _, start, end in ranges)
