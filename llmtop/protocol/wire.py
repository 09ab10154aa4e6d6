"""The messages between a training process and a monitor, and their framing.

The training process listens on ``<pid>-<8 hex>.sock`` in the directory of `llmtop/protocol/socket_dir.py`. A frame
is a 4-byte little-endian length and that many bytes of msgpack, one tagged message a frame, at most `MAX_FRAME`
bytes. The process sends first (`Hello`); a monitor answers with `Subscribe` and is then sent the history and every
step as it finishes.

Both sides check with SO_PEERCRED that the other belongs to the same user or to root. What a newer side adds
(fields, message types within one `PROTOCOL`) an older one ignores.

What ends in `_ns` is nanoseconds: by the host's monotonic clock, if `host` or nothing else is said; by CUDA events
in `GpuTime`. Moments are unix time, and say so.
"""

from __future__ import annotations

import os
import re
import struct
from typing import get_args

import msgspec

from llmtop.errors import UnusableInput
from llmtop.model.decoding import decode_checked
from llmtop.protocol.training_facts import LoggedValue, SampledStep, SavedCheckpoint

PROTOCOL = 1
"""Both sides must have the same; it grows only when an old reader would misunderstand."""
MAX_FRAME = 1 << 20
"""Bytes in the largest frame that either side accepts."""
UNFINISHED_NAME = re.compile(r"^(?P<pid>[1-9]\d{0,9})-(?:[0-9a-f]{8}|try)\.new$")
"""Names of a socket that does not listen yet, and of one that tests whether a socket can be created."""
MESSAGE_PRINTED_NAME = re.compile(r"^(?P<pid>[1-9]\d{0,9})-[0-9a-f]{8}\.told$")
"""Name of the empty file that marks that a process of a run has printed its line; the pid is that of `llmtop
run`."""
SOCKET_NAME = re.compile(r"^(?P<pid>[1-9]\d{0,9})-(?P<token>[0-9a-f]{8})\.sock$")
_LENGTH = struct.Struct("<I")


class Launch(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How a training process was started: facts that all ranks of its run have in common; "" where unknown."""

    program: str = ""
    """The script: "train.py"."""
    launcher: str = ""
    """"torchrun", "srun", "mpirun", "mpiexec"; "env": the variables of torchrun, set by something else."""
    run_id: str = ""
    """Name that the launcher gives the run, such as torchrun's --rdzv-id."""
    slurm_job_id: str = ""
    """Job id as squeue shows it: "4711", or "4711_3" of an array."""
    slurm_step_id: str = ""
    """Step id of a task that srun started."""
    master: str = ""
    """Where the ranks meet: "node:29500", or "file:" and a path."""


class JobStore(msgspec.Struct, kw_only=True):
    """The TCPStore by which the ranks of a job have met, where captures of several nodes are asked for."""

    address: str
    """"host:port"."""
    prefix: str
    """Prefix of all that llmtop writes there (`llmtop.protocol.job_store`)."""


class Hello(msgspec.Struct, tag="hello", kw_only=True):
    """Message from the training with its identity. Sent first, and again whenever one of these facts changes."""

    protocol: int = PROTOCOL
    version: str = ""
    """llmtop's version in the training's environment."""
    pid: int = 0
    """Pid in the namespace of the process; the monitor takes the host's pid from SO_PEERCRED."""
    host: str = ""
    """The machine's name, as the process sees it."""
    command: str = ""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    launch: Launch = msgspec.field(default_factory=Launch)
    gpu_uuid: str | None = None
    kind: str = "step"
    """Kind of step: "step" of a training, or "request" of a server."""
    kind_since: int = 0
    """Number of steps that had finished when the kind was set; earlier steps are of the other kind."""
    total_steps: int | None = None
    warmup_steps: int = 0
    """How many first steps are left out of rates and percentiles."""
    flops_per_token: float | None = None
    """Floating-point operations, forward and backward, on this process."""
    flops_estimated: bool = False
    """True if hooks made `flops_per_token` of the number of parameters; else the script gave it."""
    flops_unknown: str | None = None
    """Why hooks, which have seen the model, could make none of it: "25 M of 7 B parameters are frozen"."""
    dtype: str | None = None
    """Which peak MFU is measured against: "bf16", "fp16", "fp8", "tf32", "fp32"."""
    accumulation_steps: int | None = None
    """How many batches make a step, by the training library's own setting."""
    torch: str | None = None
    """torch's version; None while the process has not imported it."""
    auto: bool = False
    """True if hooks publish the phases, rather than the script."""
    inference: bool = False
    """True if hooks see that it computes without training: requests to a model, or a loop of forward passes."""
    started_at: float = 0.0
    """Unix seconds at which the process attached."""
    engines: list[str] = []
    """Capture engines this process offers over this socket ("torch.profiler", "memory")."""
    pauses: bool = False
    """True if it can be asked to `Pause`: its steps follow each other."""
    roles: dict[str, int] = {}
    """Coordinates in parallel groups by their names: {"tp": 1, "pp": 0}."""
    arrivals: bool = False
    """True if it stamps when it comes to the collectives of its steps (`Arrivals`)."""
    stacks: bool = False
    """True if it can be asked to `SampleStacks`."""
    op_ranges: bool = False
    """True if it can be asked for `OpRanges`."""
    note: str | None = None
    """A sentence for the person at the screen: what cannot be seen, and why."""
    store: JobStore | None = None
    """None where the ranks use no store that llmtop supports, or are all on this node."""


class PhaseTime(msgspec.Struct, array_like=True, gc=False):
    """How long one phase of one step took; nested phases have their parent's path in `name`."""

    name: str
    host_ns: int
    """Time by the host's monotonic clock, all entries together, phases within it included."""
    count: int = 1
    """How often it was entered."""


class StepDone(msgspec.Struct, array_like=True, gc=False):
    """One finished step, by the host's clock."""

    index: int
    """The script's own count."""
    started_unix_ns: int
    """Its start by the host's monotonic clock, made unix time by the wall clock when it was sent."""
    host_ns: int
    """Time from its start to its end, by the host's monotonic clock."""
    interval_ns: int | None = None
    """Time from the start of the step before it to its own, by the same clock; None where there is none."""
    tokens: float | None = None
    samples: float | None = None
    """How many of either this process worked on in the step; None where the script does not say."""
    phases: list[PhaseTime] = []
    tokens_in: float | None = None
    """Tokens of the prompt of a request that hooks see; `tokens` are those of the answer."""


class Steps(msgspec.Struct, tag="steps", kw_only=True, omit_defaults=True):
    """Message from the training with finished steps, oldest first."""

    steps: list[StepDone]
    lost: int = 0
    """Steps that this monitor was not sent so far, in all (the ring turned over or the monitor was slow)."""
    metrics: dict[str, float] = {}
    """The latest values given to log(); keys are the script's."""
    logged: list[LoggedValue] = []
    """Values of losses, gradient norms, loss scales and learning rates, oldest first."""
    history: bool = False
    """True for steps that had finished before this monitor subscribed."""
    first_ordinal: int = 0
    """How many steps this process had finished before the first of these; those below `Hello.warmup_steps` are
    warm-up. Not `StepDone.index`, which is the script's own count and may begin anywhere."""
    unix_offset_ns: int = 0
    """Offset between the process's CLOCK_MONOTONIC and `StepDone.started_unix_ns`. It moves when the wall clock
    is set."""


class GpuTime(msgspec.Struct, array_like=True):
    """GPU times of one earlier step, read from CUDA events after the GPU has passed them."""

    index: int
    gpu_ns: int
    """Time from the stream's arrival at the step's first boundary to its arrival at the last."""
    idle_ns: int | None = None
    """Part of it in which the stream certainly had nothing to do; None where `host_paced_ns` is over 5 %."""
    phases: list[tuple[str, int]] = []
    """Phases by path, each with its time on the stream in ns."""
    host_paced_ns: int = 0
    """Part of it in which the GPU kept up with the host from boundary to boundary: it was busy for some of it
    and idle between kernels, and events cannot resolve the shares. Large when launch-bound."""


class GpuTimes(msgspec.Struct, tag="gpu", kw_only=True):
    """Message from the training with new GPU times of steps and phases, from sampled CUDA events."""

    times: list[GpuTime]


class Memory(msgspec.Struct, tag="memory", kw_only=True, omit_defaults=True):
    """Message from the training with the GPU memory of torch's allocator, every few steps."""

    allocated_bytes: int
    """Bytes in tensors."""
    reserved_bytes: int
    """Taken from the driver, in tensors or not."""
    peak_bytes: int | None = None
    """The most that was in tensors so far."""
    alloc_retries: int | None = None
    ooms: int | None = None
    """How often an allocation needed the cache to be freed first, and how often it failed, since the start."""
    kept_bytes: dict[str, int] = {}
    """Bytes that each top-level phase allocates in a step and that stay allocated, "" for code outside of phases.
    Empty unless `allocated_bytes` rises and these bytes explain the rise."""


class Checkpoints(msgspec.Struct, tag="checkpoints", kw_only=True):
    """Message from the training with the last checkpoints, oldest first, all of them each time."""

    saved: list[SavedCheckpoint] = []


class Alive(msgspec.Struct, tag="alive", kw_only=True):
    """From the training: no step has ended for a while, but it works: a phase began, a batch of a validation was
    asked for. Sent at a subscription and every few seconds, if there is such work."""

    ago_ns: int = 0
    """How long before this message the last of it was seen."""


class CollectiveCount(msgspec.Struct, array_like=True):
    """How far a process is in the collectives of one process group, as torch counts them."""

    group: str
    """The process group's name, the same in all its ranks: "0 default_pg"."""
    enqueued: int
    """The number of the last one that the process has called."""
    completed: int | None = None
    """The number of the last one that has ended."""
    operation: str | None = None
    """Last collective that was called: "nccl:all_reduce"."""


class Collectives(msgspec.Struct, tag="collectives", kw_only=True):
    """Message from the training: no step has ended for a while, and these counts stand still; empty: that is
    over."""

    counts: list[CollectiveCount] = []


class ArrivalStamp(msgspec.Struct, array_like=True, gc=False):
    """When a rank came to one point of a step."""

    point: str
    """"forward", "backward": where it began, the last one of the step; "first_gradient", "last_gradient": where
    that was ready; "end": where the last backward pass ended, with what it waited for other ranks."""
    host_ns: int
    """CLOCK_MONOTONIC."""
    gpu_ns: int | None = None
    """When the GPU came there, by a CUDA event; see `Arrival.on_host_clock`. None without a GPU."""


class Arrival(msgspec.Struct, array_like=True, gc=False):
    """When a rank came to the collectives of one step."""

    index: int
    """Index, as in `StepDone.index`."""
    stamps: list[ArrivalStamp] = []
    on_host_clock: bool = False
    """True if `gpu_ns` is on the host's clock too; else from a zero of its own in each step."""
    waited_host_ns: int | None = None
    """How long the host waited for other ranks in the step, by phases; None where there was none."""
    waited_gpu_ns: int | None = None
    """How long the GPU's computing stream waited for others, by CUDA events; known of fewer steps."""


class Arrivals(msgspec.Struct, tag="arrivals", kw_only=True):
    """Message from the training: its arrivals at the collectives of some steps, the same ones in all ranks."""

    arrivals: list[Arrival] = []
    group: str = ""
    """The same in all ranks of a job that do the same work and can be compared with each other."""
    clock: str = ""
    """Names the CLOCK_MONOTONIC that `host_ns` is by: of one boot of one machine. "": unknown."""


class Overhead(msgspec.Struct, tag="overhead", kw_only=True):
    """Message from the training with llmtop's overhead, estimated anew every few seconds."""

    step_ns: int
    """A step, on average since the last of these messages."""


class Outside(msgspec.Struct, tag="outside", kw_only=True):
    """Message from the training: the host's activities outside of phases in the last second, from samples."""

    over_ns: int = 0  # how long it was sampled, in phases or not
    found: dict[str, int] = {}
    """Activities outside of phases with their time in ns: a sample stands for the time since the one before; "" is
    the time without a known activity."""
    samples: int = 0  # in `found`; 0 where not counted
    kept_after: dict[str, str] = {}  # phase before those in `found` that kept Python's lock until it was requested
    placed_after: dict[str, str] = {}  # likewise of those that had given it up since, and have lines all the same
    early: dict[str, int] = {}  # time in `found` without a line, from before the phase's place was known, by phase
    judged_ns: int | None = None  # time for which it is known whether the host waits for its GPU; None: for none
    waited: dict[str, int] = {}  # where it did, in words, and for how much of that
    sampled: list[SampledStep] = []
    """Steps since the last message whose waits for a CPU were separated."""


class StalledAt(msgspec.Struct, tag="standstill", kw_only=True):
    """Message from the training: no step runs, because it waits for a person: at a breakpoint, between the
    cells of a notebook. Sent when that begins or ends, and to a monitor that comes meanwhile."""

    where: str = ""
    """Place in words: "at a breakpoint"; empty when it goes on."""


CAPTURE_ENDED = ("done", "failed", "cancelled")
"""States of a capture that is over."""


class CaptureState(msgspec.Struct, tag="capture_state", kw_only=True, omit_defaults=True):
    """Message from the training on the state of a requested capture."""

    id: str
    state: str
    """"armed", "recording", "writing", "done", "failed" or "cancelled"."""
    detail: str = ""
    path: str = ""
    """Path of the file, once it exists."""
    first_step: int | None = None
    last_step: int | None = None
    """The first and the last step in it, by the script's count."""
    ended: bool = False
    """True if the training itself is ending."""
    seconds: float | None = None
    """How long it has recorded so far, from the first boundary to the last."""
    stopped_early: str = ""
    """Why less was recorded than was asked for, in one clause; empty where it is all there."""


class PauseState(msgspec.Struct, tag="pause_state", kw_only=True, omit_defaults=True):
    """Message from the training on the state of a requested pause."""

    id: str
    state: str
    """"armed" or "paused"; or, and then nothing more comes, "resumed", "failed", or "late": the step at which it
    was to begin had ended before."""
    detail: str = ""
    finished: int = 0
    """How many steps the process has finished."""
    paused_ns: int | None = None
    """How long the training thread stood, with the wait for the GPU, when it has ended."""


class OpRangesState(msgspec.Struct, tag="op_ranges_state", kw_only=True, omit_defaults=True):
    """Message from the training on the state of the marking of its operators."""

    id: str
    state: str
    """"ready": it can be had; "on"; or, and then nothing more comes, "off" or "failed"."""
    detail: str = ""
    """Why not; with "ready" what it will not show."""


class SampledFrame(msgspec.Struct, array_like=True):
    """One frame of a Python stack."""

    name: str
    """The function's, with its class where Python (3.11) knows it."""
    file: str
    line: int = 0
    """0 where it is not known."""


class SampledThread(msgspec.Struct, array_like=True):
    """One thread of the training."""

    name: str
    """Name in Python; "" without one."""
    os_id: int | None = None
    """Number in the kernel of the process's own namespace; None where Python does not report it."""


class SampledStack(msgspec.Struct, array_like=True):
    """One stack of one thread."""

    thread: int
    """Its place in `StacksSeen.threads`."""
    frames: list[int]
    """Their places in `StacksSeen.frames`, outermost first."""
    looks: int = 1
    """Number of samples with this stack."""


class SampledStacks(msgspec.Struct, tag="stacks_seen", kw_only=True, omit_defaults=True):
    """Message from the training with the stacks of its own threads; the only answer to a `SampleStacks`."""

    id: str
    refused: str = ""
    """Why it did not sample."""
    looks: int = 0
    frames: list[SampledFrame] = []
    threads: list[SampledThread] = []
    stacks: list[SampledStack] = []
    cut: int = 0
    """How many stacks are left out: too many different ones were seen."""


class Subscribe(msgspec.Struct, tag="subscribe", kw_only=True):
    """Message from the monitor: send the last `history` steps and all that follow."""

    protocol: int = PROTOCOL
    version: str = ""
    """llmtop's version in the monitor's environment."""
    history: int = 512
    every_ms: int = 0
    """How long what is new may wait to go out together with what comes after it; 0: it goes out within 20 ms. To
    wake up and send takes some 0.3 ms of the training's process, whose steps may take thirty."""


class CaptureRequest(msgspec.Struct, tag="capture", kw_only=True, omit_defaults=True):
    """Message from the monitor: record the next `steps` whole steps with an engine that this process supports."""

    id: str
    engine: str
    path: str
    """Absolute path of the file to write; its folder exists and belongs to the same user."""
    steps: int = 5
    """Whole steps to be recorded, unless `seconds` says how long."""
    seconds: float | None = None
    """Record whole steps until so many seconds have passed, however many steps these are."""
    memory_bytes: int = 0
    """Stop recording when the recording would need about so much of the training's memory; 0: never."""
    options: dict[str, bool] = {}
    at_step: int | None = None
    """The first step to be recorded, by the script's own count; None: as soon as may be. Where that step has begun
    already the capture fails, and it is called off when this connection ends."""


class CaptureCancel(msgspec.Struct, tag="capture_cancel", kw_only=True):
    """Message from the monitor: stop that capture; recorded data may be dropped."""

    id: str


class Pause(msgspec.Struct, tag="pause", kw_only=True, omit_defaults=True):
    """Message from the monitor: after a step, when the GPU has done its work, wait there until `Resume`.

    The training goes on by itself after `seconds`, and soon after this connection ends.
    """

    id: str
    finished: int | None = None
    """When the process has finished so many steps (`Steps.first_ordinal` counts them); None: after the present
    one. Ranks that wait for each other must pause after the same."""
    seconds: float = 5.0
    """How long the pause may last."""
    drain_seconds: float = 3.0
    """How long the GPU may take for what the step has launched."""


class Resume(msgspec.Struct, tag="resume", kw_only=True):
    """Message from the monitor: end that pause, or withdraw it."""

    id: str


class OpRanges(msgspec.Struct, tag="op_ranges", kw_only=True, omit_defaults=True):
    """Message from the monitor: add NVTX ranges around PyTorch's operators from the end of the present step on,
    for nsys.

    They end at the end of a step too: with `want` "off", after `seconds`, or when this connection ends.
    """

    id: str
    want: str = "ready"
    """"ready": only say whether it can be had; "on" or "off"."""
    seconds: float = 60.0
    """How long they may be there."""


class SampleStacks(msgspec.Struct, tag="look_at_stacks", kw_only=True, omit_defaults=True):
    """Message from the monitor: sample the stacks of all threads for a while and send them.

    It ends early with `StopSampling`, and without a reply when this connection ends.
    """

    id: str
    seconds: float = 0.0
    """Longest duration in seconds; 0 for one sample."""
    rate_hz: float = 20.0
    """Samples per second."""


class StopSampling(msgspec.Struct, tag="enough_stacks", kw_only=True):
    """Message from the monitor: send the samples now."""

    id: str


class Refused(msgspec.Struct, tag="refused", kw_only=True):
    """Last message from either side: why it closes the connection."""

    reason: str


FromTraining = (
    Hello
    | Steps
    | GpuTimes
    | Memory
    | Alive
    | Checkpoints
    | Collectives
    | Arrivals
    | Overhead
    | Outside
    | StalledAt
    | CaptureState
    | PauseState
    | OpRangesState
    | SampledStacks
    | Refused
)
FromMonitor = (
    Subscribe | CaptureRequest | CaptureCancel | Pause | Resume | OpRanges | SampleStacks | StopSampling | Refused
)

_KNOWN_TYPES = frozenset(
    str(message.__struct_config__.tag) for message in (*get_args(FromTraining), *get_args(FromMonitor))
)

_encoder = msgspec.msgpack.Encoder()
_from_training: msgspec.msgpack.Decoder[FromTraining] = msgspec.msgpack.Decoder(FromTraining)
_from_monitor: msgspec.msgpack.Decoder[FromMonitor] = msgspec.msgpack.Decoder(FromMonitor)


def encode(message: FromTraining | FromMonitor) -> bytes:
    """Encode one message as a frame: its length in front.

    Raises:
        UnusableInput: larger than `MAX_FRAME`.
    """
    return add_length(_encoder.encode(message))


def add_length(body: bytes) -> bytes:
    """Return the body with its length in front.

    Raises:
        UnusableInput: larger than `MAX_FRAME`.
    """
    if len(body) > MAX_FRAME:
        raise UnusableInput(f"a message has {len(body):,} bytes, over the limit of {MAX_FRAME:,}")
    return _LENGTH.pack(len(body)) + body


def message_printed_name(pid: int) -> str:
    """Return a name as in `MESSAGE_PRINTED_NAME` that no other run has."""
    return f"{pid}-{os.urandom(4).hex()}.told"


def decode_from_training(body: bytes | memoryview) -> FromTraining:
    """Decode what a training process sent.

    Args:
        body: of a frame, as `Framer.feed` gives it.

    Raises:
        msgspec.DecodeError: garbage, or a message of an unknown type.
    """
    return decode_checked(_from_training, body)


def decode_from_monitor(body: bytes | memoryview) -> FromMonitor:
    """Decode what a monitor sent.

    Args:
        body: of a frame, as `Framer.feed` gives it.

    Raises:
        msgspec.DecodeError: garbage, or a message of an unknown type.
    """
    return decode_checked(_from_monitor, body)


class _Opening(msgspec.Struct):
    """The part of any message that every protocol has."""

    type: str
    protocol: int = 0
    version: str = ""


_opening = msgspec.msgpack.Decoder(_Opening)


def message_opening(body: bytes | memoryview) -> tuple[str, int, str]:
    """Return the (type, protocol, version) of a message, also of one that this version cannot decode.

    Raises:
        msgspec.DecodeError: not a message of llmtop at all.
    """
    found = decode_checked(_opening, body)
    return found.type, found.protocol, found.version


def is_known(kind: str) -> bool:
    """Return True if this version has messages of that type; those of a newer one are passed over."""
    return kind in _KNOWN_TYPES


def is_newer_type(body: bytes | memoryview) -> bool:
    """Return True if a body is a well-formed message of a type that this version lacks."""
    try:
        return message_opening(body)[0] not in _KNOWN_TYPES
    except msgspec.DecodeError:
        return False


class Framer:
    """Cuts a byte stream into frames. Feed it what recv() gave; iterate what is complete."""

    def __init__(self, largest: int = MAX_FRAME, most: int | None = None) -> None:
        """Prepare for a stream of which nothing has come.

        Args:
            largest: bytes that a frame may have.
            most: frames that may come at once; None for any number.
        """
        self._largest = largest
        self._most = most
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the bodies of all frames that are now whole.

        Raises:
            UnusableInput: a length over the largest, or too many frames at once; the connection is of no use.
        """
        self._buffer += data
        bodies: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > self._largest:
                raise UnusableInput(
                    f"a message of {length:,} bytes was announced, over the limit of {self._largest:,}: it is not "
                    "of llmtop"
                )
            if self._most is not None and len(bodies) >= self._most:
                raise UnusableInput(
                    f"the process at the other end of the socket sent more than {self._most:,} messages at "
                    "once, over the limit: it is not of llmtop"
                )
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return bodies
