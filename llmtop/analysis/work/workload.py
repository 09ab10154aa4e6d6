"""Kind of program in a capture, as far as advice depends on it: a language model, compiled, which parallelism.

Each answer rests on names that a program leaves in any capture; without them it is None, or empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from llmtop.naming.kernel_names import is_from_a_library, kind_of
from llmtop.trace import model
from llmtop.trace.groups import distinct_values

_COMPILED = re.compile(r"CompiledFxGraph|Torch-Compiled Region|^CompiledFunction|/torchinductor_")
_COMPILED_KERNEL = re.compile(r"^triton_(?:poi|red|per|tem|for|mm|bmm)_")
_WRAPPERS = (
    ("DDP", re.compile(r"DistributedDataParallel|^Reducer\b|torch/nn/parallel/distributed\.py")),
    ("FSDP", re.compile(r"FullyShardedDataParallel|\bFSDP::|^FSDP\b|fully_shard")),
    ("DeepSpeed", re.compile(r"\bdeepspeed/|DeepSpeed")),
)
"""Names that a framework's wrapper around a model leaves among operators, ranges and Python frames."""
_NOT_LANGUAGE = re.compile(r"\b(?:diffusers|torchvision|timm|ultralytics)/|UNet\w*Model|AutoencoderKL|VaeDecoder")
_CONVOLUTION_PCT = 5.0
"""Share of the time of all kernels: a language model has next to none; a model of images has much more."""


def is_compiled(trace: model.Trace) -> bool:
    """Return True if some of the program went through torch.compile."""
    return _any_host_name(trace, _COMPILED.search) or any(map(_COMPILED_KERNEL.search, _kernel_names(trace)))


def parallel_wrappers(trace: model.Trace) -> tuple[str, ...]:
    """Return which of DDP, FSDP and DeepSpeed wrap the model, by what each leaves in a capture."""
    return tuple(name for name, pattern in _WRAPPERS if _any_host_name(trace, pattern.search))


def is_plain_program(trace: model.Trace) -> bool:
    """Return True if nothing in the capture is of a framework for machine learning: its own kernels, no
    operator."""
    has_operators = bool((trace.host.kind == model.OPERATOR).any())
    names = _kernel_names(trace)
    return bool(names) and not has_operators and trace.framework is None and not any(map(is_from_a_library, names))


def is_language_model(trace: model.Trace, *, serves: bool) -> bool | None:
    """Return True if the model takes tokens of a language; None where no operator was recorded that would tell.

    Args:
        trace: what was read of a capture.
        serves: whether kernels or ranges of prefill and decode are in it.
    """
    if _convolution_pct(trace) >= _CONVOLUTION_PCT or _any_host_name(trace, _NOT_LANGUAGE.search):
        return False
    if serves:
        return True
    if not (trace.host.kind == model.OPERATOR).any():
        return None
    return _any_host_name(trace, lambda name: name in ("aten::embedding", "aten::embedding_dense_backward"))


def _convolution_pct(trace: model.Trace) -> float:
    took = trace.ops.end - trace.ops.start
    kernels = trace.ops.kind == model.KERNEL
    fits = np.zeros(len(trace.names), dtype=bool)
    for number in distinct_values(trace.ops.full_name[kernels]).tolist():
        fits[number] = kind_of(trace.names[number]) == "convolution"
    everything = max(int(took[kernels].sum()), 1)
    return 100.0 * int(took[kernels & fits[trace.ops.full_name]].sum()) / everything


def _kernel_names(trace: model.Trace) -> list[str]:
    numbers = distinct_values(trace.ops.full_name[trace.ops.kind == model.KERNEL])
    return [trace.names[number] for number in numbers.tolist()]


def _any_host_name(trace: model.Trace, fits: Callable[[str], object]) -> bool:
    tables = (trace.host.name, trace.ranges.name)
    return any(fits(trace.names[number]) for table in tables for number in distinct_values(table).tolist())
