"""Findings of a memory report, and the memory that each fix would free."""

from __future__ import annotations

from llmtop.format import counted, percent_text, size
from llmtop.memory.model import Held, Holder, MemoryDevice, MemoryFinding, MemoryReport

WORTH_PCT = 10.0
"""Share of the peak: a smaller saving does not justify a change of the training; verdicts have the same
threshold."""
SEGMENT_BYTES = 20 << 20
"""Segment size that PyTorch's allocator requests from CUDA for allocations below 10 MiB. A smaller idle amount
is normal in any process."""
_STATE: tuple[Holder, ...] = ("parameters", "gradients", "optimizer")
_NAMED_PCT = 1.0
"""Share of the peak: a smaller holder is not named in the summary."""
_GPUS = 8
"""GPUs of a node, where their number is unknown."""


def fullest(devices: tuple[MemoryDevice, ...]) -> MemoryDevice | None:
    """Return the device that holds most; the one that findings are about."""
    return max(devices, key=_most, default=None)


def _most(device: MemoryDevice) -> int:
    return device.peak.bytes if device.peak is not None else device.requested_bytes


def memory_summary(report: MemoryReport) -> str:
    """Return the largest holders of memory, in a sentence or two."""
    device = fullest(report.devices)
    if device is None:
        return "No device memory is reserved."
    where = f"GPU {device.device}" if len({one.device for one in report.devices}) > 1 else "The process"
    text = (
        f"{where} holds {size(device.requested_bytes)} in tensors, as requested ({size(device.allocated_bytes)} "
        f"rounded by the allocator), and has {size(device.reserved_bytes)} reserved"
    )
    if device.peak is not None:
        during = f" in {device.peak.phase}" if device.peak.phase else ""
        text += f"; at the peak{during} it held {size(device.peak.bytes)}"
    known = [held for held in device.holders if held.name != "other" and (held.name != "unknown" or device.events)]
    largest = sorted(known, key=lambda held: -_at_peak(held))[:3]
    worth = [held for held in largest if _at_peak(held) >= _NAMED_PCT / 100 * _most(device)]
    if worth:
        text += ", of it " + ", ".join(_held_words(held) for held in worth)
    return text + "."


def _held_words(held: Held) -> str:
    if held.name == "unknown":
        return f"{size(_at_peak(held))} from before the recording"
    return f"{_holder_words(held.name)} {size(_at_peak(held))}"


def _holder_words(name: str) -> str:
    return {"optimizer": "optimizer state", "autocast": "autocast's copies of weights"}.get(name, name)


def memory_findings(report: MemoryReport) -> tuple[MemoryFinding, ...]:
    """Return the findings: failures first, then by how much memory each would free."""
    device = fullest(report.devices)
    if device is None:
        return ()
    wrong = [*_out_of_memory(report.devices), *_leak(report.devices), *_fragmentation_findings(device)]
    worth = WORTH_PCT / 100 * _most(device)
    advice = [one for one in _advice(device, report) if (one.saves_at_most_bytes or 0) >= max(worth, 1)]
    return (*wrong, *sorted(advice, key=lambda one: -(one.saves_at_most_bytes or 0)))


def _out_of_memory(devices: tuple[MemoryDevice, ...]) -> list[MemoryFinding]:
    """Return the last error on each device: those before it may have been caught, and answered by a smaller
    batch."""
    return [_of_error(device) for device in devices if device.out_of_memory]


def _of_error(device: MemoryDevice) -> MemoryFinding:
    error, spare = device.out_of_memory[-1], device.fragmentation
    unused = spare.free_bytes
    scattered = unused >= error.wanted_bytes > spare.largest_free_bytes
    at = f" at {error.line}" if error.line else ""
    had = f", CUDA had {size(error.device_free_bytes)} left" if error.device_free_bytes is not None else ""
    largest = max(device.holders, key=lambda held: held.bytes, default=None)
    who = f"; {largest.name} hold most, {size(largest.bytes)}" if largest is not None else ""
    # What is free in the snapshot was free at the error only if that came last.
    why = (
        f": {size(unused)} were reserved and free, but in pieces of {size(spare.largest_free_bytes)} at most"
        if scattered
        else f": tensors held {size(device.allocated_bytes)} of {size(device.reserved_bytes)} reserved{who}"
    )
    return MemoryFinding(
        id="out_of_memory",
        severity="critical",
        summary=f"GPU {device.device} could not give {size(error.wanted_bytes)}{at}{had}{why}.",
        evidence={
            "wanted_bytes": error.wanted_bytes,
            "device_free_bytes": error.device_free_bytes,
            "free_reserved_bytes": unused,
            "largest_free_bytes": spare.largest_free_bytes,
            "allocated_bytes": device.allocated_bytes,
            "fragmented": scattered,
            "errors": len(device.out_of_memory),
        },
        fix=_EXPANDABLE if scattered else "free what is named below, largest first",
        next=_EXPANDABLE_NEXT if scattered else "see what would free how much",
        saves_at_most_bytes=spare.split_bytes if scattered else None,
    )


_EXPANDABLE = (
    "let segments grow in place instead of lying apart: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; or keep "
    "the shapes of batches alike"
)
_EXPANDABLE_NEXT = "start it with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True and compare: llmtop compare"


def _leak(devices: tuple[MemoryDevice, ...]) -> list[MemoryFinding]:
    found = []
    for device in devices:
        if not device.growing:
            continue
        worst = device.growing[0]
        rest = len(device.growing) - 1
        more = f", and so do {counted(rest, 'other line')}" if rest else ""
        found.append(
            MemoryFinding(
                id="memory_leak",
                severity="warning",
                summary=f"Each of {worst.steps} steps left {size(worst.bytes_per_step)} allocated at {worst.line} "
                f"on GPU {device.device}, and nothing as old was freed for it{more}.",
                evidence={
                    "line": worst.line,
                    "bytes_per_step": worst.bytes_per_step,
                    "blocks": worst.blocks,
                    "steps": worst.steps,
                    "lines": len(device.growing),
                },
                fix="find what keeps it: a list of losses or outputs (append loss.item(), or .detach().cpu()), a "
                "cache, a closure; a window of few steps cannot tell a cache that is still filling up",
                next="take another capture later and set them side by side: llmtop compare FIRST SECOND",
            )
        )
    return found


def _fragmentation_findings(device: MemoryDevice) -> list[MemoryFinding]:
    """Reserved beyond the most that was ever allocated. At the end of a step much is free in any training."""
    if device.peak is None or device.expandable_segments or device.out_of_memory:
        return []
    beyond = min(device.peak.reserved_bytes - device.peak.bytes, device.fragmentation.split_bytes)
    share = 100 * beyond / device.peak.reserved_bytes if device.peak.reserved_bytes else 0.0
    if share < WORTH_PCT or beyond <= SEGMENT_BYTES:
        return []
    return [
        MemoryFinding(
            id="fragmentation",
            severity="warning",
            summary=f"{size(beyond)} ({percent_text(share)} of what is reserved) are in no tensor even at the "
            "peak of this window, in pieces beside used ones; the largest free piece is "
            f"{size(device.fragmentation.largest_free_bytes)}.",
            evidence={
                "reserved_peak_bytes": device.peak.reserved_bytes,
                "allocated_peak_bytes": device.peak.bytes,
                "split_bytes": device.fragmentation.split_bytes,
                "largest_free_bytes": device.fragmentation.largest_free_bytes,
            },
            fix=_EXPANDABLE,
            next=_EXPANDABLE_NEXT,
            saves_at_most_bytes=beyond,
        )
    ]


def _advice(device: MemoryDevice, report: MemoryReport) -> list[MemoryFinding]:
    holds = {held.name: _at_peak(held) for held in device.holders}
    activations = holds.get("activations", 0)
    batch = activations if device.batch_peak_bytes is None else device.batch_peak_bytes
    state, optimizer = sum(holds.get(name, 0) for name in _STATE), holds.get("optimizer", 0)
    parameters, copies = holds.get("parameters", 0), holds.get("autocast", 0)
    loss = min(device.loss_peak_bytes or 0, activations + holds.get("other", 0))
    ranks = report.environment.ranks if report.environment is not None else None
    gpus = ranks if ranks is not None and ranks > 1 else _GPUS
    return [
        _saves(
            "sharding",
            state - state // gpus,
            f"{_state_words(holds)} {size(state)}: sharded over 2 GPUs each holds "
            f"{size(state // 2)}, over {gpus} {size(state // gpus)}.",
            "torch.distributed.fsdp.fully_shard, or DeepSpeed's ZeRO 3; ZeRO 1 shards the optimizer's state alone",
        ),
        _saves(
            "offload",
            optimizer,
            f"The optimizer's state holds {size(optimizer)}: it can lie in the host's memory.",
            "DeepSpeed's optimizer offload or torchao's CPUOffloadOptimizer; each step copies it over PCIe. An "
            "8-bit optimizer keeps a quarter of it instead",
        ),
        _saves(
            "fused_loss",
            loss,
            f"The loss over the vocabulary holds {size(loss)} at the peak: a fused one never makes these tensors "
            "whole.",
            "a fused linear and cross entropy (Liger Kernel's, or chunk the logits by tokens)",
        ),
        *_of_batch(device, activations, batch),
        *_whatever_the_batch(device, activations, copies),
        _saves(
            "fused_attention",
            device.attention_peak_bytes or 0,
            f"The scores of attention hold {size(device.attention_peak_bytes or 0)} at the peak: fused attention "
            "never writes them to memory.",
            "torch.nn.functional.scaled_dot_product_attention or FlashAttention in place of softmax and two "
            "products (transformers: attn_implementation='sdpa' or 'flash_attention_2')",
        ),
        _saves(
            "narrower_weights",
            parameters // 2 if 2 * parameters > _most(device) else 0,
            f"Parameters hold {size(parameters)}, most of the memory: bf16 takes half of what fp32 does.",
            "load them in bf16 if they are in fp32 (model.to(torch.bfloat16), torch_dtype=torch.bfloat16); for "
            "inference alone 8-bit or 4-bit weights take less again",
        ),
    ]


_LOWER_WEIGHTS = (
    "for inference load the weights in bf16 (model.to(torch.bfloat16)) and leave autocast out: that frees the "
    "copies and half of the weights"
)
_UNCAST = (
    "keep bf16 weights in the model and fp32 ones in the optimizer alone, sharded (FSDP's MixedPrecisionPolicy), "
    "in place of autocast"
)


def _state_words(holds: dict[str, int]) -> str:
    """Return the subject and the verb: those of the state that hold something."""
    names = [_holder_words(name) for name in _STATE if holds.get(name, 0)]
    words = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or "the state"
    return f"{words[:1].upper()}{words[1:]} {'holds' if words.endswith('state') and len(names) < 2 else 'hold'}"


def _whatever_the_batch(device: MemoryDevice, activations: int, copies: int) -> list[MemoryFinding]:
    """Findings that a smaller batch does not change: temporaries of the optimizer, and copies of weights."""
    short = device.optimizer_temporary_peak_bytes or 0
    saved = device.optimizer_temporary_saving_bytes
    saved = short if saved is None else saved
    peak = f", and the peak is then {size(_most(device) - saved)}, elsewhere" if saved < short else ""
    return [
        _saves(
            "optimizer_temporaries",
            saved,
            f"Temporaries of the optimizer's step hold {size(short)} at the peak: a fused one has none{peak}.",
            "torch.optim.AdamW(..., fused=True), or foreach=False: the foreach form makes temporaries as large as "
            "all weights of a group. A smaller batch does not change them",
        ),
        _saves(
            "autocast_copies",
            copies,
            f"Autocast's copies of weights hold {size(copies)} until its context ends, whatever the batch.",
            _UNCAST if device.backward_seen or _keeps_graph(device, activations) else _LOWER_WEIGHTS,
        ),
    ]


def _keeps_graph(device: MemoryDevice, activations: int) -> bool:
    return device.kept_by_forward and activations >= WORTH_PCT / 100 * _most(device)


def _of_batch(device: MemoryDevice, activations: int, batch: int) -> list[MemoryFinding]:
    """Findings on the memory that each sample of a batch takes.

    In a training activation checkpointing and smaller micro-batches reduce it; without a backward pass no_grad().
    """
    # An error ends a training before its first backward pass as well.
    if device.events and not device.backward_seen and not device.out_of_memory:
        if not device.kept_by_forward:
            return []
        return [
            _saves(
                "no_grad",
                activations,
                f"Activations of all layers hold {size(activations)} at once, and no backward pass is in the "
                "history: without gradients they are freed layer by layer.",
                "for inference run the model under torch.inference_mode() or torch.no_grad(); for a training "
                "record the history until a whole step has ended",
            )
        ]
    return [
        _saves(
            "checkpointing",
            activations,
            f"Activations hold {size(activations)}: checkpointing the layers keeps only their inputs.",
            "torch.utils.checkpoint on each layer (model.gradient_checkpointing_enable() in transformers); the "
            "backward pass computes a layer again, a third more compute at most",
        ),
        _saves(
            "micro_batch",
            batch // 2,
            f"A micro-batch of half the size needs about {size(batch // 2)} less: half of the {size(batch)} that "
            "grow with the batch; accumulate gradients over two.",
            "halve the batch and step the optimizer every second one, with the loss divided by two",
        ),
    ]


def _saves(name: str, saved: int, summary: str, fix: str) -> MemoryFinding:
    return MemoryFinding(id=name, severity="info", summary=summary, fix=fix, saves_at_most_bytes=saved)


def _at_peak(held: Held) -> int:
    return held.peak_bytes if held.peak_bytes is not None else held.bytes
