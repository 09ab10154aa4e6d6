"""Whether a report gives the advice that an outsider asked of it, and none of what was ruled out.

The judgements (tests/data/judged) are sentences. Each is matched to a pattern over the report's own text, by the
words in it; a sentence that no pattern is for is not counted, and printed by --list as not mechanised.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

REQUIRED: Final[tuple[tuple[str, str], ...]] = (
    (r"tell.*apart|compare the ranks|cannot be told", r"one rank|all ranks|cannot be told"),
    (r"straggl|late (one|rank)|arrives? last|last to arrive|is the later",
     r"straggler|holds the others up|waits? for"),
    (r"unfused|not fused|SDPA|flash att|fused attention|eager softmax", r"scaled_dot_product|flash"),
    (r"optimi[sz]er|AdamW", r"optimizer"),
    (r"TF32|BF16|\bAMP\b|mixed precision|tensor core|FP16|autocast|FP32", r"tf32|bf16|autocast|fp16"),
    (r"FP8", r"fp8|gpu_bound"),
    (r"jax\.jit|wrap.*jit|jit the loop", r"jax\.jit|one jit"),
    (r"checkpoint", r"checkpoint"),
    (r"empty_cache|allocations churn|segments are allocated", r"empty_cache|allocated and freed|segments"),
    (r"expandable", r"expandable"),
    (r"no_grad|inference_mode", r"no_grad|inference_mode"),
    (r"start-up|warm.?up|cold|first.call|first run|one-off|one-shot|initialisation|NVRTC|compilation",
     r"one-off|warm|start-up|first steps|setting up|loading|compil|whole steps once"),
    (r"pin(ned)? |pin the|pageable|pin_memory|pinned", r"pin_memory|pinned|pageable"),
    (r"DataLoader|input.bound|input pipeline|preprocessing|decoding|generate|data on the GPU|randn",
     r"dataloader|input_bound|waits for input|prepare inputs"),
    (r"\.item|read-?back|synchronis\w+ \d+ times|avoid.*sync|synchronising after", r"\.item\(\)"),
    (r"channels_last", r"channels_last"),
    (r"launch.bound|host.bound|launch/host|CUDA graphs|too small|larger batch|tiny|host is late|host overhead"
     r"|reduce-overhead",
     r"launch|graph"),
    (r"fuse|torch\.compile|elementwise", r"fuse|torch\.compile"),
    (r"exposed|all-to-all|all_?reduce|AllGather|NCCL|communication|P2P|NVLink|gloo",
     r"exposed nccl: [1-9]|communication_bound|one rank|straggler"),
    (r"copy-bound|copies dominate|copies are|offload|host-to-device", r"pinned|copies between host and device"),
    (r"CPU-only|ran on the CPU|no GPU (activity|work|events|in)|GPU records|no CUDA|GPU side|only NVTX"
     r"|missing|not recorded|not captured|no compute recorded",
     r"no device activity|no kernel|records? (no|none)|not recorded|CPU only|no gpu work|is no capture|neither"),
    (r"one (step|iteration|forward|run|pass|execution|single)|single|steady",
     r"1 whole step|no whole step|one step|whole steps"),
    (r"stack|annotation|inflates|overhead", r"profiler"),
    (r"GPU-bound|compute-bound|GPU mostly busy", r"gpu_bound|memory_bound|the gpu is the limit"),
    (r"no step|not marked|step markers", r"no whole step|steps:"),
    (r"weights|BF16 halves|quantis", r"parameters"),
    (r"activations", r"activations"),
    (r"history|no stack|holders unknown", r"history|memory-history|unknown"),
    (r"out of memory", r"could not give"),
    (r"ncu", r"ncu"),
    (r"not an? (nsys|supported|profile)|execution trace|export with nsys|speedscope|Python call|CPU sampler",
     r"export|speedscope|no capture|not a|neither|py-spy|stacks"),
    (r"cuBLAS", r"cublas|library"),
    (r"other processes|another process", r"process"),
)  # fmt: skip
"""What a required sentence is about, and what a report says that fulfils it; the first that fits is taken."""

Report = Mapping[str, Any]


def _verdict(*names: str) -> Callable[[Report, str], bool]:
    return lambda report, _: report.get("verdict") in names


def _finding(*names: str) -> Callable[[Report, str], bool]:
    return lambda report, _: any(
        row["id"] in names and row.get("severity") != "info" for row in report.get("findings") or ()
    )


def _either(verdicts: tuple[str, ...], findings: tuple[str, ...]) -> Callable[[Report, str], bool]:
    one, other = _verdict(*verdicts), _finding(*findings)
    return lambda report, text: one(report, text) or other(report, text)


def _said(pattern: str) -> Callable[[Report, str], bool]:
    return lambda _, text: bool(re.search(pattern, text, re.I))


def _steps(report: Report, _: str) -> bool:
    return bool((report.get("steps") or {}).get("count"))


def _many_steps(report: Report, _: str) -> bool:
    return ((report.get("steps") or {}).get("count") or 0) > 1


FORBIDDEN: Final[tuple[tuple[str, Callable[[Report, str], bool]], ...]] = (
    (r"DDP|NCCL tuning", _said(r"DDP\(|FSDP")),
    (r"activation checkpointing", _said(r"checkpointing the layers")),
    (r"expandable", _said(r"expandable_segments")),
    (r"fragmentation", _finding("fragmentation")),
    (r"leak", _finding("memory_leak")),
    (r"OOM|out of memory", _finding("out_of_memory")),
    (r"pin (the )?memory|pin memory", _said(r"pin_memory")),
    (r"training advice|training or serving", _said(r"optimizer|micro-batch|DataLoader")),
    (r"enable CUDA graphs|use CUDA graphs as the main|CUDA graphs as the answer",
     _said(r"mode='reduce-overhead'\) or CUDA graphs")),
    (r"bf16 for speed", _said(r"autocast")),
    (r"many.?steps? statistics|two equal steps", _many_steps),
    (r"launch", _either(("launch_bound",), ("launch_bound",))),
    (r"data.?load|input", _either(("input_bound",), ("input_bound",))),
    (r"communication|NCCL", _either(("communication_bound",), ("communication_bound",))),
    (r"synchronisation|\.item|wait", _either(("sync_bound",), ("sync_bound",))),
    (r"copies|copy", _either(("h2d_bound",), ("h2d_bound",))),
    (r"compute-bound|GPU-bound|saturated|fully busy", _verdict("gpu_bound")),
    (r"\bsteps?\b|step time|step statistics", _steps),
)  # fmt: skip
"""What a forbidden sentence is about, and whether a report says it; the first that fits is taken."""


def advice_counts(entry: Mapping[str, Any], report: Report, text: str) -> tuple[Counter[str], list[str]]:
    """Count the advice of one report by its judgement.

    Args:
        entry: of the judgements.
        report: the report as JSON; empty where it was refused.
        text: all of it as text, or the sentence of its refusal.

    Returns:
        How many required sentences were found, missed or are not mechanised, and how many forbidden ones were
        said or avoided; then a line for each that is not right.
    """
    counts: Counter[str] = Counter()
    wrong = []
    for asked in entry.get("advice_required") or ():
        pattern = next((said for about, said in REQUIRED if re.search(about, asked, re.I)), None)
        found = "not mechanised" if pattern is None else "missed"
        if pattern is not None and re.search(pattern, text, re.I):
            found = "found"
        counts[f"required {found}"] += 1
        wrong += [f"{found}: {asked}"] if found != "found" else []
    for ruled_out in entry.get("advice_forbidden") or ():
        says = next((rule for about, rule in FORBIDDEN if re.search(about, ruled_out, re.I)), None)
        said = "not mechanised" if says is None else "said" if says(report, text) else "avoided"
        counts[f"forbidden {said}"] += 1
        wrong += [f"said: {ruled_out}"] if said == "said" else []
    return counts, wrong
