"""Files that would harm a careless reader of flight-recorder dumps.

python -m tests.support.postmortem_hostile [COMMAND…]

Each file is written into a folder of its own, on which the command runs (default: `python -m llmtop
postmortem FOLDER --json`). Printed are seconds, exit code and what is wrong: a traceback, more than one
line on stderr, a created file.
"""

from __future__ import annotations

import pickle
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.postmortem_plants import unpack
from tests.support.processes import REPOSITORY, environment

GIB = 1 << 30
MARKER = "executed"
"""The file that a pickle with a call creates, beside itself."""
_COMMAND = (sys.executable, "-m", "llmtop", "postmortem", "FOLDER", "--json")
_SECONDS = 60


def _real_dump(scratch: Path) -> bytes:
    """Return a recorded flight-recorder dump."""
    folders = dict(unpack(scratch)).values()
    files = (path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file())
    return next(content for path in files if (content := path.read_bytes())[:1] == b"\x80")


def _sparse(path: Path, head: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)


def _memo_bomb(levels: int) -> bytes:
    """Return a pickle of lists, each holding the one before ten times: 10**levels items when walked."""
    code = bytearray(b"\x80\x02]q\x000")
    for level in range(levels):
        code += b"](" + (b"h" + bytes([level])) * 10 + b"eq" + bytes([level + 1]) + b"0"
    return bytes(code + b"h" + bytes([levels]) + b".")


def _memo_bomb_in_entries(levels: int) -> bytes:
    """Return a dump whose entries are the memo bomb: the keys that a reader expects are there."""
    return b"\x80\x02}(X\x07\x00\x00\x00versionX\x04\x00\x00\x002.10X\x07\x00\x00\x00entries" + (
        _memo_bomb(levels)[2:-1] + b"u."
    )


def _calls(folder: Path) -> bytes:
    """Return a pickle that creates a file if a reader resolves its global."""
    text = f"touch {folder / MARKER}".encode()
    return b"\x80\x02cposix\nsystem\nX" + struct.pack("<I", len(text)) + text + b"\x85R."


def hostile_files(scratch: Path) -> dict[str, Callable[[Path], object]]:
    """Return by name what writes each hostile file at a path.

    Args:
        scratch: an empty folder, in which the recorded cases are unpacked for the truncated dumps.
    """
    dump, noise = _real_dump(scratch), random.Random(7)
    written: dict[str, Callable[[Path], object]] = {
        "memo bomb": lambda path: path.write_bytes(_memo_bomb(60)),
        "memo bomb in entries": lambda path: path.write_bytes(_memo_bomb_in_entries(60)),
        "memo index of 2**31": lambda path: path.write_bytes(b"\x80\x02]r\xff\xff\xff\x7f."),
        "cycle": lambda path: path.write_bytes(b"\x80\x02]q\x00h\x00a."),
        "depth, lists": lambda path: path.write_bytes(b"\x80\x02" + b"]" * 10**6 + b"a" * (10**6 - 1) + b"."),
        "depth, tuples": lambda path: path.write_bytes(b"\x80\x02)" + b"\x85" * 10**6 + b"."),
        "depth, marks": lambda path: path.write_bytes(b"\x80\x02" + b"(" * 10**6 + b"l" * 10**6 + b"."),
        "depth, JSON": lambda path: path.write_bytes(b'{"entries":' + b"[" * 10**6 + b"]" * 10**6 + b"}"),
        "one text of a gigabyte": lambda path: _sparse(path, b"\x80\x02X" + struct.pack("<I", GIB - 100), GIB),
        "bytes of a gigabyte": lambda path: _sparse(path, b"\x80\x04\x8e" + struct.pack("<Q", GIB - 100), GIB),
        "a gigabyte after a dump": lambda path: _sparse(path, dump, GIB),
        "a gigabyte after half a dump": lambda path: _sparse(path, dump[: len(dump) // 2], GIB),
        "a gigabyte of JSON": lambda path: _sparse(path, b'{"version":"2.10","entries":[', GIB),
        "a length of 2**60": lambda path: path.write_bytes(b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"abc."),
        "a frame of 2**60": lambda path: path.write_bytes(b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N."),
        "an integer of 10**6 digits": lambda path: path.write_bytes(b"\x80\x02I" + b"9" * 10**6 + b"\n."),
        "a call": lambda path: path.write_bytes(_calls(path.parent)),
        "a persistent id": lambda path: path.write_bytes(b"\x80\x02X\x01\x00\x00\x00aQ."),
        "a list where a dictionary is expected": lambda path: path.write_bytes(pickle.dumps([1, 2, 3], 2)),
        "entries that are numbers": lambda path: path.write_bytes(
            pickle.dumps({"version": "2.10", "entries": [1, None, "a"], "pg_config": 3, "pg_status": []}, 2)
        ),
        "empty": lambda path: path.write_bytes(b""),
        "one byte": lambda path: path.write_bytes(b"\x80"),
    }
    for share in (0.01, 0.3, 0.7, 0.99):
        cut = dump[: int(share * len(dump))]
        written[f"truncated to {share:.0%}"] = lambda path, cut=cut: path.write_bytes(cut)  # type: ignore[misc]
    written["without its last byte"] = lambda path: path.write_bytes(dump[:-1])
    for size in (10, 1000, 10**6):
        data = noise.randbytes(size)
        written[f"{size} random bytes"] = lambda path, data=data: path.write_bytes(data)  # type: ignore[misc]
    damaged = bytearray(dump)
    for _ in range(40):
        damaged[noise.randrange(len(damaged))] = noise.randrange(256)
    written["40 bytes changed"] = lambda path: path.write_bytes(bytes(damaged))
    return written


def compare(command: Sequence[str] = _COMMAND) -> int:
    """Run a command on each hostile file, print a line for each, and return how many had a fault."""
    faults = 0
    with tempfile.TemporaryDirectory(prefix="pm-") as name:
        scratch = Path(name)
        (scratch / "cases").mkdir()
        for number, (title, write) in enumerate(hostile_files(scratch / "cases").items()):
            folder = scratch / str(number)
            folder.mkdir()
            write(folder / "nccl_trace_rank_0")
            words = [str(folder) if one == "FOLDER" else one for one in command]
            began = time.monotonic()
            try:
                done = subprocess.run(
                    words,
                    cwd=REPOSITORY,
                    env=environment(),
                    capture_output=True,
                    text=True,
                    timeout=_SECONDS,
                    check=False,
                )
                code, errors, output = done.returncode, done.stderr, done.stdout
            except subprocess.TimeoutExpired:
                code, errors, output = -1, "", ""
            seconds = time.monotonic() - began
            wrong = [
                text
                for text, holds in (
                    ("no end", code == -1),
                    ("killed", code < -1),
                    ("own error", code == 70),
                    ("traceback", "Traceback (most" in errors + output),
                    ("several lines", len(errors.splitlines()) > 1),
                    ("it ran the pickle's call", (folder / MARKER).exists()),
                    ("over 2 s", seconds > 2),
                )
                if holds
            ]
            faults += bool(wrong)
            verdict = ", ".join(wrong) or "ok"
            said = errors.strip().splitlines()[-1:]
            print(f"{title:<40}{seconds:6.1f} s  exit code {code:<4}{verdict:<24}{said}")
            (folder / "nccl_trace_rank_0").unlink()
    print(f"{faults} with a fault")
    return faults


if __name__ == "__main__":
    compare(sys.argv[1:] or _COMMAND)
