"""The one process of a node that reads requests to all nodes of a job from the job's own store.

A thread of its own polls it once per second. Any error ends it for good and silently: the store goes when rank 0
does, and a training that ends so has enough to say. It uses a socket of its own to the store
(`llmtop.protocol.tcp_store`) and not torch's client: a clone of torch's client in a thread leaves a C++ stack
trace in the training's log when the store goes.
"""

from __future__ import annotations

import contextlib
import select
import time
from typing import TYPE_CHECKING

from llmtop.instrument.control.node_request import AskedHere
from llmtop.instrument.guest import descriptors, registry
from llmtop.instrument.guest.descriptors import Channel
from llmtop.instrument.guest.threads import Thread
from llmtop.instrument.identity import launcher_env
from llmtop.protocol import job_store, wire
from llmtop.protocol.job_store import POLL_SECONDS
from llmtop.protocol.tcp_store import TcpStore
from llmtop.version import __version__

if TYPE_CHECKING:
    from llmtop.instrument.identity.run_info import Facts

HEAR_SECONDS = 0.25
"""Poll interval of the ranks that are at a capture."""
MOST_AT_ONCE = 4
_ANSWER_SECONDS = 5.0
_JOIN_SECONDS = 0.5
_MOST_BEFORE = 10_000
"""Requests of before this process was there; a server that confirms everything is no store."""
_listener: StoreListener | None = None


def begin(facts: Facts) -> None:
    """Listen, if this process is the one of its node that does; a second call does nothing.

    Raises:
        RuntimeError: there is no thread to be had.
    """
    global _listener
    if _listener is not None or facts.store is None or facts.local_rank or facts.rank is None:
        return
    if facts.local_rank is None and facts.rank:
        return  # its local rank is unknown
    _listener = StoreListener(wire.JobStore(**facts.store._asdict()), facts.rank)
    _listener.start()


def end_with_process() -> None:
    """The process ends: hang up."""
    if _listener is not None:
        _listener.stop()


def forget_after_fork() -> None:
    """In a forked child: drop the connection, which is the parent's."""
    global _listener
    if _listener is not None:
        _listener.forget()
    _listener = None


class StoreListener:
    """Listens until the store or the process ends."""

    def __init__(self, store: wire.JobStore, rank: int) -> None:
        self._where = store
        self._keys = job_store.Keys(store.prefix)
        self._card = job_store.NodeCard(
            names=launcher_env.node_names(),
            rank=rank,
            local_world_size=launcher_env.local_world_size(),
            version=__version__,
        )
        self._asked: list[AskedHere] = []
        self._channels: list[Channel] = []
        self._stopping = False
        self._knock: Channel | None = None
        self._thread = Thread(self._run, "llmtop-store")

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: there is no thread to be had.
        """
        self._thread.start()

    def stop(self) -> None:
        """End, and wait a moment for that."""
        self._stopping = True
        knock = self._knock
        if knock is None or not knock.is_ours:
            return
        with contextlib.suppress(OSError):
            knock.send(b"!")
        self._thread.join(_JOIN_SECONDS)

    def forget(self) -> None:
        """Close what a forked child has inherited."""
        for one in self._asked:
            one.forget()
        for channel in self._channels:
            channel.close()

    def _run(self) -> None:
        try:
            self._knock, knocked = descriptors.pair()
            self._channels += [self._knock, knocked]
            self._listen(knocked)
        except Exception:  # noqa: BLE001 - see above: whatever it was, the end
            pass
        finally:
            for one in self._asked:
                with contextlib.suppress(Exception):
                    one.end()
            for channel in self._channels:
                channel.close()

    def _make(self, family: int, kind: int) -> Channel:
        channel = Channel(family, kind).remember()
        self._channels.append(channel)
        return channel

    def _listen(self, knocked: Channel) -> None:
        poll = descriptors.Poll()
        poll.register(knocked, select.POLLIN)
        with TcpStore.open(self._where.address, _ANSWER_SECONDS, self._make) as store:
            node = store.add(self._keys.nodes, 1)
            store.set(self._keys.node(node), job_store.encode(self._card))
            number = 1
            while number < _MOST_BEFORE and not self._stopping and store.check(self._keys.ask(number)):
                number += 1  # of before this process was there
            due = 0.0
            while not self._stopping:
                if time.monotonic() >= due:
                    due = time.monotonic() + POLL_SECONDS
                    number = self._poll(store, node, number)
                busy = [one for one in self._asked if one.is_busy]
                poll.poll(HEAR_SECONDS if busy else max(0.0, due - time.monotonic()))
                for one in busy:
                    one.drain()

    def _poll(self, store: TcpStore, node: int, number: int) -> int:
        """Read new requests and write the state of all; returns the number of the next request."""
        asked = store.get(self._keys.ask(number))
        if asked is not None:
            ask = job_store.decode(job_store.StoreRequest, asked)
            if ask is not None:
                self._take(store, node, number, ask)
            number += 1
        for one in self._asked:
            one.write_status(store, self._keys, node)
        self._asked = [one for one in self._asked if not one.over]
        return number

    def _take(self, store: TcpStore, node: int, number: int, ask: job_store.StoreRequest) -> None:
        if len(self._asked) >= MOST_AT_ONCE:
            refused = f"{MOST_AT_ONCE} captures are under way on this node"
            told = job_store.NodeStatus(host=self._card.names[0], refused=refused)
            store.set(self._keys.status(number, node), job_store.encode(told))
            return
        one = AskedHere(number, ask, self._where, self._card.names)
        if not one.over:
            self._asked.append(one)  # before it begins: whatever ends the listener ends what was begun
            one.begin()
            if one.over:
                self._asked.remove(one)


registry.at_fork("store", lambda _recorder: forget_after_fork())
registry.at_end("store", lambda _recorder: end_with_process())
