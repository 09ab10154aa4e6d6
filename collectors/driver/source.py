"""The GPUs of this machine as the monitor has them: from the process that asks the driver (driver_child.py).

A thread reads from that process, reports why when it ends or stops sending, and starts another.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from contextlib import suppress
from typing import Literal

import msgspec
from msgspec.structs import replace

from collectors.base.interruptible_sleep import InterruptibleSleep
from collectors.base.source import GpuReading, GpuUse
from collectors.driver import child as driver_child
from collectors.driver.child import HEARTBEAT_SECONDS, LENGTH, PACE, Child
from llmtop.model.snapshot import Gpu

RESTART_SECONDS = (1.0, 60.0)
"""How soon after its end the driver is asked again: at first, and at most; the time doubles from end to end."""
STABLE_SECONDS = 60.0
"""A process that has lived for so long was well: the next wait is the first one again."""
SILENT_HEARTBEATS = 3
"""Missing heartbeats after which values are dropped and the reason is reported."""
MAX_SILENT_HEARTBEATS = 30
"""Heartbeats without a word after which the process is ended. A GPU that hangs does not silence it."""
RETENTION_SECONDS = 600.0
"""For this time the note on a crash of the driver's library stays after it answers again."""
MAX_BYTES = 64 << 20
"""Limit of one message: 64 GPUs and 100,000 processes take 12 MiB."""
CLOSE_SECONDS = 0.8
_GARBLED = "the process that asks the driver said what cannot be read"


class DriverSource:
    """A GpuSource that the driver's library cannot take with it when it crashes.

    While the process does not answer, the last known GPUs stay in the reading, without values and with the reason
    as error.
    """

    def __init__(self, interval: float = 1.0, vendor: Literal["NVIDIA", "AMD", "Google"] = "NVIDIA") -> None:
        """Prepare to sample that vendor's GPUs every `interval` seconds; starts nothing yet."""
        self._interval, self._vendor = interval, vendor
        self._child: Child | None = None
        self._wake = InterruptibleSleep()
        self._closing = False
        self._reading = GpuReading()
        self._trouble: str | None = None
        """Why there are no values now; `_again_at` is the time of the next attempt."""
        self._again_at: float | None = None
        self._crashed: tuple[str, float, float] | None = None
        """The last unexpected end: in words, in monotonic seconds, in unix seconds."""
        self._garbled = False
        self._thread = threading.Thread(target=self._run, name="llmtop-driver", daemon=True)

    def start(self) -> None:
        """Start the thread that keeps the driver's process and reads from it."""
        self._thread.start()

    def set_interval(self, seconds: float) -> None:
        """Change the poll interval of the driver process.

        Args:
            seconds: between rounds of cheap values. A driver process started later gets it at its start.
        """
        self._interval = seconds
        child = self._child
        if child is not None:
            self._send_pace(child)

    def latest(self) -> GpuReading:
        """Return the present values; empty, without a note, until the driver has been polled for the first
        time."""
        reading, trouble, again_at, crashed = self._reading, self._trouble, self._again_at, self._crashed
        if trouble is not None:
            if again_at is not None:
                trouble += f"; it is asked again in {max(1, math.ceil(again_at - time.monotonic()))} s"
            rows = tuple(_without_values(gpu, trouble) for gpu in reading.gpus)
            return replace(reading, gpus=rows, uses=(), notes=(trouble,))
        if crashed is not None and time.monotonic() - crashed[1] < RETENTION_SECONDS:
            at = time.strftime("%H:%M:%S", time.localtime(crashed[2]))
            return replace(reading, notes=(*reading.notes, f"{crashed[0]} at {at}, and was started again"))
        return reading

    def close(self) -> None:
        """Stop, and end the process."""
        self._closing = True
        self._wake.set()
        child = self._child
        if child is not None:
            _hang_up(child)
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)

    # ---- the listening thread ----

    def _run(self) -> None:
        wait = RESTART_SECONDS[0]
        while not self._closing:
            born = time.monotonic()
            child = self._start_child()
            if child is not None:
                self._receive(child)
                self._reap(child)
                if time.monotonic() - born >= STABLE_SECONDS:
                    wait = RESTART_SECONDS[0]
            self._again_at = time.monotonic() + wait
            self._wake.wait(wait)
            self._again_at = None
            wait = min(2 * wait, RESTART_SECONDS[1])

    def _start_child(self) -> Child | None:
        try:
            self._child = driver_child.start(self._vendor)
        except (OSError, TypeError, ValueError) as error:  # also an interpreter that does not know where it is
            self._child = None
            why = getattr(error, "strerror", None) or str(error)
            self._trouble = f"no process could be started to ask the driver ({why})"
        return self._child

    def _receive(self, child: Child) -> None:
        """Read until the process ends, or sends nothing for too long."""
        self._send_pace(child)
        # Silence is counted in waits, not by a clock: this process may have been stopped itself.
        child.channel.settimeout(HEARTBEAT_SECONDS)
        silent, received = 0, bytearray()
        while not self._closing and silent < MAX_SILENT_HEARTBEATS:
            try:
                piece = child.channel.recv(1 << 16)
            except TimeoutError:
                silent += 1
                if silent >= SILENT_HEARTBEATS:
                    seconds = round(silent * HEARTBEAT_SECONDS)
                    self._trouble = f"the process that asks the driver has not answered for {seconds} s"
                continue
            except OSError:
                return
            if not piece:
                return
            silent = 0
            received += piece
            try:
                self._consume(received)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                self._garbled = True  # its memory is not what it was: the next one's is
                return

    def _consume(self, received: bytearray) -> None:
        """Take the whole messages at the beginning; an empty reading does not end what trouble there is."""
        while len(received) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(received)[0]
            if end > MAX_BYTES:
                raise msgspec.DecodeError(f"a message of {end} bytes")
            if len(received) < end:
                return
            reading, uses = _DECODER.decode(received[LENGTH.size : end])
            del received[:end]
            if reading.gpus or reading.notes or self._trouble is None:
                self._reading = replace(reading, uses=self._reading.uses if uses is None else uses)
                self._trouble = None

    def _reap(self, child: Child) -> None:
        """See the process to its end, and say why it ended."""
        child.channel.close()
        status = driver_child.reap(child, 0.3)
        if status is None:
            driver_child.kill(child)
            status = driver_child.reap(child, 0.3)
        while status is None and not self._closing:  # a second one would only be stuck beside it
            self._trouble = "the process that asks the driver is stuck inside it and cannot be ended"
            status = driver_child.reap(child, 1.0)
        self._child = None
        if status is not None and not self._closing:
            why = _GARBLED if self._garbled else driver_child.exit_reason(status)
            self._garbled = False
            self._crashed = why, time.monotonic(), time.time()
            self._trouble = why

    def _send_pace(self, child: Child) -> None:
        # The reading thread reports an ended process; the next one gets the pace at its start.
        with suppress(OSError):
            child.channel.send(PACE.pack(self._interval), socket.MSG_DONTWAIT)


_DECODER = msgspec.json.Decoder(tuple[GpuReading, tuple[GpuUse, ...] | None])


def _hang_up(child: Child) -> None:
    with suppress(OSError):  # it was closed meanwhile
        child.channel.shutdown(socket.SHUT_RDWR)


def _without_values(gpu: Gpu, error: str) -> Gpu:
    bare = Gpu(index=gpu.index, uuid=gpu.uuid, name=gpu.name, vendor=gpu.vendor, error=error)
    return replace(bare, mig_parent_uuid=gpu.mig_parent_uuid)
