"""Every bottleneck and every alert, once: its id, and the words for it on every output.

The ids are a contract: they stand in snapshots, recordings and reports, and in `--on-alert` commands and triggers
of users. What a person reads is made from the words here, so that the live alert, the verdict on a capture, its
findings, a comparison and the screen call one thing by one name. Severity is in `llmtop.model.severity`: the same
bottleneck can be a warning or critical, by how much it costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

BoundId = Literal["launch_bound", "input_bound", "sync_bound", "h2d_bound", "communication_bound"]
"""What a step can be bound by other than the GPU's own work: alerts while it runs, and verdicts on a capture."""
Verdict = Literal["gpu_bound", BoundId, "idle", "unknown"]
"""What bounds the step, by a report."""
LossId = Literal[BoundId, "kernel_gaps", "one_off", "idle", "unknown"]
"""What a step loses time to, by a capture; each is the id of a finding too."""
AlertId = Literal[
    BoundId,
    "low_power_full_util",
    "stalled",
    "hung_collective",
    "outside",
    "rare_steps",
    "memory_bound",
    "low_activity",
    "straggler",
    "throttled",
    "power_capped",
    "memory_pressure",
    "memory_growth",
    "gpu_error",
    "slower",
]
"""What a live rule can raise."""
BottleneckId = Literal[Verdict, LossId, AlertId]

BOUND_IDS: Final[tuple[BoundId, ...]] = get_args(BoundId)


@dataclass(frozen=True)
class Bottleneck:
    """One bottleneck, in the words that a person reads."""

    badge: str
    """One or two words in capitals, short enough for a card of the screen."""
    title: str
    """What time goes to, or what holds, in a few words that go on a sentence: "12% to host-device copies"."""
    sentence: str
    """A whole sentence but for its capital letter and full stop: what happens."""

    @property
    def heading(self) -> str:
        """The sentence as the beginning of a line."""
        return self.sentence[0].upper() + self.sentence[1:]


BOTTLENECKS: Final[Mapping[BottleneckId, Bottleneck]] = {
    "gpu_bound": Bottleneck("GPU-BOUND", "the GPU's own work", "the GPU is the limit"),
    "launch_bound": Bottleneck("LAUNCH-BOUND", "launching", "the host launches too slowly"),
    "input_bound": Bottleneck("INPUT-BOUND", "waiting for input", "the GPU waits for input"),
    "sync_bound": Bottleneck(
        "SYNC-BOUND", "waiting calls", "the host waits for the GPU within the step, then the GPU for the host"
    ),
    "h2d_bound": Bottleneck("H2D-BOUND", "host-device copies", "copies between host and device hold the step up"),
    "communication_bound": Bottleneck(
        "COMM-BOUND", "exposed NCCL", "the step waits for communication between ranks"
    ),
    "kernel_gaps": Bottleneck(
        "KERNEL GAPS", "gaps between kernels", "the GPU pauses between kernels that were launched in time"
    ),
    "one_off": Bottleneck(
        "ONE-OFF",
        "one-off work",
        "the GPU waits for work that no later step repeats (loading, compiling, capturing graphs)",
    ),
    "idle": Bottleneck(
        "IDLE",
        "causes that the capture does not show",
        "the GPU is idle for a reason that the capture does not show",
    ),
    "unknown": Bottleneck("UNKNOWN", "unknown causes", "the capture does not show what the GPU waits for"),
    "low_power_full_util": Bottleneck(
        "BUSY BUT IDLE", "busy on paper only", "the GPU looks busy and does no work"
    ),
    "stalled": Bottleneck("STALLED", "no step any more", "the training finishes no step any more"),
    "hung_collective": Bottleneck(
        "HUNG", "a collective that hangs", "ranks wait in a collective for one that does not call it"
    ),
    "outside": Bottleneck("OUTSIDE", "what no phase covers", "much of each step is in no phase"),
    "rare_steps": Bottleneck("LONG STEPS", "long steps now and then", "now and then a step takes much longer"),
    "memory_bound": Bottleneck(
        "MEMORY-BOUND", "memory bandwidth", "the bandwidth of the GPU's memory is the limit"
    ),
    "low_activity": Bottleneck("LITTLE WORK", "a GPU that is not filled", "the GPU has work and could do more"),
    "straggler": Bottleneck("STRAGGLER", "waiting for one rank", "one rank holds the others up"),
    "throttled": Bottleneck("THROTTLED", "lowered clocks", "heat or the power supply slows the GPU down"),
    "power_capped": Bottleneck("POWER-CAPPED", "the power limit", "the GPU works at its power limit"),
    "memory_pressure": Bottleneck("MEMORY FULL", "retried allocations", "device memory runs out"),
    "memory_growth": Bottleneck("MEMORY GROWS", "growing memory", "memory grows with every step"),
    "gpu_error": Bottleneck("GPU ERROR", "a fault of the GPU", "the driver reports a fault"),
    "slower": Bottleneck("SLOWER", "longer steps than before", "steps take longer than they did"),
}


def find_bottleneck(bottleneck_id: str) -> Bottleneck | None:
    """The words for an id that comes from outside (a recording, a report); None for one of a newer version."""
    return _BY_TEXT.get(bottleneck_id)


_BY_TEXT: Final[Mapping[str, Bottleneck]] = {str(name): known for name, known in BOTTLENECKS.items()}
