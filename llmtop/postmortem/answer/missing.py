"""Evidence that is not there and would tell more, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from llmtop.postmortem.answer.unwritten_ends import without_end
from llmtop.postmortem.job import JobFacts
from llmtop.postmortem.model import Culprit, FailureClass
from llmtop.postmortem.rank_text import rank_list

_NEXT: dict[FailureClass, str] = {
    "exception": "Fix the error at the named line; restart from the last checkpoint.",
    "out_of_memory": "Compare the memory of that rank with the others: llmtop report SNAPSHOT; lower its batch or "
    "its data loader's workers.",
    "killed": "Read the kernel log of that host (dmesg -T) for the sender: the OOM killer, a limit, a crash.",
    "stopped": "On that host check the process state (ps -o pid,stat,wchan) and resume it with kill -CONT.",
    "gpu_fault": "Take the GPU out of service; check nvidia-smi -q and NVIDIA's Xid catalogue before it is used "
    "again.",
    "different_collective": "Compare the branch that this rank took with the other ranks: each rank must call the "
    "same collectives in the same order.",
    "shape_or_dtype": "Print shape and dtype before that collective on this rank and on one other.",
    "stall": "Take stacks of that rank while it stalls: py-spy dump --native --pid PID.",
    "storage": "Check the file system that this rank reads or writes: mount state, quota, server.",
    "network": "Check links and routes between the nodes: ibstat, ethtool, NCCL_DEBUG=INFO.",
    "data": "Read the named batch or shard alone on that host; check its loader's workers.",
    "exited": "Search the script for the path on which this rank leaves the loop early.",
    "unknown": "Collect the missing evidence below at the next run.",
}


def next_steps(verdict: FailureClass, culprits: Sequence[Culprit]) -> tuple[str, ...]:
    """Return what to do, the most important first."""
    steps = [_NEXT[verdict]]
    if culprits and culprits[0].line:
        steps.append(f"Start at {culprits[0].line}.")
    return tuple(steps)


def missing_evidence(job: JobFacts, culprits: Sequence[Culprit], verdict: FailureClass) -> tuple[str, ...]:
    """Return what would tell more, in sentences.

    Args:
        job: the facts of all ranks.
        culprits: that were named.
        verdict: the class of the failure, also where no rank is named.
    """
    found: list[str] = []
    has_dumps = any(facts.dump is not None for facts in job.ranks.values())
    without = [rank for rank, facts in job.ranks.items() if facts.dump is None]
    if not has_dumps and job.world != 1:
        found.append(
            "No flight-recorder dump: set TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1 and "
            "TORCH_FR_DUMP_TEMP_FILE=FOLDER/rank_. An older torch has other names for the first and the last: "
            "TORCH_NCCL_TRACE_BUFFER_SIZE, TORCH_NCCL_DEBUG_INFO_TEMP_FILE."
        )
    elif has_dumps and without:
        found.append(f"No dump of {rank_list(without)}.")
    has_stacks = any(facts.stacks for facts in job.ranks.values())
    if not has_stacks:
        found.append(
            "No stacks: set PYTHONFAULTHANDLER=1 for crashes; for hangs run py-spy dump --pid PID on each rank "
            "before the job is ended, or call faulthandler.dump_traceback_later in the script."
        )
    ends = without_end(job.ranks.values())
    if ends and not culprits:
        found.append(
            "The run files do not show which of these ranks ended first. Pass the output of the launcher as well "
            "(torchrun … 2>&1 | tee job.log), or start it as llmtop run torchrun …, which keeps the exit codes."
        )
    if ends:
        found.append(
            "The run files do not show which signal it was, nor who sent it. The exit status shows the signal: "
            "137 is SIGKILL, 143 SIGTERM, 139 SIGSEGV."
        )
    elif not any(facts.errors or facts.ends for facts in job.ranks.values()):
        found.append(
            "No log of a rank with an error or an exit code: start torchrun with --log-dir FOLDER --tee 3 "
            "and pass that folder."
        )
    if not culprits:
        found += _by_verdict(job, verdict)
    for culprit in culprits[:1]:
        if culprit.failure in ("killed", "unknown", "stopped"):
            host = f" of {culprit.host}" if culprit.host else " of its host"
            text = f"No kernel log{host} that names the reason: dmesg -T shows the OOM killer and Xids."
            if culprit.failure == "killed":
                text += " Without it the OOM killer, a scheduler and a user look alike."
            found.append(text)
        if job.ranks[culprit.rank].is_absent:
            found.append(f"No file of rank {culprit.rank}: its log would name the reason.")
    return tuple(found)


def _by_verdict(job: JobFacts, verdict: FailureClass) -> list[str]:
    """Return the evidence that would name the rank where only the class is known."""
    kinds = {mark.kind for mark in job.evidence.marks}
    found = []
    if verdict == "network" and "link_down" not in kinds:
        found.append("No kernel log with a link that went down: add dmesg -T of each node, and ibstat.")
    if verdict in ("network", "gpu_fault", "out_of_memory") and "process" not in kinds:
        found.append(
            "No line names the host and the GPU of each rank: NCCL_DEBUG=INFO and NCCL_DEBUG_FILE=%h.%p do."
        )
    if verdict in ("shape_or_dtype", "different_collective"):
        found.append("No comparison of calls: TORCH_DISTRIBUTED_DEBUG=DETAIL names both ranks and their shapes.")
    if verdict in ("killed", "out_of_memory", "unknown") and not kinds & {"oom_kill", "segfault"}:
        found.append("No kernel log: dmesg -T of each node shows the OOM killer, segmentation faults and Xids.")
    return found
