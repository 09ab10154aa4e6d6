"""How many operations a token costs a model, from its parameters.

Six for each parameter and token: a multiplication and an addition forward, and twice that backward (Kaplan et al.
2020, "Scaling Laws for Neural Language Models", section 2.1; the same 6 N that MFU is defined with in Chowdhery et
al. 2022, "PaLM", appendix B). A parameter is counted once, however many modules hold it. A table of embeddings
that nothing else holds is left out: rows are read from it, nothing is multiplied. The products of attention itself
are not counted, nor what activation checkpointing computes again, which is no work of the model's in MFU.

So this is an estimate, and there is none where it would mislead: where parameters are frozen (no gradients are
computed for them), where not each of them works on each token (routed experts, an encoder beside a decoder,
pictures or sound), where they are quantised, or not known here because other processes hold the rest of them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from llmtop import format as fmt
from llmtop.instrument.identity.declared_facts import FLOPS_PER_PARAMETER_AND_TOKEN
from llmtop.instrument.pytorch.search import held_by, own_dict

_EXPERTS = re.compile(r"M[oO]E(?![a-z])|Moe(?=[A-Z0-9_]|$)|Expert|Router|MixtureOf")
"""Pattern in the name of a class."""
_EXPERT_CHILD = re.compile(r"(^|_)(experts?|router|moe)($|_)")
"""Pattern in the name under which a module is held."""
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_OTHER_ARITHMETIC = frozenset(
    {"torchao", "transformer_engine", "bitsandbytes", "optimum", "quanto", "hqq", "auto_gptq", "gptqmodel", "awq"}
)
"""Libraries whose layers compute in fewer bits than their results have."""
_QUANTISED = re.compile(r"Quant|WQLinear|GPTQ|Hqq|FP8|Float8|Int8|[48]bit")
_OTHER_TOKENS = ("vision_config", "audio_config", "speech_config")
_LOOKED_UP = (nn.Embedding, nn.EmbeddingBag)
_LEAST_BYTES = 2
"""Bytes of an element; an element with fewer is quantised."""


class Estimate(NamedTuple):
    """Cost of a token, or why it is unknown."""

    flops_per_token: float | None
    """Forward and backward, on this process."""
    why_not: str | None


class _NotKnownError(Exception):
    """Why there is no estimate."""


def estimate(module: Any) -> Estimate:
    """Return the operations of one token in the outermost module of a training step.

    Nothing of the module's is called: it is read by its own dictionaries. Takes some microseconds for each of the
    modules in it.
    """
    try:
        return Estimate(float(FLOPS_PER_PARAMETER_AND_TOKEN * _multiplied_parameters(module)), None)
    except _NotKnownError as reason:
        return Estimate(None, str(reason))


def _multiplied_parameters(root: Any) -> int:
    """Return how many parameters each token is multiplied with.

    Raises:
        _NotKnownError: that would be wrong for this model.
    """
    multiplied: dict[int, Any] = {}
    sharded = False
    for module in _modules(root):
        _check(module)
        sharded = sharded or any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)
        if not issubclass(type(module), _LOOKED_UP):
            multiplied.update((id(parameter), parameter) for parameter in held_by(module, "_parameters"))
    total = frozen = 0
    with torch._C.DisableTorchFunction():  # type: ignore[attr-defined, no-untyped-call, unused-ignore]
        for parameter in multiplied.values():
            size = _size(parameter, sharded)
            total += size
            frozen += 0 if parameter.requires_grad else size
    if frozen:
        raise _NotKnownError(f"{fmt.count(frozen)} of {fmt.count(total)} parameters are frozen")
    if not total:
        raise _NotKnownError("the model has no parameters")
    return total


def _modules(root: Any) -> Iterator[Any]:
    """Yield the module and all within it, each once.

    Raises:
        _NotKnownError: one is held under the name of an expert.
    """
    waiting, seen = [root], {id(root)}
    for module in waiting:
        yield module
        held = own_dict(module, "__dict__").get("_modules")
        for name, child in list(held.items()) if isinstance(held, dict) else ():
            if child is None or id(child) in seen or not issubclass(type(child), nn.Module):
                continue
            if type(name) is str and _EXPERT_CHILD.search(name):
                raise _NotKnownError(f"experts are routed ({name})")
            seen.add(id(child))
            waiting.append(child)


def _check(module: Any) -> None:
    kind = type(module)
    name, config = kind.__name__, own_dict(module, "__dict__").get("config")
    if _EXPERTS.search(name):
        raise _NotKnownError(f"experts are routed ({name})")
    for holder in (module, config):
        for count in _EXPERT_COUNTS:
            told = _plain(holder, count)
            if type(told) is int and told > 1:
                raise _NotKnownError(f"experts are routed ({count} {told})")
    if kind.__module__.partition(".")[0] in _OTHER_ARITHMETIC or _QUANTISED.search(name):
        raise _NotKnownError(f"the model computes in quantised or 8-bit types ({name})")
    if any(one.__name__ == "FullyShardedDataParallel" for one in kind.__mro__):
        raise _NotKnownError("FullyShardedDataParallel holds only a part of the parameters in each process")
    if _plain(config, "is_encoder_decoder") is True:
        raise _NotKnownError("encoder and decoder process different tokens")
    if any(_plain(config, one) is not None for one in _OTHER_TOKENS):
        raise _NotKnownError("the model has inputs other than tokens")


def _plain(thing: Any, name: str) -> Any:
    """Return an attribute that is simply there; None for one that code of a class would make up."""
    return None if thing is None else inspect.getattr_static(thing, name, None)


def _size(parameter: Any, sharded: bool) -> int:
    """Elements of it in all processes that hold parts of it, each of which then computes with all of it.

    Args:
        parameter: of a module.
        sharded: whether FSDP has split parameters, and puts them together again for each step.
    """
    kind = type(parameter)
    if kind.__name__ == "DTensor" and kind.__module__.startswith("torch.distributed"):
        splits = sum(type(placement).__name__ != "Replicate" for placement in parameter._spec.placements)
        if splits > sharded:
            raise _NotKnownError("parameters are split over processes that compute together")
    elif kind is not nn.Parameter:
        raise _NotKnownError(f"parameters are of the type {kind.__name__}")
    if not parameter.dtype.is_floating_point or parameter.element_size() < _LEAST_BYTES:
        raise _NotKnownError(f"parameters are of {parameter.dtype}")
    size = int(parameter.numel())
    if not size:
        raise _NotKnownError("other processes hold the parameters")
    return size
