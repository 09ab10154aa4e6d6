"""InfiniBand and RoCE ports: what all of a machine carry, which errors are counted, and when a rise is an alert.

The live rule, the fleet rule and the collector use these numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

WINDOW_SECONDS: Final = 600.0
"""Counts are compared with their least in this time: a marginal cable has bursts minutes apart."""
MIN_ERRORS: Final = 10
"""Rise of a counter in the window that raises the alert: the threshold in the example of ibqueryerrors
(infiniband-diags, error_thresholds: SymbolErrorCounter=10, LinkErrorRecoveryCounter=10)."""
MIN_LINK_DOWNED: Final = 1
"""Rise of `link_downed`: a link that goes down fails the collective that uses it."""
LINK_DOWNED: Final = "link_downed"
PORT_COUNTERS: Final = (
    "symbol_error",
    "link_error_recovery",
    LINK_DOWNED,
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
"""Files of `counters`: the port's own, which a healthy link does not raise."""
HW_COUNTERS: Final = (
    "local_ack_timeout_err",
    "packet_seq_err",
    "out_of_sequence",
    "rnr_nak_retry_err",
    "roce_slow_restart",
)
"""Files of `hw_counters` (mlx5): retransmissions and their causes. Congestion, adaptive routing and a slow
receiver raise most of them on healthy links."""
ALERTING: Final = (*PORT_COUNTERS, "local_ack_timeout_err")
"""Counters whose rise is an alert. After a timeout the adapter sends again what was not acknowledged: a packet
or a peer was lost."""


class Link(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One port of an InfiniBand or RoCE adapter, as the kernel describes it."""

    device: str
    """The kernel's name of the adapter: "mlx5_0"."""
    port: int
    layer: str | None = None
    """"InfiniBand" or "Ethernet" (RoCE)."""
    state: str | None = None
    """"ACTIVE", "DOWN", "INIT" or "ARMED"."""
    rate_bytes_per_s: float | None = None
    """Highest rate one way at its present speed."""
    received_bytes: int | None = None
    sent_bytes: int | None = None
    """Since the adapter was started; RDMA, which bypasses the kernel, included."""
    rx_bytes_per_s: float | None = None
    tx_bytes_per_s: float | None = None
    errors: dict[str, int] = {}
    """Counts since the adapter was started, by the kernel's name of the counter: "symbol_error"."""


def threshold(error: str) -> int:
    """Return the rise within `WINDOW_SECONDS` that is an alert, for a counter of `ALERTING`."""
    return MIN_LINK_DOWNED if error == LINK_DOWNED else MIN_ERRORS


def total_rates(links: Iterable[Link]) -> tuple[float | None, float | None]:
    """Return the bytes per second that all ports receive and send; None where no port has such a rate."""
    ports = list(links)
    received = [one.rx_bytes_per_s for one in ports if one.rx_bytes_per_s is not None]
    sent = [one.tx_bytes_per_s for one in ports if one.tx_bytes_per_s is not None]
    return sum(received) if received else None, sum(sent) if sent else None
