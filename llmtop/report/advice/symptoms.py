"""Symptoms that a user sees: for each the first tool, its command, and the advice of the finding behind it.

`llmtop which` and docs/symptoms.md print this table. What to change and how to confirm it are in
`llmtop.report.advice.table`, so that a symptom, a report and an alert advise the same.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final

from llmtop.model.bottlenecks import BOTTLENECKS, AlertId, name_of
from llmtop.report.advice.commands import STACKS
from llmtop.report.advice.table import ADVICE, Advice, FindingId

_REPORT: Final = "llmtop capture --steps 5"


@dataclass(frozen=True)
class Symptom:
    """One symptom and the tool to start with."""

    id: str
    """Id that `llmtop which` takes: the id of its alert or finding where there is one."""
    title: str
    """Symptom that the user sees."""
    tool: str
    """The first tool."""
    command: str
    """Its command; capital words stand for values of the user's."""
    answer: str
    """Answer that the tool gives."""
    finding: FindingId | None = None
    """The finding whose advice holds here."""
    alert: AlertId | None = None
    """The live alert that names this symptom."""
    words: str = ""
    """Other words by which users search for it."""

    @property
    def advice(self) -> Advice | None:
        """Return the fix and how to confirm it; None where only the tool can find it."""
        return ADVICE[self.finding] if self.finding else None


SYMPTOMS: Final[tuple[Symptom, ...]] = (
    Symptom(
        "slow",
        "the training is slow and the cause is unknown",
        "llmtop",
        "llmtop",
        "which part of the step takes the time, and the alert that names the cause",
        words="bottleneck start first unknown why throughput tokens per second mfu",
    ),
    Symptom(
        "input_bound",
        "the step waits for the data loader",
        "py-spy",
        STACKS,
        "the Python lines in which the data loader spends its time",
        "input_bound",
        "input_bound",
        "dataloader loading slow input io i/o starved idle GPU batch disk storage dataset workers num_workers "
        "tokenizer tokenization tokenize collate item decode augmentation transform streaming throughput",
    ),
    Symptom(
        "launch_bound",
        "many small kernels, GPU busy for a small part of the step",
        "torch.profiler or nsys",
        _REPORT,
        "launches per step, share of idle time that waits for the host, operators that launch most",
        "launch_bound",
        "launch_bound",
        "launch CPU bottleneck overhead low utilization small batch Python eager mfu throughput",
    ),
    Symptom(
        "sync_bound",
        "the host waits for the GPU in each step",
        "py-spy",
        STACKS,
        "the line that calls .item(), .cpu() or synchronize()",
        "sync_bound",
        "sync_bound",
        "item synchronize cudaStreamSynchronize cpu print",
    ),
    Symptom(
        "h2d_bound",
        "copies from host to device take a large part of the step",
        "torch.profiler or nsys",
        _REPORT,
        "bytes, rate and pinned share of the copies, and what they overlap with",
        "h2d_bound",
        "h2d_bound",
        "memcpy copy pcie pinned pageable transfer",
    ),
    Symptom(
        "communication_bound",
        "more GPUs bring little speed: communication is exposed",
        "nsys or torch.profiler on all ranks",
        "llmtop capture --at-step +20 --ranks all",
        "exposed communication per rank and collective",
        "communication_bound",
        "communication_bound",
        "nccl allreduce all-reduce scaling DDP FSDP network nvlink collective slow multi-node multinode multi-gpu "
        "distributed bandwidth",
    ),
    Symptom(
        "straggler",
        "one rank is slower than the others",
        "llmtop",
        "llmtop",
        "the rank, the phase in which it is slower, and its clocks (r: all ranks)",
        "straggler",
        "straggler",
        "rank late slow node imbalance",
    ),
    Symptom(
        "hung_collective",
        "the training hangs in a collective",
        "llmtop",
        "llmtop --once",
        "the rank that never entered, the process group and the collective",
        alert="hung_collective",
        words="hang hangs stuck deadlock nccl timeout watchdog barrier multi-node multinode",
    ),
    Symptom(
        "stalled",
        "the process runs, but no step ends",
        "py-spy",
        STACKS,
        "the line that each thread is in",
        alert="stalled",
        words="hang hangs stuck freeze frozen stopped no progress",
    ),
    Symptom(
        "low_power_full_util",
        "the GPU reports 100 % utilization at low power",
        "llmtop",
        "llmtop --once",
        "power, SM activity, and whether a collective waits",
        alert="low_power_full_util",
        words="busy idle spinning nvidia-smi",
    ),
    Symptom(
        "low_activity",
        "the GPU is used by a process that is not attached, at a small part of its speed",
        "llmtop run",
        "llmtop run -- python train.py",
        "steps and phases of that training, which the driver does not know",
        alert="low_activity",
        words="low utilization underused unknown process",
    ),
    Symptom(
        "memory_bound",
        BOTTLENECKS["memory_bound"].sentence,
        "torch.profiler",
        ADVICE["copies_casts"].next,
        "elementwise work, copies and casts that fewer kernels would do",
        "elementwise",
        "memory_bound",
        "HBM DRAM bandwidth elementwise unfused",
    ),
    Symptom(
        "slower",
        "steps take longer than an hour ago",
        "llmtop",
        "llmtop",
        "since which step, by how much, in which phase (a: evidence over time)",
        alert="slower",
        words="slower degrade degradation regression over time gradually throughput drops",
    ),
    Symptom(
        "rare_steps",
        "some steps take much longer than the others",
        "llmtop capture --when",
        ADVICE["unsteady_steps"].next,
        "a capture of such a step when it next comes",
        "unsteady_steps",
        "rare_steps",
        "spikes jitter stutter periodic slow checkpoint save evaluation validation garbage collection gc variance",
    ),
    Symptom(
        "non_finite",
        "the loss or a gradient is NaN or infinite",
        "llmtop",
        "llmtop --once",
        "the first step whose value is not finite; then torch.autograd.set_detect_anomaly(True) for the operator",
        alert="non_finite",
        words="nan inf loss diverged exploded spike gradient overflow health",
    ),
    Symptom(
        "loss_spike",
        "the loss or the gradient norm jumps",
        "llmtop",
        "llmtop --once",
        "the step, its value, the usual range, and whether the value has come back",
        alert="loss_spike",
        words="jump spike explodes diverges exploding explosion gradient norm grad_norm_jump unstable "
        "learning rate health",
    ),
    Symptom(
        "loss_flat",
        "the loss does not fall any more",
        "llmtop",
        "llmtop --once",
        "the step since which the loss has not moved, and the learning rate",
        alert="loss_flat",
        words="stuck plateau flat not learning constant health",
    ),
    Symptom(
        "loss_scale_collapse",
        "the loss scale of mixed precision falls again and again",
        "llmtop",
        "llmtop --once",
        "the step since which it falls, and whether losses or gradients overflow: bf16 needs no loss scale",
        alert="loss_scale_collapse",
        words="gradscaler fp16 half precision overflow underflow amp health",
    ),
    Symptom(
        "ranks_diverged",
        "ranks that should log the same loss log different ones",
        "llmtop",
        "llmtop --once",
        "the first step at which they differ, and the rank: read the Xid and ECC history of its GPU",
        alert="ranks_diverged",
        words="different losses silent corruption desync out of sync ddp health",
    ),
    Symptom(
        "work_at_risk",
        BOTTLENECKS["work_at_risk"].sentence,
        "llmtop",
        "llmtop --once",
        "steps and time since the last checkpoint, what one takes, and which interval would cost least",
        alert="work_at_risk",
        words="checkpoint_interval checkpoint lost crash save young daly risk",
    ),
    Symptom(
        "checkpoint_disk_full",
        BOTTLENECKS["checkpoint_disk_full"].sentence,
        "llmtop",
        "llmtop --once",
        "free space, the size of a checkpoint, and when the disk is full at this rate",
        alert="checkpoint_disk_full",
        words="storage space quota enospc no space left checkpoint",
    ),
    Symptom(
        "job_died",
        "a job died or hung, and many ranks report errors",
        "llmtop postmortem",
        "llmtop postmortem LOGS",
        "the rank that failed first, from dumps, logs and stacks, and which ranks only waited",
        words="crash crashed dead killed failed exit post-mortem traceback exception segfault sigkill preempted "
        "flight recorder nccl timeout",
    ),
    Symptom(
        "outside",
        "a part of the step belongs to no phase",
        "py-spy",
        STACKS,
        "the line of the script that takes the time",
        alert="outside",
        words="untimed untracked other logging wandb callback",
    ),
    Symptom(
        "memory_pressure",
        "the GPU runs out of memory",
        "llmtop run --memory-history",
        "llmtop run --memory-history -- python train.py",
        "who holds the memory, the peak by phase and fragmentation, from the snapshot that the error leaves",
        alert="memory_pressure",
        words="OOM OutOfMemoryError out of memory CUDA vram allocation fragmentation",
    ),
    Symptom(
        "memory_growth",
        "GPU memory grows with every step",
        "llmtop capture --engine memory",
        "llmtop capture --engine memory --steps 5",
        "the lines that allocate; llmtop compare of two such captures names the leak",
        alert="memory_growth",
        words="leak OOM vram increase",
    ),
    Symptom(
        "host_memory",
        "the memory of the host grows",
        "memray",
        "python -m memray run train.py",
        "which Python lines allocate; llmtop shows the size of each process only",
        words="RAM RSS leak killed oom-killer",
    ),
    Symptom(
        "throttled",
        "GPU clocks are reduced",
        "nvidia-smi",
        "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE",
        "the reason that the driver gives: heat, power brake or power limit",
        alert="throttled",
        words="hot overheating temperature thermal clock power cap",
    ),
    Symptom(
        "gpu_error",
        "the driver reports an Xid or ECC error",
        "llmtop",
        "llmtop --once",
        "GPU, code, meaning and what to do",
        alert="gpu_error",
        words="xid ecc lost fell off the bus crash hardware",
    ),
    Symptom(
        "link_errors",
        "an InfiniBand or RoCE port goes down or counts errors",
        "llmtop",
        "llmtop --once",
        "the port and the counter",
        alert="link_errors",
        words="network infiniband roce rdma ibstat",
    ),
    Symptom(
        "hot_kernel",
        "one kernel takes most of the GPU time",
        "ncu",
        "llmtop kernel llmtop-captures/NAME --run",
        "what limits that kernel: tensor cores, memory, latency or the size of the grid",
        "hot_kernel",
        words="kernel ncu roofline occupancy slow kernel",
    ),
    Symptom(
        "operators",
        "which operators and modules take the time",
        "torch.profiler",
        "llmtop capture --engine torch.profiler --option stacks --option shapes",
        "operators by self time with shapes, modules and source lines",
        words="operator module layer profile aten",
    ),
    Symptom(
        "graph_breaks",
        "torch.compile brings nothing",
        "TORCH_LOGS",
        "TORCH_LOGS=graph_breaks,recompiles python train.py",
        "where the graph breaks, and why functions are compiled again",
        "small_kernels",
        words="compile recompile recompilation dynamo inductor graph break",
    ),
    Symptom(
        "time_an_operator",
        "how long one operator or function takes",
        "torch.utils.benchmark",
        "python -c \"import torch.utils.benchmark as b; print(b.Timer('x @ x', 'import torch; "
        "x = torch.rand(512, 512)').blocked_autorange())\"",
        "median and spread, with warm-up and with the GPU synchronized",
        words="microbenchmark micro benchmark timing timeit measure function",
    ),
    Symptom(
        "time_a_kernel",
        "how long one GPU kernel takes",
        "triton.testing.do_bench",
        'python -c "import torch; from triton.testing import do_bench; '
        "x = torch.rand(4096, 4096, device='cuda'); print(do_bench(lambda: x @ x), 'ms')\"",
        "GPU time in ms, with a cold L2 cache for each repetition",
        words="microbenchmark micro benchmark timing measure triton do_bench",
    ),
    Symptom(
        "prove",
        "whether a change made the training faster",
        "llmtop bench",
        "llmtop bench --against 'python before.py' --fail-over 5 -- python after.py",
        "the change with its 95 % interval, and an exit code",
        words="fix faster compare comparison regression CI speed proof benchmark a/b",
    ),
    Symptom(
        "cluster",
        "which node of many is slow or down",
        "llmtop cluster",
        "llmtop cluster --prometheus http://prometheus:9090",
        "nodes that are down, hot GPUs, late ranks",
        words="nodes fleet slurm kubernetes many machines multi-node multinode",
    ),
    Symptom(
        "not_shown",
        "llmtop shows no training or no GPU",
        "llmtop doctor",
        "llmtop doctor",
        "what this machine allows, and the command that changes it",
        words="missing empty nothing no gpu driver attach permission",
    ),
)


def find_symptoms(query: str) -> list[Symptom]:
    """Return the symptoms that a query means.

    Args:
        query: an id or the name of an alert in any spelling ("input_bound", "input bound"), else words.

    Returns:
        The one with that id or name; else those that have all of the words, in the table's order; may be empty.
    """
    wanted = _normalize(query)
    exact = [one for one in SYMPTOMS if wanted in (_normalize(one.id), _normalize(name_of(one.id)))]
    if exact or not wanted:
        return exact
    words = [word for word in wanted.split() if word not in _FILLERS] or wanted.split()
    return [one for one in SYMPTOMS if all(_has_word(one, word) for word in words)]


def nearest_symptoms(query: str, most: int = 3) -> list[Symptom]:
    """Return the symptoms nearest to a query that means none, the nearest first.

    Args:
        query: words of the user.
        most: how many at most.
    """
    asked = [word for word in _normalize(query).split() if word not in _FILLERS]

    def nearness(one: Symptom) -> float:
        known = _text(one).split()
        best = [max(difflib.SequenceMatcher(None, word, other).ratio() for other in known) for word in asked]
        return sum(ratio**4 for ratio in best)  # one word that is meant outweighs several alike by chance

    return sorted(SYMPTOMS, key=nearness, reverse=True)[:most]


_FILLERS: Final = frozenset(
    {"a", "an", "and", "are", "at", "by", "does", "for", "from", "has", "have", "i", "in", "is", "it", "its", "my"}
    | {"of", "on", "or", "our", "so", "the", "to", "too", "very", "why", "with"}
)


def _normalize(text: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", text.lower()))


def _text(one: Symptom) -> str:
    return _normalize(f"{one.id} {one.title} {one.words} {name_of(one.id)}")


def _has_word(one: Symptom, word: str) -> bool:
    """Return True if a word, or another form of it with the same first four letters or more, is in the
    symptom's text."""
    return any(
        known == word or (min(len(known), len(word)) >= 4 and (known.startswith(word) or word.startswith(known)))
        for known in _text(one).split()
    )
