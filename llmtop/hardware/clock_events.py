"""Why a GPU's clocks are not at their maximum: the names of NVML's clock-event reasons, in one place.

The bits are those of nvml.h (``nvmlClocksEventReason*``, before driver 535 ``nvmlClocksThrottleReason*``). A
snapshot has the names.
"""

from __future__ import annotations

from functools import lru_cache

TYPE_CHECKING = False  # the process that asks the driver loads no more than it must
if TYPE_CHECKING:
    from typing import Final

GPU_IDLE: Final = "gpu_idle"
APPLICATIONS_CLOCKS: Final = "applications_clocks"
SW_POWER_CAP: Final = "sw_power_cap"
HW_SLOWDOWN: Final = "hw_slowdown"
SYNC_BOOST: Final = "sync_boost"
SW_THERMAL: Final = "sw_thermal_slowdown"
HW_THERMAL: Final = "hw_thermal_slowdown"
HW_POWER_BRAKE: Final = "hw_power_brake"
DISPLAY: Final = "display"
BOARD_LIMIT: Final = "board_limit"
RELIABILITY: Final = "reliability"

BITS: Final[dict[int, str]] = {
    0x1: GPU_IDLE,
    0x2: APPLICATIONS_CLOCKS,
    0x4: SW_POWER_CAP,
    0x8: HW_SLOWDOWN,
    0x10: SYNC_BOOST,
    0x20: SW_THERMAL,
    0x40: HW_THERMAL,
    0x80: HW_POWER_BRAKE,
    0x100: DISPLAY,
    0x200: BOARD_LIMIT,
    0x400: RELIABILITY,
}


@lru_cache(maxsize=64)
def reason_names(bits: int) -> tuple[str, ...]:
    """Return the names of the reasons in a mask; a bit that has no name here is named by its value."""
    return tuple(BITS.get(1 << place, f"reason_{1 << place:#x}") for place in range(64) if bits >> place & 1)
