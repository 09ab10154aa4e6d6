"""Rules over a stream of snapshots: each snapshot comes back with the alerts that hold at its time.

Time is the snapshots' own, so a replay is judged as the live run was; and of their two clocks the monotonic one,
so that setting the wall clock makes no alert older, younger, or new. State is bounded: one small object a GPU, a
rank and a pending alert, the last `STEPS_KEPT` steps of a rank, and three seconds of a GPU's values.

One alert a cause: a rule names the alerts that explain it (`Rule.covered_by`). While one of those is up for the
same GPU, process or job, the rule is not shown and starts its hold afresh afterwards. So a GPU that waits in a
hung collective is `low_power_full_util` for as long as only GPUs are known; once attached ranks show that the job
is stalled, `stalled` replaces it and names the rank that holds the job up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from llmtop.model.bottlenecks import AlertId
from llmtop.model.severity import severity_rank
from llmtop.model.snapshot import Alert, Host, Process, Snapshot, StuckCommunicator
from llmtop.recording.steady import MonotonicTime
from llmtop.rules import COMMUNICATOR_RULES, GPU_RULES, JOB_RULES, LINK_RULES, RANK_RULES, limits, rule_text
from llmtop.rules.collective_hang import has_known_culprit
from llmtop.rules.rule import AlertText, Rule, RuleText, present_values
from llmtop.rules.state.communicator import CommunicatorState
from llmtop.rules.state.gpu import GpuState
from llmtop.rules.state.link import LinkState
from llmtop.rules.state.rank import JobState, RankKey, RankState, group_jobs, rank_key
from llmtop.rules.state.windows import Hold

BACKWARD_SECONDS: Final = 1.0
"""A time that is earlier by less is taken for the same instant; by more, for a seek in a recording. By less than
that a wall clock that is set moves no stamps either."""
PACE_SECONDS: Final = 0.75
"""Pause between snapshots below which `Rules.apply_paced` evaluates most rules for every second one."""
GAP_SECONDS: Final = 60.0
"""Length of a hole (a suspended machine, a seek forward) after which earlier values prove nothing."""

_HoldKey = tuple[AlertId, Hashable]
_STEPPING: Final = (RankState, JobState)
"""Subjects that make steps."""
_SECOND_IDS: Final = frozenset(rule.id for rules in (GPU_RULES, RANK_RULES, LINK_RULES) for rule in rules)
_JOB_RULES_OF_EACH: Final = tuple(rule for rule in JOB_RULES if rule.covered_by.isdisjoint(_SECOND_IDS))
"""Rules of jobs that are evaluated for each snapshot: no alert that may come a snapshot later covers theirs."""
_IDS_OF_EACH: Final = frozenset(rule.id for rules in (_JOB_RULES_OF_EACH, COMMUNICATOR_RULES) for rule in rules)


class _RuleSubject(Protocol):
    """Subject of a rule: a GPU, a rank, a job."""

    @property
    def key(self) -> Hashable:
        """Return the key of the subject; it is unique for the subject's lifetime."""

    @property
    def is_updated(self) -> bool:
        """Return True if this snapshot brought anything new about the subject."""

    def concerned_keys(self) -> frozenset[Hashable]:
        """Keys of the GPUs and processes that an alert about the subject concerns."""

    def alert_target(self) -> tuple[str | None, int | None]:
        """Return the GPU's UUID and the pid that an alert about the subject carries."""


Subject = TypeVar("Subject", bound=_RuleSubject)


class _RuleEvaluation(NamedTuple):
    """One evaluation of a rule that holds, is pending, or has just been cleared."""

    id: AlertId
    covered_by: frozenset[AlertId]
    hold: Hold
    subject: _RuleSubject
    describe: Callable[[], AlertText]
    holds: bool
    """True if it holds at this snapshot; one that is up stays up for a while after."""

    @property
    def key(self) -> _HoldKey:
        """Return the key of the subject; it is stable from snapshot to snapshot."""
        return self.id, self.subject.key


def explain(alert_id: str) -> RuleText:
    """Return the rule behind an alert, in words.

    Raises:
        KeyError: no rule has that id (an alert of a newer version, in a recording).
    """
    return rule_text(alert_id)


class Rules:
    """Judges snapshots. One object a stream; not safe for several threads."""

    def __init__(self, off: Collection[str] | None = None) -> None:
        """Judge from the beginning.

        Args:
            off: ids of alerts that are not shown; they still explain others. None: those of the configuration.
        """
        self._off = frozenset(limits.CONFIGURED.off if off is None else off)
        self._reset()

    def __repr__(self) -> str:
        return "the live rules"

    def _reset(self) -> None:
        self._is_complete = False
        """True if all rules were evaluated for the last snapshot, not only those of each."""
        self._evaluations: list[_RuleEvaluation] = []
        """Evaluations of the last snapshot that are shown, pending or clearing."""
        self._last: float | None = None
        self._clock = MonotonicTime()
        self._clock_shift = 0.0
        """Seconds by which the wall clock was set since the first snapshot."""
        self._interval = 0.0
        self._gpus: dict[str, GpuState] = {}
        self._ranks: dict[RankKey, RankState] = {}
        self._jobs: list[JobState] = []
        self._communicators: list[CommunicatorState] = []
        self._links: dict[tuple[str, int], LinkState] = {}
        self._composition: Hashable = None
        self._holds: dict[_HoldKey, Hold] = {}
        self._last_texts: dict[_HoldKey, AlertText] = {}

    def apply(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with `alerts`: what holds at its time, the worst first, then the oldest."""
        return self._with_alerts(snapshot, self._take(snapshot), is_complete=True)

    def apply_paced(self, snapshot: Snapshot) -> Snapshot:
        """Do the same for a stream; where snapshots follow each other within `PACE_SECONDS`, every second one has
        the alerts of GPUs, ranks and links of the one before.

        Rules of jobs and communicators are evaluated for each, since a straggler costs all ranks their time.
        """
        now = self._take(snapshot)
        return self._with_alerts(
            snapshot, now, is_complete=not self._is_complete or self._interval >= PACE_SECONDS
        )

    def _take(self, snapshot: Snapshot) -> float:
        """Take in what a snapshot has of each subject; returns the time to judge by."""
        now = self._advance(snapshot)
        self._take_gpus(snapshot, now)
        self._take_ranks(snapshot, now)
        self._take_communicators(snapshot, now)
        self._take_links(snapshot, now)
        return now

    def _with_alerts(self, snapshot: Snapshot, now: float, *, is_complete: bool) -> Snapshot:
        self._is_complete = is_complete
        alerts = [
            _alert(evaluation, alert_text, self._clock_shift)
            for evaluation, alert_text in self._describe_raised(self._evaluate_rules(now))
            if evaluation.id not in self._off
        ]
        alerts.sort(key=lambda alert: (-severity_rank(alert.severity), alert.since, alert.id, alert.gpu or ""))
        return replace(snapshot, alerts=tuple(alerts))

    def _advance(self, snapshot: Snapshot) -> float:
        """Reset the state when the stream jumped; returns the time to judge by, which never goes back."""
        time = self._clock.time_of(snapshot)
        if self._last is not None:
            step = time - self._last
            if step < -BACKWARD_SECONDS or step > max(GAP_SECONDS, 4 * self._interval):
                self._reset()
                time = self._clock.time_of(snapshot)
            elif step < 0:
                return self._last
            self._interval = max(step, 0.0)
        self._last = time
        clock_shift = snapshot.time - time
        self._clock_shift = clock_shift if abs(clock_shift) > BACKWARD_SECONDS else 0.0
        return time

    def _take_gpus(self, snapshot: Snapshot, now: float) -> None:
        present: dict[str, GpuState] = {}
        for gpu in snapshot.gpus:
            if gpu.uuid in present:
                continue  # listed twice: the first counts
            state = self._gpus.get(gpu.uuid) or GpuState(gpu, now)
            waits = state.is_updated and not self._is_complete
            state.update(gpu, now)
            state.is_updated = state.is_updated or waits
            present[gpu.uuid] = state
        self._gpus = present

    def _take_ranks(self, snapshot: Snapshot, now: float) -> None:
        present: dict[RankKey, RankState] = {}
        for rank in snapshot.ranks:
            key = rank_key(rank)
            if key in present:
                continue
            state = self._ranks.get(key) or RankState(rank, now)
            state.update(rank, now, self._clock_shift)
            state.gpu = None if rank.gpu_uuid is None else self._gpus.get(rank.gpu_uuid)
            state.process = None
            state.load_per_cpu = _load_per_cpu(snapshot.host)
            present[key] = state
        self._ranks = present
        self._take_processes(snapshot)
        for state in present.values():
            if state.gpu is not None and state.rank.state != "gone":
                state.gpu.rank_pids.append(state.rank.pid)
                if state.rank.step is not None:
                    state.gpu.step_pids.append(state.rank.pid)
        self._group(now)

    def _take_processes(self, snapshot: Snapshot) -> None:
        by_pid = {state.rank.pid: state for state in self._ranks.values()}
        for process in snapshot.processes:
            gpu = None if process.gpu_uuid is None else self._gpus.get(process.gpu_uuid)
            if gpu is not None:
                gpu.computing += process.gpu_computes
                (gpu.pids if _is_visible(process) else gpu.foreign_pids).append(process.pid)
            state = by_pid.get(process.pid)
            if state is not None:
                state.process = process
                if state.gpu is None and state.rank.gpu_uuid is None:
                    state.gpu = gpu

    def _group(self, now: float) -> None:
        composition = tuple(
            (key, state.rank.state, state.rank.rank, state.rank.attached_at) for key, state in self._ranks.items()
        )
        if composition != self._composition:
            self._composition = composition
            before = {job.key: job for job in self._jobs}
            self._jobs = group_jobs(self._ranks.values())
            for job in self._jobs:
                if job.key in before:
                    job.keep(before[job.key])
        for job in self._jobs:
            job.now, job.works = now, None
            job.compare_losses()

    def _take_links(self, snapshot: Snapshot, now: float) -> None:
        known = self._links
        self._links = {}
        for link in snapshot.host.links:
            key = link.device, link.port
            state = self._links[key] = known.get(key) or LinkState(link)
            state.update(link, now)

    def _take_communicators(self, snapshot: Snapshot, now: float) -> None:
        self._communicators = [self._communicator(snapshot, one, now) for one in snapshot.stuck_communicators]

    def _communicator(self, snapshot: Snapshot, stuck: StuckCommunicator, now: float) -> CommunicatorState:
        pids = set(stuck.pids)
        ranks = [state for state in self._ranks.values() if state.rank.pid in pids]
        on = {process.gpu_uuid for process in snapshot.processes if process.pid in pids}
        gpus = [gpu for uuid, gpu in self._gpus.items() if uuid in on]
        mine = [job for job in self._jobs if any(state in job.ranks for state in ranks)]
        return CommunicatorState(stuck, ranks, gpus, any(has_known_culprit(job) for job in mine), now)

    def _evaluate_rules(self, now: float) -> list[_RuleEvaluation]:
        evaluations: list[_RuleEvaluation] = []
        if self._is_complete:
            self._evaluate(GPU_RULES, self._gpus.values(), now, evaluations)
            self._evaluate(RANK_RULES, self._ranks.values(), now, evaluations)
            self._evaluate(LINK_RULES, self._links.values(), now, evaluations)
        else:
            # Not known to hold now, so they keep their texts.
            evaluations += [
                evaluation._replace(holds=False)
                for evaluation in self._evaluations
                if evaluation.id not in _IDS_OF_EACH
            ]
        job_rules = JOB_RULES if self._is_complete else _JOB_RULES_OF_EACH
        self._evaluate(job_rules, self._jobs, now, evaluations)
        self._evaluate(COMMUNICATOR_RULES, self._communicators, now, evaluations)
        shown = [evaluation for evaluation in evaluations if not _is_covered(evaluation, evaluations)]
        # What is covered, and what is not there any more, begins anew.
        self._holds = {evaluation.key: evaluation.hold for evaluation in shown}
        self._evaluations = shown
        return shown

    def _describe_raised(self, evaluations: list[_RuleEvaluation]) -> list[tuple[_RuleEvaluation, AlertText]]:
        """Alerts of the raised rules. While an alert clears, it keeps its last numbers: the current ones no longer
        support it."""
        before = self._last_texts
        raised = [evaluation for evaluation in evaluations if evaluation.hold.is_raised]
        self._last_texts = {
            evaluation.key: evaluation.describe()
            if evaluation.holds or evaluation.key not in before
            else before[evaluation.key]
            for evaluation in raised
        }
        return [(evaluation, self._last_texts[evaluation.key]) for evaluation in raised]

    def _evaluate(
        self,
        rules: Iterable[Rule[Subject]],
        subjects: Iterable[Subject],
        now: float,
        evaluations: list[_RuleEvaluation],
    ) -> None:
        for subject in subjects:
            key, is_updated, silent = subject.key, subject.is_updated, dict[bool, bool]()
            for rule in rules:
                hold = self._holds.get((rule.id, key))
                holds = False
                if is_updated:
                    is_raised = hold is not None and hold.is_raised
                    holds = not _lacks_steps(rule, subject, is_raised, silent) and rule.holds(subject, is_raised)
                    if hold is None:
                        if not holds:
                            continue
                        hold = Hold(now)
                    hold.update(now, holds, rule.text.hold_seconds, rule.text.clear_seconds)
                if hold is not None and not hold.idle:
                    describe = partial(rule.describe, subject)
                    evaluations.append(_RuleEvaluation(rule.id, rule.covered_by, hold, subject, describe, holds))


def _load_per_cpu(host: Host) -> float | None:
    cpus = len(host.cpu_per_core_pct or ())
    return None if host.load_1m is None or not cpus else host.load_1m / cpus


def _lacks_steps(rule: Rule[Subject], subject: Subject, is_raised: bool, silent: dict[bool, bool]) -> bool:
    """Return True if the rule is about steps, and the training makes none now: what `stalled` explains is about
    steps.

    Args:
        rule: the rule.
        subject: what it is evaluated for.
        is_raised: whether its alert is up.
        silent: what `is_silent` returned for this subject in this round, by its argument; filled here.
    """
    if "stalled" not in rule.covered_by or not isinstance(subject, _STEPPING):
        return False
    if is_raised not in silent:
        silent[is_raised] = subject.is_silent(is_raised)
    return silent[is_raised]


def _is_visible(process: Process) -> bool:
    """Return True if the system here knows it. A pid that only the driver names may be another process's here."""
    return any(fact is not None for fact in (process.started_at, process.command, process.state))


def _is_covered(evaluation: _RuleEvaluation, evaluations: list[_RuleEvaluation]) -> bool:
    """Return True if an alert that is up, and that explains this one, concerns the same GPU or process."""
    if not evaluation.covered_by:
        return False
    return any(
        other.hold.is_raised
        and other.id in evaluation.covered_by
        and not other.subject.concerned_keys().isdisjoint(evaluation.subject.concerned_keys())
        for other in evaluations
    )


def _alert(evaluation: _RuleEvaluation, alert_text: AlertText, clock_shift: float) -> Alert:
    """Return the alert of an evaluation; `set_by`: seconds by which the wall clock was set since it began."""
    subject = alert_text.subject_rank or evaluation.subject
    gpu, pid = subject.alert_target()
    return Alert(
        id=evaluation.id,
        severity=alert_text.severity,
        gpu=gpu,
        pid=pid,
        roles=subject.rank.roles if isinstance(subject, RankState) else {},
        since=(evaluation.hold.since if alert_text.since is None else alert_text.since) + clock_shift,
        summary=alert_text.summary,
        evidence=present_values(alert_text.evidence),
        next=alert_text.next,
        points=alert_text.points,
    )
