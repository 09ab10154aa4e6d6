"""The client of torch's store without torch, against both of torch's servers, and against what is none."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from llmtop.protocol.tcp_store import StoreError, TcpStore
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
        process.wait(30)
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
        with pytest.raises(StoreError, match="no TCPStore answers at"):
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
    with TcpStore.open(address, seconds=0.5) as store, pytest.raises(StoreError, match=why):
        store.get("/key")
    assert time.monotonic() - began < 30
    close()


@pytest.mark.parametrize("address", ["127.0.0.1:x", "no host.invalid:1", "127.0.0.1:99999999", "[::1", ""])
def test_an_address_that_is_none_is_one_error(address: str) -> None:
    with pytest.raises(StoreError):
        TcpStore.open(address, seconds=0.5)
