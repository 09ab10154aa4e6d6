"""A host and a GPU stream in virtual time, for the logic of the GPU clock where there is no GPU.

What a real device adds (costs, jitter, captures) is checked on one by tests/gpu/check_gpu_clock.py.
"""

from __future__ import annotations

US = 1_000
MS = 1_000_000


class VirtualEvent:
    """Where the stream passed it, or will."""

    passed_ns: int | None = None


class VirtualGpu:
    """One stream that works off what the host gives it. `llmtop.instrument.gpu.events.Events` for the clock."""

    launch_ns = 5 * US
    arrives_ns = 4 * US
    record_ns = 6 * US

    def __init__(self) -> None:
        self.now_ns = 1 * MS
        self.idle_from_ns = 0
        self.busy_ns = 0
        self.made = 0
        self.asked = 0
        self.asked_while_capturing = 0
        self.capturing = False
        self.failing = False

    # --- what the training does ---

    def host_ns(self) -> int:
        """Stands in for perf_counter_ns; a look at the clock takes its time."""
        self.now_ns += 50
        return self.now_ns

    def work_on_host(self, ns: int) -> None:
        """The host does something else."""
        self.now_ns += ns

    def launch(self, kernel_ns: int, kernels: int = 1) -> None:
        """Give the stream kernels to run, one after the other."""
        for _ in range(kernels):
            self.now_ns += self.launch_ns
            begins = max(self.idle_from_ns, self.now_ns + self.arrives_ns)
            self.idle_from_ns = begins + kernel_ns
            self.busy_ns += kernel_ns

    def synchronise(self) -> None:
        """Wait until the stream is drained, as .item() does."""
        self.now_ns = max(self.now_ns, self.idle_from_ns) + 10 * US

    # --- Events ---

    def take_stream(self) -> None:
        self._ask()

    def is_capturing(self) -> bool:
        return self.capturing

    def is_drained(self) -> bool:
        self._ask()
        return self.idle_from_ns <= self.now_ns

    def new(self) -> VirtualEvent:
        self.made += 1
        return VirtualEvent()

    def record(self, event: VirtualEvent) -> None:
        self._ask()
        self.now_ns += self.record_ns
        event.passed_ns = max(self.idle_from_ns, self.now_ns + self.arrives_ns)

    def is_done(self, event: VirtualEvent) -> bool:
        self._ask()
        return event.passed_ns is not None and event.passed_ns <= self.now_ns

    def elapsed_ns(self, first: VirtualEvent, second: VirtualEvent) -> int:
        self._ask()
        assert first.passed_ns is not None
        assert second.passed_ns is not None
        assert second.passed_ns <= self.now_ns, "asked before the stream had passed it"
        return second.passed_ns - first.passed_ns

    def _ask(self) -> None:
        self.asked += 1
        self.asked_while_capturing += self.capturing
        if self.failing:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
