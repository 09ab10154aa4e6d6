"""A number that the script has closed and taken for a file of its own is left alone."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from llmtop.instrument.guest import descriptors


def taken(number: int, path: Path) -> None:
    """Close a number and open a file by it, as a script does."""
    os.close(number)
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    if file != number:
        os.dup2(file, number)
        os.close(file)


def test_a_socket_that_is_dropped_does_not_close_a_file_of_the_script(tmp_path: Path) -> None:
    first, second = descriptors.pair()
    number = first.fileno()
    taken(number, tmp_path / "theirs")
    try:
        del first
        gc.collect()
        assert os.write(number, b"theirs") == 6
    finally:
        os.close(number)
        second.close()


def test_a_dropped_socket_that_is_ours_is_closed() -> None:
    first, second = descriptors.pair()
    number = first.fileno()
    del first
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    second.close()


def test_a_file_in_a_socket_s_place_is_never_taken_for_it(tmp_path: Path) -> None:
    first, second = descriptors.pair()
    number = first.fileno()
    taken(number, tmp_path / "theirs")
    try:
        assert not first.remember().is_ours
        first.close()
        os.fstat(number)
    finally:
        os.close(number)
        second.close()
