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
_LAUNCH_BOUND_SIZES = ("tiny", "small", "deep")
"""Models that are launch-bound by themselves on an H200, whatever is planted besides."""
BORDER_PCT = (8.0, 12.0)


def expected(label: dict[str, Any]) -> list[str]:
    """The verdicts that are right: by what the plant cost, as measured with and without it in one process.

    A plant that cost less than 8 % leaves the verdict of the plain loop; between 8 and 12 % either is right.
    """
    plain = "launch_bound" if label["size"] in _LAUNCH_BOUND_SIZES else "gpu_bound"
    planted = {"input": "input_bound", "sync": "sync_bound", "h2d": "h2d_bound", "comm": "communication_bound"}
    verdict = planted.get(label["plant"])
    only_rank = label["options"].get("only_rank") is not None
    share = label["plant_share_pct"]
    if verdict is None or share < BORDER_PCT[0]:
        return [plain]
    if plain == "launch_bound":
        # What the plain loop loses by itself stays; the plant must be larger than that to name the verdict.
        lost_by_itself = 0.85 * (100.0 - share)
        return [verdict if share > lost_by_itself else plain]
    if share < BORDER_PCT[1]:
        return [plain, verdict]
    return [verdict] if not only_rank or label["plant"] == "input" else [plain]


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
