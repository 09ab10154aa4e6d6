"""Values that a request to several nodes exchanges through the store of its own job.

All of it is below one prefix, which each start of the job has of its own. `Keys` names the values; each is JSON.

    nodes            number of listening nodes; node/<i> describes one (`NodeCard`), from 1 on
    ask/<n>          the n-th request (`StoreRequest`), from 1 on; "{}" once it is over
    beat/<n>         heartbeat of the requester: a number that grows; END: it is over, or cancelled
    told/<n>/<i>     state of node i (`NodeStatus`); the name is part of the protocol

Any process that reaches the store can write there, as into the job itself. So no path of a request is trusted: see
`StoreRequest.token`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from llmtop.model.decoding import decode_checked
from llmtop.protocol.wire import SampledFrame

END = b"end"
SHOW_STACKS = "stacks"
"""`StoreRequest.engine` of a request for the stacks of the main threads, at once and without a file."""
POLL_SECONDS = 1.0
"""How often either side looks into the store."""
LOST_SECONDS = 15.0
"""Time without a heartbeat after which the other side counts as gone."""
STATUS_INTERVAL_SECONDS = 3.0
"""Longest interval between heartbeats of a node at work on a request."""

T = TypeVar("T")


class NodeCard(msgspec.Struct, kw_only=True):
    """A node that listens for requests."""

    names: list[str]
    """Its names: as the system has it, and as Slurm does where that differs."""
    rank: int
    """Rank of the process that listens for it."""
    local_world_size: int | None = None
    """How many ranks there are on it."""
    version: str = ""


class StoreRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Begin to record when a step begins; or show the stacks (`SHOW_STACKS`)."""

    id: str
    at_step: int
    """Step by the script's own count."""
    steps: int
    """To be recorded."""
    engine: str
    options: dict[str, bool] = {}
    memory_bytes: int = 0
    """Limit, as in `wire.CaptureRequest.memory_bytes`."""
    ranks: list[int] | None = None
    """Which; None: all of the nodes that are meant."""
    node: str | None = None
    """The one node that is meant; None: all."""
    folder: str = ""
    """Folder of the capture, on the node that requested it. A folder of that name is created where there is
    none."""
    file: str = ""
    """File of one rank, within the folder; {rank} stands for the rank."""
    token: str = ""
    """Content of the file `TOKEN` in that folder. A node that reads the same content shares the folder; another
    one writes into its training's working directory."""


TOKEN = ".asked"


class RankStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How one rank is with it."""

    rank: int
    pid: int = 0
    """Pid on its node."""
    state: str = "asked"
    """State as in `wire.CaptureState.state`; "asked" until it has answered."""
    detail: str = ""
    path: str = ""
    first_step: int | None = None
    last_step: int | None = None
    seconds: float | None = None
    stopped_early: str = ""
    """Both as `wire.CaptureState` has them."""
    stack: list[SampledFrame] = []
    """Stack of the main thread, innermost first, if `SHOW_STACKS` requested it."""


class NodeStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How the ranks of one node are with it."""

    host: str
    beat: int = 0
    """Grows for as long as the node is there."""
    shared: bool = False
    """True if the folder is the asker's own."""
    ranks: list[RankStatus] = []
    refused: str = ""
    """Why the node does nothing at all."""


class Keys:
    """The names of the values below one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.nodes = f"{prefix}/nodes"

    def node(self, number: int) -> str:
        """Key of a `NodeCard`."""
        return f"{self._prefix}/node/{number}"

    def ask(self, number: int) -> str:
        """Key of a `StoreRequest`."""
        return f"{self._prefix}/ask/{number}"

    def beat(self, number: int) -> str:
        """Key of the requester's heartbeat."""
        return f"{self._prefix}/beat/{number}"

    def status(self, number: int, node: int) -> str:
        """Key of a `NodeStatus`."""
        return f"{self._prefix}/told/{number}/{node}"


def encode(message: NodeCard | StoreRequest | NodeStatus) -> bytes:
    """Return the bytes of the message."""
    return msgspec.json.encode(message)


def decode(kind: type[T], body: bytes) -> T | None:
    """Return a value of that kind; None for what is none."""
    try:
        return decode_checked(msgspec.json.Decoder(kind), body)
    except msgspec.DecodeError:
        return None
