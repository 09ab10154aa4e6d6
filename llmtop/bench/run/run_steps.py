"""The steps of one run as they come in, and the window of them that is measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmtop.bench.model.results import BenchSettings, MeasuredSteps
from llmtop.bench.run.kept_steps import KeptSteps
from llmtop.bench.run.turns import Turn
from llmtop.model.snapshot import Rank, Step
from llmtop.step_history.whole_steps import WholeStep, WholeStepBuilder

_MOST = 2_000_000
"""Steps of a process that are kept."""


class RankSteps:
    """The whole steps of one process, oldest first; of one that answers requests, with the wait for the next."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        """Rank as last reported."""
        self.wholes: list[WholeStep] = []
        self.starts: list[float] = []
        """Start of each whole step by CLOCK_MONOTONIC, in seconds."""
        self.lost_at: list[tuple[int, int]] = []
        """How many whole steps there were, and how many had been lost by then."""
        self.overhead_seconds: float | None = None
        self.memory_peak_bytes: int | None = None
        self._places: dict[tuple[int, float], int] = {}
        self._following = WholeStepBuilder()
        self._last_request: Step | None = None

    def add(self, rank: Rank) -> None:
        """Update from a snapshot."""
        if rank.lost > self.rank.lost:
            self.lost_at.append((len(self.wholes), rank.lost - self.rank.lost))
        self.rank = rank
        self.overhead_seconds = rank.overhead_seconds or self.overhead_seconds
        peak = rank.memory_peak_bytes
        if peak is not None:
            self.memory_peak_bytes = max(peak, self.memory_peak_bytes or 0)
        for step in rank.new_steps:
            whole = self._request(step) if step.kind == "request" else self._following.add(step)
            if whole is not None and len(self.wholes) < _MOST:
                self._places[whole.step.index, whole.step.started_at] = len(self.wholes)
                self.wholes.append(whole)
                self.starts.append(step.started_at - (rank.clock_offset_seconds or 0.0) - whole.seconds)
        for step in rank.gpu_updates:
            self._following.update(step)
            place = self._places.get((step.index, step.started_at))
            if place is not None:
                self.wholes[place] = self.wholes[place]._replace(step=step)

    def _request(self, step: Step) -> WholeStep | None:
        last, self._last_request = self._last_request, step
        if last is None or step.started_at <= last.started_at:
            return None
        return WholeStep(last, step.started_at - last.started_at)


class RunSteps:
    """The steps of all processes of one run."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[int, float | None], RankSteps] = {}
        self.kept: KeptSteps | None = None
        """Steps that count where the program runs in turns; None: all count."""

    def add(self, ranks: Iterable[Rank]) -> None:
        """Update this run's processes from a snapshot."""
        for rank in ranks:
            key = rank.pid, rank.attached_at
            known = self._ranks.get(key)
            if known is None:
                known = self._ranks[key] = RankSteps(rank)
            known.add(rank)

    @property
    def ranks(self) -> list[RankSteps]:
        """Return every process that made steps. The first is the measured one: rank 0, else the one with the
        most steps."""
        stepping = [one for one in self._ranks.values() if one.wholes]
        return sorted(stepping, key=lambda one: (one.rank.rank is None, one.rank.rank or 0, -len(one.wholes)))

    @property
    def step_count(self) -> int:
        """Whole steps so far, of the process whose steps are measured."""
        ranks = self.ranks
        return len(ranks[0].wholes) if ranks else 0

    @property
    def has_attached(self) -> bool:
        """Return True if any process has attached."""
        return bool(self._ranks)

    def judge_turns(self, settings: BenchSettings, turns: Sequence[Turn]) -> None:
        """Choose the steps that count among those that came since.

        Args:
            settings: of the run.
            turns: all turns of this program so far, oldest first.
        """
        ranks = self.ranks
        if self.kept is None or not ranks:
            return
        self.kept.add_turns(turns)
        durations = [whole.seconds for whole in ranks[0].wholes]
        self.kept.judge(ranks[0].starts, durations, settings.warmup)

    def measured_steps(self, settings: BenchSettings) -> list[WholeStep]:
        """Return the steps after warm-up that are measured, as far as they are there."""
        ranks = self.ranks
        if self.kept is not None:
            return [ranks[0].wholes[place] for place in self.kept.places] if ranks else []
        after = ranks[0].wholes[settings.warmup :] if ranks else []
        if settings.steps is not None:
            return after[: settings.steps]
        total, wanted = 0.0, settings.seconds or 0.0
        for number, whole in enumerate(after, 1):
            total += whole.seconds
            if total >= wanted:
                return after[:number]
        return after

    def is_whole(self, settings: BenchSettings) -> bool:
        """Return True if the run measured as many steps, or as many seconds, as the settings ask for."""
        measured = self.measured_steps(settings)
        if settings.steps is not None:
            return len(measured) >= settings.steps
        return sum(whole.seconds for whole in measured) >= (settings.seconds or 0.0) and len(measured) > 1

    def measured_window(self, settings: BenchSettings) -> MeasuredSteps | None:
        """Return the window; None where no step came after warm-up."""
        measured, ranks = self.measured_steps(settings), self.ranks
        if not measured:
            return None
        main, count = ranks[0], len(measured)
        together = [main] if main.rank.kind == "request" else ranks
        first, last = measured[0], measured[-1]
        begins, ends = settings.warmup, settings.warmup + count
        if self.kept is not None:
            begins, ends = self.kept.places[0], self.kept.places[-1]
        lost = sum(number for at, number in main.lost_at if begins < at < ends)
        kept, ended_at = self.kept, last.step.started_at + last.seconds
        return MeasuredSteps(
            started_at=first.step.started_at,
            seconds=ended_at - first.step.started_at if kept is None else sum(one.seconds for one in measured),
            warmup_steps=settings.warmup,
            step_seconds=[whole.seconds for whole in measured],
            step_tokens=_sum_over_ranks(measured, together, "tokens"),
            step_samples=_sum_over_ranks(measured, together, "samples"),
            ranks=len(together),
            kind=main.rank.kind,
            lost=lost,
            whole=self.is_whole(settings),
            step_rounds=None if kept is None else list(kept.rounds),
            interrupted_steps=0 if kept is None else len(kept.interrupted),
        )


def _sum_over_ranks(measured: list[WholeStep], ranks: list[RankSteps], name: str) -> list[float] | None:
    """Sum over all ranks for each of these steps; None unless all of them reported it for all steps."""
    totals = [getattr(whole.step, name) for whole in measured]
    for other in ranks[1:]:
        reported = {whole.step.index: getattr(whole.step, name) for whole in other.wholes}
        if not reported:
            continue
        theirs = [reported.get(whole.step.index) for whole in measured]
        totals = [
            None if mine is None or more is None else mine + more
            for mine, more in zip(totals, theirs, strict=True)
        ]
    return None if any(value is None for value in totals) else [float(value) for value in totals]
