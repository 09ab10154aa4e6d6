"""Wall and CPU seconds of named parts, a file a process, if PLANT_STAMPS names a folder.

The CPU seconds of a part are those of its thread. A worker ends without notice, so it writes every 0.3 s.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

FOLDER = os.environ.get("PLANT_STAMPS")
_lock = threading.Lock()
_parts: dict[str, dict[str, float]] = {}
_life = {"first": 0.0, "last": 0.0, "written": 0.0, "cpu": 0.0}


def _cpu() -> float:
    times = os.times()
    return times.user + times.system


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _parts.clear()
    _life.update(first=0.0, last=0.0, written=0.0)


def _write() -> None:
    if not FOLDER or not _life["first"]:
        return
    seconds = _life["last"] - _life["first"]
    is_main = multiprocessing.parent_process() is None
    text = json.dumps({"main": is_main, "seconds": seconds, "cpu": _cpu() - _life["cpu"], "parts": _parts})
    path = Path(FOLDER, f"{os.getpid()}.json")
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


os.register_at_fork(after_in_child=_forget)
atexit.register(_write)


@contextlib.contextmanager
def stamp(name: str) -> Iterator[None]:
    """Add the seconds of the body to a part of this process."""
    if not FOLDER:
        yield
        return
    start, cpu = time.perf_counter(), time.thread_time()
    if not _life["first"]:
        _life.update(first=start, cpu=_cpu())
    try:
        yield
    finally:
        now = time.perf_counter()
        with _lock:
            part = _parts.setdefault(name, {"wall": 0.0, "cpu": 0.0, "times": 0, "longest": 0.0})
            part["wall"] += now - start
            part["cpu"] += time.thread_time() - cpu
            part["times"] += 1
            part["longest"] = max(part["longest"], now - start)
            _life["last"] = now
            if now - _life["written"] > 0.3:
                _life["written"] = now
                _write()
