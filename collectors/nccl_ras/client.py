"""One question to NCCL's RAS: how many collectives each rank of each communicator has called.

Every process that uses NCCL 2.24 or later takes part in a network of its job; one of each node listens on
localhost:28028 ($NCCL_RAS_ADDR). Lines of text go there, JSON comes back (since 2.28; text before).
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
"""

from __future__ import annotations

import socket
import time
from collections.abc import Collection

import msgspec

from collectors.base.listener import is_trusted, listeners, name_uids, untrusted_uids
from llmtop.errors import NotPossibleHere

DEFAULT = ("localhost", 28028)
PROTOCOL = 2
PATIENCE_SECONDS = 5
"""How long NCCL itself waits for processes that do not answer it."""
_LARGEST = 256 << 20
_CHUNK = 1 << 18


class RasRank(msgspec.Struct, frozen=True):
    """One rank of a communicator, as its own process reports it."""

    rank: int
    host: str = ""
    pid: int = 0
    collective_counts: dict[str, int] = {}
    """Number of calls of the process, by operation ("AllReduce")."""


class MissingRank(msgspec.Struct, frozen=True):
    """A rank whose process did not answer."""

    rank: int
    host: str = ""
    pid: int = 0


class RasCommunicator(msgspec.Struct, frozen=True):
    """One communicator of the job."""

    hash: str = ""
    secondary_hash: str = ""
    size: int = 0
    ranks: list[RasRank] = []
    missing_ranks: list[MissingRank] = []


class RasAnswer(msgspec.Struct, frozen=True):
    """Reply of NCCL RAS."""

    communicators: list[RasCommunicator] = []


_decoder = msgspec.json.Decoder(RasAnswer)


def ask(
    address: tuple[str, int] = DEFAULT, seconds: float = 2.0 * PATIENCE_SECONDS, owners: Collection[int] = ()
) -> RasAnswer:
    """Query the process that listens there.

    Args:
        address: host and port, on this machine.
        seconds: how long all of it may take.
        owners: uids of the processes that do not go on. NCCL listens as one of them: an answer of another user's
            process is not read, but for root's and llmtop's own.

    Raises:
        NotPossibleHere: nobody listens, another user does, it is another program, it is too old for JSON, or it
            takes too long.
    """
    where = f"NCCL RAS at {address[0]}:{address[1]}"
    until = time.monotonic() + seconds
    try:
        with socket.create_connection(address, timeout=seconds) as connection:
            connection.settimeout(max(0.1, until - time.monotonic()))
            found = listeners(*connection.getpeername()[:2])
            if not is_trusted(found, owners):
                raise NotPossibleHere(
                    f"{where} is ignored: {name_uids(untrusted_uids(found, owners))}, and only root and the "
                    "owners of the job are trusted"
                )
            lines = connection.makefile("rb")
            for command in (f"CLIENT PROTOCOL {PROTOCOL}", "SET FORMAT json", f"TIMEOUT {PATIENCE_SECONDS}"):
                connection.sendall(f"{command}\n".encode())
                said = lines.readline(200)
                if not said.startswith((b"SERVER PROTOCOL ", b"OK")):
                    raise NotPossibleHere(f"{where} does not support {command.lower()!r}: {_reply_text(said)}")
            connection.sendall(b"VERBOSE STATUS\n")
            body = bytearray()
            while not body.endswith(b"\n}\n"):
                connection.settimeout(max(0.1, until - time.monotonic()))
                data = lines.read1(_CHUNK)
                body += data
                if not data or len(body) > _LARGEST or time.monotonic() > until:
                    break
        return _decoder.decode(bytes(body))
    except OSError as error:
        raise NotPossibleHere(
            f"{where} does not reply; hung collectives of jobs without llmtop stay unknown: "
            f"{error.strerror or error}"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotPossibleHere(f"the reply of {where} cannot be read: {error}") from None


def _reply_text(line: bytes) -> str:
    return line.decode("ascii", "replace").strip() or "disconnected"
