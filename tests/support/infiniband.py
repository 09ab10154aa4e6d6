"""A folder that stands for /sys/class/infiniband, as mlx5 fills it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

HEALTHY = {
    "port_rcv_data": 1000,
    "port_xmit_data": 500,
    "symbol_error": 0,
    "link_error_recovery": 0,
    "link_downed": 0,
    "port_rcv_errors": 0,
}
HARDWARE = {"out_of_sequence": 7, "local_ack_timeout_err": 0, "packet_seq_err": 0}


class Adapter:
    """One port; `set` changes its files."""

    def __init__(self, root: Path, device: str = "mlx5_0", port: int = 1, *, layer: str = "InfiniBand") -> None:
        self._folder = root / device / "ports" / str(port)
        (self._folder / "counters").mkdir(parents=True)
        (self._folder / "hw_counters").mkdir()
        (self._folder / "link_layer").write_text(f"{layer}\n")
        self.describe(state="4: ACTIVE", rate="400 Gb/sec (4X NDR)")
        self.set("counters", HEALTHY)
        self.set("hw_counters", HARDWARE)

    def describe(self, **files: str) -> None:
        """Write files of the port itself: state, rate."""
        for name, text in files.items():
            (self._folder / name).write_text(f"{text}\n")

    def set(self, kind: str, counts: Mapping[str, int | str]) -> None:
        """Write counters of `counters` or `hw_counters`."""
        for name, count in counts.items():
            (self._folder / kind / name).write_text(f"{count}\n")
