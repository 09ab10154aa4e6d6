"""One kernel as ncu measured it: its counters by ncu's own names, and the few that are made of several."""

from __future__ import annotations

import re

import msgspec

SECTOR_BYTES = 32.0
"""Bytes that an L1 or L2 cache moves at once."""
_STALLED = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
_GLOBAL = "pipe_lsu_mem_global_op_"
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared"
_LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}


class KernelProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one launch of a kernel."""

    name: str
    """The function's, without template arguments."""
    demangled: str = ""
    """Name with all parameters, as ncu writes it."""
    gpu: str = ""
    numbers: dict[str, float]
    """Values by ncu's names, in its base units: ns, bytes, percent."""

    def number(self, *names: str) -> float | None:
        """Return the first of these counters that was measured; None where none was."""
        return next((self.numbers[name] for name in names if name in self.numbers), None)

    @property
    def seconds(self) -> float | None:
        """How long it ran under ncu, which empties the caches before."""
        took = self.number("gpu__time_duration.sum")
        return None if took is None else took / 1e9

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks in x, y, z; zeros where unknown."""
        return self._three("launch__grid_dim_")

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads in x, y, z; zeros where unknown."""
        return self._three("launch__block_dim_")

    def _three(self, stem: str) -> tuple[int, int, int]:
        x, y, z = (int(self.number(stem + axis) or 0) for axis in "xyz")
        return x, y, z

    @property
    def waves(self) -> float | None:
        """How often the grid fills the GPU: blocks over the blocks that fit at once."""
        return self.number("launch__waves_per_multiprocessor")

    @property
    def sm_idle_pct(self) -> float | None:
        """Return the share of the kernel's time in which the mean SM had no block."""
        active = self.number("sm__cycles_active.avg")
        elapsed = self.number("sm__cycles_elapsed.max", "gpc__cycles_elapsed.max")
        return None if active is None or not elapsed else max(100.0 * (1 - active / elapsed), 0.0)

    @property
    def l1_pct(self) -> float | None:
        """Return the share of the kernel's time in which L1 and shared memory were busy.

        Older versions of ncu and its basic set count it while the SM has a block only; the time without one is
        set off.
        """
        elapsed = self.number("l1tex__throughput.avg.pct_of_peak_sustained_elapsed")
        active = self.number("l1tex__throughput.avg.pct_of_peak_sustained_active")
        if elapsed is not None or active is None:
            return elapsed
        return active * (1.0 - (self.sm_idle_pct or 0.0) / 100.0)

    @property
    def tensor_pct(self) -> float | None:
        """Return the share of the kernel's time in which the tensor pipe was active."""
        return self.number(
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
            "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
            "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed",
            "sm__inst_executed_pipe_tensor.sum.pct_of_peak_sustained_active",
        )

    @property
    def occupancy_limits(self) -> tuple[str, ...]:
        """Return the resources that allow the fewest blocks per SM: several if they tie."""
        known = {words: value for words, name in _LIMITS.items() if (value := self.number(name)) is not None}
        return tuple(words for words, value in known.items() if value == min(known.values()))

    @property
    def stalls(self) -> dict[str, float]:
        """Cycles that a warp waits between two instructions, by reason, the longest first."""
        found = {
            match[1]: value
            for name, value in self.numbers.items()
            if (match := _STALLED.fullmatch(name)) is not None
        }
        found.pop("selected", None)  # in that cycle it issued
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def cycles_between(self) -> float | None:
        """Cycles from one instruction of a warp to its next."""
        return self.number("smsp__average_warp_latency_per_inst_issued.ratio")

    def stall_pct(self, *reasons: str) -> float:
        """These reasons' part of the cycles between two instructions; 0 where not measured."""
        total = self.cycles_between
        return 100.0 * sum(self.stalls.get(reason, 0.0) for reason in reasons) / total if total else 0.0

    def conflicts(self, operation: str = "") -> float | None:
        """Wavefronts of shared memory that are there for bank conflicts alone; arguments as of `conflicts_pct`."""
        return self.number(f"{_CONFLICTS}_op_{operation}.sum" if operation else f"{_CONFLICTS}.sum")

    def conflicts_pct(self, operation: str = "") -> float | None:
        """Wavefronts of shared memory that are there for bank conflicts alone; None where none was moved.

        Args:
            operation: "ld" or "st"; empty: all.
        """
        end = f"_op_{operation}.sum" if operation else ".sum"
        extra, all_of = self.conflicts(operation), self.number(_WAVEFRONTS + end)
        return 100.0 * extra / all_of if extra is not None and all_of else None

    @property
    def shared_pipe_pct(self) -> float | None:
        """How busy what moves shared memory's data was."""
        return self.number(f"{_WAVEFRONTS}.sum.pct_of_peak_sustained_elapsed")

    def sectors(self, operation: str) -> float:
        """Sectors that global loads ("ld") or stores ("st") asked of L1; 0 where not measured."""
        return self.number(f"l1tex__t_sectors_{_GLOBAL}{operation}.sum") or 0.0

    def sectors_a_request(self, operation: str) -> float | None:
        """Sectors for each instruction of a warp: 4 for 32 neighbouring floats; None where there was none."""
        requests = self.number(f"l1tex__t_requests_{_GLOBAL}{operation}.sum")
        return self.sectors(operation) / requests if requests else None

    def bytes_a_sector(self, operation: str) -> float | None:
        """Return how many of a sector's 32 bytes threads asked for; None where nothing was loaded or stored so.

        Older versions of ncu write it in percent of the sector.
        """
        stem = f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{operation}"
        ratio, pct = self.number(f"{stem}.ratio"), self.number(f"{stem}.pct")
        used = ratio if ratio is not None or pct is None else pct / 100.0 * SECTOR_BYTES
        return used if used and self.sectors(operation) else None

    @property
    def asked_bytes(self) -> float | None:
        """Return the bytes that threads requested from global memory; None unless each operation that moved any
        was counted."""
        total = 0.0
        for operation in ("ld", "st"):
            used = self.bytes_a_sector(operation)
            if used is None and self.sectors(operation):
                return None
            total += self.sectors(operation) * min(used or 0.0, SECTOR_BYTES)
        return total or None

    @property
    def wasted_pct(self) -> float | None:
        """Return the bytes that no thread requested, as a share of the bytes that global loads and stores moved.

        Where a warp reads one and the same value, as a scale, one sector serves it: that is not counted as waste.
        """
        moved = wasted = 0.0
        for operation in ("ld", "st"):
            used, each = self.bytes_a_sector(operation), self.sectors_a_request(operation)
            moved += self.sectors(operation)
            if used is not None and each is not None and round(each) >= _SPREAD_SECTORS:
                wasted += self.sectors(operation) * max(1 - used / SECTOR_BYTES, 0.0)
        return 100.0 * wasted / moved if moved else None


_SPREAD_SECTORS = 8.0
"""A warp that reads every other float touches so many."""
