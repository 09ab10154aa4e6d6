"""Small files that ask for much, and what is no file at all: a sentence that names the limit and what lifts it."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmtop.analysis.load_report import load_report
from llmtop.errors import UnusableInput
from llmtop.model.snapshot import to_json
from llmtop.recording.members import MAX_MEMBER_BYTES, pack
from llmtop.recording.reader_writer import Reader, Writer
from llmtop.system.inputs import DEFAULT, Limits
from tests.support import preloaded
from tests.support.snapshots import snapshot
from tests.support.traces import Capture, steady, write_chrome, write_sqlite

HEAD = b'{"traceEvents": ['
KERNEL = (
    '{"ph": "X", "cat": "kernel", "name": "k", "ts": %d, "dur": 1, "pid": 1, "tid": 1, "args": {"device": %d}}'
)


def _llmtop(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return preloaded.llmtop(*arguments, data_bytes=2 << 30, timeout=110)


def _refused(done: subprocess.CompletedProcess[str], path: Path, *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("llmtop: ")
    assert done.stderr.count("\n") == 1
    for word in (str(path), *words):
        assert word in done.stderr, done.stderr


def _gz(path: Path, pieces: Iterator[bytes]) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for piece in pieces:
            file.write(piece)
    return path


def test_a_gzip_bomb_is_refused_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = _gz(tmp_path / "bomb.json.gz", (HEAD if i == 0 else b" " * (1 << 20) for i in range(40)))
    small = Limits(least_unpacked_bytes=16 << 20, unpacked_ratio=2)
    with pytest.raises(UnusableInput, match=r"unpacks to more than 16\.0 MiB, the limit .*--no-limits"):
        load_report(bomb, limits=small)
    packed = _gz(
        tmp_path / "bomb.sqlite.gz", (b"SQLite format 3\0" if i == 0 else bytes(1 << 20) for i in range(40))
    )
    with pytest.raises(UnusableInput, match=r"unpacks to more than .*the limit .*--no-limits"):
        load_report(packed, limits=small)


def test_events_without_number(tmp_path: Path) -> None:
    path = tmp_path / "many.json"
    path.write_bytes(HEAD + b",".join([b"{}"] * 5000) + b"]}")
    with pytest.raises(UnusableInput, match=r"the limit on events .*--no-limits"):
        load_report(path, limits=Limits(least_events=1000))


@pytest.mark.slow("random or many inputs; a neighbour has one case of each kind")
def test_twenty_thousand_devices(tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    path.write_bytes(HEAD + ",".join(KERNEL % (i, i) for i in range(20_000)).encode() + b"]}")
    _refused(_llmtop("report", path), path, "20,000 devices", "the limit on devices is 1,024", "--no-limits")


@pytest.mark.slow("random or many inputs; a neighbour has one case of each kind")
def test_twenty_thousand_processes(tmp_path: Path) -> None:
    path = tmp_path / "processes.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE NVTX_EVENTS (start, end, eventType, text, globalTid)")
    rows = ((i, i + 5, "r", i << 24) for i in range(20_000))
    database.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?)", rows)
    database.commit()
    database.close()
    _refused(_llmtop("report", path), path, "20,000 processes", "--no-limits")


def _nested(path: Path, depth: int) -> Path:
    capture = steady(4)
    for level in range(depth):
        capture.range(f"level {level % 50}", 1 + level * 0.01, 39_000 - level * 0.01)
    return write_sqlite(path, [capture])


@pytest.mark.slow("test_a_report_of_nested_evidence finds the same fault")
def test_ranges_nested_a_hundred_thousand_deep(tmp_path: Path) -> None:
    path = _nested(tmp_path / "nested.sqlite", 100_000)
    _refused(_llmtop("report", path), path, "nested 100,0", "the limit on depth is 2,000", "--no-limits")
    done = _llmtop("report", path, "--json", "--no-limits")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "gpu_bound"


def test_what_real_captures_have_is_read(tmp_path: Path) -> None:
    path = _nested(tmp_path / "nested.sqlite", 200)
    assert load_report(path).verdict == "gpu_bound"
    captures = [steady(4, capture=Capture(pid=100 + rank, device=rank)) for rank in range(64)]
    assert len(load_report(write_sqlite(tmp_path / "ranks.sqlite", captures)).devices) == 64


@pytest.mark.parametrize("depth", [100, 900, 100_000])
def test_a_report_of_nested_evidence(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "deep_report.json"
    evidence = '{"a": ' * depth + "1" + "}" * depth
    path.write_text(
        '{"source": "x", "engine": "nsys", "window_seconds": 1, "findings": '
        f'[{{"id": "a", "severity": "info", "summary": "s", "evidence": {evidence}}}]}}'
    )
    _refused(_llmtop("report", path), path, "limit", "deep")
    _refused(_llmtop("compare", write_sqlite(tmp_path / "ok.sqlite", [steady(4)]), path), path, "limit")


@pytest.mark.slow("random or many inputs; a neighbour has one case of each kind")
def test_a_query_without_end_behind_the_name_of_a_table(tmp_path: Path) -> None:
    path = write_sqlite(tmp_path / "endless.sqlite", [steady(4)])
    database = sqlite3.connect(path)
    database.execute("DROP TABLE OSRT_API")
    database.execute("CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER)")
    endless = (
        "CREATE VIEW OSRT_API AS WITH RECURSIVE c (start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM c) "
        "SELECT start, start AS end, 1 AS globalTid, 1 AS nameId FROM c"
    )
    database.execute("PRAGMA writable_schema = ON")
    database.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'OSRT_API'", (endless,))
    database.commit()
    database.close()
    done = _llmtop("report", path)
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow("hostile files; tests/trace/test_damaged.py has damaged ones")
def test_a_pipe_a_socket_a_device_and_a_loop_are_no_files(tmp_path: Path) -> None:
    pipe, loop = tmp_path / "pipe.json", tmp_path / "loop.json"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    place = f"/tmp/lt-sock-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        try:
            for path, words in (
                (pipe, "a named pipe"),
                (loop, "symbolic links"),
                (Path("/dev/zero"), "a device"),
                (Path(place), "a socket"),
            ):
                _refused(_llmtop("report", path), path, words)
                _refused(_llmtop("replay", path, "--json"), path, words)
        finally:
            os.unlink(place)


@pytest.mark.slow("hostile files; tests/trace/test_damaged.py has damaged ones")
def test_captures_lists_what_lies_beside_a_broken_one(tmp_path: Path) -> None:
    parent = tmp_path / "captures"
    good = {"engine": "nsys", "state": "done", "started_at": 5.0}
    foreign = '{"engine": "\udcff"}'
    for name, text in (("good", json.dumps(good)), ("broken", "{"), ("foreign", foreign), ("deep", "[" * 100_000)):
        (parent / name).mkdir(parents=True)
        (parent / name / "capture.json").write_text(text, errors="surrogateescape")
    (parent / "piped").mkdir()
    os.mkfifo(parent / "piped" / "capture.json")
    (parent / "evil\x1b]0;owned\x07").mkdir()
    (parent / "evil\x1b]0;owned\x07" / "capture.json").write_text(json.dumps(good | {"command": "\u009b31m"}))
    done = _llmtop("captures", "--out", parent)
    assert done.returncode == 0, done.stderr
    assert "good" in done.stdout
    assert "evil·]0;owned·" in done.stdout
    assert done.stderr.count("ignored: ") == 4
    assert "2 captures" in done.stderr
    assert not {"\x1b", "\x07", "\u009b"} & set(done.stdout + done.stderr)
    assert "\u009b" not in _llmtop("captures", "--out", parent, "--json").stdout


@pytest.mark.slow("hostile files; tests/trace/test_damaged.py has damaged ones")
def test_names_of_a_file_reach_no_terminal_as_they_are(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\u009b31m\u202e" + "n" * 400_000
    path = write_chrome(tmp_path / "evil\x1b[2J.json", steady(4))
    events = json.loads(path.read_text())
    for event in events["traceEvents"]:
        event["name"] = evil if event["cat"] != "user_annotation" else event["name"]
    path.write_text(json.dumps(events))
    page = tmp_path / "page.html"
    for how in ((), ("--json",), ("--markdown",), ("--html", page)):
        done = _llmtop("report", path, *how)
        assert done.returncode == 0, done.stderr
        said = done.stdout + done.stderr + (page.read_text() if page.exists() else "")
        assert not {"\x1b", "\x07", "\u009b", "\u202e"} & set(said), how
        assert len(said) < 300_000, how


@pytest.mark.parametrize(
    ("at", "lost", "said"),
    [
        (1, False, "the heads of 1 parts of"),
        (100, True, "6 snapshots of"),
        (slice(0, 60), True, "no part of a recording"),
    ],
    ids=["its head", "its data", "both"],
)
def test_a_damaged_member_of_a_recording_costs_at_most_itself(
    tmp_path: Path, at: int | slice, lost: bool, said: str
) -> None:
    path = tmp_path / "r.llmtop.gz"
    writer = Writer(path, host="node")
    for second in range(60):
        writer.write(snapshot(1000.0 + second))
    writer.close()
    reader = Reader(path)
    members, count = reader.members, reader.count
    reader.close()
    raw = bytearray(path.read_bytes())
    member = memoryview(raw)[members[2].offset : members[2].end]
    damaged = member[at] if isinstance(at, slice) else member[at : at + 1]
    damaged[:] = bytes(byte ^ 0xFF for byte in damaged)
    path.write_bytes(raw)
    again = Reader(path)
    assert len(list(again.snapshots())) == count - lost * members[2].number
    assert again.damage is not None
    assert said in again.damage
    again.close()


def test_a_damaged_line_of_a_recording_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "r.llmtop.gz"
    Writer(path, host="node").close()
    lines = [to_json(snapshot(1000.0 + second)) for second in range(5)]
    deep = b'{"a":' * 200_000
    bad = [b"{", lines[0].replace(b"1000.0", b"1e300"), b'{"schema":1,"time":1,"host":' + deep]
    body = b"\n".join([*lines[:2], *bad, *lines[2:]]) + b"\n"
    path.write_bytes(path.read_bytes() + pack(body, 1000.0, 1004.0, 8))
    reader = Reader(path)
    assert [one.time for _, one in reader.snapshots()] == [1000.0, 1001.0, 1002.0, 1003.0, 1004.0]
    assert reader.damage is not None
    assert "3 snapshots" in reader.damage
    reader.close()


def test_a_recording_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "r.llmtop.gz"
    Writer(path, host="node").close()
    member = pack(to_json(snapshot(1000.0)) + b" " * (8 << 20) + b"\n", 1000.0, 1000.0, 1)
    path.write_bytes(path.read_bytes() + member * 4)
    assert load_report(path).engine == "recording"
    with pytest.raises(UnusableInput, match=r"the limit on the unpacked size .*--no-limits"):
        load_report(path, limits=Limits(least_unpacked_bytes=20 << 20))
    assert DEFAULT.unpacked_bytes(path.stat().st_size) > 1 << 30


@pytest.mark.slow("random or many inputs; a neighbour has one case of each kind")
def test_a_piece_of_a_recording_that_is_larger_than_any_is_left_out_or_read_without_limits(tmp_path: Path) -> None:
    path = tmp_path / "r.llmtop.gz"
    with contextlib.closing(Writer(path, host="node")) as writer:
        writer.write(snapshot(1000.0))
    large = to_json(snapshot(1001.0)) + b" " * MAX_MEMBER_BYTES + b"\n"
    path.write_bytes(path.read_bytes() + pack(large, 1001.0, 1001.0, 1))
    for options, times in (((), [1000.0]), (("--no-limits",), [1000.0, 1001.0])):
        done = _llmtop("replay", path, "--json", *options)
        assert done.returncode == 0, done.stderr
        assert [json.loads(line)["time"] for line in done.stdout.splitlines()] == times


@pytest.mark.slow("hostile files; tests/trace/test_damaged.py has damaged ones")
def test_compare_names_the_file_that_is_broken(tmp_path: Path) -> None:
    good, bad = write_sqlite(tmp_path / "good.sqlite", [steady(4)]), tmp_path / "bad.json"
    bad.write_text("{")
    for pair in ((good, bad), (bad, good)):
        _refused(_llmtop("compare", *pair), bad, "damaged JSON")
