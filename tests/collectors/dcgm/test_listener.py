"""Whose a port of this machine is: with real sockets, of two users where the tests run as root."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import collectors.dcgm.page
from collectors.base.listener import Listener, is_trusted, listeners
from collectors.dcgm.page import DcgmPage
from collectors.exporter.dcgm import DcgmExporter
from llmtop.system import procfs
from tests.support.other_user import listening_as
from tests.support.pages import Serve, page
from tests.support.ports import free_port
from tests.support.processes import wait_for

OTHER = 4141
LINE = b'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0"} 97\n'
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as two users")


@contextmanager
def bound(family: int, address: str, *, only_six: bool = False) -> Iterator[int]:
    with socket.socket(family, socket.SOCK_STREAM) as one:
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_six)
        try:
            one.bind((address, 0))
        except OSError as error:
            pytest.skip(f"{address}: {error}")
        one.listen(1)
        yield one.getsockname()[1]


@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0"),
        (socket.AF_INET6, "::"),
        (socket.AF_INET6, "::ffff:127.0.0.1"),
    ],
)
def test_who_may_accept_a_connection_to_the_loopback_address_is_found(family: int, address: str) -> None:
    with bound(family, address) as port:
        found = listeners("127.0.0.1", port)
        assert [one.uid for one in found] == [os.geteuid()]
        assert is_trusted(found)


def test_another_address_and_another_port_are_not_meant() -> None:
    with bound(socket.AF_INET, "127.0.0.2") as port:
        assert not listeners("127.0.0.1", port)
        assert listeners("127.0.0.2", port)
    assert not listeners("127.0.0.1", free_port())
    assert not is_trusted(())


def test_a_connection_is_no_listener() -> None:
    with (
        bound(socket.AF_INET, "127.0.0.1") as port,
        socket.create_connection(("127.0.0.1", port), timeout=240) as one,
    ):
        assert not listeners("127.0.0.1", one.getsockname()[1])


def row(address: str, state: str, uid: object, inode: int) -> str:
    other = "00000000:0000"
    return (
        f"   0: {address}:24B8 {other} {state} 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1\n"
    )


@pytest.mark.parametrize(
    ("rows", "believed"),
    [
        ([("0100007F", "0A", 0)], True),
        ([("0100007F", "0A", OTHER)], False),
        ([("00000000", "0A", OTHER)], False),
        ([("0100007F", "0A", 0), ("00000000000000000000000000000000", "0A", OTHER)], False),
        ([("0100007F", "0A", 0), ("0000000000000000FFFF00000100007F", "0A", OTHER)], False),
        ([("0100007F", "0A", 0), ("00000000000000000000000001000000", "0A", OTHER)], True),
        ([("0100007F", "0A", 0), ("0100007F", "01", OTHER)], True),
        ([("0100007F", "0A", 65534)], False),
        ([("0100007F", "0A", "x")], False),
        ([], False),
    ],
    ids=["root", "other", "all", "all of IPv6", "mapped", "IPv6 loopback", "connected", "unmapped", "odd", "none"],
)
@pytest.mark.skipif(sys.byteorder != "little", reason="the addresses are as such a machine prints them")
def test_every_socket_that_may_answer_must_be_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[tuple[str, str, object]], believed: bool
) -> None:
    (tmp_path / "self" / "net").mkdir(parents=True)
    monkeypatch.setattr(procfs, "ROOT", str(tmp_path))
    table = tmp_path / "self" / "net" / "tcp"
    table.write_text(HEAD + "".join(row(*words, 7 + number) for number, words in enumerate(rows)) + "rubbish\n")
    assert is_trusted(listeners("127.0.0.1", 9400)) is believed


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> int:
    """The port that stands for 9400."""
    port = free_port()
    monkeypatch.setattr(collectors.dcgm.page, "URL", f"http://127.0.0.1:{port}/metrics")
    return port


def test_this_users_own_listener_is_believed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors.dcgm.page, "URL", serve(page(LINE)))
    asked = DcgmPage()
    assert asked.ask().encode() == LINE
    assert asked.ignored is None


def test_where_nobody_listens_nothing_is_ignored(usual: int) -> None:
    asked = DcgmPage()
    assert (asked.ask(), asked.ignored) == ("", None)


def test_a_listener_that_cannot_be_seen_is_ignored(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container's port is, which packet filter rules forward."""
    url = serve(page(LINE))
    monkeypatch.setattr(collectors.dcgm.page, "URL", url)
    monkeypatch.setattr(collectors.dcgm.page, "listeners", lambda *_: frozenset())
    asked = DcgmPage()
    assert asked.ask() == ""
    assert asked.ignored is not None
    assert "is not visible to this user" in asked.ignored.sentence("")
    assert DcgmPage(url).ask().encode() == LINE, "named, it is believed"


def test_a_listener_that_came_meanwhile_is_not_believed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors.dcgm.page, "URL", serve(page(LINE)))
    seen = iter([frozenset({Listener(1, os.geteuid())}), frozenset({Listener(2, os.geteuid())})])
    monkeypatch.setattr(collectors.dcgm.page, "listeners", lambda *_: next(seen))
    asked = DcgmPage()
    assert (asked.ask(), asked.ignored) == ("", None)


@needs_root
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_another_users_listener_is_ignored_and_told_once_unless_it_is_named(usual: int, address: str) -> None:
    told: list[str] = []
    with listening_as(OTHER, address, usual, LINE):
        dcgm = DcgmExporter(warn=told.append)
        dcgm.start()
        wait_for(lambda: told)
        assert wait_for(lambda: [dcgm.series()] if dcgm.series() is not None else None) == [frozenset()]
        assert dcgm.untrusted_listener is not None
        assert dcgm.untrusted_listener.uids == (OTHER,)
        dcgm.close()
        named = DcgmPage(f"http://127.0.0.1:{usual}/metrics")
        assert named.ask().encode() == LINE
    (sentence,) = told
    assert f"user {OTHER} listens there" in sentence
    assert "pass --dcgm-exporter http://" in sentence


@needs_root
def test_roots_listener_is_believed_by_an_ordinary_user(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors.dcgm.page, "URL", serve(page(LINE)))
    asked = DcgmPage()
    asked.ask()  # what it imports, an ordinary user may not read here
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(OTHER)
            os.write(writing, asked.ask().encode() + repr(asked.ignored).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    assert os.read(reading, 1 << 16) == LINE + b"None"
    os.close(reading)
