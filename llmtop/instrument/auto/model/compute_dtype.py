"""The dtype in which a model multiplies, which selects the peak for its MFU.

The parameters' dtype is not enough: under autocast, and with FSDP's mixed precision, they are copied into another
type first. The graph of a loss shows the dtype of each product's result. Where that is one node for all of a
compiled model, it is autocast's type, if that is on when the model is called; or that of Accelerate, which turns
it on within the call; or that of parameters that have half as many bits. Else it is not known.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import torch

from llmtop.instrument.pytorch.search import MAX_NODES, held_by, own_dict

_PRODUCT = re.compile(r"^(Mm|Addmm|Bmm|Baddbmm|Linear|Convolution)Backward\d+$")
_NEARLY_ALL = 0.9
"""Share of the elements of all products; some models compute a small part, such as a gate, in more bits."""
_PEAKS = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_BY_ACCELERATE = {"bf16": torch.bfloat16, "fp16": torch.float16, "no": None}
_HALVES = frozenset(_PEAKS)


def by_graph(tensors: Any) -> torch.dtype | None:
    """Return the dtype of the products behind a loss; None if none is found, or they differ.

    Visits `MAX_NODES` nodes at most, a microsecond or two each.
    """
    first = tensors[0] if isinstance(tensors, (tuple, list)) and tensors else tensors
    node = first.grad_fn if isinstance(first, torch.Tensor) else None
    waiting, seen = [node], {node}
    elements: dict[torch.dtype, int] = {}
    for node in waiting:
        if node is None:
            continue
        if _PRODUCT.match(type(node).__name__):
            for result in getattr(node, "_input_metadata", ()):
                size = math.prod(result.shape)
                elements[result.dtype] = elements.get(result.dtype, 0) + size
        for following, _ in () if len(seen) > MAX_NODES else node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    most = max(elements, key=elements.__getitem__, default=None)
    return most if most is not None and elements[most] >= _NEARLY_ALL * sum(elements.values()) else None


def by_autocast(module: Any) -> torch.dtype | None:
    """Return the type of autocast, if it is on where the module is called, for the device that it is on."""
    parameter = _a_parameter(module)
    if parameter is None:
        return None
    with torch._C.DisableTorchFunction():  # type: ignore[attr-defined, no-untyped-call, unused-ignore]
        device = parameter.device.type
    if device not in ("cuda", "cpu"):
        return None
    if hasattr(torch, "get_autocast_dtype"):
        found: torch.dtype | None = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return found
    # torch 2.3 and older
    return torch.get_autocast_gpu_dtype() if device == "cuda" and torch.is_autocast_enabled() else None


def by_accelerate(module: Any) -> torch.dtype | None:
    """Return Accelerate's mixed precision for a module whose forward it has wrapped."""
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    shared = getattr(state, "_shared_state", None)
    told = shared.get("_mixed_precision") if isinstance(shared, Mapping) else None
    compiled = own_dict(module, "__dict__").get("_modules", {}).get("_orig_mod")
    inner = own_dict(module if compiled is None else compiled, "__dict__")
    return _BY_ACCELERATE.get(str(told)) if "_original_forward" in inner else None


def by_parameters(module: Any) -> torch.dtype | None:
    """Theirs, if it can be that of the arithmetic alone: what has 32 bits may be copied into less first."""
    parameter = _a_parameter(module)
    if parameter is None:
        return None
    with torch._C.DisableTorchFunction():  # type: ignore[attr-defined, no-untyped-call, unused-ignore]
        found: torch.dtype = parameter.dtype
    return found if found in _HALVES else None


def name_of(dtype: torch.dtype | None) -> str | None:
    """Return the name in the list of GPU peaks; None for an unknown or unlisted type."""
    if dtype is torch.float32:
        return "tf32" if _uses_tf32() else "fp32"
    return None if dtype is None else _PEAKS.get(dtype)


def _uses_tf32() -> bool:
    """Return True if products of 32 bits may be computed in 19 on a GPU that can.

    torch 2.9 has a new question for it, and warns of the old one.
    """
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        return False
    ask = getattr(torch._C, "_get_fp32_precision_getter", None)
    return ask("cuda", "matmul") == "tf32" if ask is not None else bool(torch.backends.cuda.matmul.allow_tf32)


def _a_parameter(module: Any) -> Any:
    """Return the first of the first module that holds any."""
    waiting, seen = [module], {id(module)}
    for one in waiting:
        for parameter in held_by(one, "_parameters"):
            return parameter
        for child in held_by(one, "_modules"):
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)
    return None
