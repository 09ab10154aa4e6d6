"""Gzipped exports are read in memory: no file of them is left on a disk, and the memory has a limit."""

from __future__ import annotations

import errno
import gzip
import os
import sqlite3
import tempfile
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from llmtop.errors import EXIT_ENVIRONMENT, NotPossibleHere, UnusableInput
from llmtop.system import procfs
from llmtop.trace import model
from llmtop.trace.files.open import open_trace
from llmtop.trace.nsys.unpacked import SHARED_MEMORY, unpack_into_memory
from tests.support.data import LAUNCH_BOUND, unpacked
from tests.support.traces import steady, write_sqlite


@pytest.fixture(params=["shared memory", "own memory"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where an export is unpacked: as on a host, or as in a container without room in /dev/shm."""
    kind: str = request.param
    kinds = {str(SHARED_MEMORY): "tmpfs"} if kind == "shared memory" else {}
    monkeypatch.setattr(procfs, "mounts", lambda: kinds)
    return kind


def _packed(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content))
    return path


def _plain(folder: Path) -> bytes:
    return write_sqlite(folder / "plain.sqlite", [steady(5)]).read_bytes()


def _same(one: model.Trace, other: model.Trace) -> bool:
    return one.names == other.names and all(
        np.array_equal(getattr(getattr(one, table), field.name), getattr(getattr(other, table), field.name))
        for table in ("ops", "calls", "ranges", "host", "samples", "memory")
        for field in fields(getattr(one, table))
    )


@pytest.mark.usefixtures("place")
def test_a_packed_export_is_read_as_the_plain_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = open_trace(unpacked(LAUNCH_BOUND, tmp_path))
    # No folder for temporary files is there: nothing may ask for one.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    packed = open_trace(LAUNCH_BOUND)
    assert len(packed.ops) > 1000
    assert _same(plain, packed)
    assert packed.notes == plain.notes


def test_the_file_in_memory_has_no_name(tmp_path: Path, place: str) -> None:
    content = _plain(tmp_path)
    with unpack_into_memory(tmp_path / "a.sqlite.gz", lambda _: iter([content[:5000], content[5000:]])) as file:
        status = os.fstat(file.descriptor)
        assert (status.st_nlink, status.st_size) == (0, len(content))
        on_shared = status.st_dev == SHARED_MEMORY.stat().st_dev
        assert on_shared == (place == "shared memory")
        descriptor = file.descriptor
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.usefixtures("place")
def test_an_export_with_a_journal_mode_of_its_own_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plain.sqlite"
    path.write_bytes(_plain(tmp_path))
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    database.close()
    content = path.read_bytes()
    assert content[18:20] == b"\2\2"
    assert _same(open_trace(_packed(tmp_path / "wal.sqlite.gz", content)), open_trace(path))


def test_a_full_shared_memory_is_left_for_the_own_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tmp_path / "plain.sqlite"
    packed = _packed(tmp_path / "a.sqlite.gz", _plain(tmp_path))
    shared, write, refused = SHARED_MEMORY.stat().st_dev, os.write, []

    def write_if_room(descriptor: int, data: bytes) -> int:
        if os.fstat(descriptor).st_dev == shared:
            refused.append(descriptor)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", write_if_room)
    assert _same(open_trace(packed), open_trace(plain))
    assert len(refused) == 1


def test_more_than_half_of_the_memory_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = _packed(tmp_path / "large.sqlite.gz", _plain(tmp_path) + bytes(40 << 20))
    monkeypatch.setattr(procfs, "memory", lambda: {"MemAvailable": 32 << 20})
    with pytest.raises(NotPossibleHere) as refused:
        open_trace(packed)
    assert str(refused.value) == (
        f"{packed} unpacks to more than 16.0 MiB, half of the available memory; unpack it to a disk and report on "
        f"that: gunzip --keep {packed}"
    )
    assert refused.value.exit_code == EXIT_ENVIRONMENT == 3


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("kept", "words"), [(0.5, "is cut or damaged"), (0.9, "is cut or damaged")])
def test_a_cut_export_is_named_as_cut(tmp_path: Path, kept: float, words: str) -> None:
    packed = LAUNCH_BOUND.read_bytes()
    path = tmp_path / "cut.sqlite.gz"
    path.write_bytes(packed[: int(kept * len(packed))])
    try:
        found = "; ".join(open_trace(path).notes)
    except UnusableInput as error:
        found = str(error)
    assert found.startswith(f"{path} {words}")


@pytest.mark.usefixtures("place")
def test_a_header_alone_is_no_export(tmp_path: Path) -> None:
    path = _packed(tmp_path / "head.sqlite.gz", b"SQLite format 3\0")
    with pytest.raises(UnusableInput, match=r"head\.sqlite\.gz cannot be read as an SQLite export of nsys"):
        open_trace(path)
