"""Free memory given back to the system: the C library keeps what lies between blocks that are in use."""

from __future__ import annotations

from contextlib import suppress


def return_free_memory() -> None:
    """Return to the system what is free in the C library's heap; where it cannot, do nothing."""
    import ctypes  # takes 10 ms to load, and few reports need it

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
