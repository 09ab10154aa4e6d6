"""Mutants that no test can notice, each with the proof; `make mutants` passes over them."""

from __future__ import annotations

from typing import Final

EQUIVALENT: Final[dict[str, str]] = {}
"""By `Mutant.key`: why the changed line does the same."""
