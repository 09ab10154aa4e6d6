"""What a file is, told by its head, which is read once."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from llmtop.analysis.load_report import load_report, load_reports
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
