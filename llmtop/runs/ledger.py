"""Where the time of a run went: seconds of all its ranks by class, which add up to its wall time times its ranks.

From the sums of each process by the host's clock (`records.State`). A step's time is what it is spent in by its
phases; what no phase of a step covers is taken as productive, and what lies between steps is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache

from llmtop.naming.own_phases import OUTSIDE
from llmtop.naming.phase_names import role_of
from llmtop.runs import records
from llmtop.runs.store import ENDED, FAILED, KILLED, RUNNING, Attempt, RankProcess, Run

START, COMPILE, PRODUCTIVE = "start", "compile", "productive"
WAIT_DATA, WAIT_COMMUNICATION, WAIT_COPY = "wait_data", "wait_communication", "wait_copy"
CHECKPOINT_TIME, EVALUATION_TIME, CAPTURE, HANG, LOST, DOWN, UNKNOWN = (
    "checkpoint",
    "evaluation",
    "capture",
    "hang",
    "lost",
    "down",
    "unknown",
)
CLASSES = {
    START: "imports, model and data, until the first step",
    COMPILE: "the first batch and step, with what is compiled",
    PRODUCTIVE: "steps, less all that follows",
    WAIT_DATA: "waits for batches",
    WAIT_COMMUNICATION: "waits for other ranks",
    WAIT_COPY: "copies to the GPU",
    CHECKPOINT_TIME: "saving checkpoints",
    EVALUATION_TIME: "evaluations",
    CAPTURE: "captures by llmtop",
    HANG: "steps that stood still",
    LOST: "steps after the last checkpoint before a restart",
    DOWN: "between the end of a start and the next one",
    UNKNOWN: "not known",
}
"""Content of each class, in display order."""
GOODPUT_WORDS = "Goodput, productive time over all:"
_STEP_CLASSES = (PRODUCTIVE, WAIT_DATA, WAIT_COMMUNICATION, WAIT_COPY)
"""Classes of a step: lost where the step has to be made again."""
_UNWRITTEN_SECONDS = 0.5
"""A killed process has not written its last second: half of it, on average."""


@dataclass
class Ledger:
    """Seconds of ranks by class."""

    wall_seconds: float
    ranks: int
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def rank_seconds(self) -> float:
        """Wall time times ranks: the sum of all classes."""
        return self.wall_seconds * self.ranks

    def share_pct(self, name: str) -> float | None:
        """Return a class's share of all; None where there is no time."""
        return 100.0 * self.seconds.get(name, 0.0) / self.rank_seconds if self.rank_seconds > 0 else None

    @property
    def goodput_pct(self) -> float | None:
        """Productive time over all."""
        return self.share_pct(PRODUCTIVE)


def ledger_of(run: Run) -> Ledger:
    """Return where the time of a run went, of its ranks that this folder has."""
    ranks = sorted({_rank(process) for process in run.processes})
    begun, ended = run.started, max(process.ended for process in run.processes)
    total: dict[str, float] = defaultdict(float)
    by_rank: dict[int, list[tuple[Attempt, RankProcess]]] = defaultdict(list)
    for attempt in run.attempts:
        for process in attempt.processes:
            by_rank[_rank(process)].append((attempt, process))
    for rank in ranks:
        own = by_rank[rank]
        spent: dict[str, float] = defaultdict(float)
        for place, (attempt, process) in enumerate(own):
            follows = own[place + 1][1] if place + 1 < len(own) else None
            spent_until = process.started
            if place == 0:
                spent[START] += process.started - begun
            stop = process.ended
            if follows is not None:
                stop = min(max(_failure(attempt, stop), spent_until), follows.started)
                spent[DOWN] += follows.started - stop
            saved = None if follows is None else _last_checkpoint_time(attempt, stop)
            _add_process(spent, process, stop, saved, is_restarted=follows is not None)
        rest = ended - begun - sum(spent.values())
        spent[UNKNOWN] += rest
        if spent[UNKNOWN] < 0:  # stamps of two clocks that differ by less than a step
            spent[PRODUCTIVE] = max(0.0, spent[PRODUCTIVE] + spent[UNKNOWN])
            spent[UNKNOWN] = 0.0
        for name, seconds in spent.items():
            total[name] += seconds
    return Ledger(max(0.0, ended - begun), len(ranks), {name: total[name] for name in CLASSES})


@cache
def class_of(phase: str) -> str:
    """Return the class that the time of a phase belongs to."""
    if records.is_checkpoint(phase):
        return CHECKPOINT_TIME
    if records.is_evaluation(phase):
        return EVALUATION_TIME
    classes = {"input": WAIT_DATA, "comm": WAIT_COMMUNICATION, "h2d": WAIT_COPY}
    return classes.get(role_of(phase), PRODUCTIVE)


def _rank(process: RankProcess) -> int:
    return -1 if process.rank is None else process.rank


def _failure(attempt: Attempt, otherwise: float) -> float:
    """Return when a start that was followed by another one failed: with the first of its ranks that ended."""
    failed = [one.ended for one in attempt.processes if one.how == FAILED]
    killed = [one.ended + _UNWRITTEN_SECONDS for one in attempt.processes if one.how == KILLED]
    ended = [one.ended for one in attempt.processes if one.how == ENDED]
    return min([*failed, *killed, *ended], default=otherwise)


def _last_checkpoint_time(attempt: Attempt, stop: float) -> float | None:
    """Unix time of the last checkpoint of a start; None without any."""
    times = [
        process.unix_offset + process.state.checkpoint_mono
        for process in attempt.processes
        if process.state is not None and process.state.checkpoint_mono is not None
    ]
    return max((at for at in times if at <= stop), default=None)


def _add_process(
    spent: dict[str, float], process: RankProcess, stop: float, saved: float | None, *, is_restarted: bool
) -> None:
    """Add what a process did up to `stop`.

    Args:
        spent: seconds by class.
        process: of one rank.
        stop: unix time.
        saved: unix time of its last checkpoint; None without one.
        is_restarted: True if another start follows: what came after the checkpoint is lost.
    """
    state, start = process.state, process.start
    if start is None:
        spent[UNKNOWN] += max(0.0, stop - process.started)  # its files cannot be read
        return
    if state is None or state.first_mono is None or state.first_step is None:
        spent[START] += max(0.0, stop - process.started)
        return
    to_unix = process.unix_offset
    first = min(state.first_mono, state.first_batch_mono or state.first_mono)
    begun = min(max(first + to_unix, process.started), stop)
    first_ended = min(state.first_mono + to_unix + state.first_step[2] / 1e9, stop)
    spent[START] += begun - process.started
    spent[COMPILE] += first_ended - begun
    own = _classes_of_steps(state)
    last = (state.last_mono or 0.0) + to_unix
    for name, seconds in state.phases_after.items():
        if "/" not in name:
            own[class_of(name)] += seconds
            last += seconds
    held = records.held_seconds(state, last - to_unix, stop - to_unix)
    unfinished = max(0.0, stop - max(last, first_ended) - held)
    if _stands_still(state, unfinished):
        own[HANG] += unfinished
    elif process.how == RUNNING or is_restarted:
        own[PRODUCTIVE] += unfinished
    else:
        own[UNKNOWN] += unfinished
    if is_restarted:
        saved = begun if saved is None else saved
        redone = _redone(process, saved, to_unix)
        if last > saved or unfinished:
            redone[PRODUCTIVE] += unfinished if own[HANG] < unfinished or not unfinished else 0.0
        for name in _STEP_CLASSES:
            moved = min(own[name], redone[name])
            own[name] -= moved
            own[LOST] += moved
    for name, seconds in own.items():
        spent[name] += seconds
    spent[CAPTURE] += held


def _classes_of_steps(state: records.State) -> dict[str, float]:
    """Seconds of the steps after the first by class."""
    own: dict[str, float] = defaultdict(float)
    assert state.first_step is not None
    first_phases = {name: ns / 1e9 for name, ns, _ in state.first_step[6]}
    covered = 0.0
    for name, seconds in state.phases.items():
        if "/" not in name:
            own[class_of(name)] += max(0.0, seconds - first_phases.get(name, 0.0))
            covered += max(0.0, seconds - first_phases.get(name, 0.0))
    own[PRODUCTIVE] += max(0.0, state.step_seconds - state.first_step[2] / 1e9 - covered)
    own[CAPTURE] += state.capture_seconds
    for part, seconds in state.capture_parts.items():
        own[PRODUCTIVE if part == OUTSIDE else class_of(part)] -= seconds
        own[CAPTURE] += seconds
    for part, seconds in state.stalls.items():
        name = PRODUCTIVE if part == OUTSIDE else class_of(part)
        if name in (PRODUCTIVE, WAIT_COMMUNICATION):
            own[name] = max(0.0, own[name] - seconds)
            own[HANG] += seconds
    return own


def _stands_still(state: records.State, seconds: float) -> bool:
    usual = state.usual_seconds
    return seconds > records.STALL_SECONDS + usual and seconds > records.STALL_FACTOR * usual


def _redone(process: RankProcess, since: float, to_unix: float) -> dict[str, float]:
    """Seconds of the steps after a moment by class: from the steps in full, before them from minutes."""
    found: dict[str, float] = defaultdict(float)
    rows = process.last_steps()
    covered_from = rows[0][1][1] / 1e9 if rows else since
    for _, row in rows:
        begun, host = row[1] / 1e9, row[2] / 1e9
        share = min(1.0, max(0.0, (begun + host - since) / host)) if host else 0.0
        _add_row(found, {name: share * ns / 1e9 for name, ns, _ in row[6]}, share * host)
    if covered_from > since:
        for names, minute in process.minutes():
            inside = minute.at - minute.seconds
            if since <= inside and minute.at <= covered_from:
                statistics = records.statistics_of(names, minute)
                known = [name for name in names.phases if name in statistics]
                phases = {name: statistics[name][2] * minute.steps for name in known}
                _add_row(found, phases, statistics["step"][2] * minute.steps)
    return found


def _add_row(found: dict[str, float], phases: dict[str, float], host: float) -> None:
    covered = 0.0
    for name, seconds in phases.items():
        if "/" not in name:
            found[class_of(name)] += seconds
            covered += seconds
    found[PRODUCTIVE] += max(0.0, host - covered)
