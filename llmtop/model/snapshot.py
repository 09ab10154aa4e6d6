"""Snapshot: everything known at one instant. Every output (screen, JSON, recording, rules) is made from it alone.

All types are frozen. A value that the driver, the system or the training did not give is None, never 0: the
screen shows a dash for it, JSON shows null. Units are in the names; `_pct` is percent. What ends in `_at`, `time`
and `since` are unix seconds.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from llmtop.format import encode_json
from llmtop.model.decoding import LazyJsonDecoder, decode_checked
from llmtop.model.health import Checkpoint, LoggedSeries
from llmtop.model.links import Link
from llmtop.model.run_reference import RunReference
from llmtop.model.severity import Severity

SCHEMA = 2
"""Grows when a field changes its meaning or goes, not with new ones. A recording of another schema is refused."""

Source = Literal["live", "replay"]
RankState = Literal["running", "paused", "stopped", "stalled", "gone"]
StepKind = Literal["step", "request"]


class Gpu(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One GPU, or one MIG instance of a GPU, as its driver described it within the last sampling round."""

    index: int
    """The driver's index (PCI order), for people; programs key by `uuid`."""
    uuid: str
    """The driver's UUID: "GPU-…", of a MIG instance "MIG-…"."""
    name: str
    vendor: Literal["NVIDIA", "AMD", "Google"] = "NVIDIA"
    """Vendor of the driver. Google's are devices of TPUs."""
    util_pct: float | None = None
    """GPU-Util: share of time in which at least one kernel ran. 100 does not mean busy. Of a TPU: duty cycle."""
    util_sampled_pct: float | None = None
    """Mean of the samples of GPU-Util that the driver took by itself since it was last asked for them (some 2 s):
    many more than the readings of `util_pct`."""
    mem_util_pct: float | None = None
    """NVML's memory utilisation: share of time in which device memory was read or written."""
    mem_used_bytes: int | None = None
    mem_total_bytes: int | None = None
    memory_is_system: bool = False
    """True if the GPU has no memory of its own (GB10, Jetson): the two values above are those of the system."""
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    """Used in all since the driver was loaded."""
    temperature_c: float | None = None
    mem_temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    clock_event_reasons: tuple[str, ...] | None = None
    """Names of the reasons for which clocks are not at their maximum now; None when the driver does not say."""
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_source: Literal["gpm", "nvml", "dcgm"] | None = None
    """Which counter the PCIe rates come from: GPM over the whole interval, NVML's 20 ms window, or DCGM as of the
    last collection of the node's dcgm-exporter."""
    pcie_gen: int | None = None
    pcie_width: int | None = None
    nvlink_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    xgmi_rx_bytes_per_s: float | None = None
    xgmi_tx_bytes_per_s: float | None = None
    """AMD's links between GPUs, all of this GPU's together, over the time since the round before."""
    sm_active_pct: float | None = None
    sm_occupancy_pct: float | None = None
    tensor_active_pct: float | None = None
    dram_active_pct: float | None = None
    fp32_active_pct: float | None = None
    """Share of time in which the SMs computed in FP32 outside the tensor cores: high where matrix products do not
    use these."""
    activity_source: Literal["gpm", "dcgm"] | None = None
    """Which counters SM, tensor, DRAM and FP32 activity come from: GPM over the whole interval, or DCGM as of the
    last collection of the node's dcgm-exporter (every 30 s, unless set otherwise)."""
    mig_parent_uuid: str | None = None
    """Set on a MIG instance: the GPU that it is a part of."""
    mig_index: int | None = None
    """Number of a MIG instance on that GPU, as nvidia-smi lists it (MIG Dev)."""
    mig_gpu_instance: int | None = None
    mig_compute_instance: int | None = None
    """Ids of a MIG instance, by which nvidia-smi mig manages it."""
    sampled_at: float | None = None
    """Unix time of the sample that these values come from."""
    error: str | None = None
    """Last error of the driver in words: lost, reset required, Xid, ECC."""

    @property
    def number(self) -> str:
        """How a person calls it: "3", and "3:1" the MIG instance 1 of GPU 3."""
        return str(self.index) if self.mig_index is None else f"{self.index}:{self.mig_index}"


class Process(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A process that uses a GPU or is attached; one row a (process, GPU)."""

    pid: int
    """The pid on this host."""
    container_pid: int | None = None
    """The pid inside the innermost pid namespace, where it differs."""
    gpu_uuid: str | None = None
    gpu_mem_bytes: int | None = None
    gpu_sm_pct: float | None = None
    gpu_computes: bool = True
    """True if the driver lists it among those that compute on that GPU; a desktop only draws."""
    user: str | None = None
    command: str | None = None
    cpu_pct: float | None = None
    """Percent of one core: 250 means two and a half cores."""
    rss_bytes: int | None = None
    threads: int | None = None
    io_read_bytes_per_s: float | None = None
    io_write_bytes_per_s: float | None = None
    state: str | None = None
    """psutil's word: running, sleeping, disk-sleep, stopped, zombie, …"""
    started_at: float | None = None
    """Unix time; with the pid it names one process for good."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that the monitor runs on."""

    name: str
    user: str | None = None
    """User who runs the monitor, by the same names as `Process.user`: all other users' processes are not his."""
    cpu_pct: float | None = None
    """Percent of all cores together, 0 to 100."""
    cpu_per_core_pct: tuple[float, ...] | None = None
    cpus_allowed: float | None = None
    """How many of the machine's CPUs a program may use that is started where the monitor was, by affinity, cpuset
    (SLURM, a static CPU manager) or the quota of its cgroup; None where it may use all."""
    load_1m: float | None = None
    load_5m: float | None = None
    load_15m: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    swap_total_bytes: int | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    net_rx_bytes_per_s: float | None = None
    net_tx_bytes_per_s: float | None = None
    links: tuple[Link, ...] = ()
    """Ports of InfiniBand and RoCE adapters, by name."""
    driver_version: str | None = None
    cuda_version: str | None = None
    notes: tuple[str, ...] = ()
    """Notes for the user: no driver, no permission, which GPUs are shown and why."""


class Phase(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One phase of a step. Nested phases have the parent's path in the name: ``forward/attention``.

    In `Rank.phases` the seconds are means over the rank's recent steps (the same that p50 is taken over), in the
    order in which phases follow each other in a step; in `Step.phases` they are that step's.
    A phase entered several times in a step counts once, with the sum.
    """

    name: str
    host_seconds: float
    """Time by the host clock, inclusive of nested phases. CUDA is asynchronous: this may be time spent waiting."""
    gpu_seconds: float | None = None
    """Time between CUDA events at the phase's boundaries on the current stream; None when not measured."""


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One finished step (or request) of one rank."""

    index: int
    """The training's own number: the first is 0 unless the script sets it."""
    started_at: float
    """Unix time, from the training's monotonic clock and the wall clock when it was sent."""
    seconds: float
    """Time by the host's monotonic clock, from the start of this step to the end of its last known phase. What
    follows until the next step starts is part of this step, too, and known when that has come
    (`llmtop.step_history.whole_steps`)."""
    interval_seconds: float | None = None
    """Time from the start of the previous step to the start of this one: the whole time of the previous step.
    None for a first step, and where the training was paused between the two."""
    gpu_seconds: float | None = None
    """Time between the training's stream arriving at the begin of this step and at its end, by CUDA events."""
    gpu_idle_seconds: float | None = None
    """Time within the step in which the training's stream had nothing to do, by CUDA events."""
    gpu_host_paced_seconds: float | None = None
    """Time within the step in which the GPU kept up with the host from boundary to boundary: busy for some of it
    and idle between kernels, in shares that events cannot resolve. Large when launch-bound."""
    tokens: float | None = None
    samples: float | None = None
    phases: tuple[Phase, ...] = ()
    warmup: bool = False
    """Left out of rates and percentiles (first steps: compilation, allocator, autotuning)."""
    kind: StepKind = "step"
    tokens_in: float | None = None
    """Tokens of the prompt of a request to a language model; `tokens` are those of the answer."""
    ttft_seconds: float | None = None
    """Time to first token: from the request's beginning until its first token was there, by the later of the two
    clocks. None where that is not known."""
    tpot_seconds: float | None = None
    """Time per output token after the first, of each sequence; None of a request for a single token."""


class CollectiveCount(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How far a process is in the collectives of one process group, as torch counts them in it."""

    group: str
    """The process group's name, the same in all its ranks: "0 default_pg"."""
    enqueued: int
    """The number of the last one that the process has called."""
    completed: int | None = None
    """The number of the last one that has ended; None where unknown."""
    operation: str | None = None
    """Last collective that was called: "nccl:all_reduce"."""


GRADIENT_POINTS: Final = ("first_gradient", "last_gradient")
"""Values of `Arrival.point` that directly show when a rank reaches the exchange of gradients."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a rank comes to one point of its steps, beside those that train with it: over the last steps that all of
    them have stamped."""

    point: str
    """"forward", "backward": where that begins; "first_gradient", "last_gradient": where that is ready; "waits":
    over the whole step, in which who waits least is last."""
    clock: Literal["host", "GPU"]
    steps: int
    """How many steps were compared."""
    ranks: int
    """How many ranks were, this one included."""
    last_pct: float
    """Share of those steps in which this rank came last."""
    late_seconds: float
    """Median of how much later it came than the last of the others; negative where it came before that."""
    error_seconds: float
    """Standard error of that, from its differences between consecutive stamped steps."""


class Window(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Step figures over a stretch of time, from whole steps by the host clock."""

    name: str
    """"recent": what the figures of `Rank` are over; "5 min"; or "run": all since this monitor came, with the
    history that the training kept."""
    seconds: float
    """Time from the start of its first step to the end of its last; a mean step is this over `steps`, but where
    steps in between were lost."""
    steps: int
    step_seconds: float
    """Mean, from start to start."""
    step_seconds_p50: float
    step_seconds_p95: float
    outside_seconds: float | None = None
    """Mean a step in no phase; None where the training names no phases."""
    tokens_per_s: float | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Since when a training's steps are of another length than before, and which part of them it is."""

    since_step: int
    """Index of the first step of the new length."""
    since: float
    """Unix time at which that step started."""
    before_seconds: float
    """Median whole step before, from start to start."""
    after_seconds: float
    """Median whole step since."""
    part: str | None = None
    """The phase, or "outside", that changed most; None where none explains half of the difference."""
    part_before_seconds: float | None = None
    part_after_seconds: float | None = None
    """Medians a step of that part."""
    tokens_before: float | None = None
    tokens_after: float | None = None
    """Mean tokens per step before and since; None where the training does not count them."""
    samples_before: float | None = None
    samples_after: float | None = None
    """Mean samples per step before and since; None where unknown."""


class RareSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that come now and then and take much longer than the others: an evaluation, a checkpoint."""

    every: float | None = None
    """How many steps lie between them, where that is regular; None where it is not."""
    seconds: float
    """Their median, from start to start."""
    usual_seconds: float
    """The median of the others."""
    seconds_per_hour: float
    """Seconds that they take beyond the usual step, per hour of training."""
    part: str | None = None
    """The phase, or "outside", in which most of the excess is."""


class Cause(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Activity of the host in the time that no phase covers."""

    what: str
    """Activity: "torch.compile", "train.py:57 loss.item()", "garbage collection"; "code after the phase NAME"."""
    seconds: float
    """Mean a step, over the same steps as `Rank.outside_seconds`: share of the samples, unseen ones included."""
    samples: int | None = None  # that found it; None where not known


class LoadingCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of preparing a training's batches, from some seconds of stacks and states (`llmtop.loading.cost`)."""

    cause: str
    """"decode", "tokenize", "collate" (padding, stacking), "collate_fn" (other code there), "disk", "file" (read
    from memory), "network", "lock", "gil", "sleep", "transfer" (batches between processes), "cpu" (others have
    the cores), "worker_threads" (libraries' in the workers have them), "slow_worker", "too_few_workers",
    "own_code" (that fills the CPUs, or is no worker's), "worker_starts" (before the first batch of each);
    "unknown" where none covers most of it. A newer version may have others."""
    summary: str
    """One sentence, with the numbers."""
    advice: str = ""
    """Advice on this cause."""
    share_pct: float | None = None
    """Share of the time in which batches were prepared that the cause covers."""
    shares: dict[str, float] = {}
    """The same for all kinds of work and waiting that were distinguished, in percent."""
    library: str | None = None
    place: str | None = None
    """Where most of it was seen: "__getitem__ (data.py:12)"."""
    workers: int = 0
    """Processes that prepare batches; 0: the training's own threads do."""
    workers_needed: int | None = None
    workers_needed_most: int | None = None
    """How many would keep up, at least and at most; None where more would not help, or where unknown."""
    cores: float | None = None
    """CPUs that the training may use, by its affinity and its cgroup's quota."""
    wait_pct: float | None = None
    """Share of the training's time that goes into waiting for, or making, its next batch: the most to be saved."""
    save_seconds: float | None = None  # largest saving per step, where steps are known
    read_bytes_per_s: float | None = None
    """Rate of bytes read from storage by all of its processes."""
    looks: int = 0  # stacks that it rests on


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """One attached training process: who it is, what its last steps took, what it logged."""

    pid: int
    """Pid on this host."""
    host: str
    uid: int | None = None
    """User id of the process, from this host's kernel."""
    job: str = ""
    """The name of the run that this process is a rank of, the same on all its nodes; a process without a launcher
    is a job of its own."""
    launcher: str | None = None
    """Launcher of the rank: "torchrun", "srun", "mpirun", "mpiexec"; "env": the variables of torchrun, set by
    something else. None where it is no rank."""
    run_id: str | None = None
    """Name that the launcher gives the run: torchrun's --rdzv-id."""
    slurm_job_id: str | None = None
    """Job id as squeue shows it: "4711", or "4711_3" of an array."""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    roles: dict[str, int] = {}
    """Its coordinates in parallel groups: {"pp": 1, "tp": 0}; empty where none has a name."""
    gpu_uuid: str | None = None
    """UUID of its GPU, as the process reports it, else the only one on which the driver lists it as computing."""
    command: str | None = None
    kind: StepKind = "step"
    inference: bool = False
    """True if hooks see that it computes without training: requests to a model (then `kind` is "request"), or a
    loop of forward passes, each of which is a step."""
    step: int | None = None
    """Index of the last finished step."""
    step_seconds: float | None = None
    """Duration of the last whole step, by the host clock from its start to the start of the next."""
    step_seconds_mean: float | None = None
    step_seconds_p50: float | None = None
    step_seconds_p95: float | None = None
    step_seconds_p99: float | None = None
    """These, rates, phases and `outside_seconds` are over the same whole steps, those of `window_seconds`."""
    window_seconds: float | None = None
    """Window of the recent figures: 15 s and at least five steps, less if steps changed their length since.
    None before the first whole step after warm-up."""
    window_steps: int | None = None
    windows: tuple[Window, ...] = ()
    """The same and longer windows beside each other, the shortest first."""
    change: Change | None = None
    """The last change of the steps' length, for as long as steps stay so; it cuts the recent window."""
    reference: RunReference | None = None
    rare: RareSteps | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    steps_per_s: float | None = None
    """One over the mean step."""
    ttft_seconds_p50: float | None = None
    ttft_seconds_p95: float | None = None
    ttft_seconds_p99: float | None = None
    """Time to first token of the recent requests (`Step.ttft_seconds`)."""
    tpot_seconds_p50: float | None = None
    tpot_seconds_p95: float | None = None
    tpot_seconds_p99: float | None = None
    """Time per output token after the first (`Step.tpot_seconds`); a percentile of requests, not of tokens."""
    tokens_in_per_s: float | None = None
    tokens_out_per_s: float | None = None
    """Tokens per second of requests that hooks see: prompts, and answers. Loops of forward passes have
    `tokens_per_s` alone."""
    batch: float | None = None
    """Mean sequences, or samples, of a request or a forward pass."""
    outside_seconds: float | None = None
    """Mean per step in no phase, by the host's clock; with top-level phases the mean step. None without any."""
    loading: LoadingCost | None = None
    """Cost of its loader; None until it was sampled, which is done while it waits for data."""
    outside_causes: tuple[Cause, ...] = ()
    """Known activities of the host in that time, the largest first."""
    outside_work_pct: float | None = None
    """Share of steps in no phase without waits for a CPU and llmtop's work; None where it waits little."""
    phases: tuple[Phase, ...] = ()
    gpu_idle_pct: float | None = None
    """Share of the recent steps' time in which the training's stream was empty, by CUDA events; a lower bound.
    None where unknown for most steps because the host set the pace (`gpu_host_paced_pct`)."""
    gpu_host_paced_pct: float | None = None
    """Share of the recent steps' GPU time in which the GPU waited for the host (`Step.gpu_host_paced_seconds`)."""
    gpu_busy_pct: float | None = None
    """Share of `gpu_busy_seconds` in which this rank's GPU ran anything, by the most reliable source
    (`llmtop.model.gpu_busy`); 100 minus it is the idle share. None where no source has it, or where util is the
    only one and other processes compute on that GPU too."""
    gpu_busy_source: str | None = None
    """Which witness is believed: "events", CUDA events of the training's stream; "util", the driver's GPU-Util; or
    "sm", SM activity. A newer version may have others."""
    gpu_busy_bound: bool = False
    """True: `gpu_busy_pct` is the most that it can have been, so the GPU was idle for at least the rest."""
    gpu_busy_seconds: float | None = None
    """Over how many of the last seconds that was seen: `window_seconds` or a little less."""
    gpu_wait_pct: float | None = None
    """Share of the last seconds in calls that wait for the GPU (`.item()`), by looks at the stack; None: few."""
    gpu_waits: tuple[Cause, ...] = ()
    """Calls with these waits, the largest first; seconds per step."""
    memory_allocated_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_peak_bytes: int | None = None
    alloc_retries: int | None = None
    ooms: int | None = None
    memory_kept_bytes: dict[str, int] = {}
    """Bytes per step that each phase keeps allocated, if they explain a growth; "" is code outside of phases."""
    memory_snapshot: str | None = None
    """The file that it left when an out-of-memory error ended it, for ``llmtop report``."""
    mfu_pct: float | None = None
    mfu_note: str | None = None
    """Why there is no MFU, or which peak it was divided by, and whether its operations are an estimate."""
    mfu_estimated: bool = False
    """True if the operations are an estimate from the number of parameters; else the script gave them."""
    overhead_seconds: float | None = None
    """Estimated overhead of llmtop per step of this process, from its calls; None until it is known."""
    total_steps: int | None = None
    accumulation_steps: int | None = None
    """How many batches make a step, by the training library's own setting."""
    eta_seconds: float | None = None
    metrics: dict[str, float | None] = {}
    """Values that the script passed to log(). None for values that are not finite, which JSON cannot hold."""
    new_values: tuple[LoggedSeries, ...] = ()
    """Values that show how it learns, logged since the previous snapshot of this stream."""
    checkpoint: Checkpoint | None = None
    sees_checkpoints: bool = False
    """True if hooks would see one: then a training without `checkpoint` has written none."""
    lost: int = 0
    """Steps that this monitor did not receive: the ring had turned over, or the monitor was too slow."""
    warmup_steps: int = 0
    """How many first steps are left out of rates and percentiles."""
    capturable: tuple[str, ...] = ()
    """Engines by which this process can be captured now, best first."""
    state: RankState = "running"
    last_step_at: float | None = None
    """Unix time at which the last step ended, by the wall clock as it is now."""
    last_work_at: float | None = None
    """Unix time at which it was last seen at work that ends no step, such as a batch of a validation; given only
    after some seconds without a step. None where there was none."""
    attached_at: float | None = None
    """Unix time at which the process began to publish."""
    clock_offset_seconds: float | None = None
    """Offset in seconds from its CLOCK_MONOTONIC to `Step.started_at` of its last steps; None before the first."""
    new_steps: tuple[Step, ...] = ()
    """Steps that finished since the previous snapshot of this stream, oldest first; the first snapshot after an
    attach carries the history that the process kept. Each step comes once; GPU times may follow in
    `gpu_updates`."""
    gpu_updates: tuple[Step, ...] = ()
    """Earlier steps again, now with their GPU times, which are read after the GPU has got there."""
    arrivals: tuple[Arrival, ...] | None = None
    """How it comes to the collectives of its steps, beside the others; empty as long as that cannot be compared.
    None where it does not stamp that: a training of one rank or of stages."""
    waits_seconds: float | None = None
    """Median, a step, of how long it waits for the rank that comes last: from its own last gradient to that one's,
    or where gradients are not stamped, by how much longer it waits in all than the one that waits least. None
    where that cannot be compared."""
    exposed_seconds: float | None = None
    """Median, a step, of the last rank's wait from its last gradient to the end of backward: nothing hides it."""
    new_waits: tuple[StampedWait, ...] = ()
    """Waits of stamped steps received since the last snapshot, oldest first."""
    collectives: tuple[CollectiveCount, ...] = ()
    """Set only while no step ends and these counters do not change: where it hangs, if it does."""
    phases_left_out: int = 0
    """Names of phases beside those in `phases`: a monitor takes 128 of a process. A lower bound if very many."""
    metrics_left_out: int = 0
    """Names of logged values beside those in `metrics`, counted as `phases_left_out` is."""
    note: str | None = None
    """A word about this process that is not an alert: another version, auto instrumentation off, …"""


class CommunicatorRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of an NCCL communicator, on whatever node."""

    rank: int
    host: str
    pid: int
    """Pid in its own namespace."""
    called: int | None = None
    """How many of the operation it has called; None where it does not answer."""


class StampedWait(msgspec.Struct, frozen=True, kw_only=True):
    """How long a rank waited for the others in one step, by the stamps of when it came to their collectives."""

    index: int
    """The script's own count."""
    seconds: float
    """From its last gradient to the end of the backward pass, or in all where gradients do not show it (FSDP); by
    CUDA events where the training has a GPU, else by the host's clock."""


class StuckCommunicator(msgspec.Struct, frozen=True, kw_only=True):
    """An NCCL communicator in which no rank made a call between two queries of NCCL RAS."""

    id: str
    """NCCL's hash of it."""
    size: int
    operation: str | None = None
    """Collective that not all ranks have called equally often: "AllReduce"; None where they are equal."""
    number: int | None = None
    """How often the others have."""
    waiting_count: int
    behind_count: int = 0
    behind: tuple[CommunicatorRank, ...] = ()
    """The first of those that have called it less often, the furthest behind first."""
    missing_count: int = 0
    missing: tuple[CommunicatorRank, ...] = ()
    """The first of those whose process does not answer NCCL."""
    pids: tuple[int, ...] = ()
    """This host's processes of it that do not go on."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its ranks that this monitor sees, and their combined figures (`llmtop.model.jobs.job_totals`)."""

    name: str
    """`Rank.job` of its ranks."""
    kind: StepKind = "step"
    state: RankState = "running"
    """Worst state of the ranks that have not ended; "gone" once all have."""
    launcher: str | None = None
    run_id: str | None = None
    slurm_job_id: str | None = None
    world_size: int | None = None
    """Number of ranks on all machines, by its launcher."""
    ranks_seen: int = 0
    """How many of them are attached here and have not ended."""
    ranks: tuple[int, ...] = ()
    """Their numbers, where they have any."""
    hosts: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    """Pids of the running processes, in the order of their ranks; once all have ended, of the ended ones."""
    step: int | None = None
    """Index of the last step that all of them have finished."""
    steps_per_s: float | None = None
    """Median over the ranks of a training, which step together; sum over the requests of servers."""
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    """Sums over the ranks seen; None while not all of them report it, so that no part is taken for the whole."""
    overhead_seconds: float | None = None
    """Overhead of llmtop per step: the largest of all ranks, because the others wait for that rank."""
    attached_at: float | None = None
    """Unix time at which the first of them began to publish."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that holds now. The ids are part of the contract (docs/contracts.md)."""

    id: str
    severity: Severity
    gpu: str | None = None
    """UUID of the GPU that it is about, if it is about one."""
    pid: int | None = None
    """This host's pid of the training that it is about, if it is about one."""
    roles: dict[str, int] = {}
    """Coordinates of that rank, as `Rank.roles` has them; empty where it has none."""
    since: float
    """Unix time since when the rule holds."""
    summary: str
    evidence: dict[str, Any] = {}
    """The numbers that made it hold, with their unit in the key."""
    next: str = ""
    """Next action: a key, a command, or a fix."""
    points: tuple[str, ...] = ()
    """The reason in clauses, the one that matters most first, for where there is no room for `summary`: as many
    as fit, each of them whole."""

    def is_continuation_of(self, other: Alert) -> bool:
        """Return True if it is `other` of another snapshot: what is not known in one of them (the GPU of a
        training, the training on a GPU, which may end) makes no difference."""
        here, there = (self.gpu, self.pid), (other.gpu, other.pid)
        return self.id == other.id and (
            here == there
            or (
                all(None in pair or pair[0] == pair[1] for pair in zip(here, there, strict=True))
                and any(None not in pair for pair in zip(here, there, strict=True))
            )
        )


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known at one instant."""

    schema: int = SCHEMA
    time: float
    """Unix time, to be shown. The wall clock may be set between two snapshots, also back."""
    monotonic: float | None = None
    """Seconds of a clock that is never set (CLOCK_MONOTONIC of the monitor's machine), for what lies between two
    snapshots of one monitor. None in the shipped demo, which is placed by `time`."""
    source: Source = "live"
    host: Host
    gpus: tuple[Gpu, ...] = ()
    processes: tuple[Process, ...] = ()
    ranks: tuple[Rank, ...] = ()
    jobs: tuple[Job, ...] = ()
    """Totals of `ranks` by job, the job that attached first coming first."""
    stuck_communicators: tuple[StuckCommunicator, ...] = ()
    """Asked for only while a training does not go on."""
    alerts: tuple[Alert, ...] = ()


_encoder = msgspec.json.Encoder(decimal_format="number")
_decoder = LazyJsonDecoder(Snapshot)


def to_json(snapshot: Snapshot) -> bytes:
    """Encode as one line of JSON without the newline. A float that is not finite becomes null."""
    return encode_json(snapshot, _encoder.encode)


def from_json(line: bytes | str) -> Snapshot:
    """Decode one line of JSON; fields that this version does not know are ignored.

    Raises:
        msgspec.DecodeError: not JSON, or not a snapshot (`msgspec.ValidationError`, a subclass).
    """
    return decode_checked(_decoder, line.encode() if isinstance(line, str) else line)
