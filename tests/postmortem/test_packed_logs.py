"""Logs that are packed, rotated, endless or no files at all."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from llmtop.errors import UnusableInput
from llmtop.postmortem.answer.decide import find_culprits
from llmtop.postmortem.packed_logs import unpack_log
from tests.support.job_files import traceback_text

_RAISED = traceback_text("ValueError: bad shard", line=88, in_collective=False).encode()


@pytest.mark.slow(
    "xz takes the least time; test_both_ends_of_a_packed_log_are_kept_and_no_more has gzip", kept=("compress-xz",)
)
@pytest.mark.parametrize(("pack", "ending"), [(gzip.compress, "gz"), (bz2.compress, "bz2"), (lzma.compress, "xz")])
def test_a_packed_log_is_read(tmp_path: Path, pack: Callable[[bytes], bytes], ending: str) -> None:
    (tmp_path / f"rank_3.log.{ending}").write_bytes(pack(b"step 1\n" * 500_000 + _RAISED))
    report = find_culprits([tmp_path])
    assert [(one.rank, one.line) for one in report.culprits] == [(3, "train.py:88 in main")]
    assert report.notes == ()


def test_of_a_packed_log_that_is_cut_off_the_readable_part_counts(tmp_path: Path) -> None:
    packed = gzip.compress(_RAISED + os.urandom(1 << 20))
    (tmp_path / "rank_3.log.gz").write_bytes(packed[: len(packed) // 2])
    report = find_culprits([tmp_path])
    assert [one.rank for one in report.culprits] == [3]
    assert "cut off or damaged" in report.notes[0]


def test_both_ends_of_a_packed_log_are_kept_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"first\n" + b"middle\n" * 1_000_000 + b"last\n"))
    log = unpack_log(tmp_path / "a.gz", "gzip", 1 << 20)
    assert log.head.startswith(b"first")
    assert log.tail.endswith(b"last\n")
    assert len(log.head) + len(log.tail) < 3 << 20


def test_an_archive_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "rank_3.log").write_bytes(_RAISED)
    with tarfile.open(tmp_path / "logs.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "rank_3.log")
    with pytest.raises(UnusableInput, match="tar -xf"):
        find_culprits([tmp_path / "logs.tar.gz"])


def test_a_rotated_log_belongs_to_the_rank_of_its_log(tmp_path: Path) -> None:
    for name, content in (("0.log", b"step 9\n"), ("3.log", b"step 9\n"), ("3.log.1", _RAISED)):
        (tmp_path / name).write_bytes(content)
    assert [one.rank for one in find_culprits([tmp_path]).culprits] == [3]


def test_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank_0.log")
    (tmp_path / "around").symlink_to(tmp_path)
    (tmp_path / "itself").symlink_to("itself")
    (tmp_path / "rank_1.log").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(tmp_path / "rank_2.log"))
        (tmp_path / "rank_3.log").write_bytes(_RAISED)
        report = find_culprits([tmp_path])
    assert [one.rank for one in report.culprits] == [3]
    assert report.files == {"log": 1}


@pytest.mark.slow("16 million lines; test_both_ends_of_a_packed_log_are_kept_and_no_more has a small log")
def test_the_last_lines_of_a_log_without_a_word_of_a_fact_before_are_read(tmp_path: Path) -> None:
    (tmp_path / "rank_3.log").write_bytes(b"\n" * (16 << 20) + b"x" * 5000 + b"\n" + _RAISED)
    assert [one.rank for one in find_culprits([tmp_path]).culprits] == [3]
