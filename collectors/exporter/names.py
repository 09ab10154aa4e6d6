"""Names of the series of `llmtop export`. The names and labels are a contract (docs/contracts.md).

Every series of a rank has the labels `rank` and `pid` alone, and its own where it needs one more. All else that is
known of the process is in `llmtop_rank_info`, to be joined: what changes must not cut a counter in two.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge"]
OTHER: Final = "other"
"""The phase that stands for all beyond `MAX_PHASES`."""
MAX_PHASES: Final = 32
"""Names of phases of one rank."""
RANK: Final = ("rank", "pid")
LINK: Final = ("device", "port")


class ExportedSeries(NamedTuple):
    """One name, and what is behind it."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


STEPS: Final = ExportedSeries("llmtop_steps_total", "counter", RANK, "Finished steps (of a server: requests)")
STEP_SECONDS: Final = ExportedSeries(
    "llmtop_step_seconds_total", "counter", RANK, "Seconds of these steps, from the start of each to the next"
)
OUTSIDE_SECONDS: Final = ExportedSeries(
    "llmtop_outside_seconds_total", "counter", RANK, "Seconds of these steps in no phase, by the host's clock"
)
PHASE_HOST_SECONDS: Final = ExportedSeries(
    "llmtop_phase_host_seconds_total",
    "counter",
    (*RANK, "phase"),
    "Seconds of these steps in a phase, by the host's clock; a nested one (a/b) is in its parent's too",
)
PHASE_GPU_SECONDS: Final = ExportedSeries(
    "llmtop_phase_gpu_seconds_total",
    "counter",
    (*RANK, "phase"),
    "Seconds in a phase by CUDA events, of the steps in llmtop_gpu_timed_steps_total alone",
)
GPU_TIMED_STEPS: Final = ExportedSeries(
    "llmtop_gpu_timed_steps_total", "counter", RANK, "Steps that CUDA events have timed: some of them, not all"
)
COMM_WAIT_SECONDS: Final = ExportedSeries(
    "llmtop_comm_wait_seconds_total",
    "counter",
    RANK,
    "Seconds of these steps in which the rank waited for others: by stamps of its arrival at their collectives, "
    "each for the steps since the previous stamp; else in phases that wait, by the host's clock",
)
COMM_WAIT_GPU_SECONDS: Final = ExportedSeries(
    "llmtop_comm_wait_gpu_seconds_total",
    "counter",
    RANK,
    "The same in phases by CUDA events, of the steps in llmtop_gpu_timed_steps_total alone; absent with stamps",
)
TOKENS: Final = ExportedSeries("llmtop_tokens_total", "counter", RANK, "Tokens that this process worked on")
STEPS_LOST: Final = ExportedSeries(
    "llmtop_steps_lost_total", "counter", RANK, "Steps that were never heard of, and are in no other counter"
)
RECENT_STEP_SECONDS: Final = ExportedSeries(
    "llmtop_recent_step_seconds",
    "gauge",
    (*RANK, "percentile"),
    "Percentiles of the steps of the last 15 s, at least five, from the start of each to the next",
)
LAST_STEP: Final = ExportedSeries(
    "llmtop_last_step_timestamp_seconds", "gauge", RANK, "When the last step ended, in unix time"
)
LAST_WORK: Final = ExportedSeries(
    "llmtop_last_work_timestamp_seconds",
    "gauge",
    RANK,
    "When the process was last seen at work that ends no step (validation, a checkpoint), in unix time",
)
RANK_STATE: Final = ExportedSeries(
    "llmtop_rank_state",
    "gauge",
    (*RANK, "state"),
    "1 for the state of each process: running, paused, stopped or stalled",
)
COLLECTIVE_ENQUEUED: Final = ExportedSeries(
    "llmtop_collective_enqueued",
    "gauge",
    (*RANK, "pg"),
    "Number of the last collective called in a process group; told only while it stands still and no step ends",
)
COLLECTIVE_COMPLETED: Final = ExportedSeries(
    "llmtop_collective_completed",
    "gauge",
    (*RANK, "pg"),
    "Number of the last collective that has ended there; told only while it stands still and no step ends",
)
_STUCK: Final = ("run", "uid", "communicator", "pg", "operation")
RAS_WAITING: Final = ExportedSeries(
    "llmtop_ras_waiting",
    "gauge",
    _STUCK,
    "Ranks that wait in an NCCL communicator in which nothing goes on, as NCCL's RAS told this node",
)
RAS_BEHIND: Final = ExportedSeries(
    "llmtop_ras_behind",
    "gauge",
    (*_STUCK, "rank", "host", "rank_pid"),
    "How many collectives a rank of it is behind, on whatever node: rank and host as NCCL calls them",
)
RAS_MISSING: Final = ExportedSeries(
    "llmtop_ras_missing",
    "gauge",
    (*_STUCK, "rank", "host", "rank_pid"),
    "1 for each rank of it whose process does not answer NCCL",
)
RANK_INFO: Final = ExportedSeries(
    "llmtop_rank_info",
    "gauge",
    ("run", "rank", "local_rank", "world_size", "gpu", "UUID", "pid", "uid", "kind"),
    "1 for each attached process: what it is a part of, and the GPU that it uses",
)
WORLD_SIZE: Final = ExportedSeries(
    "llmtop_world_size", "gauge", RANK, "Number of ranks of the run on all nodes, by the launcher"
)
RANK_ROLE: Final = ExportedSeries(
    "llmtop_rank_role",
    "gauge",
    (*RANK, "role", "coordinate"),
    "1 for each parallel dimension (tp, pp, dp, ep, cp, ...) that a rank has a coordinate in: at most 8",
)
LOSS: Final = ExportedSeries("llmtop_loss", "gauge", RANK, "Last logged training loss; NaN where it is not finite")
GRAD_NORM: Final = ExportedSeries(
    "llmtop_grad_norm", "gauge", RANK, "Last known norm of the gradients; NaN where it is not finite"
)
LOSS_SCALE: Final = ExportedSeries(
    "llmtop_loss_scale", "gauge", RANK, "Last known loss scale of mixed precision; NaN where it is not finite"
)
CHECKPOINT_AT: Final = ExportedSeries(
    "llmtop_checkpoint_timestamp_seconds",
    "gauge",
    RANK,
    "When the last checkpoint of the rank's job, as this node knows it, was complete, in unix time",
)
CHECKPOINT_RISK: Final = ExportedSeries(
    "llmtop_checkpoint_steps_at_risk", "gauge", RANK, "Steps of the rank since that checkpoint"
)
CHECKPOINT_SECONDS: Final = ExportedSeries(
    "llmtop_checkpoint_seconds", "gauge", RANK, "What that checkpoint took, from the call to its end"
)
CHECKPOINT_BLOCKED: Final = ExportedSeries(
    "llmtop_checkpoint_blocked_seconds", "gauge", RANK, "Of that, time in which the training waited for it"
)
CHECKPOINT_INTERVAL: Final = ExportedSeries(
    "llmtop_checkpoint_interval_seconds", "gauge", RANK, "Median from one checkpoint to the next; not before two"
)
CHECKPOINT_BYTES: Final = ExportedSeries(
    "llmtop_checkpoint_size_bytes", "gauge", RANK, "Size of that checkpoint, where this node sees it"
)
CHECKPOINT_FREE: Final = ExportedSeries(
    "llmtop_checkpoint_disk_free_bytes", "gauge", RANK, "Free space of its file system, where this node sees it"
)
LINK_RECEIVED: Final = ExportedSeries(
    "llmtop_link_receive_bytes_total", "counter", LINK, "Bytes that an InfiniBand or RoCE port has received"
)
LINK_SENT: Final = ExportedSeries(
    "llmtop_link_transmit_bytes_total", "counter", LINK, "Bytes that an InfiniBand or RoCE port has sent"
)
LINK_ERRORS: Final = ExportedSeries(
    "llmtop_link_errors_total",
    "counter",
    (*LINK, "error"),
    "Errors of an InfiniBand or RoCE port, by the kernel's name of the counter",
)
LINK_RATE: Final = ExportedSeries(
    "llmtop_link_rate_bytes_per_second", "gauge", LINK, "What the port can carry one way at its present speed"
)
LINK_STATE: Final = ExportedSeries(
    "llmtop_link_state", "gauge", (*LINK, "layer", "state"), "1 for the state of each port: ACTIVE, DOWN, INIT"
)
ALERT: Final = ExportedSeries(
    "llmtop_alert",
    "gauge",
    ("id", "severity", "gpu", "UUID", "rank", "pid"),
    "1 for each alert that holds now",
)
NODE_INFO: Final = ExportedSeries(
    "llmtop_node_info", "gauge", ("hostname", "version", "driver_version"), "1: llmtop export watches this node"
)
DCGM_IGNORED: Final = ExportedSeries(
    "llmtop_dcgm_exporter_ignored",
    "gauge",
    ("uid",),
    "1: the user of that number listens on the dcgm-exporter's port and is not trusted, so GPUs are exported here",
)
SNAPSHOT: Final = ExportedSeries(
    "llmtop_snapshot_timestamp_seconds",
    "gauge",
    (),
    "When all the other values were taken, in unix time; old: they are left out",
)
SNAPSHOT_SECONDS: Final = ExportedSeries(
    "llmtop_snapshot_seconds_total",
    "counter",
    (),
    "Seconds from the start of this exporter to the snapshot, by a clock that is never set: what rates divide by",
)
SNAPSHOT_LIMIT: Final = ExportedSeries(
    "llmtop_snapshot_limit_seconds", "gauge", (), "The age from which on a snapshot's values are left out"
)
CLOCK: Final = ExportedSeries(
    "llmtop_clock_seconds",
    "gauge",
    (),
    "The node's clock when this page was sent, in unix time; not in a textfile, which is read later",
)

ALL: Final = tuple(value for value in list(globals().values()) if isinstance(value, ExportedSeries))
"""Series with llmtop's own names. GPUs have DCGM's names (`collectors.exporter.gpu_series`)."""
