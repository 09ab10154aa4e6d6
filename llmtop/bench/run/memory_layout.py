"""The same addresses in two processes: where code and data lie changes the time of the same instructions.

Measured on two virtual CPUs: the ratio of two equal Python loops that take turns differs by 2.3 % (standard
deviation) from start to start, and by 0.13 % where the kernel does not randomize their addresses. The address of
an instruction or a value chooses its slot in the branch predictor and in the caches.
"""

from __future__ import annotations

import ctypes

HASH_SEED = "PYTHONHASHSEED"
"""Variable of the seed of Python's string hashes: with another seed, dictionaries and the heap look different."""
RANDOM_LAYOUT = (
    "address randomization cannot be switched off here (a container's seccomp filter refuses personality): "
    "two starts of the same program can differ by 3 %"
)
"""Note of a bench in turns."""
_ADDR_NO_RANDOMIZE = 0x0040000
"""Flag of personality(2)."""
_QUERY = 0xFFFFFFFF


def fix_layout() -> bool:
    """Switch address randomization off for the programs that this process executes from now on (personality(2)).

    Returns:
        False if the system refuses it, as the seccomp filter of many containers does.
    """
    now = _personality(_QUERY)
    return now != -1 and _personality(now | _ADDR_NO_RANDOMIZE) != -1


def can_fix_layout() -> bool:
    """Return True if `fix_layout` will work in a child."""
    now = _personality(_QUERY)
    if now == -1 or not fix_layout():
        return False
    _personality(now)
    return True


def _personality(persona: int) -> int:
    """Set it; returns the one before, or -1."""
    try:
        call = ctypes.CDLL(None, use_errno=True).personality
    except (OSError, AttributeError):  # a C library without it
        return -1
    call.argtypes, call.restype = [ctypes.c_ulong], ctypes.c_int
    return int(call(persona))
