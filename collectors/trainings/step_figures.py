"""Step figures of a training, computed in one place: live, and again when a recording is played."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from collectors.trainings.long_windows import MINUTES_SECONDS, LongWindow, length_class
from collectors.trainings.step_window import LEAST_STEPS, CountedStep, StepWindow
from llmtop.model.snapshot import Change, RareSteps, Step, Window
from llmtop.model.stall_thresholds import QUIET_S, stall_seconds
from llmtop.order_statistics import percentile
from llmtop.step_history.step_changes import StepChanges
from llmtop.step_history.whole_steps import WholeStep, WholeStepBuilder, request_latency


def steps_left(total: int | None, last: int | None) -> int | None:
    """Return how many of `total` steps come after the one of index `last`; None where either is not known."""
    return None if total is None or last is None else max(0, total - last - 1)


_BREAK = 5.0, 1.0
"""Where a script counts its steps anew, another training has begun in the process if the last step before that
lasted so many times the usual one and so many seconds: a new epoch begins at once."""


class StepFigures:
    """Computes the figures of one training from its finished steps. For one thread."""

    def __init__(self, *, with_long_windows: bool = True) -> None:
        """Begin without a step.

        Args:
            with_long_windows: whether the last five minutes and the whole run are windows of their own.
        """
        self._with_long_windows = with_long_windows
        self._following = WholeStepBuilder()
        self._order: list[str] = []
        self._newest: tuple[str, ...] = ()
        self._figures: dict[str, Any] | None = None
        self._reset()

    def _reset(self) -> None:
        self._recent = StepWindow()
        self._long = (LongWindow("5 min", MINUTES_SECONDS), LongWindow("run")) if self._with_long_windows else ()
        self._changes = StepChanges()
        self._steps_since_stall: int | None = None
        """Whole steps after a stall that is still in the recent window; None without one."""
        self.last_seconds: float | None = None
        """Duration of the last whole step, from start to start, warm-up or not; of the last request."""

    def add(self, step: Step) -> None:
        """Take in the newest step."""
        self._figures = None
        last = self._following.open
        if last is not None and last.kind != step.kind:
            self._reset()  # it answered requests so far, and trains now
        whole = self._following.add(step)
        if step.kind == "request":
            self.last_seconds = request_latency(step)
            self._learn_order(step)
            if not step.warmup:
                self._recent.add(CountedStep(step, self.last_seconds, step.interval_seconds, None))
        elif last is not None and step.index <= last.index and self._has_restarted(step):
            self._reset()
        elif whole is not None:
            self._take(whole)

    def follow(self, step: Step) -> None:
        """Take in the newest step for `change` and `rare` alone: the other figures are without it."""
        last = self._following.open
        whole = self._following.add(step)
        if last is not None and step.index <= last.index and self._has_restarted(step):
            self._reset()
        elif whole is not None and not whole.step.warmup:
            self._changes.add(whole)

    @property
    def change(self) -> Change | None:
        """The last change of the steps' length."""
        return self._changes.change

    @property
    def rare(self) -> RareSteps | None:
        """The rare long steps that cost most."""
        return self._changes.rare

    def update(self, step: Step) -> None:
        """Add GPU times to a step that is here already; another step is skipped."""
        self._figures = None
        self._following.update(step)
        self._recent.update(step)

    def mean(self) -> float | None:
        """Mean seconds from start to start of the recent steps; None before there is a whole one."""
        elapsed = self._recent.sums.elapsed
        return elapsed.total / elapsed.count if elapsed.count else None

    def figures(self) -> dict[str, Any]:
        """Fields of `Rank` made of the recent steps; the same until the next step comes."""
        if self._figures is None:
            self._figures = self._recent_figures() if len(self._recent) else {}
        return self._figures

    def rank_fields(self, *, running: bool, left: int | None) -> dict[str, Any]:
        """Fields of `Rank`: the figures, the last step's length, and when the training will end.

        Args:
            running: whether steps go on. A rate is of now: what a training that does not move did before is in its
                percentiles alone.
            left: how many steps remain; None if unknown.
        """
        mean = self.mean()
        fields = {"step_seconds": self.last_seconds, "eta_seconds": None, **self.figures()}
        if not running:
            fields |= dict.fromkeys(("steps_per_s", "tokens_per_s", "samples_per_s") if self.figures() else ())
        elif left is not None and mean is not None:
            fields["eta_seconds"] = left * mean
        return fields

    def _has_restarted(self, step: Step) -> bool:
        usual, interval = self.mean(), step.interval_seconds
        times, seconds = _BREAK
        return interval is None or interval > max(times * (usual or 0.0), seconds)

    def _take(self, whole: WholeStep) -> None:
        self.last_seconds = whole.seconds
        self._learn_order(whole.step)
        if whole.step.warmup:
            return
        outside = whole.outside if whole.step.phases else None
        counted = CountedStep(whole.step, whole.seconds, whole.seconds, outside)
        self._leave_stall_behind(counted)
        if self._long:
            place = length_class(counted.length)
            for window in self._long:
                window.add(counted, place)
        if self._changes.add(whole):
            self._recent.drop_before(self._changes.level_since or 0)

    def _leave_stall_behind(self, counted: CountedStep) -> None:
        """Take a step into the recent window, from which a stall goes once `LEAST_STEPS` steps have followed.

        Else the means of steps of 100 ms would be those of a stall of 20 s for 15 s after its end.
        """
        recent = self._recent
        if self._steps_since_stall is not None:
            self._steps_since_stall += 1
        if counted.length >= QUIET_S and len(recent) >= LEAST_STEPS:
            rare = None if self._changes.rare is None else self._changes.rare.seconds
            if counted.length >= stall_seconds(percentile(recent.lengths(), 95) or 0.0, rare):
                self._steps_since_stall = 0
        recent.add(counted)
        if self._steps_since_stall == LEAST_STEPS:
            recent.keep_newest(LEAST_STEPS)
            self._steps_since_stall = None

    def _recent_figures(self) -> dict[str, Any]:
        recent, sums = self._recent, self._recent.sums
        mean, lengths = self.mean(), recent.lengths()
        known = mean * sums.steps if mean else None
        figures: dict[str, Any] = {
            "step_seconds_mean": mean,
            "step_seconds_p50": percentile(lengths, 50),
            "step_seconds_p95": percentile(lengths, 95),
            "step_seconds_p99": percentile(lengths, 99),
            "window_seconds": known,
            "window_steps": sums.steps,
            "steps_per_s": 1 / mean if mean else None,
            "tokens_per_s": sums.tokens.total / known if sums.tokens.count and known else None,
            "samples_per_s": sums.samples.total / known if sums.samples.count and known else None,
            **self._request_fields(known),
            "outside_seconds": self._outside(),
            "phases": recent.mean_phases(self._order),
            "gpu_idle_pct": recent.idle_pct(),
            "gpu_host_paced_pct": recent.host_paced_pct(),
        }
        figures |= {"change": self._changes.change, "rare": self._changes.rare}
        figures["windows"] = tuple(self._windows(figures))
        return figures

    def _request_fields(self, known: float | None) -> dict[str, Any]:
        """Fields of `Rank` that requests alone have, and how many samples a step has."""
        recent, sums = self._recent, self._recent.sums
        figures: dict[str, Any] = {
            "batch": sums.samples.total / sums.samples.count if sums.samples.count else None
        }
        if not sums.tokens_in.count and not recent.has_first_tokens:
            return figures
        known = known or sum(recent.lengths())  # the request before the first one is unknown
        figures["tokens_in_per_s"] = sums.tokens_in.total / known if sums.tokens_in.count and known else None
        figures["tokens_out_per_s"] = sums.tokens.total / known if sums.tokens.count and known else None
        for name, values in (("ttft", recent.first_tokens()), ("tpot", recent.each_token())):
            for pct in (50, 95, 99):
                figures[f"{name}_seconds_p{pct}"] = percentile(values, pct)
        return figures

    def _outside(self) -> float | None:
        """Mean a step. Where some steps name phases, one that names none is outside of them as a whole."""
        sums = self._recent.sums
        if not sums.outside.count or not sums.elapsed.count:
            return None
        covered = sum(host.total for name, (host, _) in sums.phases.items() if "/" not in name)
        return max(0.0, sums.elapsed.total - covered) / sums.steps

    def _windows(self, figures: dict[str, Any]) -> Iterable[Window]:
        if not self._recent.sums.elapsed.count or (self._long and self._long[-1].summary() is None):
            return
        yield Window(
            name="recent",
            seconds=figures["window_seconds"],
            steps=figures["window_steps"],
            step_seconds=figures["step_seconds_mean"],
            step_seconds_p50=figures["step_seconds_p50"],
            step_seconds_p95=figures["step_seconds_p95"],
            outside_seconds=figures["outside_seconds"],
            tokens_per_s=figures["tokens_per_s"],
        )
        for window in self._long:
            fields = window.summary()
            if fields is not None:
                yield fields

    def _learn_order(self, step: Step) -> None:
        """Return the phases in the order of the newest step; those that it lacks stay after their predecessor."""
        names = tuple(phase.name for phase in step.phases)
        if names != self._newest:
            self._newest = names
            self._order = _merge_names(names, self._order)


def _merge_names(newest: Iterable[str], before: Iterable[str]) -> list[str]:
    order = list(newest)
    placed, following = set(order), 0
    for name in before:
        if name in placed:
            following = order.index(name) + 1
        else:
            order.insert(following, name)
            following += 1
    return order
