"""What each GPU has sent and received by NVLink in all: python -m tests.gpu.eight.link_counters

Prints a JSON list, a GPU an object of bytes: the driver's own totals, which no sampling has touched. Null where
the driver does not tell.
"""

from __future__ import annotations

import json
from typing import Any

import pynvml

ALL_LINKS = 0xFFFFFFFF
FIELDS = {"tx": pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, "rx": pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX}


def total(handle: Any, field: int) -> int | None:
    """Bytes over all links of one GPU; summed here where the driver sums none."""
    answer = value(handle, field, ALL_LINKS)
    if answer is not None:
        return answer
    links = [value(handle, field, link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)]
    known = [one for one in links if one is not None]
    return sum(known) if known else None


def value(handle: Any, field: int, link: int) -> int | None:
    """Of one link; the driver counts KiB."""
    try:
        (answer,) = pynvml.nvmlDeviceGetFieldValues(handle, [(field, link)])
    except pynvml.NVMLError:
        return None
    return answer.value.ullVal << 10 if answer.nvmlReturn == pynvml.NVML_SUCCESS else None


def main() -> None:
    """Print them."""
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    print(json.dumps([{name: total(handle, field) for name, field in FIELDS.items()} for handle in handles]))


if __name__ == "__main__":
    main()
