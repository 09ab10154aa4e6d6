"""Parts of the report: device time by operator, matrix products beside their roofs, and what it is all made of."""

from __future__ import annotations

from typing import Literal

import msgspec

from llmtop.report.per_step import PerStep


class OperatorPart(msgspec.Struct, frozen=True, kw_only=True):
    """Part of an operator's device time: one module, source line, shape of its inputs, or kernel."""

    name: str
    calls: int
    """Calls of the operator; for a kernel its number of runs."""
    seconds: float
    tb_per_s: float | None = None
    """Rate for a shape, where the operator only moves data: 10^12 bytes a second, reading each input and
    writing the result once. A rate above the memory's means that caches served it."""


class OperatorTime(msgspec.Struct, frozen=True, kw_only=True):
    """Self device time of one operator: of the work that it launched itself and no operator within it; whole file,
    all devices, as torch's key_averages() counts it."""

    name: str
    is_operator: bool = True
    """False for what no operator launched; the name then says how it was launched, in brackets."""
    calls: int
    """How many calls launched device work themselves."""
    launches: int
    """Pieces of device work: kernels, copies, memsets, CUDA graphs traced as a whole."""
    seconds: float
    share_pct: float
    """Percent of the time of all device work."""
    mean_us: float
    """Device time a call."""
    backward_pct: float | None = None
    """Which part of it autograd launched; None without any sign of autograd in the file."""
    module: str = ""
    """The module it is mostly of, outermost first, layers of one class taken together: Decoder/MLP/Linear. A
    backward operator is of the module whose forward it belongs to."""
    source: str = ""
    """The line of a Python function that is not PyTorch's around most of it."""
    modules: tuple[OperatorPart, ...] = ()
    sources: tuple[OperatorPart, ...] = ()
    shapes: tuple[OperatorPart, ...] = ()
    kernels: tuple[OperatorPart, ...] = ()
    per_step: tuple[PerStep, ...] = ()
    """Time per step by device; for work that no operator launched the count is of pieces of work."""


class GemmTime(msgspec.Struct, frozen=True, kw_only=True):
    """Matrix products of one operator, size and type, with the rates that they reached."""

    operator: str
    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str | None = None
    """fp32, tf32, bf16, fp16, fp8 or fp64: the type it computes in."""
    calls: int
    seconds: float
    mean_us: float
    flops: int
    """FLOPs of one call: 2 m n k, times the batch."""
    bytes: int | None = None
    """Bytes of one call: both factors read and the product written once, which is the least."""
    tflops_per_s: float
    tb_per_s: float | None = None
    peak_pct: float | None = None
    """Percent of the dense peak of this GPU in that type."""
    bandwidth_pct: float | None = None
    """Percent of the highest rate of this GPU's memory."""
    flops_per_byte: float | None = None
    roof_pct: float | None = None
    """Percent of the lower of both roofs at that many FLOPs a byte (Williams, Waterman, Patterson, Roofline,
    2009)."""
    limit: Literal["compute", "memory"] | None = None
    """Which of the roofs is the lower one."""
    kernel: str = ""
    """The one with the most time in it."""


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """Peak rates of a GPU, from its datasheet."""

    device: int
    name: str
    bytes_per_s: float | None = None
    flops_per_s: dict[str, float] = {}
    """Dense, by type of number."""


class DeviceTimePart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of all device time."""

    name: str
    seconds: float
    share_pct: float
    passes: int | None = None
    """Forward passes of a stage of inference; None where they cannot be counted."""
    pass_seconds: float | None = None
    """How long such a pass takes on average by the device's clock, idle time in it included."""


class TimeBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Breakdown of the device time of a whole capture."""

    vendor: Literal["NVIDIA", "AMD", "Google", "CPU"] | None = None
    """Google: TPUs. CPU: what is called device work are XLA's operations on the CPU."""
    framework: Literal["JAX", "torch_xla"] | None = None
    """None for PyTorch, or where nothing tells."""
    workload: Literal["training", "inference"] | None = None
    """None where nothing in the capture tells."""
    told_by: str = ""
    """Evidence for the workload, in words."""
    passes: tuple[DeviceTimePart, ...] = ()
    """Forward, backward, optimizer, communication and other, in a training."""
    backward_to_forward: float | None = None
    stages: tuple[DeviceTimePart, ...] = ()
    """Prefill and decode, in inference."""
    stages_by: str = ""
    """Evidence that separates the stages, in words."""
    operations: tuple[DeviceTimePart, ...] = ()
    """Times by kind of XLA's operation, in a capture of jax.profiler."""
    graph_launches: int = 0
    """Calls that replay a CUDA graph."""
    graph_pct: float | None = None
    """Percent of device time that such calls launched."""
    copy_cast_pct: float | None = None
    """Percent of device time in copies and conversions of type within the device (aten::copy_, which .to(),
    .contiguous() and .clone() use)."""
    fp32_matrix_pct: float | None = None
    """Percent of device time in matrix products and convolutions in full fp32, without tensor cores; None on
    GPUs that have none, or that are in no table."""
    language_model: bool | None = None
    """True if the model takes tokens; None where nothing in the capture tells."""
    compiled: bool = False
    """True if some of the program went through torch.compile."""
    plain_program: bool = False
    """True if no framework for machine learning took part: kernels of the program's own, and no operator."""
    wrappers: tuple[str, ...] = ()
    """Which of DDP, FSDP and DeepSpeed wrap the model."""
    softmax_pct: float | None = None
    """Percent of device time in softmax outside of fused attention and losses."""
    unfused_attention_pct: float | None = None
    """Percent of device time in softmax and batched matrix products of unfused attention; None without such a
    softmax."""
    elementwise_pct: float | None = None
    """Percent of device time in elementwise kernels and normalisations, which only move data."""
