"""Names of processes and GPUs in panes."""

from __future__ import annotations

from llmtop import format as fmt
from llmtop.model import ownership
from llmtop.model.jobs import NAME_SEPARATOR
from llmtop.model.snapshot import Gpu, Job, Rank
from tui.paint.rows import CellTheme, elapsed
from tui.state.stalled import open_collective, stalled_seconds
from tui.state.view import View


def users(gpu: Gpu, view: View, theme: CellTheme) -> str:
    """Return the attached training on this GPU, else how many processes use it, and whose; why its clock is
    low."""
    if view.snapshot is None:
        return ""
    dot = f" {theme.glyphs.dot} "
    parts = [_rank(rank, dot) for rank in view.snapshot.ranks if rank.gpu_uuid == gpu.uuid][:1]
    if not parts:
        pids = [process for process in view.snapshot.processes if process.gpu_uuid == gpu.uuid]
        command = (short_command(pids[0].command) or f"pid {pids[0].pid}") if pids else ""
        others = f" +{len(pids) - 1} more" if len(pids) > 1 else ""
        parts = [command + others] if pids else ["no process"]
    whose = ownership.owner_text(gpu.uuid, view.snapshot)
    if whose:
        parts.insert(0 if whose.endswith("alone") else 1, fmt.printable(whose))
    reasons = [reason for reason in gpu.clock_event_reasons or () if "idle" not in reason.lower()]
    if reasons:
        parts.append(fmt.printable(", ".join(reasons)).replace("_", " "))
    return dot.join(parts)


def standing_word(rank: Rank, now: float, theme: CellTheme) -> str:
    """Return why, or for how long, a running rank makes no steps, by what it reports; "" while it makes some.

    Args:
        rank: its state is "running".
        now: unix time of the snapshot.
        theme: glyphs of this terminal.
    """
    stuck = open_collective(rank)
    if stuck is not None:
        name = (stuck.operation or "").rpartition(":")[2]  # "nccl:all_reduce"
        return f"waits {theme.glyphs.dot} {fmt.printable(name) or 'a collective'}"
    if rank.step is None:
        return f"no {rank.kind} yet"
    silent = stalled_seconds(rank, now)
    return "" if silent is None else f"no step for {elapsed(silent)}"


def job_and_ranks(job: Job) -> tuple[str, str]:
    """Return the name of a job, and how many ranks of it are here: "train.py", "4 of 8 ranks seen".

    A name may hold nothing but the program and the number of ranks; the second text alone has it then.
    """
    seen = fmt.counted(job.ranks_seen, "rank")
    if job.world_size is not None and job.ranks_seen < job.world_size:
        seen = f"{job.ranks_seen} of {job.world_size} ranks seen"
    parts = [part for part in job.name.split(NAME_SEPARATOR) if part != f"{job.world_size} ranks"]
    return fmt.printable(NAME_SEPARATOR.join(parts) or job.name), seen


def short_command(command: str | None) -> str:
    """Return the command without the interpreter and the folders: "train.py --lr 3e-4"."""
    words = (command or "").split()
    if len(words) > 1 and words[0].rpartition("/")[2].startswith("python") and not words[1].startswith("-"):
        words = words[1:]
    return fmt.printable(" ".join([word.rpartition("/")[2] or word for word in words[:1]] + words[1:]))


def _rank(rank: Rank, dot: str) -> str:
    name = f"pid {rank.pid}" if rank.rank is None else f"rank {rank.rank}"
    step = "" if rank.step is None else f"{dot}step {rank.step:,}"
    return f"{name}{step}{dot}{short_command(rank.command)}".rstrip(dot)
