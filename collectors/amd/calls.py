"""Calls into amdsmi that never raise, and what its answers mean in words; imports little, as those of NVML."""

from __future__ import annotations

import time

from collectors.base.call_round import CallRound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

GARBAGE, NO_FUNCTION = -1, -2
"""Answers of our own: what the binding could not read, and a function that it does not have."""
NO_PERMISSION = 10
LOST = frozenset({32, 34})
"""amdsmi_status_t that concern the whole driver: not initialised, not loaded."""
ABSENT = frozenset({NO_FUNCTION, 1, 2, 3, 5, 20, 30, 31, 39, 40, 41, 52, 55})
"""Codes that only mean that a value is not there, or not now (30: another thread is asking)."""
_STATUS_TEXTS = {
    GARBAGE: "the driver's answer cannot be read",
    2: "not supported",
    4: "a library that amdsmi needs could not be loaded",
    6: "the kernel refused the driver's call (libdrm)",
    8: "the driver gave up waiting for the GPU",
    NO_PERMISSION: "no permission (be in the groups render and video: sudo usermod -aG render,video $USER)",
    12: "the GPU does not answer (I/O error; see dmesg)",
    14: "a file of the driver could not be read",
    15: "the driver is out of memory",
    16: "the driver reports an internal error",
    18: "the driver could not be initialised",
    32: "amdsmi was shut down",
    34: "AMD's kernel module is not loaded (try: sudo modprobe amdgpu)",
    54: "the GPU could not be reset (see dmesg)",
    56: "the GPU's EEPROM is corrupted",
}
_UNSPECIFIC = frozenset({GARBAGE, 7, 16})


def status_text(code: int) -> str:
    """Return the meaning of an amdsmi_status_t; a number that this version does not know is given as such."""
    return _STATUS_TEXTS.get(code, f"amdsmi answered with error {code}")


def is_unspecific(code: int) -> bool:
    """Return True if a refusal names neither a reason nor a lost device."""
    return code in _UNSPECIFIC or (code not in _STATUS_TEXTS and code not in ABSENT)


def error_text(refusals: Mapping[str, int], *, answered: bool = False) -> str | None:
    """Return the most severe refusal of a round in words; None when at most some values are absent.

    Where other calls were `answered`, a vague refusal costs its own value and no more.
    """
    for code in sorted(LOST & set(refusals.values())):
        return status_text(code)
    for call, code in refusals.items():
        if code not in ABSENT and code != NO_PERMISSION and not (answered and is_unspecific(code)):
            return f"{status_text(code)} ({call})"
    return None


class AmdCaller(CallRound):
    """Makes calls for one thread."""

    def __init__(self, smi: Any) -> None:
        """Prepare to call functions of `smi`, the module amdsmi."""
        super().__init__()
        self.smi = smi

    def __call__(self, name: str, *args: Any) -> Any:
        """Call a function of amdsmi; None when it is refused, and `refusals` then has the reason."""
        function = getattr(self.smi, name, None)
        if function is None:
            self.refusals[name] = NO_FUNCTION
            return None
        self._inside = (name, time.monotonic())
        try:
            answer = function(*args)
            self.answered = True
            return answer
        except self.smi.AmdSmiLibraryException as error:
            self.refusals[name] = error.get_error_code()
        except Exception:  # noqa: BLE001  its binding reads texts and numbers out of what the library gave
            self.refusals[name] = GARBAGE
        finally:
            self._inside = None
        return None

    @property
    def is_lost(self) -> bool:
        """Return True if a call of this round was answered with the loss of the driver."""
        return not LOST.isdisjoint(self.refusals.values())
