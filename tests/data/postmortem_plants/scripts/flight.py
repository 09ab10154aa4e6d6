"""A thread that writes the flight recorder when no step begins for a while: gloo writes no dump by itself."""

import os
import threading
import time

from torch._C import _distributed_c10d as c10d


class FlightThread(threading.Thread):
    """Writes `$TORCH_FR_DUMP_TEMP_FILE<rank>` once: `STALL_SECONDS` after a step, or on a failed collective."""

    def __init__(self):
        super().__init__(name="flight", daemon=True)
        self._last = float("inf")  # imports before the first step are no stall
        self._limit = float(os.environ["STALL_SECONDS"])
        self.steps = 0
        self._failed = threading.Event()
        self._written = threading.Event()
        self.start()

    def step(self):
        self.steps += 1
        self._last = time.monotonic()

    def write_now(self):
        self._failed.set()
        self._written.wait(5)

    def run(self):
        while time.monotonic() - self._last < self._limit and not self._failed.wait(0.25):
            pass
        path = os.environ["TORCH_FR_DUMP_TEMP_FILE"] + os.environ["RANK"]
        with open(path, "wb") as file:
            file.write(c10d._dump_fr_trace())
        if os.environ.get("FR_JSON") == "1":
            with open(path + ".json", "wb") as file:
                file.write(c10d._dump_fr_trace_json())
        self._written.set()
