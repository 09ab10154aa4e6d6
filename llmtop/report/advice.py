"""Advice as data: for each finding what the field does about it, how to confirm it, and the exact next command.

The texts are templates; `{pid}`, `{command}`, `{kernel}` and the like are filled in by analysis/findings.py with
what the capture shows. Numbers in a text have their source beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from llmtop.bottlenecks import LossId


@dataclass(frozen=True)
class Advice:
    """What to do about one kind of finding."""

    fix: str
    confirm: str
    next: str


FindingId = Literal[
    LossId,
    "straggler",
    "records_lost",
    "hot_kernel",
    "small_kernels",
    "allocations",
    "pageable_copies",
    "unsteady_steps",
]
"""What the report on a capture can find; on a recording the findings are its alerts."""

ADVICE: Final[Mapping[FindingId, Advice]] = {
    "records_lost": Advice(
        fix=(
            "Idle time, shares and phases of that process are wrong by the missing kernels; totals of what was "
            "recorded are right. nsys 2025.3 loses them in a process that it collects from repeatedly, and has "
            "crashed such a process some collections later: save a checkpoint, start the training anew before the "
            "next nsys capture, or take another nsys, or torch.profiler in a training that was not started with "
            "--nsys."
        ),
        confirm="the next report has no such line",
        next="llmtop run -- {command}   # then: llmtop capture --engine torch.profiler --steps 5",
    ),
    "launch_bound": Advice(
        fix=(
            "Launch less: torch.compile(model, mode='reduce-overhead') or CUDA graphs replay a whole step with "
            "one call; a fused (fused=True) or foreach optimizer replaces hundreds of launches; a larger "
            "micro-batch gives each kernel more to do; move Python work out of the step."
        ),
        confirm="launches a step and the share of launching fall, kernels under 10 µs become fewer",
        next="py-spy record -p {pid} -d 10 -r 200 --nonblocking -o launch-{pid}.svg",
    ),
    "kernel_gaps": Advice(
        fix=(
            "Each kernel costs 1 to 2 µs to start, whoever launches it: fewer, longer kernels (torch.compile, "
            "fused norms, losses and optimizers, a larger micro-batch); CUDA graphs shorten the pauses."
        ),
        confirm="kernels a step fall, the share of these gaps with them",
        next="TORCH_LOGS=graph_breaks {command}   # after torch.compile: where it had to break",
    ),
    "input_bound": Advice(
        fix=(
            "Make the next batch while this one is trained on: DataLoader(num_workers=8, prefetch_factor=4, "
            "persistent_workers=True, pin_memory=True) and batch.to(device, non_blocking=True); tokenise and "
            "decode ahead of time; read from local disk or memory-mapped files; move CPU augmentation to the GPU."
        ),
        confirm="the dataload phase shrinks on the GPU's clock, idle time by input goes",
        next="py-spy record -p {pid} -d 10 -r 200 --nonblocking --subprocesses -o input-{pid}.svg",
    ),
    "sync_bound": Advice(
        fix=(
            "Do not read values back within the step: keep losses and norms on the GPU and log every N steps; "
            "replace .item(), .cpu(), .tolist(), print(tensor), `if tensor:`, nonzero() and boolean masks; use "
            "torch.where, non_blocking copies and clip_grad_norm_(…, foreach=True); take torch.cuda.synchronize() "
            "out. torch.cuda.set_sync_debug_mode('warn') prints each place."
        ),
        confirm="calls that wait fall to about one a step",
        next="py-spy dump -p {pid}   # several times: the line that calls .item() or .cpu() is on top",
    ),
    "h2d_bound": Advice(
        fix=(
            "Copy from pinned memory and beside the work: DataLoader(pin_memory=True) and .to(device, "
            "non_blocking=True) on a stream of its own, one batch ahead; copy less (token ids, uint8 images, "
            "masks made on the GPU); keep what does not change on the GPU; offload less."
        ),
        confirm="copies become pinned, run while kernels run, and reach the rate of the PCIe link",
        next="py-spy dump -p {pid}   # the line that calls .to() or .cuda() is on top",
    ),
    "communication_bound": Advice(
        fix=(
            "Overlap: DDP(gradient_as_bucket_view=True, static_graph=True) with bucket_cap_mb tuned, FSDP "
            "prefetching (backward_prefetch=BACKWARD_PRE, limit_all_gathers=True); send less: bf16 gradients "
            "(bf16_compress_hook), gradient accumulation with no_sync(), a larger batch a GPU; check the path: "
            "NCCL_DEBUG=INFO names NVLink, P2P or SHM and the NICs, nvidia-smi topo -m the wiring."
        ),
        confirm="exposed NCCL falls while NCCL itself may stay",
        next="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET {command}",
    ),
    "straggler": Advice(
        fix=(
            "Look at that rank alone: its clock and temperature against the others', its NUMA node and CPU "
            "affinity, its share of the data (sequence lengths, padding), other processes on its GPU or host. "
            "Balance by tokens, not by samples."
        ),
        confirm="exposed NCCL becomes even over the ranks",
        next="nvidia-smi -i {device} -q -d CLOCK,PERFORMANCE,TEMPERATURE && py-spy dump -p {pid}",
    ),
    "idle": Advice(
        fix=(
            "Find out what the host does there: mark its parts with llmtop.phase(…) or NVTX ranges, or capture "
            "again with OS runtime traces. Checkpoints, evaluation, logging and garbage collection "
            "(gc.freeze(), gc.disable() between steps) are the usual ones. Where launched work waited: look for "
            "cudaStreamWaitEvent and copies on other streams, and record the nodes of CUDA graphs "
            "(nsys --cuda-graph-trace=node)."
        ),
        confirm="the same capture names a cause",
        next="py-spy record -p {pid} -d 10 -r 200 --nonblocking -o idle-{pid}.svg",
    ),
    "one_off": Advice(
        fix="It is left out of the shares. Capture later, when the steps take the same time each.",
        confirm="the next report has no such line",
        next="llmtop capture --steps 5   # once the first steps are over",
    ),
    "unknown": Advice(
        fix="Capture again with the CUDA trace on the host's side: nsys --trace=cuda,nvtx, or "
        "torch.profiler with ProfilerActivity.CPU and CUDA.",
        confirm="the next report names causes",
        next="llmtop capture --steps 5",
    ),
    "hot_kernel": Advice(
        fix="",
        confirm="the kernel's mean time falls",
        next=("ncu --target-processes all --kernel-name {kernel_regex} {launches} --set full -o {file} {command}"),
    ),
    "small_kernels": Advice(
        fix="Fuse them: torch.compile, a fused or foreach optimizer, fused norms and losses; or replay them as a "
        "CUDA graph.",
        confirm="the number of kernels a step falls",
        next="TORCH_LOGS=graph_breaks {command}   # after torch.compile: where it had to break",
    ),
    "allocations": Advice(
        fix=(
            "cudaMalloc and cudaFree stop the GPU. PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, fixed shapes "
            "(pad to buckets), no torch.cuda.empty_cache() in the loop; if memory is short: activation "
            "checkpointing, sharding (FSDP, ZeRO), a smaller micro-batch."
        ),
        confirm="no cudaMalloc after the first steps",
        next=(
            "torch.cuda.memory._record_memory_history(max_entries=100000)   # in the script, and after some steps "
            "torch.cuda.memory._dump_snapshot('memory.pickle'), opened at https://pytorch.org/memory_viz"
        ),
    ),
    "pageable_copies": Advice(
        fix="pin_memory=True in the DataLoader (or tensor.pin_memory() once), then .to(device, "
        "non_blocking=True): a pageable copy goes through a staging buffer, blocks the host and does not overlap.",
        confirm="the copies are pinned and their GB/s rise",
        next="",
    ),
    "unsteady_steps": Advice(
        fix="Look at the slow ones: garbage collection, checkpoints, evaluation, variable shapes (recompiling, "
        "cuBLAS heuristics), a loader that runs dry every N batches.",
        confirm="the spread of the steps falls",
        next="llmtop capture --when 'step > 1.5x'",
    ),
}
"""By the id of a finding."""
