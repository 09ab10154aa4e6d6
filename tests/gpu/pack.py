"""Pack captures that make_labelled.py recorded into one small archive for tests/data.

    python -m tests.gpu.pack FOLDER tests/data/labelled/NAME.tar.xz [LEAVE_OUT]

LEAVE_OUT is a regular expression over names. FOLDER holds the unpacked captures-*.tar and labels-*.json. The
archive has the captures, thinned further (operators that wait for nothing are dropped from Chrome traces),
and labels.json with the verdict that each capture must get. One archive for all: captures of the same program
repeat each other, and xz sees that.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import sqlite3
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.gpu.trim import scrub

_READS_BACK = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero)$")
_ARGUMENTS = ("correlation", "device", "stream", "bytes", "name")
_LOST_BY_ITSELF = {
    ("tiny", 1): 90.0,
    ("tiny", 2): 94.0,
    ("small", 1): 86.0,
    ("deep", 1): 85.0,
    ("deep", 2): 85.0,
    ("medium", 1): 7.0,
    ("medium", 2): 10.0,
    ("large", 1): 2.0,
    ("large", 2): 2.0,
    ("wide", 1): 2.0,
    ("wide", 2): 2.0,
}
"""Percent of a step that the plain loop of a size loses on so many H200s under a profiler: idle time, lone copies
and exposed NCCL together. The small ones lose it to launching, the others to the pauses between their kernels."""
_BORDER_PCT = (8.0, 12.0)


def expected(label: dict[str, Any]) -> list[str]:
    """The verdicts that are right by the contract's rule.

    What the plant cost was measured with and without it in one process, but not under the profiler; what the plain
    loop loses besides is known of its size. Together under 10 % is gpu_bound, else the larger names it. Within two
    points of the border, or where the two are within a factor of two, either is right.
    """
    itself = _LOST_BY_ITSELF[(label["size"], label["gpus"])]
    planted = {"input": "input_bound", "sync": "sync_bound", "h2d": "h2d_bound", "comm": "communication_bound"}
    verdict = planted.get(label["plant"])
    share = label["plant_share_pct"] if verdict is not None else 0.0
    # The plant takes its share of a longer step, so what the plain loop loses becomes a smaller one.
    itself *= 1.0 - share / 100.0
    names = ["launch_bound"] if verdict is None or share < itself / 2 else [verdict]
    if verdict is not None and itself / 2 <= share < 2 * itself:
        names = [verdict, "launch_bound"]
    total = share + itself
    if total < _BORDER_PCT[0]:
        return ["gpu_bound"]
    return ["gpu_bound", *names] if total < _BORDER_PCT[1] else names


def _thin_json(packed: Path) -> bytes:
    trace = json.loads(gzip.decompress(packed.read_bytes()))
    kept = []
    for event in trace["traceEvents"]:
        if event.get("cat") == "cpu_op" and not _READS_BACK.match(event["name"]):
            continue
        arguments = {key: value for key, value in event.get("args", {}).items() if key in _ARGUMENTS}
        kept.append({**event, "args": arguments} if arguments else {k: v for k, v in event.items() if k != "args"})
    trace["traceEvents"] = kept
    for key in ("trace_id", "traceName", "host_name"):
        trace.pop(key, None)
    return json.dumps(trace, separators=(",", ":")).encode()


def _thin_sqlite(packed: Path) -> bytes:
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        file.write(gzip.decompress(packed.read_bytes()))
        file.flush()
        database = sqlite3.connect(file.name)
        scrub(database)
        database.commit()
        database.execute("VACUUM")
        database.close()
        return Path(file.name).read_bytes()


def pack(folder: Path, target: Path, leave_out: str) -> int:
    """Write the archive without captures whose names match `leave_out`; returns how many are in it."""
    labels: dict[str, Any] = {}
    for path in sorted(folder.glob("labels-*.json")):
        recorded = json.loads(path.read_text())
        labels |= {n: label for n, label in recorded.items() if label["files"] and not re.search(leave_out, n)}
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:xz", preset=9) as tar:
        # Files of a kind side by side, so that what repeats lies close together.
        for name in sorted(labels, key=lambda name: (labels[name]["engine"], labels[name]["size"], name)):
            label = labels[name]
            thinned = []
            for file in label["files"]:
                packed = folder / file
                plain = packed.name.removesuffix(".gz")
                _add(tar, plain, _thin_sqlite(packed) if plain.endswith(".sqlite") else _thin_json(packed))
                thinned.append(plain)
            label |= {"files": thinned, "expected": expected(label)}
        _add(tar, "labels.json", json.dumps(labels, indent=1).encode())
    return len(labels)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    left_out = sys.argv[3] if len(sys.argv) > 3 else "^$"
    print(pack(Path(sys.argv[1]), Path(sys.argv[2]), left_out), "captures")
