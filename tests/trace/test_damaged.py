"""Captures that are cut, damaged or hostile: a sentence, or a report that says what was left out."""

from __future__ import annotations

import gzip
import random
import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmtop.analysis.analyze import analyze, analyze_trace
from llmtop.errors import LlmtopError, UnusableInput
from llmtop.trace.files.open import open_trace
from tests.support.data import HEALTHY, KINETO, unpacked
from tests.support.examples import EXAMPLES
from tests.support.traces import Capture, steady, write_chrome, write_sqlite


def _usable_or_a_sentence(path: Path) -> str:
    """Analyse; returns the notes, or the sentence with which it was refused."""
    try:
        return " ".join(analyze(path).notes)
    except LlmtopError as error:
        said = str(error)
    assert said.isprintable(), said
    assert str(path) in said
    return said


@pytest.fixture(scope="module")
def chrome_bytes() -> bytes:
    return gzip.decompress(KINETO.read_bytes())


@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01, 0.3, 0.5, 0.77, 0.999, 0.9999])
def test_a_chrome_trace_cut_anywhere(tmp_path: Path, chrome_bytes: bytes, share: float) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(chrome_bytes[: int(len(chrome_bytes) * share)])
    said = _usable_or_a_sentence(path)
    assert "cut" in said or "no trace events" in said or "traceEvents" in said or "damaged" in said, said


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, 4000))
def test_a_small_chrome_trace_cut_at_every_byte(tmp_path: Path, cut: int) -> None:
    whole = write_chrome(tmp_path / "whole.json", steady(4)).read_bytes()
    path = tmp_path / "cut.json"
    path.write_bytes(whole[: min(cut, len(whole) - 1)])
    assert _usable_or_a_sentence(path)


def test_what_lies_before_the_cut_is_used(tmp_path: Path, chrome_bytes: bytes) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(chrome_bytes[: len(chrome_bytes) * 3 // 4])
    trace = open_trace(path)
    assert len(trace.ops) > 100
    assert any("is cut" in note for note in trace.notes)


def test_a_gzip_file_that_breaks_off(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    path.write_bytes(KINETO.read_bytes()[:200_000])
    trace = open_trace(path)
    assert len(trace.host) > 1000
    assert any("is cut" in note for note in trace.notes)


@pytest.mark.parametrize("share", [0.001, 0.05, 0.3, 0.6, 0.9, 0.99])
def test_a_truncated_database(tmp_path: Path, share: float) -> None:
    path = unpacked(HEALTHY, tmp_path)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * share)])
    said = _usable_or_a_sentence(path)
    assert "damaged" in said or "cannot be read" in said or "no device activity" in said, said


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000))
def test_a_database_with_flipped_bytes(tmp_path: Path, seed: int) -> None:
    capture = steady(3)
    capture.copy(10, 20, 4096, launched=5)
    path = write_sqlite(tmp_path / "flipped.sqlite", [capture])
    raw, chance = bytearray(path.read_bytes()), random.Random(seed)
    for _ in range(chance.randint(1, 60)):
        raw[chance.randrange(16, len(raw))] = chance.randrange(256)
    path.write_bytes(raw)
    _usable_or_a_sentence(path)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000))
def test_a_chrome_trace_with_flipped_bytes(tmp_path: Path, seed: int) -> None:
    path = write_chrome(tmp_path / "flipped.json", steady(3))
    raw, chance = bytearray(path.read_bytes()), random.Random(seed)
    for _ in range(chance.randint(1, 20)):
        raw[chance.randrange(0, len(raw))] = chance.randrange(256)
    path.write_bytes(raw)
    _usable_or_a_sentence(path)


def test_events_that_end_before_they_start_are_counted_and_left_out(tmp_path: Path) -> None:
    capture = steady(4)
    capture.kernel(500, 400, launched=10)
    capture.range("backwards", 900, 100)
    trace = capture.trace(tmp_path)
    assert len(trace.ops) == 4
    assert any("2 events end before they start" in note for note in trace.notes)


def test_a_clock_that_jumped_is_seen(tmp_path: Path) -> None:
    capture = steady(30)
    hour = 3600e6
    capture.kernel(hour, hour + 5, launched=hour - 10)
    capture.kernel(-2 * hour, -2 * hour + 5, launched=-2 * hour - 10)
    report = analyze_trace(capture.trace(tmp_path))
    assert any("the clock jumped" in note for note in report.notes)
    assert report.window_seconds < 1
    assert report.verdict == "gpu_bound"


def test_a_pause_in_the_middle_of_a_training_is_not_a_jump(tmp_path: Path) -> None:
    capture = steady(10)
    for op in capture.ops[5:] + capture.calls[5:] + capture.ranges[5:]:
        op["start"] += 200e6
        op["end"] += 200e6
    trace = capture.trace(tmp_path)
    assert len(trace.ops) == 10
    assert not any("jumped" in note for note in trace.notes)


def test_control_characters_never_get_into_a_trace(tmp_path: Path) -> None:
    evil = "evil\x1b[31m\x07\x9b\u202e\x00kernel"
    capture = Capture()
    capture.kernel(10, 20, launched=1, name=evil)
    capture.range(evil, 0, 30)
    for trace in (capture.trace(tmp_path), capture.chrome_trace(tmp_path)):
        for name in trace.names:
            assert name.isprintable() or name == "", repr(name)


def test_a_name_of_many_thousand_characters(tmp_path: Path) -> None:
    capture = steady(4)
    for op in capture.ops:
        op["name"] = "k<" * 5000 + "x" * 200_000
    assert analyze_trace(capture.trace(tmp_path)).verdict == "gpu_bound"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.sqlite", b"", "is empty"),
        ("text.json", b"hello", "is neither a capture"),
        ("empty.json", b"{}", "no report of llmtop"),
        ("list.json", b"[]", "no trace events"),
        ("noevents.json", b'{"traceEvents": []}', "no trace events"),
        ("left.qdstrm", b"QuadD stream", "nsys import"),
        ("header.sqlite", b"SQLite format 3\0", "cannot be read"),
        ("half.gz", b"\x1f\x8b\x08\x00", "cannot be unpacked"),
        ("bad.json.gz", b"\x1f\x8b\x08\x00 this is no gzip at all, is it?", "cannot be unpacked"),
    ],
)
def test_what_is_no_capture_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    from llmtop.analysis.load_report import load_report

    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UnusableInput, match=words):
        load_report(path)


@pytest.mark.parametrize(
    "content",
    [b"{}", b'{"loss": [3.1, 2.9]}', b"[1, 2]", b'{"traceEvents": []}', b'{"a": 1', b"[" * 100_000],
    ids=["empty", "log", "list", "noevents", "cut", "deep"],
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_json_that_is_no_trace_is_refused_with_the_next_command(
    tmp_path: Path, content: bytes, packed: bool
) -> None:
    from llmtop.analysis.load_report import load_report

    path = tmp_path / "run.json"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(UnusableInput, match=r"next: .*llmtop capture --engine torch\.profiler$"):
        load_report(path)


def test_a_folder_without_a_capture(tmp_path: Path) -> None:
    (tmp_path / "capture.json").write_text("{}")
    with pytest.raises(UnusableInput, match="holds no capture"):
        open_trace(tmp_path)


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="No such file"):
        open_trace(tmp_path / "gone.sqlite")


def test_a_table_whose_pages_are_lost_keeps_what_was_read(tmp_path: Path) -> None:
    path = write_sqlite(tmp_path / "large.sqlite", [steady(4000)])
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * (size // 10))
    try:
        trace = open_trace(path)
    except UnusableInput:
        return
    assert any("damaged" in note for note in trace.notes)
    with pytest.raises(sqlite3.DatabaseError):
        sqlite3.connect(path).execute("PRAGMA integrity_check(1); ").fetchone()[0] == "ok" or _raise()


def _raise() -> None:
    raise sqlite3.DatabaseError("damaged, as meant")


def test_gzip_members_follow_one_another(tmp_path: Path) -> None:
    import io

    from llmtop.trace.files.gunzip import Gunzip

    plain = bytes(range(256)) * 4000
    packed = gzip.compress(plain[:1000]) + gzip.compress(b"") + gzip.compress(plain[1000:])
    whole = Gunzip(io.BytesIO(packed))
    assert b"".join(iter(lambda: whole.read(7777), b"")) == plain
    assert not whole.cut
    broken = Gunzip(io.BytesIO(packed[:-30]))
    found = b"".join(iter(lambda: broken.read(7777), b""))
    assert plain.startswith(found)
    assert len(found) > len(plain) // 2
    assert broken.cut
