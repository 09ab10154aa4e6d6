"""Root over all users' trainings: only what is theirs, no link, nothing of them believed, and nobody kept out."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.trainings.all_users import AllUsersSource, user_ids
from collectors.trainings.source import MAX_TRAININGS_PER_USER
from llmtop.errors import NotPossibleHere
from llmtop.protocol import client, wire
from tests.support.other_user import OtherUser, healthy
from tests.support.processes import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who alone may look at others")
ANN, BOB = 61001, 61002


@pytest.fixture
def parent() -> Iterator[Path]:
    """A /tmp of its own: anybody may make a folder there."""
    folder = Path(tempfile.mkdtemp(prefix="lt-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def source(parent: Path) -> Iterator[AllUsersSource]:
    watching = AllUsersSource(parent=parent)
    yield watching
    watching.close()


def ranks_of(source: AllUsersSource, uid: int) -> list[int]:
    """The pids of a user's trainings that are told."""
    return [rank.pid for rank in source.latest().ranks if rank.uid == uid]


def test_each_user_s_trainings_are_told_as_his(parent: Path, source: AllUsersSource) -> None:
    with OtherUser(parent, ANN, healthy()) as ann, OtherUser(parent, BOB, healthy()) as bob:
        source.start()
        wait_for(lambda: (ranks_of(source, ANN), ranks_of(source, BOB)) == ([ann.pid], [bob.pid]))
        assert set(source.pids()) == {ann.pid, bob.pid}, "the kernel's word for it, not theirs"
        assert all(rank.capturable == () for rank in source.latest().ranks), "no engine is asked"


def test_a_user_who_comes_later_is_found(
    parent: Path, source: AllUsersSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.trainings.all_users.DISCOVERY_SECONDS", 0.1)
    source.start()
    wait_for(source.is_settled)
    with OtherUser(parent, BOB, healthy()) as bob:
        wait_for(lambda: ranks_of(source, BOB) == [bob.pid])
        shutil.rmtree(bob.folder)
        wait_for(lambda: not source.latest().ranks, what="him to be forgotten")


def test_only_folders_that_are_their_user_s_count(parent: Path) -> None:
    def folder(name: str, uid: int, mode: int = 0o700) -> Path:
        made = parent / name
        made.mkdir()
        made.chmod(mode)
        os.chown(made, uid, uid)
        return made

    folder(f"llmtop-{ANN}", ANN)
    folder(f"llmtop-{BOB}", ANN)
    folder("llmtop-61003", 61003, 0o770)
    (parent / "llmtop-61004").symlink_to(folder("elsewhere", 61004))
    os.lchown(parent / "llmtop-61004", 61004, 61004)
    (parent / "llmtop-61005").write_text("")
    folder("llmtop-061006", 61006)
    folder("llmtop-../etc".replace("/", "_"), 61007)
    assert user_ids(parent) == {ANN}
    assert user_ids(parent / "missing") == set()


def test_a_link_to_another_s_socket_is_not_followed(parent: Path, source: AllUsersSource) -> None:
    """As root: a user who links to a socket of root's would have root speak to it."""
    asked = []
    precious = parent / "root.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mine, OtherUser(parent, ANN, healthy()) as ann:
        mine.bind(str(precious))
        mine.listen()
        mine.settimeout(0.2)
        link = ann.folder / "4242-aaaaaaaa.sock"
        link.symlink_to(precious)
        os.lchown(link, ANN, ANN)
        os.link(precious, ann.folder / "4243-aaaaaaaa.sock")
        source.start()
        wait_for(lambda: ranks_of(source, ANN) == [ann.pid])
        wait_for(lambda: len(source.latest().notes) >= 2, what="both to be left alone")
        with contextlib.suppress(TimeoutError):
            asked.append(mine.accept())
        assert not asked, "root spoke to it"
        assert link.is_symlink(), "nothing of his is removed"


def test_a_folder_that_becomes_a_link_is_not_entered(parent: Path) -> None:
    with OtherUser(parent, ANN, healthy()) as ann:
        path = next(ann.folder.glob("*.sock"))
        moved = parent / "moved"
        ann.folder.rename(moved)
        ann.folder.symlink_to(moved)
        with pytest.raises(NotPossibleHere, match=r"is skipped: (Not a directory|Too many levels)"):
            client.Connection.open(path, timeout_s=20, owner=ANN)
        with pytest.raises(NotPossibleHere, match="symbolic link"):
            client.discover(ann.folder, ANN)
        ann.folder.unlink()
        moved.rename(ann.folder)
        client.Connection.open(path, timeout_s=20, owner=ANN).close()


def test_a_process_of_somebody_else_behind_his_socket_is_not_spoken_with(parent: Path) -> None:
    """A socket that was passed on, or given away: the file says one uid, the process another."""
    with OtherUser(parent, ANN, healthy()) as ann:
        folder = parent / f"llmtop-{BOB}"
        ann.folder.rename(folder)
        path = next(folder.glob("*.sock"))
        for one in (folder, path):
            os.chown(one, BOB, BOB)
        with pytest.raises(NotPossibleHere, match=f"uid {ANN}"):
            client.Connection.open(path, timeout_s=20, owner=BOB)


def test_what_is_no_socket_is_left_alone(parent: Path, source: AllUsersSource) -> None:
    with OtherUser(parent, ANN, healthy()) as ann:
        for name, make in (
            ("1-00000001.sock", os.mkfifo),
            ("2-00000001.sock", lambda path: Path(path).write_text("x")),
        ):
            make(ann.folder / name)
            os.chown(ann.folder / name, ANN, ANN)
        source.start()
        wait_for(lambda: ranks_of(source, ANN) == [ann.pid])
        wait_for(lambda: len(source.latest().notes) >= 2)


def _flood(connection: socket.socket) -> None:
    frame = wire.encode(wire.Steps(steps=[wire.StepDone(0, 10**18, 10**8, 10**8)] * 500))
    try:
        while True:
            connection.sendall(frame)
    except OSError:
        pass


@pytest.mark.parametrize(
    ("frames", "then", "sockets"),
    [
        (b"", None, 200),
        (struct.pack("<I", 0xFFFFFFFF) + b"x" * 1000, None, 1),
        (struct.pack("<I", 50_000) + b"\x91" * 50_000, None, 1),
        (os.urandom(65536), None, 1),
        (healthy(), _flood, 1),
    ],
    ids=["many that say nothing", "announces 4 GiB", "nested deeply", "noise", "floods"],
)
def test_whatever_one_user_does_the_others_are_told(
    parent: Path, source: AllUsersSource, frames: bytes, then: object, sockets: int
) -> None:
    kwargs = {"then": then} if then is not None else {}
    with (
        OtherUser(parent, ANN, frames, sockets=sockets, **kwargs),  # type: ignore[arg-type]
        OtherUser(parent, BOB, healthy()) as bob,
    ):
        source.start()
        wait_for(lambda: ranks_of(source, BOB) == [bob.pid], 30)
        known = len(source.latest().ranks)
        assert known <= 1 + MAX_TRAININGS_PER_USER
        if sockets > MAX_TRAININGS_PER_USER:
            wait_for(lambda: any(f"uid {ANN} has {sockets} sockets" in note for note in source.latest().notes))


def test_a_user_cannot_claim_another_s_pid(parent: Path, source: AllUsersSource) -> None:
    with OtherUser(parent, ANN, healthy()) as ann:
        source.start()
        wait_for(lambda: ranks_of(source, ANN))
        assert ranks_of(source, ANN) == [ann.pid], "though it says that it is 4242"
