"""A part of a long file: what lies around an instant, without the rest."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from llmtop.runs import records
from llmtop.runs.run_file import RunFile
from tests.support.generated_run import write_run

END, HOURS = 1_700_000_000.0, 48.0
BYTES = 32 << 10


@pytest.fixture(scope="module", name="path")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = write_run(tmp_path_factory.mktemp("runs"), END, HOURS).glob("*.run")
    return path


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999, 1.0])
def test_the_minute_of_an_instant_is_in_its_window(path: Path, share: float) -> None:
    at = END - HOURS * 3600 * (1 - share) + 1.0
    file = RunFile(path, around=at, end_bytes=BYTES)
    assert not file.is_whole
    assert file.covers(min(at, END))
    assert sum(len(member.data) for member in file.members) <= BYTES
    minutes = [record for record in file.records() if isinstance(record, records.Minute)]
    assert any(minute.at - minute.seconds <= min(at, END - 1) <= minute.at for minute in minutes)
    assert file.reaches_begin == (share <= 0.001)
    assert file.reaches_end == (share >= 0.999)


def test_what_is_outside_of_a_window_is_not_covered(path: Path) -> None:
    file = RunFile(path, around=math.inf, end_bytes=BYTES)
    assert file.covers(END)
    assert file.covers(END + 1000)
    assert not file.covers(END - HOURS * 1800)


def test_damage_within_the_file_does_not_stop_the_search(path: Path, tmp_path: Path) -> None:
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 3000] = bytes(3000)
    (tmp_path / "damaged").write_bytes(raw)
    at = END - HOURS * 900
    file = RunFile(tmp_path / "damaged", around=at, end_bytes=BYTES)
    assert file.covers(at)
    assert any(isinstance(record, records.Minute) for record in file.records())


@pytest.mark.parametrize("data", [b"", b"\x1f\x8b" * 40_000])
def test_a_file_without_a_member_has_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "foreign").write_bytes(data)
    assert RunFile(tmp_path / "foreign", around=END, end_bytes=BYTES).members == []
