"""Queries to tpu-info and, by gRPC on this machine, to the libtpu of the process that uses the TPUs.

tpu-info's own functions for figures wait for ever; so its messages are sent with a limit in time, over one channel
a port. Its functions for devices read files of the kernel alone.
"""

from __future__ import annotations

import os
from contextlib import suppress

from llmtop.errors import NotPossibleHere

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

ANSWER_SECONDS = 1.5
"""How long libtpu may take for one figure."""
VARIABLE = "TPU_RUNTIME_METRICS_PORTS"
"""Environment variable with the ports of libtpu, separated by commas, one per process."""
USUAL_PORT = 8431
MOST_PORTS = 16


class FigureRefused(Exception):
    """A figure that is not to be had, and why, in a few words."""

    def __init__(
        self, why: str, *, absent: bool = False, nobody: bool = False, late: bool = False, ignored: bool = False
    ) -> None:
        """Store the reason.

        Args:
            why: one clause for a note on the screen.
            absent: this version of libtpu has no such metric; no note is shown.
            nobody: no process listens on the port, so no program uses the TPUs.
            late: no reply within the timeout.
            ignored: another user listens.
        """
        super().__init__(why)
        self.absent, self.nobody, self.late, self.ignored = absent, nobody, late, ignored


class TpuInfo:
    """The package tpu-info; importing it loads gRPC."""

    def __init__(self) -> None:
        """Load it.

        Raises:
            Exception: it is not installed, or something that it needs does not fit.
        """
        import grpc
        from tpu_info import device
        from tpu_info.proto import tpu_metric_service_pb2, tpu_metric_service_pb2_grpc

        self._grpc, self._device = grpc, device
        self._messages, self._services = tpu_metric_service_pb2, tpu_metric_service_pb2_grpc
        self._stubs: dict[int, Any] = {}
        self._owners: frozenset[int] = frozenset()
        """Uids of the processes that have chips open."""

    def chips(self) -> tuple[str, int, int]:
        """Return the name of the chips, their number, and the number of devices of each."""
        kind, count = self._device.get_local_chips()
        return ("", 0, 1) if kind is None else (f"TPU {kind.value.name}", count, kind.value.devices_per_chip)

    def owners(self) -> dict[int, int]:
        """Return the pid that has each chip open, by chip number, as far as permissions allow."""
        try:
            by_path = self._device.get_chip_owners()
        except Exception:  # noqa: BLE001  it reads other people's files, and raises for what it does not know
            return {}
        kind, count = self._device.get_local_chips()
        if kind is None:
            return {}
        paths = [self._device.chip_path(kind, number) for number in range(count)]
        if paths and paths[0].startswith("/dev/vfio/"):  # numbered by their groups, which need not begin at 0
            paths = [core.vfio_path for chip in self._device.get_chips() for core in list(chip.cores.values())[:1]]
        found = {number: by_path[path] for number, path in enumerate(paths) if path in by_path}
        from collectors.base.listener import uids_of  # it loads typing, as gRPC has done

        self._owners = uids_of(found.values())
        return found

    def figures(self, port: int, metric: str) -> dict[int, float]:
        """Return a figure of each device that the process at that port has, by the device's id.

        Raises:
            FigureRefused: libtpu does not report it.
        """
        check_listener(port, self._owners)
        try:
            asked = self._messages.MetricRequest(metric_name=metric)
            answer = self._stub(port).GetRuntimeMetric(asked, timeout=ANSWER_SECONDS)
        except self._grpc.RpcError as error:
            raise _refusal(error.code().name) from None
        found = {}
        for one in answer.metric.metrics:
            gauge = one.gauge
            kind = next((name for name in ("as_int", "as_double") if gauge.HasField(name)), None)
            if kind is not None:
                found[int(one.attribute.value.int_attr)] = float(getattr(gauge, kind))
        return found

    def _stub(self, port: int) -> Any:
        if port not in self._stubs:
            credentials = self._grpc.local_channel_credentials()
            channel = self._grpc.secure_channel(f"localhost:{port}", credentials)
            self._stubs[port] = self._services.RuntimeMetricServiceStub(channel)
        return self._stubs[port]


def check_listener(port: int, owners: Collection[int]) -> None:
    """Refuse a port of this machine on which another user listens than those of the TPUs.

    Args:
        port: of TCP. One that is named in llmtop's own environment is trusted.
        owners: uids of the processes that have chips open.

    Raises:
        FigureRefused: another user listens there.
    """
    # It loads typing, as gRPC has done.
    from collectors.base.listener import is_trusted, listeners, name_uids, untrusted_uids

    if port in _numbers(os.environ.get(VARIABLE, "")):
        return
    found = listeners("127.0.0.1", port) | listeners("::1", port)
    if found and not is_trusted(found, owners):
        users = name_uids(untrusted_uids(found, owners))
        raise FigureRefused(
            f"libtpu's port {port} is ignored: {users}, and only root, llmtop's own user and the users of the "
            f"TPUs are trusted; if it is libtpu, set {VARIABLE}={port}",
            ignored=True,
        )


def _refusal(code: str) -> FigureRefused:
    if code in ("NOT_FOUND", "UNIMPLEMENTED", "INVALID_ARGUMENT"):
        return FigureRefused(f"this libtpu does not have it ({code})", absent=True)
    if code == "UNAVAILABLE":
        return FigureRefused("nothing answers at its port", nobody=True)
    if code == "DEADLINE_EXCEEDED":
        return FigureRefused(f"libtpu has not answered within {ANSWER_SECONDS:g} s", late=True)
    return FigureRefused(f"libtpu refuses with {code}")


def ports(pids: set[int], environ: Callable[[int], dict[str, str]]) -> list[int]:
    """Return the ports to query: of the TPU processes' environment, else of this process's, else the default.

    Args:
        pids: who has chips open.
        environ: the environment of one of them; it raises NotPossibleHere where that may not be read.
    """
    said = [os.environ.get(VARIABLE, "")]
    for pid in sorted(pids):
        with suppress(NotPossibleHere):  # another user's, or gone
            said.append(environ(pid).get(VARIABLE, ""))
    numbers = dict.fromkeys(number for text in said for number in _numbers(text))
    return list(numbers)[:MOST_PORTS] or [USUAL_PORT]


def _numbers(text: str) -> list[int]:
    """Return the ports in the value of `VARIABLE`."""
    words = [word.strip() for word in text.split(",")]
    return [int(word) for word in words if word.isascii() and word.isdigit() and 0 < int(word) < 65536]
