"""Child processes that run this checkout's code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

REPOSITORY = Path(__file__).resolve().parents[2]
WAITS_FOR_RUN_FILE = """
from llmtop.instrument.run_log import writer
writer.EXIT_S = 60.0
"""
"""Opening of a training whose run is to have its end, however long the writer of the run waits for a core."""
T = TypeVar("T")


def environment(**extra: str) -> dict[str, str]:
    """This process's environment with the checkout importable before all else, plus `extra`."""
    paths = [str(REPOSITORY), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONUNBUFFERED": "1",
        **extra,
    }


BUSY_TIMES = 4.0
"""On one core beside five other tests and other work, waits took up to four times as long as usual."""
LIMIT_SECONDS = 240.0
"""Below the limit that pytest-timeout has for a whole test, so that the message names what was waited for."""


def busy_limit(seconds: float) -> float:
    """Return for how long to wait at most for what takes less than `seconds` on a quiet machine."""
    return max(seconds, min(BUSY_TIMES * seconds, LIMIT_SECONDS))


def wait_for(condition: Callable[[], T], seconds: float = 60.0, what: str = "") -> T:
    """Poll until `condition()` is truthy and return it.

    Args:
        condition: called every 20 ms.
        seconds: generous on a quiet machine. The limit is `BUSY_TIMES` as long, `LIMIT_SECONDS` at most: it is
            against hanging, never a claim of speed.
        what: the subject of the message.

    Raises:
        AssertionError: not within the limit.
    """
    seconds = busy_limit(seconds)
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or condition}")
        time.sleep(0.02)


def repeat_until(run: Callable[[], T], is_whole: Callable[[T], object]) -> T:
    """Call `run` again until its result is whole, and return it.

    For one-shot commands, which wait too short for a busy machine and print what there is.
    """
    result: list[T] = []

    def look() -> object:
        result[:] = [run()]
        return is_whole(result[0])

    try:
        wait_for(look)
    except AssertionError as error:
        raise AssertionError(f"{error}; the last result: {result}") from None
    return result[0]


def core_waits(pid: int | str = "self") -> dict[str, float]:
    """Return for how many seconds each thread of a process was ready to run while others had the cores.

    By thread id. A thread that ends meanwhile is left out: between the listing and the reading, its files go.
    """
    found = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):
            found[thread] = int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    return found


def waited_since(before: dict[str, float], pid: int | str = "self") -> float:
    """Return for how many seconds the threads of a process waited for a core after `before` (of `core_waits`).

    What a thread that has ended since then waited is not counted, neither before nor after.
    """
    return sum(waited - before.get(thread, 0.0) for thread, waited in core_waits(pid).items())


def stop(pid: int) -> None:
    """Stop a process, and wait until each of its threads stands: until then one may still answer."""
    os.kill(pid, signal.SIGSTOP)

    def stands() -> bool:
        states = set()
        for task in tasks.iterdir():
            with suppress(OSError):  # a thread that ends meanwhile
                states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
        return states == {"T"}

    tasks = Path(f"/proc/{pid}/task")
    wait_for(stands, what=f"process {pid} to stand")


@contextmanager
def running(script: Path) -> Iterator[subprocess.Popen[str]]:
    """A script in a Python of its own, once it has printed its first line; killed at the end."""
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()
