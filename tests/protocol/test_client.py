"""The end of a connection that a monitor has: finding sockets, removing stale ones, first messages, refusals."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.protocol import client, wire
from llmtop.protocol.client import Connection, ConnectionClosed, NoReply
from llmtop.version import __version__

ENDED = 4194305
"""No process has it: a pid of Linux is at most 2**22 (proc(5))."""
OTHER_USER = 61001
Pair = tuple[Connection, socket.socket]


def _frame(*fields: tuple[str, object]) -> bytes:
    """Return a frame as `llmtop.protocol.wire` describes it: 4 bytes of length, little-endian, and msgpack."""
    body = msgspec.msgpack.encode(dict(fields))
    return len(body).to_bytes(4, "little") + body


HELLO = _frame(("type", "hello"), ("protocol", 1), ("rank", 5))
STEPS = _frame(("type", "steps"), ("steps", []))
ALIVE = _frame(("type", "alive"), ("ago_ns", 7))


def _paired(host_pid: int) -> Pair:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(10)
    return Connection(ours, Path("1-00000000.sock"), host_pid, 1000), theirs


@pytest.fixture
def pair() -> Iterator[Pair]:
    connection, theirs = _paired(0)
    yield connection, theirs
    connection.close()
    theirs.close()


def _unheard(path: Path) -> None:
    """Leave a socket that no process listens on."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.fspath(path))


@contextmanager
def _listening(path: Path, sent: bytes) -> Iterator[list[bytes]]:
    """Listen as a training does: send the bytes to the first connection, and keep its first frame."""
    received: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen(1)
        listener.settimeout(20)

        def answer() -> None:
            channel, _ = listener.accept()
            channel.settimeout(20)
            with channel, suppress(OSError):  # a monitor that refuses hangs up
                channel.sendall(sent)
                received.append(channel.recv(1 << 16))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield received
        thread.join(20)


def test_sockets_are_found_by_their_names_in_the_order_of_pids(short_folder: Path) -> None:
    for name in (
        "300-00000001.sock", "20-ffffffff.sock", "20-0000000a.sock", "1000-00000000.sock", "20-00000000.new",
        "20-00000000.told", "020-00000000.sock", "20-0000000G.sock", "20-000000000.sock", "x.sock",
    ):  # fmt: skip
        (short_folder / name).touch()
    found = client.discover(short_folder)
    assert [(file.path.name, file.pid) for file in found] == [
        ("20-0000000a.sock", 20),
        ("20-ffffffff.sock", 20),
        ("300-00000001.sock", 300),
        ("1000-00000000.sock", 1000),
    ]
    assert {file.path.parent for file in found} == {short_folder}


def test_a_folder_of_another_user_is_not_searched(short_folder: Path) -> None:
    assert client.discover(short_folder, owner=os.geteuid()) == []
    with pytest.raises(NotPossibleHere, match=f"belongs to uid {os.geteuid()}"):
        client.discover(short_folder, owner=OTHER_USER)
    with pytest.raises(NotPossibleHere, match="no training has attached"):
        client.discover(short_folder / "missing")


@pytest.mark.parametrize(
    ("name", "age_s", "is_removed"),
    [
        (f"{ENDED}-00000000.sock", 0, True),
        (f"{ENDED}-00000000.new", 0, True),
        (f"{ENDED}-try.new", 0, True),
        (f"{ENDED}-00000000.other", 0, False),
        ("{own}-00000000.sock", 0, False),
        ("{own}-00000000.sock", 1, False),
        ("{own}-00000000.sock", 3, True),
        ("{own}-00000000.new", 3, True),
    ],
)
def test_an_unheard_socket_is_stale_if_its_process_ended_or_it_is_older_than_two_seconds(
    name: str, age_s: float, is_removed: bool, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = short_folder / name.format(own=os.getpid())
    _unheard(path)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)  # a busy machine makes it no older
    then = now - age_s
    os.utime(path, (then, then))
    assert client.remove_stale(path) is is_removed
    assert path.exists() is not is_removed


def test_a_heard_socket_stays_whatever_its_pid_and_age(short_folder: Path) -> None:
    path = short_folder / f"{ENDED}-00000000.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen(1)
        os.utime(path, (0, 0))
        assert client.remove_stale(path) is False
        assert path.exists()


def test_a_socket_that_is_gone_is_not_removed(short_folder: Path) -> None:
    assert client.remove_stale(short_folder / f"{ENDED}-00000000.sock") is False


def test_what_ended_processes_left_unfinished_is_removed_and_nothing_else(short_folder: Path) -> None:
    kept, removed = set(), set()
    for number in range(8):
        for pid, names in ((os.getpid(), kept), (ENDED + number, removed)):
            names |= {f"{pid}-{number:08x}.told", f"{pid}-{number:08x}.new"}
        kept |= {f"{ENDED}-{number:08x}.sock", f"notes-{number}.told"}
    for name in kept | removed:
        if name.endswith(".told"):
            (short_folder / name).touch()
        else:
            _unheard(short_folder / name)
    client.remove_unfinished(short_folder)
    assert {path.name for path in short_folder.iterdir()} == kept


def test_nothing_is_removed_from_a_folder_that_others_can_write(short_folder: Path) -> None:
    (short_folder / f"{ENDED}-00000000.told").touch()
    short_folder.chmod(0o777)
    with pytest.raises(NotPossibleHere, match="is writable by others"):
        client.remove_unfinished(short_folder)
    assert [path.name for path in short_folder.iterdir()] == [f"{ENDED}-00000000.told"]


def test_the_first_frame_is_the_greeting_and_the_answer_asks_for_the_history(short_folder: Path) -> None:
    path = short_folder / f"{os.getpid()}-00000000.sock"
    with _listening(path, HELLO + STEPS + ALIVE) as received:
        with Connection.open(path, history=9, timeout_s=20, every_ms=40) as connection:
            assert connection.hello.rank == 5
            assert (connection.host_pid, connection.uid, connection.path) == (os.getpid(), os.geteuid(), path)
            messages = connection.receive(20)
            while len(messages) < 2:
                messages += connection.receive(20)
        assert [type(message) for message in messages] == [wire.Steps, wire.Alive]
        assert connection.fileno() == -1
    (frame,) = received
    assert int.from_bytes(frame[:4], "little") == len(frame) - 4
    assert msgspec.msgpack.decode(frame[4:]) == {
        "type": "subscribe", "protocol": 1, "version": __version__, "history": 9, "every_ms": 40,
    }  # fmt: skip


def test_without_arguments_512_steps_are_asked_for_at_once(short_folder: Path) -> None:
    path = short_folder / f"{os.getpid()}-00000000.sock"
    with _listening(path, HELLO) as received:
        Connection.open(path, timeout_s=20).close()
    asked = msgspec.msgpack.decode(received[0][4:])
    assert (asked["history"], asked["every_ms"]) == (512, 0)


def test_a_program_that_begins_with_another_message_is_no_training(short_folder: Path) -> None:
    path = short_folder / f"{os.getpid()}-00000000.sock"
    with (
        _listening(path, STEPS),
        pytest.raises(UnusableInput, match=r"00000000\.sock is not an attached training"),
    ):
        Connection.open(path, timeout_s=20)


@pytest.mark.parametrize(
    ("peer", "owner", "refusal"),
    [
        ((7, OTHER_USER), None, f"uid {OTHER_USER}: run llmtop as that user"),
        ((7, 0), None, None),
        ((0, 0), None, None),
        ((0, "own"), None, None),
        ((7, "own"), "own", None),
        ((0, "own"), "own", "cannot be seen from here"),
        ((7, OTHER_USER), "own", f"uid {OTHER_USER}: run llmtop as that user"),
    ],
)
def test_only_a_process_of_the_right_user_is_answered(
    peer: tuple[int, int | str],
    owner: str | None,
    refusal: str | None,
    short_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid, uid = peer[0], os.geteuid() if peer[1] == "own" else int(peer[1])
    monkeypatch.setattr(client, "peer_credentials", lambda _: (pid, uid))
    path = short_folder / f"{os.getpid()}-00000000.sock"
    expected = os.geteuid() if owner == "own" else None
    with _listening(path, HELLO):
        if refusal is None:
            with Connection.open(path, timeout_s=20, owner=expected) as connection:
                assert (connection.host_pid, connection.uid) == (pid, uid)
        else:
            with pytest.raises(NotPossibleHere, match=refusal):
                Connection.open(path, timeout_s=20, owner=expected)


def test_only_the_connection_stays_open_where_an_owner_is_meant(short_folder: Path) -> None:
    path = short_folder / f"{os.getpid()}-00000000.sock"
    with _listening(path, HELLO):
        with Connection.open(path, timeout_s=20, owner=os.geteuid()) as connection:
            opened = [Path(os.path.realpath(f"/proc/self/fd/{one}")) for one in os.listdir("/proc/self/fd")]
            assert connection.fileno() > 0
        assert path not in opened
        assert short_folder not in opened


@pytest.mark.parametrize("owner", [None, "own"])
def test_a_socket_that_is_missing_or_unheard_means_that_the_training_has_ended(
    owner: str | None, short_folder: Path
) -> None:
    path = short_folder / f"{ENDED}-00000000.sock"
    expected = os.geteuid() if owner == "own" else None
    with pytest.raises(ConnectionClosed, match=r"has ended: nothing listens at 4194305-00000000\.sock"):
        Connection.open(path, owner=expected)
    _unheard(path)
    with pytest.raises(ConnectionClosed, match=r"has ended: nothing listens at 4194305-00000000\.sock"):
        Connection.open(path, owner=expected)


@pytest.mark.parametrize(
    ("kind", "owner", "refusal"),
    [
        ("link", "own", "is skipped"),
        ("file", "own", "it is not a socket that uid"),
        ("socket", "other", f"it is not a socket that uid {OTHER_USER} created in a folder of its own"),
        ("below a file", "own", "is skipped: Not a directory"),
        ("below a file", None, "cannot connect to .*: Not a directory"),
    ],
)
def test_with_an_owner_only_a_socket_of_that_user_is_connected_to(
    kind: str, owner: str | None, refusal: str, short_folder: Path
) -> None:
    path = short_folder / "1-00000000.sock"
    if kind == "socket":
        _unheard(path)
    elif kind == "link":
        _unheard(short_folder / "2-00000000.sock")
        path.symlink_to(short_folder / "2-00000000.sock")
    else:
        path.touch()
    if kind == "below a file":
        path /= "1-00000000.sock"
    uid = {None: None, "own": os.geteuid(), "other": OTHER_USER}[owner]
    with pytest.raises(NotPossibleHere, match=refusal):
        Connection.open(path, owner=uid)


def test_nothing_in_time_is_no_message_and_a_disconnection_is_an_error(pair: Pair) -> None:
    connection, theirs = pair
    assert connection.receive(0) == []
    assert connection.receive(-1) == []
    theirs.sendall(STEPS)
    assert [type(message) for message in connection.receive(10)] == [wire.Steps]
    theirs.close()
    with pytest.raises(ConnectionClosed, match=r"the training at 1-00000000\.sock disconnected"):
        connection.receive(10)


def test_a_reset_connection_is_unreachable(pair: Pair) -> None:
    connection, theirs = pair
    connection.send(wire.Resume(id="a"))
    theirs.close()  # with unread bytes, which resets the connection (unix(7))
    with pytest.raises(ConnectionClosed, match=r"unreachable: Connection reset by peer|disconnected"):
        connection.receive(10)


def test_a_sent_message_is_one_frame_and_a_closed_peer_an_error(pair: Pair) -> None:
    connection, theirs = pair
    connection.send(wire.Resume(id="a"))
    assert theirs.recv(100) == _frame(("type", "resume"), ("id", "a"))
    theirs.close()
    with pytest.raises(ConnectionClosed, match="reads no message of llmtop"):
        connection.send(wire.Resume(id="a"))


def test_the_messages_before_a_wrong_one_come_first_and_the_error_stays(pair: Pair) -> None:
    connection, theirs = pair
    theirs.sendall(STEPS + ALIVE + _frame(("type", "steps"), ("steps", 7)) + STEPS)
    assert [type(message) for message in connection.receive(10)] == [wire.Steps, wire.Alive]
    for _ in range(2):
        with pytest.raises(UnusableInput, match=r"1-00000000\.sock: the reply is not a message of llmtop"):
            connection.receive(0)


def test_a_refusal_of_the_training_is_an_error_with_its_reason(pair: Pair) -> None:
    connection, theirs = pair
    theirs.sendall(_frame(("type", "refused"), ("reason", "too many monitors")))
    with pytest.raises(UnusableInput, match="refused a request of this llmtop: too many monitors"):
        connection.receive(10)


@pytest.mark.parametrize(
    ("protocol", "version", "error"),
    [
        (2, "9.1", r"uses protocol 2 \(llmtop 9\.1\), this monitor 1: upgrade this llmtop"),
        (2, "", "uses protocol 2, this monitor 1: upgrade this llmtop"),
        (0, "0.1", r"uses protocol 0 \(llmtop 0\.1\), this monitor 1: restart the training"),
    ],
)
def test_another_protocol_is_refused_and_the_older_side_is_named(
    protocol: int, version: str, error: str, pair: Pair
) -> None:
    connection, theirs = pair
    theirs.sendall(_frame(("type", "hello"), ("protocol", protocol), ("version", version)))
    with pytest.raises(UnusableInput, match=error):
        connection.receive(10)


def test_a_newer_protocol_is_named_although_its_greeting_cannot_be_decoded(pair: Pair) -> None:
    connection, theirs = pair
    theirs.sendall(_frame(("type", "hello"), ("protocol", 2), ("pid", "seven")))
    with pytest.raises(UnusableInput, match="uses protocol 2"):
        connection.receive(10)


def test_other_messages_have_no_protocol_to_compare(pair: Pair) -> None:
    connection, theirs = pair
    theirs.sendall(_frame(("type", "alive"), ("protocol", 2)))
    assert [type(message) for message in connection.receive(10)] == [wire.Alive]


def test_a_later_greeting_replaces_the_first_and_is_returned(pair: Pair) -> None:
    connection, theirs = pair
    theirs.sendall(HELLO)
    connection.receive(10)
    assert connection.hello.rank == 5
    theirs.sendall(_frame(("type", "hello"), ("protocol", 1), ("rank", 3)))
    (message,) = connection.receive(10)
    assert message is connection.hello
    assert connection.hello.rank == 3


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("train.py --api-key hunter2 --lr 1", "train.py --api-key *** --lr 1"),
        ("train.py --lr 1", "train.py --lr 1"),
        ("", ""),
        ("train.py --pin 1", "train.py --pin *"),  # no longer than what was sent
    ],
)
def test_a_command_line_is_shown_without_secrets(sent: str, shown: str, pair: Pair) -> None:
    connection, theirs = pair
    theirs.sendall(_frame(("type", "hello"), ("protocol", 1), ("command", sent)))
    connection.receive(10)
    assert connection.hello.command == shown


@pytest.mark.parametrize(("sent", "length"), [("x" * 5, 5), ("", 0)])
def test_the_words_of_a_process_in_sight_replace_its_command_line(sent: str, length: int) -> None:
    own = " ".join(word for word in Path("/proc/self/cmdline").read_text().split("\0") if word)
    connection, theirs = _paired(os.getpid())
    with connection, theirs:
        theirs.sendall(_frame(("type", "hello"), ("protocol", 1), ("command", sent)))
        connection.receive(10)
    assert connection.hello.command == own[:length]


def test_the_descriptor_is_readable_when_a_message_has_come(pair: Pair) -> None:
    connection, theirs = pair
    descriptor = connection.fileno()
    theirs.sendall(STEPS)
    assert os.read(descriptor, 100) == STEPS


def test_a_silent_process_is_named_by_its_pid(short_folder: Path) -> None:
    path = short_folder / f"{os.getpid()}-00000000.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen(1)
        with pytest.raises(NoReply, match=f"process {os.getpid()} does not answer") as raised:
            Connection.open(path, timeout_s=0)
    assert raised.value.host_pid == os.getpid()
