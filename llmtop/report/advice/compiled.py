"""What advice says where torch.compile or CUDA graphs are used already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BREAKS: Final = "TORCH_LOGS=graph_breaks,recompiles {command}   # where compiled code ends, and what compiles anew"

COMPILED_FIX: Final[Mapping[str, str]] = {
    "launch_bound": (
        "The program is compiled already: mode='reduce-overhead' replays what is compiled as CUDA graphs; take "
        "in what still runs outside (graph breaks, the optimizer, metrics); larger batches; move Python work out "
        "of the step."
    ),
    "kernel_gaps": (
        "Each kernel costs 1 to 2 µs to start, whoever launches it. The program is compiled already: remove graph "
        "breaks, so that more is fused; larger batches; CUDA graphs (mode='reduce-overhead') shorten the pauses."
    ),
    "small_kernels": (
        "The program is compiled already: remove graph breaks, so that more of it is fused; larger batches; or "
        "replay it as a CUDA graph (mode='reduce-overhead')."
    ),
    "copies_casts": (
        "Find who converts and who copies outside of the compiled parts (graph breaks): .to(dtype) in the forward "
        "pass, .contiguous(), .clone(), transposes before views; channels_last for convolutions."
    ),
    "elementwise": (
        "The program is compiled already: look at which of these kernels lie outside of the compiled parts (graph "
        "breaks), and fuse those; a narrower type halves the bytes of the others."
    ),
}
COMPILED_NEXT: Final[Mapping[str, str]] = {"small_kernels": BREAKS, "kernel_gaps": BREAKS, "elementwise": BREAKS}

GRAPHS_FIX: Final[Mapping[str, str]] = {
    "launch_bound": (
        "CUDA graphs are replayed already; what is launched outside of them costs: take it into the graph "
        "(sampling, the optimizer, gradient clipping, static shapes), capture the batch sizes that still run "
        "without one, and move Python work out of the step."
    ),
    "kernel_gaps": (
        "CUDA graphs are replayed already; within one each kernel still costs about 1 µs to start: fewer, longer "
        "kernels (torch.compile, fused norms, losses and optimizers, larger batches)."
    ),
    "small_kernels": "Fuse them: torch.compile, fused norms, losses and optimizers, larger batches.",
}
WITHOUT_COMPILING: Final = (
    ("(torch.compile, fused", "(fused"),
    ("Fuse them: torch.compile, fused", "Fuse them: fused"),
    ("(keep a bf16 copy, or torch.compile, which fuses casts into what follows)", "(keep a bf16 copy)"),
)
"""Words that advise to compile, and what stands in their place where that is done."""
