"""The process at the other end of a socket, by the kernel's word."""

from __future__ import annotations

import os
import socket

import pytest

from llmtop.protocol import peer


def test_both_ends_of_a_pair_are_this_process() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer.peer_credentials(ours) == (os.getpid(), os.geteuid())


@pytest.mark.parametrize(("uid", "is_allowed"), [(61001, True), (0, True), (1, False), (61002, False)])
def test_the_same_user_and_root_are_allowed(uid: int, is_allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 61001)
    assert peer.peer_allowed(uid) is is_allowed
