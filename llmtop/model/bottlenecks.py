"""Table of every bottleneck and every alert: its id, and its words on every output.

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
"""Bounds of a step other than the GPU's own work: alerts while it runs, and verdicts on a capture."""
Verdict = Literal["gpu_bound", BoundId, "idle", "unknown"]
"""Verdict of a report on what bounds the step."""
LossId = Literal[BoundId, "kernel_gaps", "one_off", "idle", "unknown"]
"""Causes of lost time in a capture; each is the id of a finding too."""
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
    "link_errors",
    "non_finite",
    "loss_spike",
    "grad_norm_jump",
    "loss_scale_collapse",
    "loss_flat",
    "ranks_diverged",
    "work_at_risk",
    "checkpoint_interval",
    "checkpoint_disk_full",
    "imbalance",
]
"""Alerts that the live rules can raise."""
BottleneckId = Literal[Verdict, LossId, AlertId]

BOUND_IDS: Final[tuple[BoundId, ...]] = get_args(BoundId)


@dataclass(frozen=True)
class Bottleneck:
    """One bottleneck, in the words that a person reads.

    Its name is the badge: on the screen in capitals, in sentences and docs as `name`.
    """

    badge: str
    """One or two words in capitals, short enough for a card of the screen."""
    title: str
    """Short text that completes a sentence: "12 % to host-device copies"."""
    sentence: str
    """A whole sentence but for its capital letter and full stop: what happens."""

    @property
    def name(self) -> str:
        """The badge as it is written in a sentence: "input-bound"."""
        return self.badge.lower()

    @property
    def heading(self) -> str:
        """The sentence as the beginning of a line."""
        return self.sentence[0].upper() + self.sentence[1:]


BOTTLENECKS: Final[Mapping[BottleneckId, Bottleneck]] = {
    "gpu_bound": Bottleneck("GPU-BOUND", "the GPU's own work", "the GPU is the limit"),
    "launch_bound": Bottleneck(
        "LAUNCH-BOUND", "kernel launches", "the host launches kernels more slowly than the GPU runs them"
    ),
    "input_bound": Bottleneck("INPUT-BOUND", "waiting for input", "the GPU waits for the next batch"),
    "sync_bound": Bottleneck(
        "SYNC-BOUND", "synchronization", "the host waits for the GPU, then the GPU waits for the host"
    ),
    "h2d_bound": Bottleneck("H2D-BOUND", "host-device copies", "the GPU waits for copies between host and device"),
    "communication_bound": Bottleneck(
        "COMM-BOUND", "exposed communication", "the step waits for communication between ranks"
    ),
    "kernel_gaps": Bottleneck(
        "KERNEL GAPS", "gaps between kernels", "the GPU is idle between kernels that were launched in time"
    ),
    "one_off": Bottleneck(
        "ONE-OFF",
        "one-off work",
        "the GPU waits for one-time work of the host (loading, compiling, capturing graphs)",
    ),
    "idle": Bottleneck(
        "IDLE",
        "idle time of unknown cause",
        "the GPU is idle and the capture does not show why",
    ),
    "unknown": Bottleneck("UNKNOWN", "unknown causes", "the capture does not show what bounds the step"),
    "low_power_full_util": Bottleneck(
        "LOW POWER", "low power at full utilization", "the GPU reports full utilization at low power"
    ),
    "stalled": Bottleneck("STALLED", "no steps", "the training has stopped finishing steps"),
    "hung_collective": Bottleneck(
        "HUNG", "a hung collective", "ranks wait in a collective that does not complete"
    ),
    "outside": Bottleneck("UNTIMED", "untimed work", "part of each step is untimed: it belongs to no phase"),
    "rare_steps": Bottleneck("LONG STEPS", "rare long steps", "a few steps take much longer than the others"),
    "memory_bound": Bottleneck("MEMORY-BOUND", "memory bandwidth", "the bandwidth of the GPU memory is the limit"),
    "low_activity": Bottleneck(
        "LOW ACTIVITY", "low GPU activity", "the GPU runs kernels, but they use only a small part of the GPU"
    ),
    "straggler": Bottleneck("STRAGGLER", "a straggler", "one rank is slower and the other ranks wait for it"),
    "throttled": Bottleneck("THROTTLED", "reduced clocks", "heat or the power supply reduces the GPU clocks"),
    "power_capped": Bottleneck("POWER-CAPPED", "the power limit", "the GPU runs at its power limit"),
    "memory_pressure": Bottleneck("MEMORY FULL", "failed allocations", "the GPU memory is full"),
    "memory_growth": Bottleneck(
        "MEMORY GROWTH", "growing memory", "the GPU memory of the training grows with every step"
    ),
    "gpu_error": Bottleneck("GPU ERROR", "a GPU error", "the driver reports a GPU error"),
    "slower": Bottleneck("SLOWER", "slower steps", "steps take longer than before"),
    "link_errors": Bottleneck(
        "LINK ERRORS", "errors of a network link", "errors of an InfiniBand or RoCE port increase"
    ),
    "non_finite": Bottleneck("NAN", "a value that is not finite", "a logged value is NaN or Inf"),
    "loss_spike": Bottleneck("LOSS SPIKE", "a loss spike", "the loss rose far above its trend"),
    "grad_norm_jump": Bottleneck("GRAD JUMP", "a gradient norm that jumped", "the gradient norm jumped"),
    "loss_scale_collapse": Bottleneck(
        "LOSS SCALE", "a loss scale that collapsed", "the loss scale of mixed precision collapsed"
    ),
    "loss_flat": Bottleneck("FLAT LOSS", "a loss that does not move", "the loss does not move any more"),
    "imbalance": Bottleneck("IMBALANCE", "unequal work", "some ranks have more to do than the others"),
    "work_at_risk": Bottleneck("AT RISK", "work at risk", "the last checkpoint is long ago"),
    "checkpoint_interval": Bottleneck(
        "SAVE INTERVAL", "the interval of checkpoints", "the interval of checkpoints is far from its optimum"
    ),
    "checkpoint_disk_full": Bottleneck(
        "DISK FULL", "a full checkpoint disk", "the disk of the checkpoints fills up"
    ),
    "ranks_diverged": Bottleneck("DIVERGED", "ranks that diverged", "losses that were equal on all ranks differ"),
}


def find_bottleneck(bottleneck_id: str) -> Bottleneck | None:
    """Return the words for an id that comes from outside (a recording, a report); None for one of a newer
    version."""
    return _BY_TEXT.get(bottleneck_id)


def alert_of_badge(badge: str) -> str | None:
    """Return the alert with this badge, as the screen shows it, in any case; None without one."""
    typed = badge.replace("_", " ").strip().lower()
    return next((one for one in get_args(AlertId) if BOTTLENECKS[one].name == typed), None)


def name_of(bottleneck_id: str) -> str:
    """Return the name for an id as it is written in a sentence; the id itself for one of a newer version."""
    known = find_bottleneck(bottleneck_id)
    return known.name if known else bottleneck_id


_BY_TEXT: Final[Mapping[str, Bottleneck]] = {str(name): known for name, known in BOTTLENECKS.items()}
