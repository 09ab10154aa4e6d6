"""llmtop capture --at-step: ranks of one job, wherever they are, from the same step on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llmtop.errors import LlmtopError, NotPossibleHere, UnusableInput

if TYPE_CHECKING:
    from llmtop.capture.across.local_job import LocalJob
    from llmtop.capture.across.rank_choice import RankChoice
    from llmtop.capture.base.engine import Engine
    from llmtop.capture.base.job import Plan, Target
    from llmtop.capture.base.step_listener import StepListener

HEAR_SECONDS = 10.0
"""Time to wait for a step of the trainings."""
ACCUSE_SECONDS = 8.0
"""Time for this node's own rules to name a rank."""
_BY_HAND_SECONDS = 60.0
"""Time that a person needs to start a command on every node."""
_ACCUSING = ("hung_collective", "straggler")

Say = Callable[[str], None]


@dataclass(frozen=True)
class AtStepOptions:
    """Options of the command line."""

    at_step: str
    ranks: str | None
    """None: by --rank, or the accused."""
    rank: tuple[int, ...]
    pids: tuple[int, ...]


def prepare_plan(
    asked: AtStepOptions, plan: Callable[[tuple[Target, ...]], Plan], say: Say
) -> tuple[Plan, Engine | None]:
    """Return the plan of such a capture, and what records it where that is not the engine itself.

    Args:
        asked: what was asked for.
        plan: makes one, but for the step, of these targets.
        say: prints a sentence.

    Raises:
        LlmtopError: it is impossible; the sentence names the alternative.
    """
    from llmtop.capture import targets
    from llmtop.capture.across import local_job, rank_choice, step_choice
    from llmtop.capture.base.step_listener import StepListener

    wanted = step_choice.StepChoice.parse(asked.at_step)
    if len(asked.pids) > 1:
        raise UnusableInput(
            "--at-step captures one job: pass one of its processes with --pid, and the ranks with --ranks"
        )
    if asked.rank and asked.ranks is not None:
        raise UnusableInput("--rank and --ranks exclude each other: pass one of them")
    choice = rank_choice.RankChoice.parse(asked.ranks or ",".join(map(str, asked.rank)) or rank_choice.ACCUSED)
    job = local_job.find_job(targets.list_attached(), asked.pids[0] if asked.pids else None)
    choice = _without_accused(choice, job, say)
    here = _local_targets(choice, job)
    made = plan(here or job.targets[:1])
    engine = _engine(made)
    watch = StepListener([(one.pid, one.socket) for one in job.targets[:1] if one.socket])
    try:
        _wait_for_listeners(watch)
        chosen = step_choice.choose_step(wanted, watch)
        if here is None and job.store is None:
            far = chosen.step + round(_BY_HAND_SECONDS / max(watch.median_seconds() or 1.0, 1e-3))
            _refuse_without_store(job, far)
    finally:
        watch.close()
    say(chosen.sentence)
    made = replace(made, at_step=chosen.step, wait_seconds=chosen.seconds)
    if here is not None:
        return made, None
    return _store_engine(made, engine, job, choice)


def _store_engine(made: Plan, engine: Engine, job: LocalJob, choice: RankChoice) -> tuple[Plan, Engine]:
    from llmtop.capture.across.store_capture import MultiNodeEngine
    from llmtop.capture.in_process.engine import InProcessEngine

    assert isinstance(engine, InProcessEngine)
    local = job.targets if choice.all else job.targets_of_ranks(choice.ranks or ())
    return (
        replace(made, targets=local, representative=job.targets[0]),
        MultiNodeEngine(engine, job, choice.ranks, choice.node),
    )


def _refuse_without_store(job: LocalJob, step: int) -> None:
    from llmtop.capture.across import local_job

    try:
        local_job.open_store(job).close()
    except NotPossibleHere as error:
        raise NotPossibleHere(f"{error}; instead: {local_job.manual_command(job, step)}") from None


def _local_targets(choice: RankChoice, job: LocalJob) -> tuple[Target, ...] | None:
    """Return the targets, if all that is asked for is on this node; else None.

    Raises:
        UnusableInput: there is no such rank.
    """
    from llmtop.capture.across.local_job import local_node_names

    if choice.here:
        return job.targets
    if choice.node is not None:
        names = local_node_names(job)
        return job.targets if choice.node in names else None
    ranks = set(range(job.world_size)) if choice.all else set(choice.ranks or ())
    unknown = sorted(rank for rank in ranks if rank >= job.world_size)
    if unknown:
        raise UnusableInput(f"rank {unknown[0]} does not exist: this job has ranks 0 to {job.world_size - 1}")
    return job.targets_of_ranks(tuple(ranks)) if ranks <= job.local_ranks else None


def _engine(made: Plan) -> Engine:
    from llmtop.capture import engines

    engine = engines.engine_named(made.engine)
    if not engine.supports_start_step:
        able = ", ".join(one.name for one in engines.ENGINES.values() if one.supports_start_step)
        raise UnusableInput(f"{engine.name} does not support --at-step: use --engine {able}")
    return engine


def _wait_for_listeners(watch: StepListener) -> None:
    until = time.monotonic() + HEAR_SECONDS
    while not any(watch.steps_within(0).values()) and watch.publishing_pids and time.monotonic() < until:
        time.sleep(0.05)


# --- who is accused ---


def _without_accused(choice: RankChoice, job: LocalJob, say: Say) -> RankChoice:
    """Return the choice with the ranks that "accused" stands for."""
    from llmtop.capture.across.rank_choice import RankChoice, add_reference_ranks

    if not choice.accused:
        return choice
    ranks, where, usual = _accused_ranks(job)
    chosen = add_reference_ranks(ranks, job.world_size, usual)
    shown = ", ".join(map(str, chosen))
    if ranks:
        say(f"{where} names rank {', '.join(map(str, sorted(ranks)))}: capturing ranks {shown}")
    else:
        say(f"no rank is accused ({where}): ranks {shown} stand for all; --ranks names others")
    return RankChoice(ranks=chosen)


def _accused_ranks(job: LocalJob) -> tuple[set[int], str, int | None]:
    """Return the accused ranks, the source, and a rank with a median wait where known.

    The source is the site's Prometheus, else this node's own rules.
    """
    from llmtop.capture.across.rank_choice import median_rank
    from llmtop.cli.cluster.command import accused_ranks, server_url

    url = server_url()
    if url:
        with suppress(LlmtopError):
            return accused_ranks(url, _name(job)), "Prometheus", None
    ranks, waits = _named_here(job)
    return ranks, "what this node sees", median_rank(waits)


def _name(job: LocalJob) -> str:
    """Name of the job, the same on every node."""
    from collectors.trainings.job_names import JobNames, Member

    members = [Member(one.pid, one.pid, one.hello, live=True) for one in job.targets if one.hello is not None]
    return JobNames().assign_names(members)[members[0].key]


def _named_here(job: LocalJob) -> tuple[set[int], dict[int, float]]:
    """Return the ranks of this node that its rules name, and how long each of the others waits, seconds a step."""
    from collectors.hub import live_hub
    from llmtop.model.snapshot import Snapshot

    pids = {target.pid for target in job.targets}
    found: set[int] = set()
    waits: dict[int, float] = {}
    named = threading.Event()

    def note_snapshot(snapshot: Snapshot) -> None:
        for alert in snapshot.alerts:
            rank = alert.evidence.get("rank")
            if alert.id in _ACCUSING and isinstance(rank, int) and (alert.pid is None or alert.pid in pids):
                found.add(rank)
                named.set()
        for one in snapshot.ranks:
            if one.pid in pids and one.rank is not None and one.waits_seconds is not None:
                waits[one.rank] = one.waits_seconds

    hub = live_hub(interval=0.5)
    hub.start(note_snapshot)
    try:
        named.wait(ACCUSE_SECONDS)
    finally:
        hub.close()
    return set(found), {rank: seconds for rank, seconds in waits.items() if rank not in found}
