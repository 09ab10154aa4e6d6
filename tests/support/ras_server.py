"""A stand-in for the port at which NCCL's RAS answers: the same lines, the same JSON, for a job of any size."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def rank(number: int, pid: int, host: str = "10.0.0.1", **counts: int) -> dict[str, Any]:
    """A rank that answered, as NCCL writes it; operations that are not named were called never."""
    return {
        "rank": number,
        "host": host,
        "pid": pid,
        "cuda_dev": number % 8,
        "nvml_dev": number % 8,
        "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
        },
        "collective_counts": {operation: counts.get(operation, 0) for operation in OPERATIONS},
    }


def missing(number: int, pid: int, host: str = "10.0.0.1", *, dead: bool = False) -> dict[str, Any]:
    """A rank that did not answer."""
    place = {"rank": number, "host": host, "pid": pid, "cuda_dev": number % 8, "nvml_dev": number % 8}
    return {**place, "status": {"unresponsive": not dead, "considered_dead": dead}}


def communicator(
    *ranks: dict[str, Any], gone: tuple[dict[str, Any], ...] = (), name: str = "0x1f"
) -> dict[str, Any]:
    """A communicator of these."""
    return {
        "hash": name,
        "secondary_hash": "0x2:0x3",
        "size": len(ranks) + len(gone),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(gone),
        "ranks": list(ranks),
        "missing_ranks": list(gone),
    }


class RasServer:
    """Answers on a port of its own until it is closed. `communicators` is what it tells, and may be changed."""

    def __init__(self, *communicators: dict[str, Any], json_known: bool = True) -> None:
        self.communicators = list(communicators)
        self.asked = 0
        self._json_known = json_known
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._socket.getsockname()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Refuse from now on."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as lines:
            for line in lines:
                said = line.decode().strip().lower()
                if said.startswith("client protocol"):
                    lines.write(b"SERVER PROTOCOL 2\n")
                elif said == "set format json" and not self._json_known:
                    lines.write(b"ERROR: Unknown command\n")
                elif said == "verbose status":
                    self.asked += 1
                    lines.write(self._status())
                else:
                    lines.write(b"OK\n")
                lines.flush()

    def _status(self) -> bytes:
        told = {
            "nccl_version": "2.28.9",
            "cuda_runtime_version": 13000,
            "cuda_driver_version": 13000,
            "timestamp": "2026-11-22 08:00:00",
            "communicators_count": len(self.communicators),
            "communicators": self.communicators,
            "ras": {"collection_time_sec": 0.003, "timeouts_count": 0},
        }
        return json.dumps(told, indent=2).encode() + b"\n"
