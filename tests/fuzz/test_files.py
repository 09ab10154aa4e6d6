"""Damaged recordings, exports and traces: a report or one sentence, never a traceback, never without an end.

LLMTOP_FUZZ_FILES=10000 runs so many instead of a few hundred; LLMTOP_FUZZ_SEED begins elsewhere. A failure names
the seed that repeats it.
"""

from __future__ import annotations

import gzip
import os
import random
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from llmtop.__main__ import main
from llmtop.analysis.analyze import analyze
from llmtop.model.snapshot import to_json as snapshot_json
from llmtop.recording.members import pack
from llmtop.recording.reader_writer import Reader, Writer
from llmtop.report.model import to_json
from tests.fuzz.file_mutations import damaged_bytes, odd_json, odd_sqlite, packed
from tests.support import xla_traces
from tests.support.snapshots import gpu, rank, snapshot
from tests.support.traces import Capture, steady, write_chrome, write_sqlite

CASES = int(os.environ.get("LLMTOP_FUZZ_FILES", "300"))
SEED = int(os.environ.get("LLMTOP_FUZZ_SEED", "1"))
CASE_CPU_SECONDS = 30
"""Against going on for ever; a case takes some ten milliseconds. What waits for something is ended by the limit on
the whole test."""
DOCUMENTED = {0, 1, 2, 3}


class _Hangs(BaseException):
    """A case that does not end; nothing of llmtop may catch it."""


@contextmanager
def _ends(what: str) -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _Hangs(what)

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CASE_CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _capture() -> Capture:
    capture = steady(4)
    capture.copy(100, 200, 1 << 21, launched=50)
    capture.memset(300, 310, launched=290)
    capture.range("data_loading", 0, 900)
    capture.range("open", 500, None)
    capture.operator("aten::item", 20, 40)
    capture.wait("poll", 400, 450)
    capture.call("cudaStreamSynchronize_v3020", 600, 700)
    return capture


class _Originals:
    """Small whole files of each kind."""

    def __init__(self, folder: Path) -> None:
        self.chrome = write_chrome(
            folder / "trace.json", _capture(), deviceProperties=[{"id": 0, "name": "H200", "totalGlobalMem": 1}]
        ).read_bytes()
        self.xla = [
            xla_traces.written(folder / "xla.json", xla_traces.on_gpu(4)).read_bytes(),
            gzip.decompress(xla_traces.unpacked("cpu_window", folder).read_bytes()),
        ]
        self.sqlite = write_sqlite(folder / "trace.sqlite", [_capture()]).read_bytes()
        self.report = to_json(analyze(folder / "trace.sqlite"))
        writer = Writer(folder / "recording.llmtop.gz", host="node", overwrite=True)
        for second in range(25):
            writer.write(snapshot(1000.0 + second, gpus=(gpu(util_pct=50.0),), ranks=(rank(),)))
        writer.close()
        self.recording = (folder / "recording.llmtop.gz").read_bytes()
        self.lines = b"\n".join(
            snapshot_json(one) for _, one in Reader(folder / "recording.llmtop.gz").snapshots()
        )


def _case(seed: int, made: _Originals, folder: Path) -> tuple[Path, list[str]]:
    """Write one damaged file; returns it and the command that opens it."""
    chance = random.Random(seed)
    change: Callable[[bytes, random.Random], bytes] = chance.choice((damaged_bytes, odd_json))
    kind = chance.choice(("chrome", "chrome.gz", "xla", "sqlite", "sqlite rows", "recording", "lines", "report"))
    path = folder / {
        "sqlite rows": "x.sqlite",
        "lines": "x.llmtop.gz",
        "recording": "x.llmtop.gz",
        "xla": "x.json",
    }.get(kind, "x." + kind.replace("chrome", "json"))
    if kind == "chrome":
        path.write_bytes(change(made.chrome, chance))
    elif kind == "chrome.gz":
        path.write_bytes(packed(change, made.chrome, chance))
    elif kind == "xla":
        path.write_bytes(change(chance.choice(made.xla), chance))
    elif kind == "sqlite":
        path.write_bytes(damaged_bytes(made.sqlite, chance))
    elif kind == "sqlite rows":
        path.write_bytes(made.sqlite)
        odd_sqlite(path, chance)
    elif kind == "recording":
        path.write_bytes(damaged_bytes(made.recording, chance))
    elif kind == "lines":
        header = made.recording[: made.recording.index(b"\x1f\x8b\x08\x04", 1)]
        path.write_bytes(header + pack(change(made.lines, chance), 1000.0, 1024.0, 25))
    else:
        path = folder / "x.json"
        path.write_bytes(change(made.report, chance))
    return path, _command(path, folder, chance, "llmtop.gz" in path.name)


def _command(path: Path, folder: Path, chance: random.Random, plays: bool) -> list[str]:
    commands = [
        ["report", str(path)],
        ["report", str(path), "--json"],
        ["report", str(path), "--markdown"],
        ["report", str(path), "--html", str(folder / "page.html")],
        ["compare", str(path), str(folder / "trace.sqlite")],
    ]
    return chance.choice([*commands, ["replay", str(path), "--json"]] if plays else commands)


def _run(command: list[str]) -> int:
    try:
        main(command)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.slow("random or many inputs; a neighbour has one case of each kind")
@pytest.mark.timeout(120 + CASES)
def test_damaged_files_end_with_a_report_or_a_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = _Originals(tmp_path)
    failed: dict[int, str] = {}
    codes: dict[int, int] = {}
    for seed in range(SEED, SEED + CASES):
        path, command = _case(seed, made, tmp_path)
        try:
            with _ends(f"seed {seed}: {command}"):
                code = _run(command)
        except (_Hangs, Exception) as error:  # noqa: BLE001  # whatever gets out is what is looked for
            failed[seed] = f"{command[0]} {path.name}: {type(error).__name__}: {error}"[:300]
            code = -1
        out, err = capfd.readouterr()
        codes[code] = codes.get(code, 0) + 1
        if code >= 0:
            said = _wrong(code, command, out, err)
            if said:
                failed[seed] = f"{command}: {said}"
        path.unlink()
    assert not failed, f"{len(failed)} of {CASES}: {dict(list(failed.items())[:20])}"
    assert set(codes) <= DOCUMENTED
    if CASES >= 100:
        assert {0, 2} <= set(codes), "some files are still usable, and some are not"


def _wrong(code: int, command: list[str], out: str, err: str) -> str:
    """What is wrong with an answer; nothing, as a rule."""
    if code not in DOCUMENTED:
        return f"exit code {code}"
    if "Traceback" in err:
        return "a traceback"
    if code and not (err.startswith("llmtop: ") and err.count("\n") == 1):
        return f"not one sentence: {err[:200]!r}"
    odd = {char for char in out + err if not char.isprintable() and char != "\n"}
    if odd and not (command[0] == "replay" and code == 0):
        return f"a terminal would obey {odd!r}"
    return ""


def test_the_mutations_reach_the_readers(tmp_path: Path) -> None:
    """Each kind of file comes up, most are really changed, and the same seed makes the same file."""
    made = _Originals(tmp_path)
    seen: dict[str, set[bytes]] = {}
    for seed in range(60):
        path, _ = _case(seed, made, tmp_path)
        seen.setdefault(path.name, set()).add(path.read_bytes())
        path.unlink()
    assert set(seen) == {"x.json", "x.json.gz", "x.sqlite", "x.llmtop.gz"}
    assert sum(map(len, seen.values())) > 50
    path, _ = _case(7, made, tmp_path)
    first = path.read_bytes()
    path, _ = _case(7, made, tmp_path)
    assert path.read_bytes() == first


def test_the_neighbours_of_a_damaged_database_row_are_kept(tmp_path: Path) -> None:
    path = write_sqlite(tmp_path / "x.sqlite", [steady(40)])
    database = sqlite3.connect(path)
    database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon' WHERE rowid = 20")
    database.commit()
    database.close()
    report = analyze(path)
    assert report.devices[0].kernels == 39
    assert any("1 events have no usable time" in note for note in report.notes)
