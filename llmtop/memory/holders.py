"""Holder of an allocation: by the frames that made it, its phase, and its lifetime.

Four facts decide most of it. What an optimizer's step allocates and keeps beyond that step is its state, whichever
optimizer it is. Modules are called through `_call_impl`. The backward pass of CUDA tensors runs in a thread of
autograd's own, where there is no Python: what is allocated there has no Python frame at all, although a history is
being recorded. What AccumulateGrad allocates is a gradient.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from llmtop.memory.frames import AUTOCAST, AUTOGRAD, CACHE_CLEARED, GRADIENT, Stack, StackLine
from llmtop.memory.model import Holder

Maker: TypeAlias = Literal[
    "parameters", "optimizer", "optimizer step", "gradient", "backward", "forward", "communication"
]
"""Part of PyTorch that made an allocation."""

_OPTIMIZERS: Final = (
    "/torch/optim/",
    "/torch/distributed/optim/",
    "/bitsandbytes/optim/",
    "/apex/optimizers/",
    "/deepspeed/ops/adam/",
    "/deepspeed/runtime/zero/",
    "/transformers/optimization.py",
)
_STATE_MAKERS: Final = ("_init_group", "init_state", "init_states", "initialize_optimizer_states", "state_dict")
_MODULE_MAKERS: Final = (
    "__init__", "reset_parameters", "_apply", "convert", "_load_from_state_dict", "to_empty"
)  # fmt: skip
_LIBRARIES: Final = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python3",
    "<frozen ",
    "<eval_with_key>",
    "<string>",
)


_WINDOWS_LIBRARY: Final = re.compile(r"^[A-Za-z]:/.*/Lib/")
"""Python's own library on Windows; its packages are in site-packages as elsewhere."""


def maker_of(stack: Stack) -> Maker | None:
    """Return the part of PyTorch in the innermost frame that shows one; None without such a frame."""
    return next((maker for frame in stack if (maker := _maker(frame)) is not None), None)


def own_classes(stacks: Iterable[Stack]) -> dict[str, Maker]:
    """Return what the script's own files define: "parameters" where torch calls a `forward` of theirs, "optimizer"
    where it calls a `step`.

    A file with both is in neither.
    """
    modules, optimizers = set(), set()
    for stack in stacks:
        for frame, caller in itertools.pairwise(stack):
            if frame.function == "forward" and caller.function == "_call_impl":
                modules.add(frame.file)
            elif frame.function == "step" and caller.file.endswith("/torch/optim/optimizer.py"):
                optimizers.add(frame.file)
    made: dict[str, Maker] = dict.fromkeys(modules - optimizers, "parameters")
    made |= dict.fromkeys(optimizers - modules, "optimizer")
    return {file: maker for file, maker in made.items() if not _is_library(file)}


def own_frame(stack: Stack) -> StackLine | None:
    """Return the innermost frame of the script's own code; None where all are of libraries."""
    return next((frame for frame in stack if frame.file and not _is_library(frame.file)), None)


def _maker(frame: StackLine) -> Maker | None:
    file, function = frame.file, frame.function
    if not file:
        return "gradient" if frame == GRADIENT else "backward" if frame == AUTOGRAD else None
    if any(part in file for part in _OPTIMIZERS):
        return "optimizer" if function in _STATE_MAKERS else "optimizer step"
    if _makes_parameters(file, function):
        return "parameters"
    if function in ("_engine_run_backward", "unpack_hook") and "/torch/" in file:
        return "backward"
    if "/torch/distributed/" in file or file.endswith("/torch/nn/parallel/distributed.py"):
        return "communication"
    of_nn = "/torch/nn/" in file and (file.endswith("functional.py") or function == "_call_impl")
    return "forward" if of_nn or function == "forward" else None


def _makes_parameters(file: str, function: str) -> bool:
    if file.endswith(("/torch/nn/parameter.py", "/torch/nn/init.py")) or "/safetensors/" in file:
        return True
    if file.endswith("/transformers/modeling_utils.py"):
        return function != "forward"
    return "/torch/nn/" in file and function in _MODULE_MAKERS


def clears_gradients(stack: Stack) -> bool:
    """Return True if this frees gradients."""
    return any(frame.function == "zero_grad" for frame in stack)


def is_autocast_copy(stack: Stack) -> bool:
    """Return True if autocast made it: a copy of a weight or of an activation."""
    return AUTOCAST in stack


def ends_autocast(stack: Stack) -> bool:
    """Return True if this frees what autocast kept until its context ended."""
    return CACHE_CLEARED in stack


_SOFTMAX: Final = ("softmax", "_softmax")
_ATTENTION: Final = "dot_product_attention"
"""Part of the name of a function, as scripts wrap torch's own: annotated_scaled_dot_product_attention."""


def is_of_attention(stack: Stack) -> bool:
    """Return True if attention that is not fused made it, or its softmax: scores for each pair of positions."""
    return not is_of_loss(stack) and any(
        (frame.function in _SOFTMAX or _ATTENTION in frame.function)
        and not frame.file.endswith("/torch/nn/modules/activation.py")
        for frame in stack
    )


_LOSSES: Final = ("cross_entropy", "log_softmax", "nll_loss")


def is_of_loss(stack: Stack) -> bool:
    """Return True if a loss over classes made it: for a large vocabulary these tensors are the largest of a
    step."""
    return any(frame.function in _LOSSES for frame in stack)


def innermost_line(stack: Stack) -> str:
    """Return the innermost line of the script's own code; of a library where there is none, "" without a stack."""
    if not stack:
        return ""
    python = [frame for frame in stack if frame.file] or list(stack)
    return frame_text(
        own_frame(stack) or next((frame for frame in python if "/torch/" not in frame.file), python[0])
    )


_COMPILED: Final = re.compile(r"(?:^|/)([a-z2-7]{2})/c\1[a-z2-7]{40,}\.py$")
"""Code that torch.compile wrote into its cache: a folder of two letters, which the name repeats after a "c"."""


def _is_library(file: str) -> bool:
    if any(part in file for part in _LIBRARIES):
        return True
    return bool(_WINDOWS_LIBRARY.match(file) or _COMPILED.search(file))


def innermost_module(stack: Stack) -> str:
    """Return the innermost `forward` of a module that is none of torch's, with its line; else of torch's; ""
    outside."""
    passes = [frame for frame in stack if frame.function == "forward"]
    own = next((frame for frame in passes if "/torch/nn/" not in frame.file), None)
    inner = next((frame for frame in passes if "/torch/nn/modules/" in frame.file), None)
    words = [frame_text(own)] if own is not None else []
    if inner is not None:
        words.append(inner.file.rpartition("/")[2].removesuffix(".py"))
    return " > ".join(words)


def frame_text(frame: StackLine) -> str:
    """Return a frame as text: "train.py:42 step"."""
    if not frame.file:
        return frame.function
    return f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.function}"


_CERTAIN: Final[dict[Maker | None, Holder]] = {
    "parameters": "parameters",
    "optimizer": "optimizer",
    "gradient": "gradients",
    "communication": "communication",
}


def is_of_optimizer(maker: Maker | None, role: str) -> bool:
    """Return True if an optimizer's step allocated something, by its frames or by the phase."""
    return maker == "optimizer step" or (maker is None and role == "optimizer")


def holder_of(maker: Maker | None, role: str, *, stackless: bool, kept: bool | None) -> Holder:
    """Return the holder of an allocation of the recorded window.

    Args:
        maker: by its frames.
        role: what the phase does in which it was made (`llmtop.naming.phase_names`); "other" where none is known.
        stackless: whether it has no Python frame, as all of autograd's own thread.
        kept: whether it outlived the backward pass or the optimizer's step that made it; None while that has not
            ended. Such a block counts as temporary, also if it is a gradient.
    """
    if maker in _CERTAIN:
        return _CERTAIN[maker]
    if is_of_optimizer(maker, role):
        return "optimizer" if kept else "temporaries"
    if maker == "forward":
        return "activations"
    if maker == "backward" or role == "backward" or (stackless and role == "other"):
        return "gradients" if kept else "temporaries"
    if role == "comm":
        return "communication"
    return "activations" if role in ("compute", "step") else "other"
