"""The door of an integration: what a library has called it for. Loads no library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmtop.instrument.guest.guard import report_internal_error


def run_guarded(tell: Callable[..., None], *args: Any) -> None:
    """Run a callback of a library; see `guard`."""
    try:
        tell(*args)
    except Exception as error:  # noqa: BLE001 - the door
        report_internal_error("what the training library says", error)
