"""Mutants that no test can notice, each with the proof; `make mutants` passes over them."""

from __future__ import annotations

from typing import Final

OVERLAPPING: Final = "llmtop/instrument/record/overlapping.py"
EQUIVALENT: Final[dict[str, str]] = {
    f"{OVERLAPPING}: interval = track.begun - previous if 0 <= previous <= track.begun else -1 [0 -> 1]": (
        "previous is -1 or an instant of perf_counter_ns, which is not 0 in any process"
    ),
}
"""By `Mutant.key`: why the changed line does the same."""
