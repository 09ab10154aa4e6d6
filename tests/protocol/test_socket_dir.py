"""The folder of sockets: its length, whether a socket can be made in it, and sockets that nobody listens on."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from llmtop.errors import NotPossibleHere
from llmtop.protocol import client, socket_dir

SUN_PATH = 108
"""Bytes of a socket's path with the zero at its end (unix(7))."""
LONGEST_NAME = "/4194304-00000000.sock"
"""The largest pid of Linux: /proc/sys/kernel/pid_max is 2**22 at most (proc(5))."""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        yield Path(folder)


def test_the_folder_is_the_callers_own_or_that_of_the_user_who_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMTOP_DIR", raising=False)
    assert socket_dir.runtime_dir() == Path(f"/tmp/llmtop-{os.geteuid()}")
    assert socket_dir.runtime_dir(61001) == Path("/tmp/llmtop-61001")


def test_the_longest_folder_leaves_room_for_the_longest_name() -> None:
    assert socket_dir.MAX_DIRECTORY_BYTES + len(LONGEST_NAME) == SUN_PATH - 1


@pytest.mark.parametrize(("more", "is_made"), [(0, True), (1, False)])
def test_a_folder_that_is_too_long_is_refused_before_it_is_made(
    more: int, is_made: bool, short_folder: Path
) -> None:
    folder = short_folder / ("x" * (socket_dir.MAX_DIRECTORY_BYTES + more - len(os.fsencode(short_folder)) - 1))
    if is_made:
        socket_dir.make_dir(folder)
    else:
        with pytest.raises(NotPossibleHere, match=f"has {socket_dir.MAX_DIRECTORY_BYTES + 1} bytes"):
            socket_dir.make_dir(folder)
    assert folder.is_dir() == is_made


def test_where_sockets_can_be_made_the_probe_leaves_nothing(short_folder: Path) -> None:
    socket_dir.check_socket_support(short_folder)
    assert list(short_folder.iterdir()) == []


def test_a_file_system_without_sockets_is_one_sentence() -> None:
    with pytest.raises(NotPossibleHere, match="no socket can be made in /proc/self/fd"):
        socket_dir.check_socket_support(Path("/proc/self/fd"))


def test_a_socket_whose_queue_is_full_is_asked_without_waiting_and_stays(short_folder: Path) -> None:
    path = short_folder / f"{os.getpid()}-00000000.sock"
    with socket.socket(socket.AF_UNIX) as listening, ExitStack() as waiting:
        listening.bind(os.fspath(path))
        listening.listen(0)
        for _ in range(10):
            one = waiting.enter_context(socket.socket(socket.AF_UNIX))
            one.setblocking(False)
            if one.connect_ex(os.fspath(path)) == errno.EAGAIN:
                break
        else:
            pytest.fail("the queue of a listener has an end")
        results: list[bool] = []
        asking = threading.Thread(target=lambda: results.append(client.remove_stale(path)), daemon=True)
        asking.start()
        asking.join(20)
        assert results == [False]
        assert path.exists()


def test_a_socket_of_a_process_that_has_ended_is_removed(short_folder: Path) -> None:
    path = short_folder / "4194303-00000000.sock"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.fspath(path))
    assert client.remove_stale(path)
    assert not path.exists()
