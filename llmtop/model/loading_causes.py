"""Causes of a slow data loader (`LoadingCost.cause`), in the words that a person reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CAUSE_NAMES: Final[Mapping[str, str]] = {
    "decode": "decoding",
    "tokenize": "tokenizing",
    "collate": "collating",
    "collate_fn": "your collate function",
    "disk": "waiting for the disk",
    "network": "waiting for the network",
    "lock": "waiting for a shared lock",
    "gil": "waiting for Python's lock (GIL)",
    "file": "reading files",
    "sleep": "sleeping",
    "transfer": "transferring batches between processes",
    "cpu": "waiting for a CPU",
    "own_code": "code of the script",
    "slow_worker": "one slow worker",
    "too_few_workers": "too few workers",
    "worker_threads": "too many threads in the workers",
    "worker_starts": "starting workers",
}


def cause_name(cause: str) -> str:
    """Return the words for a cause; the id itself for one of a newer version."""
    return CAUSE_NAMES.get(cause, cause.replace("_", " "))
