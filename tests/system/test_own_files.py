"""Files of ours in a process whose script takes their numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from llmtop.system import own_files


def take_number(monkeypatch: pytest.MonkeyPatch, theirs: Path) -> list[int]:
    """From the next open() on: its number is a file of the script's by the time that it returns."""
    real, taken = os.open, []

    def stolen(path: Any, flags: int, mode: int = 0o777) -> int:
        number = real(path, flags, mode)
        if not taken and str(path) != str(theirs):
            other = real(theirs, os.O_RDWR | os.O_CREAT, 0o600)
            os.dup2(other, number)
            os.close(other)
            taken.append(number)
        return number

    monkeypatch.setattr(os, "open", stolen)
    return taken


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "ours")
    own_files.write(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, b"one ")
    own_files.write(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, b"two")
    before = len(os.listdir("/proc/self/fd"))
    assert own_files.read_all(path) == b"one two"
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_of_the_script_is_not_written_to_and_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = take_number(monkeypatch, tmp_path / "theirs")
    with pytest.raises(OSError, match="Bad file descriptor"):
        own_files.write(str(tmp_path / "ours"), os.O_WRONLY | os.O_CREAT, b"ours")
    assert os.write(taken[0], b"theirs") == 6
    os.close(taken[0])
    assert (tmp_path / "theirs").read_bytes() == b"theirs"


def test_a_file_of_the_script_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours").write_bytes(b"ours")
    (tmp_path / "theirs").write_bytes(b"theirs")
    taken = take_number(monkeypatch, tmp_path / "theirs")
    with pytest.raises(OSError, match="Bad file descriptor"):
        own_files.read_all(str(tmp_path / "ours"))
    assert os.read(taken[0], 100) == b"theirs", "from its beginning"
    os.close(taken[0])
