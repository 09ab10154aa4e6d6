"""What a file is, told by its head, which is read once."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from llmtop.analysis.load_report import load_report, load_reports
from llmtop.errors import UnusableInput
from llmtop.system import inputs
from llmtop.trace.files import file_kind
from llmtop.trace.files.file_kind import examine
from tests.support.data import HEALTHY

EVENT = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "pid": 0, "tid": 7, "args": {"device": 0}}
TRACE = json.dumps({"traceEvents": [EVENT] * 3}).encode()


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the head of each file was looked at."""
    seen: Counter[str] = Counter()

    def counted(path: Path) -> object:
        seen[path.name] += 1
        return inputs.open_input(path)

    monkeypatch.setattr(file_kind, "open_input", counted)
    return seen


def test_each_head_is_read_once_whatever_is_loaded(tmp_path: Path, heads: Counter[str]) -> None:
    (tmp_path / "one.json").write_bytes(TRACE)
    (tmp_path / "two.json.gz").write_bytes(gzip.compress(TRACE))
    (tmp_path / "notes.json").write_text("{}")
    load_report(tmp_path / "two.json.gz")
    assert heads == {"two.json.gz": 1}
    heads.clear()
    load_report(tmp_path)
    assert heads == {"one.json": 1, "two.json.gz": 1, "notes.json": 1}
    heads.clear()
    load_reports([tmp_path / "one.json", tmp_path / "two.json.gz"])
    assert heads == {"one.json": 1, "two.json.gz": 1}
    heads.clear()
    load_report(HEALTHY)
    assert set(heads.values()) == {1}


def test_packed_or_not_a_file_is_what_is_in_it(tmp_path: Path) -> None:
    for name, data in (("a", TRACE), ("b", b"SQLite format 3\0"), ("c", b"{}")):
        plain, packed = tmp_path / name, tmp_path / f"{name}.gz"
        plain.write_bytes(data)
        packed.write_bytes(gzip.compress(data))
        assert examine(plain).kind == examine(packed).kind
        assert (examine(plain).packed, examine(packed).packed) == (False, True)


@pytest.mark.parametrize(
    ("name", "head", "kind"),
    [
        ("a", b"SQLite format 3\0", "nsys-sqlite"),
        ("a", b"NVIDIA Tegra Profiler Report v1", "nsys-report"),
        ("a.nsys-rep", b"anything", "nsys-report"),
        ("a", b" [1]", "chrome-json"),
        ("a", b'{"x": 1, "traceEvents": []}', "chrome-json"),
        ("a", b'broken, {"ph": "X"', "chrome-json"),
        ("a", b'{"$schema": "https://www.speedscope.app/file-format-schema.json"}', "stacks"),
        ("a", b' {"x": 1}', "json"),
        ("a", b"main (a.py:1);work (a.py:2) 42\n", "stacks"),
        ("a", b"main (a.py:1) 42", "stacks"),
        ("a", b'process 7:"python"\nx', "stacks"),
        ("a", b"\x80\x04\x95", "memory-snapshot"),
        ("a", b"\x80\x02", "memory-snapshot"),
    ],
)
def test_a_file_s_kind_is_in_its_head(tmp_path: Path, name: str, head: bytes, kind: str) -> None:
    path = tmp_path / name
    path.write_bytes(head)
    assert examine(path).kind == kind


@pytest.mark.parametrize(
    ("name", "head", "words"),
    [
        ("a", b"", "is empty"),
        ("a", b"\x1f\x8bx", "begins like a gzip file but cannot be unpacked"),
        ("a", b"NVR\0", "llmtop kernel"),
        ("a.ncu-rep", b"x", "llmtop kernel"),
        ("a.qdstrm", b"x", "nsys import"),
        ("a", b"main 42 x", "is neither a capture"),
        ("a", b"main 42", "is neither a capture"),
        ("a", b"a;b x", "is neither a capture"),
        ("a", b"\x80\x06", "is neither a capture"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_a_reason(
    tmp_path: Path, name: str, head: bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(head)
    with pytest.raises(UnusableInput, match=words):
        examine(path)


def test_a_folder_is_one(tmp_path: Path) -> None:
    assert examine(tmp_path).kind == "folder"
