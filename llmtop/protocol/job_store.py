"""What a capture of several nodes writes into the store of its own job, and what each node answers there.

All of it is below one prefix, which each start of the job has of its own. `Keys` names the values; each is JSON.

    nodes            how many nodes have heard; node/<i> is who (`NodeCard`), from 1 on
    ask/<n>          the n-th request (`StoreRequest`), from 1 on; "{}" once it is over
    beat/<n>         who asked lives: a number that grows; END: it is over, or called off
    told/<n>/<i>     how node i is with it (`NodeStatus`)

Whoever reaches the store can write there, as into the job itself. A request still names no path that is believed:
see `Ask.token`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from llmtop.model.decoding import decode_checked

END = b"end"
POLL_SECONDS = 1.0
"""How often either side looks into the store."""
LOST_SECONDS = 15.0
"""Who has not been heard of for so long, on either side, has gone."""
STATUS_INTERVAL_SECONDS = 3.0
"""A node says at least so often that it is there while it is at a request."""

T = TypeVar("T")


class NodeCard(msgspec.Struct, kw_only=True):
    """A node that hears."""

    names: list[str]
    """Its names: as the system has it, and as Slurm does where that differs."""
    rank: int
    """Of the process that hears for it."""
    local_world_size: int | None = None
    """How many ranks there are on it."""
    version: str = ""


class StoreRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Begin to record when a step begins."""

    id: str
    at_step: int
    """By the script's own count."""
    steps: int
    """To be recorded."""
    engine: str
    options: dict[str, bool] = {}
    memory_bytes: int = 0
    """As `wire.CaptureRequest.memory_bytes`."""
    ranks: list[int] | None = None
    """Which; None: all of the nodes that are meant."""
    node: str | None = None
    """The one node that is meant; None: all."""
    folder: str = ""
    """Of the capture, on the node where it was asked for; by its name it is made anew where it is not there."""
    file: str = ""
    """Of one rank, within the folder; {rank} stands for the rank."""
    token: str = ""
    """What the file `TOKEN` in that folder says. A node that reads the same there has the folder too; another one
    writes where its training stands."""


TOKEN = ".asked"


class RankStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How one rank is with it."""

    rank: int
    pid: int = 0
    """On its node."""
    state: str = "asked"
    """As `wire.CaptureState.state`; "asked" until it has answered."""
    detail: str = ""
    path: str = ""
    first_step: int | None = None
    last_step: int | None = None
    seconds: float | None = None
    stopped_early: str = ""
    """Both as `wire.CaptureState` has them."""


class NodeStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How the ranks of one node are with it."""

    host: str
    beat: int = 0
    """Grows for as long as the node is there."""
    shared: bool = False
    """Whether the folder is the asker's own."""
    ranks: list[RankStatus] = []
    refused: str = ""
    """Why the node does nothing at all."""


class Keys:
    """The names of the values below one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.nodes = f"{prefix}/nodes"

    def node(self, number: int) -> str:
        """Of a `NodeCard`."""
        return f"{self._prefix}/node/{number}"

    def ask(self, number: int) -> str:
        """Of an `StoreRequest`."""
        return f"{self._prefix}/ask/{number}"

    def beat(self, number: int) -> str:
        """Of the sign that whoever made that request lives."""
        return f"{self._prefix}/beat/{number}"

    def told(self, number: int, node: int) -> str:
        """Of a `NodeStatus`."""
        return f"{self._prefix}/told/{number}/{node}"


def encode(message: NodeCard | StoreRequest | NodeStatus) -> bytes:
    """As it is written."""
    return msgspec.json.encode(message)


def decode(kind: type[T], body: bytes) -> T | None:
    """A value of that kind; None for what is none."""
    try:
        return decode_checked(msgspec.json.Decoder(kind), body)
    except msgspec.DecodeError:
        return None
