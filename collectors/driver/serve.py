"""Main loop of the driver process: it samples the GPUs and sends readings until the monitor has gone.

Down the channel come paces, up go readings. The monitor asks for nothing: so one that is stopped (ctrl+z) finds at
most what the channel holds, and a reading itself reports a driver that answers late.
"""

from __future__ import annotations

import json
import os
import select
import time
from contextlib import suppress

from collectors.driver.child import HEARTBEAT_SECONDS, LENGTH, PACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from collectors.amd.source import AmdSource
    from collectors.nvml.source import NvmlSource
    from collectors.tpu.source import TpuSource

_GATHER_SECONDS = 0.005
"""GPUs are sampled at the same instants, so what comes within this time of the first goes in one message."""


def serve(channel: socket.socket, vendor: str) -> None:
    """Poll that vendor's driver until the monitor closes its end; then end the process, hung threads and all."""
    command = channel.recv(PACE.size)
    if len(command) == PACE.size:
        with suppress(BrokenPipeError, ConnectionResetError):
            _send_readings(channel, vendor, *PACE.unpack(command))
    # A thread may be inside a call that never returns. The kernel takes back what the driver's library holds.
    os._exit(0)


def _send_readings(channel: socket.socket, vendor: str, interval: float) -> None:
    fresh_out, fresh_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    source = _source(vendor, interval, lambda: _wake(fresh_in))
    hand_over = getattr(source, "hand_over", lambda: HEARTBEAT_SECONDS)  # NVML's alone shares one thread
    source.start()
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(fresh_out, select.POLLIN)
    sent: object = None
    while True:
        ready = dict(poll.poll(min(HEARTBEAT_SECONDS, hand_over()) * 1000))
        if channel.fileno() in ready:
            command = channel.recv(PACE.size)
            if not command:
                return
            source.set_interval(*PACE.unpack(command))
        if fresh_out in ready:
            if vendor != "NVIDIA":  # whose GPUs are sampled in one thread, which wakes this one at the end
                time.sleep(_GATHER_SECONDS)
            os.read(fresh_out, 1 << 16)
        reading = source.reading_values()
        uses = reading.pop("uses", [])
        message = json.dumps([reading, None if uses == sent else uses]).encode()
        sent = uses
        channel.sendall(LENGTH.pack(len(message)) + message)


def _source(vendor: str, interval: float, on_fresh: Callable[[], None]) -> NvmlSource | AmdSource | TpuSource:
    """Return the source of that vendor; the others' bindings are not imported."""
    if vendor == "Google":
        from collectors.tpu.source import TpuSource

        return TpuSource(interval, on_fresh=on_fresh)
    if vendor == "AMD":
        from collectors.amd.source import AmdSource

        return AmdSource(interval, on_fresh=on_fresh)
    from collectors.nvml.source import NvmlSource

    return NvmlSource(interval, on_fresh=on_fresh)


def _wake(bell: int) -> None:
    with suppress(BlockingIOError):  # it has been rung often enough
        os.write(bell, b"\0")
