"""The folder of sockets: its length, whether a socket can be made in it, and sockets that nobody listens on."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from llmtop.errors import NotPossibleHere
from llmtop.protocol import client, socket_dir

SUN_PATH = 108
"""Bytes of a socket's path with the zero at its end (unix(7))."""
LONGEST_NAME = "/4194304-00000000.sock"
"""The largest pid of Linux: /proc/sys/kernel/pid_max is 2**22 at most (proc(5))."""


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


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        ("/a/b", "/a/b"),
        ("/a/../b", "/b"),
        ("~/b", "/home/u/b"),
        ("b", "{working}/b"),
        ("", "/tmp/llmtop-{uid}"),
    ],
)
def test_the_variable_names_the_folder(
    value: str, folder: str, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMTOP_DIR", value)
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.chdir(short_folder)
    expected = folder.format(working=os.path.realpath(short_folder), uid=os.geteuid())
    assert socket_dir.runtime_dir() == Path(expected)
    assert socket_dir.memory_snapshot(47) == Path(expected) / "47-oom.memory.pickle"


def test_a_relative_folder_below_a_removed_one_is_one_sentence(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMTOP_DIR", "b")
    gone = short_folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(NotPossibleHere, match="LLMTOP_DIR is b, which is relative to a removed folder"):
        socket_dir.runtime_dir()


@pytest.mark.parametrize(
    ("mode", "is_refused"),
    [(0o700, False), (0o755, False), (0o701, False), (0o500, False), (0o720, True), (0o702, True), (0o777, True)],
)
def test_a_folder_that_others_can_write_is_refused(mode: int, is_refused: bool, short_folder: Path) -> None:
    short_folder.chmod(mode)
    if is_refused:
        with pytest.raises(NotPossibleHere, match=f"is writable by others; run: chmod 700 {short_folder}"):
            socket_dir.check_dir(short_folder)
    else:
        socket_dir.check_dir(short_folder)
    short_folder.chmod(0o700)


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("missing", "does not exist, because no training has attached here yet"),
        ("link", "is a symbolic link"),
        ("file", "is not a folder"),
        ("file/below", "cannot be read: Not a directory"),
    ],
)
def test_what_is_no_folder_is_refused(name: str, refusal: str, short_folder: Path) -> None:
    (short_folder / "folder").mkdir(0o700)
    (short_folder / "link").symlink_to(short_folder / "folder")
    (short_folder / "file").touch(0o600)
    with pytest.raises(NotPossibleHere, match=refusal):
        socket_dir.check_dir(short_folder / name)


@pytest.mark.parametrize(
    ("own", "owner", "is_refused"),
    [(0, None, False), (1, None, True), (1, 0, False), (0, 1, True)],
)
def test_a_folder_belongs_to_this_user_or_to_the_user_who_is_meant(
    own: int, owner: int | None, is_refused: bool, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`own` and `owner` are offsets from the uid that owns the folder."""
    uid = 61001
    info = os.stat_result((stat.S_IFDIR | 0o700, 0, 0, 1, uid, 0, 0, 0, 0, 0))
    monkeypatch.setattr(os, "lstat", lambda _: info)
    monkeypatch.setattr(os, "geteuid", lambda: uid + own)
    meant = None if owner is None else uid + owner
    if is_refused:
        with pytest.raises(NotPossibleHere, match="belongs to uid 61001"):
            socket_dir.check_dir(short_folder, meant)
    else:
        socket_dir.check_dir(short_folder, meant)


def test_a_folder_of_root_is_trusted(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = os.stat_result((stat.S_IFDIR | 0o700, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    monkeypatch.setattr(os, "lstat", lambda _: info)
    monkeypatch.setattr(os, "geteuid", lambda: 61001)
    socket_dir.check_dir(short_folder)


def test_missing_folders_are_made_for_this_user_alone(short_folder: Path) -> None:
    folder = short_folder / "a" / "b"
    socket_dir.make_dir(folder)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)] == [0o700, 0o700]
    socket_dir.make_dir(folder)


def test_a_folder_below_a_file_cannot_be_made(short_folder: Path) -> None:
    (short_folder / "file").touch()
    with pytest.raises(NotPossibleHere, match="cannot be created: Not a directory; set LLMTOP_DIR"):
        socket_dir.make_dir(short_folder / "file" / "a" / "b")


@pytest.mark.parametrize(
    ("granted", "is_refused"),
    [
        (os.R_OK, True),
        (os.R_OK | os.X_OK, True),
        (os.R_OK | os.W_OK, True),
        (os.R_OK | os.W_OK | os.X_OK, False),
    ],
)
def test_a_missing_folder_needs_one_above_it_that_can_be_written_and_entered(
    granted: int, is_refused: bool, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda _, asked: not asked & ~granted)
    folder = short_folder / "a" / "b"
    if is_refused:
        with pytest.raises(NotPossibleHere, match=f"{folder} cannot be created in {short_folder}; set LLMTOP_DIR"):
            socket_dir.check_socket_support(folder)
    else:
        socket_dir.check_socket_support(folder)
    assert not folder.parent.exists()


def test_a_program_is_no_folder_above_a_missing_one(short_folder: Path) -> None:
    program = short_folder / "program"
    program.touch(0o700)
    with pytest.raises(NotPossibleHere, match=f"cannot be created in {program}"):
        socket_dir.check_socket_support(program / "a")


def test_a_missing_folder_that_is_too_long_is_refused(short_folder: Path) -> None:
    with pytest.raises(NotPossibleHere, match="the limit for the folder of a socket is 85"):
        socket_dir.check_socket_support(short_folder / ("x" * 86))


def test_a_folder_with_an_unsafe_mode_has_no_probe(short_folder: Path) -> None:
    short_folder.chmod(0o777)
    with pytest.raises(NotPossibleHere, match="is writable by others"):
        socket_dir.check_socket_support(short_folder)
    short_folder.chmod(0o700)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError(errno.EACCES, "Permission denied"), "Permission denied"), (OSError("odd"), "odd")],
)
def test_the_reason_why_no_socket_can_be_made_is_named(error: OSError, reason: str) -> None:
    sentence = socket_dir.no_socket_message(Path("/a"), error)
    assert sentence.startswith(f"no socket can be made in /a: {reason}; set LLMTOP_DIR")
