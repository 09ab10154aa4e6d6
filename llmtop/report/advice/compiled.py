"""Advice for programs that already use torch.compile or CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BREAKS: Final = "TORCH_LOGS=graph_breaks,recompiles {command}   # where compiled code ends, and what compiles anew"

COMPILED_FIX: Final[Mapping[str, str]] = {
    "launch_bound": (
        "Launch less: mode='reduce-overhead' replays the part that is compiled already as CUDA graphs; take "
        "in what still runs outside (graph breaks, the optimizer, metrics); larger batches; move Python work out "
        "of the step."
    ),
    "kernel_gaps": (
        "Remove graph breaks, so that more is fused (a part of the program is compiled already): each kernel "
        "costs 1 to 2 µs to start, whoever launches it; larger batches; CUDA graphs (mode='reduce-overhead') "
        "shorten the pauses."
    ),
    "small_kernels": (
        "Fuse more: remove graph breaks (a part of the program is compiled already); larger batches; or "
        "replay it as a CUDA graph (mode='reduce-overhead')."
    ),
    "copies_casts": (
        "Find who converts and who copies outside of the compiled parts (graph breaks): .to(dtype) in the forward "
        "pass, .contiguous(), .clone(), transposes before views; channels_last for convolutions."
    ),
    "elementwise": (
        "Fuse those of these kernels that lie outside of what is compiled already (graph breaks); a narrower "
        "type halves the bytes of the others."
    ),
}
COMPILED_NEXT: Final[Mapping[str, str]] = {"small_kernels": BREAKS, "kernel_gaps": BREAKS, "elementwise": BREAKS}

GRAPHS_FIX: Final[Mapping[str, str]] = {
    "launch_bound": (
        "Take what is launched outside of the CUDA graphs into them (sampling, the optimizer, gradient clipping, "
        "static shapes): graphs are replayed already; capture the batch sizes that still run without one, and "
        "move Python work out of the step."
    ),
    "kernel_gaps": (
        "Use fewer, longer kernels (torch.compile, fused norms, losses and optimizers, larger batches): CUDA "
        "graphs are replayed already, and within one each kernel still costs about 1 µs to start."
    ),
    "small_kernels": "Fuse them: torch.compile, fused norms, losses and optimizers, larger batches.",
}
GRAPHS_NEXT: Final[Mapping[str, str]] = {"small_kernels": ""}
"""In a graph that is replayed nothing breaks."""
WITHOUT_COMPILING: Final = (
    ("(torch.compile, fused", "(fused"),
    ("Fuse them: torch.compile, fused", "Fuse them: fused"),
    ("(keep a bf16 copy, or torch.compile, which fuses casts into what follows)", "(keep a bf16 copy)"),
)
"""Words that advise to compile, and what stands in their place where that is done."""
