"""The client of torch's store without torch, against both of torch's servers, and against what is none."""

from __future__ import annotations

import errno
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from llmtop.protocol.tcp_store import FIRST_TORCH, StoreError, TcpStore
from tests.support.processes import environment

SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, 1, True, use_libuv=sys.argv[1] == "uv")
store.set("of the job", "its own")
print(store.port, flush=True)
for line in sys.stdin:
    print(store.get(line.strip()).decode(), flush=True)
"""


@contextmanager
def server(kind: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A real server, and its address."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, kind],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield f"127.0.0.1:{int(process.stdout.readline())}", process
        finally:
            process.kill()


@pytest.mark.slow("a server of torch; test_each_request_has_the_bytes_of_torch has its bytes")
@pytest.mark.torch
@pytest.mark.parametrize(
    "kind",
    ["uv", pytest.param("threads", marks=pytest.mark.slow("the other server of torch speaks the same protocol"))],
)
def test_it_says_what_torch_s_own_client_says_and_the_server_prints_nothing(kind: str) -> None:
    with server(kind) as (address, process):
        with TcpStore.open(address) as store:
            assert store.get("/of the job") == b"its own"
            assert store.get("/nobody's") is None
            assert not store.check("/nobody's")
            store.set("/mine", b"\0 \xff" * 40_000)
            assert store.get("/mine") == b"\0 \xff" * 40_000
            assert (store.put("/once", b"first"), store.put("/once", b"second")) == (True, False)
            assert [store.add("/count", by) for by in (0, 2, 1)] == [0, 2, 3]
            store.delete("/mine")
            store.delete("/nobody's")
            assert not store.check("/mine")
            store.set("/plain", b"read by torch")
        TcpStore.open(address).close()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("plain\n")
        process.stdin.flush()
        assert process.stdout.readline() == "read by torch\n"
        process.stdin.close()
        process.wait(240)
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.slow("starts a server of torch's own")
@pytest.mark.torch
def test_a_server_that_is_killed_is_one_error_of_ours() -> None:
    with server("uv") as (address, process):
        with TcpStore.open(address) as store:
            store.set("/mine", b"1")
            process.kill()
            process.wait(100)
            with pytest.raises(
                StoreError, match=r"the connection to the TCPStore failed|the TCPStore has disconnected"
            ):
                _ask_thrice(store)
        with pytest.raises(StoreError, match=r"no TCPStore answers at"):
            TcpStore.open(address)


def _ask_thrice(store: TcpStore) -> None:
    """What is sent first may still be taken."""
    for _ in range(3):
        store.check("/mine")


def _talking(answer: bytes) -> tuple[str, Callable[[], None]]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(60)

    def talk() -> None:
        connection, _ = listener.accept()
        connection.settimeout(60)
        with connection, suppress(OSError):
            connection.sendall(answer)
            while connection.recv(1 << 16):
                pass

    threading.Thread(target=talk, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}", listener.close


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 400\r\n\r\n", "another program than a TCPStore"),
        (b"", "in time"),
        (b"\0" + b"\xff" * 8, "llmtop did not write"),
    ],
)
def test_another_program_at_that_port_is_one_error(answer: bytes, why: str) -> None:
    address, close = _talking(answer)
    began = time.monotonic()
    seconds = 60.0 if answer else 0.5
    with TcpStore.open(address, seconds=seconds) as store, pytest.raises(StoreError, match=why):
        store.get("/key")
    assert time.monotonic() - began < 30
    close()


@pytest.mark.parametrize("address", ["127.0.0.1:x", "no host.invalid:1", "127.0.0.1:99999999", "[::1", ""])
def test_an_address_that_is_none_is_one_error(address: str) -> None:
    with pytest.raises(StoreError):
        TcpStore.open(address, seconds=0.5)


KEY = b"\x04\0\0\0\0\0\0\0/key"
"""A text: its length in 8 bytes, little-endian, before it."""
CHECK, SET, COMPARE_SET, GET, ADD, DELETE = (bytes([number]) for number in (5, 1, 2, 3, 4, 8))
"""`QueryType` of torch/csrc/distributed/c10d/TCPStoreBackend.hpp."""
ONE = struct.pack("<Q", 1)
_CLUSTER = Path(__file__).parents[2] / "docs" / "cluster.md"
Pair = tuple[TcpStore, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(60)
    with TcpStore(ours, 60.0) as store, theirs:
        yield store, theirs


@pytest.mark.parametrize(
    ("call", "answer", "result", "asked"),
    [
        (lambda store: store.check("/key"), b"\0", True, CHECK + ONE + KEY),
        (lambda store: store.check("/key"), b"\1", False, CHECK + ONE + KEY),
        (lambda store: store.get("/key"), b"\1", None, CHECK + ONE + KEY),
        (lambda store: store.get("/key"), b"\0" + ONE + b"x", b"x", CHECK + ONE + KEY + GET + KEY),
        (lambda store: store.get("/key"), b"\0" + b"\0" * 8, b"", CHECK + ONE + KEY + GET + KEY),
        (lambda store: store.set("/key", b"x"), b"", None, SET + KEY + ONE + b"x"),
        (lambda store: store.put("/key", b"x"), ONE + b"x", True, COMPARE_SET + KEY + b"\0" * 8 + ONE + b"x"),
        (lambda store: store.put("/key", b"x"), ONE + b"y", False, COMPARE_SET + KEY + b"\0" * 8 + ONE + b"x"),
        (lambda store: store.add("/key", 2), struct.pack("<q", 5), 5, ADD + KEY + b"\2" + b"\0" * 7),
        (lambda store: store.add("/key", -1), struct.pack("<q", -3), -3, ADD + KEY + b"\xff" * 8),
        (lambda store: store.delete("/key"), ONE, None, DELETE + KEY),
    ],
)
def test_each_request_has_the_bytes_of_torch(
    call: Callable[[TcpStore], object], answer: bytes, result: object, asked: bytes, pair: Pair
) -> None:
    store, theirs = pair
    theirs.sendall(answer)
    assert call(store) == result
    store.set("/end", b"")  # an answer that is left over would be that of this request's follower
    theirs.sendall(b"\1")
    assert store.check("/end") is False
    received = theirs.recv(1 << 16)
    assert received[: len(asked)] == asked
    assert received[len(asked) :].startswith(SET + KEY.replace(b"/key", b"/end") + b"\0" * 8 + CHECK)


def test_the_first_version_of_torch_is_the_documented_one() -> None:
    assert f"(torch before {FIRST_TORCH[0]}.{FIRST_TORCH[1]}, " in _CLUSTER.read_text()


@pytest.mark.parametrize("said", [2, 255])
def test_an_answer_other_than_0_and_1_is_of_another_program(said: int, pair: Pair) -> None:
    store, theirs = pair
    theirs.sendall(bytes([said]))
    with pytest.raises(StoreError, match="another program than a TCPStore"):
        store.check("/key")


def test_a_value_of_one_mebibyte_is_the_longest(pair: Pair) -> None:
    store, theirs = pair
    longest = 1024 * 1024
    answer = threading.Thread(
        target=lambda: theirs.sendall(b"\0" + longest.to_bytes(8, "little") + b"v" * longest), daemon=True
    )
    answer.start()
    assert store.get("/key") == b"v" * longest
    answer.join(60)
    theirs.sendall(b"\0" + (longest + 1).to_bytes(8, "little"))
    with pytest.raises(StoreError, match="a value of 1048577 bytes, which llmtop did not write"):
        store.get("/key")


def test_a_value_that_fills_the_socket_is_sent_whole(pair: Pair) -> None:
    store, theirs = pair
    value = bytes(range(256)) * 4096
    size = len(SET + KEY) + 8 + len(value)
    received = bytearray()

    def take() -> None:
        while len(received) < size:
            received.extend(theirs.recv(1 << 16))

    taking = threading.Thread(target=take, daemon=True)
    taking.start()
    store.set("/key", value)
    taking.join(60)
    assert bytes(received) == SET + KEY + len(value).to_bytes(8, "little") + value


def test_a_server_that_hangs_up_is_one_error(pair: Pair) -> None:
    store, theirs = pair
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(StoreError, match="the TCPStore has disconnected"):
        store.check("/key")
    theirs.close()
    with pytest.raises(StoreError, match="the connection to the TCPStore failed: "):
        store.set("/key", b"")


def test_a_server_that_reads_nothing_is_an_error_in_time() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs, TcpStore(ours, 0.0) as store:
        with pytest.raises(StoreError, match="does not answer in time"):
            store.check("/key")
        with pytest.raises(StoreError, match="does not answer in time"):
            store.set("/key", b"x" * (1 << 20))
    assert ours.fileno() == -1


def _made(made: list[socket.socket]) -> Callable[[int, int], socket.socket]:
    def make(family: int, kind: int) -> socket.socket:
        made.append(socket.socket(family, kind))
        return made[-1]

    return make


def test_a_connection_begins_with_the_magic_number_and_sends_at_once() -> None:
    made: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with TcpStore.open(address, 10.0, _made(made)):
            (channel,) = made
            theirs, _ = listener.accept()
            theirs.settimeout(60)
            with theirs:
                assert theirs.recv(100) == b"\0" + bytes.fromhex("cef7853c")  # 0x3C85F7CE, little-endian
            assert (channel.family, channel.type, channel.getblocking()) == (
                socket.AF_INET,
                socket.SOCK_STREAM,
                False,
            )
            assert channel.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert channel.fileno() == -1


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_each_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        places = [("127.0.0.1", _closed_port()), listener.getsockname()[:2]]
        asked: list[tuple[object, ...]] = []

        def addresses(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
            asked.append((host, port))
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in places]

        monkeypatch.setattr(socket, "getaddrinfo", addresses)
        TcpStore.open("[fe80::1]:29500", 10.0, _made(made)).close()
        assert asked == [("fe80::1", 29500)]
        assert [channel.fileno() for channel in made] == [-1, -1]
        assert listener.accept()
        places[1] = places[0]
        with pytest.raises(StoreError, match=r"no TCPStore answers at node:1: .*ECONNREFUSED"):
            TcpStore.open("node:1", 10.0, _made(made))
        assert [channel.fileno() for channel in made] == [-1] * 4
        places.clear()
        with pytest.raises(StoreError, match="the host of node:1 is unknown"):
            TcpStore.open("node:1", 10.0, _made(made))


class _Connecting:
    """A socket whose connection takes longer than the call, and ends with an error number."""

    def __init__(self, ends: int) -> None:
        self._ends = ends
        self._ready, other = socket.socketpair()
        other.close()
        self.asked: list[tuple[int, int]] = []

    def setblocking(self, _: bool) -> None:
        pass

    def connect_ex(self, _: object) -> int:
        return errno.EINPROGRESS

    def getsockopt(self, level: int, option: int) -> int:
        self.asked.append((level, option))
        return self._ends

    def setsockopt(self, *_: int) -> None:
        pass

    def send(self, data: bytes) -> int:
        return len(data)

    def fileno(self) -> int:
        return self._ready.fileno()

    def close(self) -> None:
        self._ready.close()


@pytest.mark.parametrize("ends", [0, errno.ECONNREFUSED])
def test_a_connection_that_takes_a_while_is_waited_for(ends: int) -> None:
    channel = _Connecting(ends)
    if ends:
        with pytest.raises(StoreError, match=r"no TCPStore answers at 127\.0\.0\.1:1: .*ECONNREFUSED"):
            TcpStore.open("127.0.0.1:1", 10.0, lambda *_: channel)  # type: ignore[arg-type,return-value]
    else:
        TcpStore.open("127.0.0.1:1", 10.0, lambda *_: channel).close()  # type: ignore[arg-type,return-value]
    assert channel.asked == [(socket.SOL_SOCKET, socket.SO_ERROR)]
    assert channel.fileno() == -1
