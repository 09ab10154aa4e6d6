"""The rules about whether a training still learns, from the values that it logs.

Published criteria: OLMo 2 (arXiv 2501.00656, its spike score) counts values at least seven standard deviations
from a rolling mean of the last 1,000. PaLM (arXiv 2204.02311, section 5.1) goes back some 100 steps before a
spike and skips 200 to 500 batches. ZClip (arXiv 2504.02507) clips gradient norms 2.5 deviations above their
moving mean, which keeps a norm small and would accuse healthy ones; AdaGC (arXiv 2502.11034) relates norms to
their moving mean as a factor. fairseq ends a training whose loss scale falls below `--min-loss-scale`; OPT
(arXiv 2205.01068, section 2.5) relates losses that diverge to loss scales that fall to 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from llmtop import format as fmt
from llmtop.model.bottlenecks import AlertId
from llmtop.model.severity import Severity
from llmtop.naming.metric_names import metric_kind
from llmtop.rules.rule import AlertText, Rule, RuleText, complete_clauses
from llmtop.rules.state import training_health as limits
from llmtop.rules.state.equal_losses import LEAST_DIFFERENT, LEAST_EQUAL, Divergence
from llmtop.rules.state.flat_loss import BLOCK, LEVEL_VALUES, NEVER_BLOCKS, NEVER_PCT, SAME_VALUES
from llmtop.rules.state.metric_curve import LEAST, LEAST_RISE, REMEMBERED, WINDOW
from llmtop.rules.state.rank import JobState, RankState
from llmtop.rules.state.training_health import HealthEvent

SHOWN_SECONDS: Final = 60.0
"""An event of one step stays on the screen for so long."""
DIVERGED_POINTS: Final = 100
"""Values after which a loss that has not come back from a spike is critical: PaLM's spikes are some tens of
steps."""

_MOST_DIGITS: Final = 17
"""Digits that tell any two floats apart."""
_WORDS: Final = {"loss": "loss", "grad_norm": "gradient norm", "loss_scale": "loss scale", "lr": "learning rate"}


class _Found(NamedTuple):
    """An event, and the ranks that have it at its first step."""

    event: HealthEvent
    ranks: tuple[RankState, ...]


def _find(alert_id: AlertId, job: JobState) -> _Found | None:
    """Return the event of the earliest step among the job's ranks; None where none is recent."""
    found = [
        (event, state)
        for state in job.ranks
        if (event := state.health.events.get(alert_id)) is not None
        and ((event.lasts and state.rank.state != "gone") or job.now - event.seen_at <= SHOWN_SECONDS)
    ]
    if not found:
        return None
    first = min((event for event, _ in found), key=lambda event: event.step)
    return _Found(first, tuple(state for event, state in found if event.step == first.step))


def _has_event(alert_id: AlertId, job: JobState, _is_raised: bool) -> bool:
    return _find(alert_id, job) is not None


def _ranks_text(found: _Found, job: JobState) -> str:
    """Return which ranks have it: "on rank 3 (pp 1)", "on all 8 ranks"."""
    if len(found.ranks) == len(job.ranks) > 1:
        return f"on all {len(job.ranks)} ranks"
    if len(found.ranks) > 1:
        return f"on {found.ranks[0].role_label} and {len(found.ranks) - 1} more of {len(job.ranks)} ranks"
    return f"on {found.ranks[0].role_label}"


def _usual(event: HealthEvent) -> str:
    if event.usual is None:
        return ""
    return f"usual: {fmt.figure(event.usual[0])} to {fmt.figure(event.usual[1])}"


def _word(event: HealthEvent) -> str:
    return _WORDS[metric_kind(event.metric) or "loss"]


def _alert(
    found: _Found, job: JobState, severity: Severity, *, what: str, first: str, advice: str, other: str = ""
) -> AlertText:
    """Return the alert of an event.

    Args:
        found: the event and its ranks.
        job: the training.
        severity: of the alert.
        what: happens, for the summary, without place and usual range.
        first: the same as the first clause.
        advice: what to do.
        other: one more clause.
    """
    event, state = found.event, found.ranks[0]
    where = _ranks_text(found, job)
    summary_where = f"on {state.label} ({state.location})" if state.location and len(found.ranks) == 1 else where
    usual = _usual(event)
    return AlertText(
        severity=severity,
        summary=f"{what} {summary_where}{f'; {usual}' if usual else ''}.",
        evidence={
            "metric": fmt.printable(event.metric, 64),
            "step": event.step,
            "value": "not finite" if event.value is None else event.value,
            "usual_low": None if event.usual is None else event.usual[0],
            "usual_high": None if event.usual is None else event.usual[1],
            "rank": state.rank.rank,
            "ranks": len(found.ranks),
        },
        next=advice,
        subject_rank=state,
        since=min(event.seen_at, job.now),
        points=complete_clauses(first, where, usual, other),
    )


def _describe(make: Callable[[_Found, JobState], AlertText], alert_id: AlertId, job: JobState) -> AlertText:
    found = _find(alert_id, job)
    assert found is not None, "called only while the rule holds"
    return make(found, job)


def _gpu_errors(state: RankState) -> str:
    """Return which errors to look for on the rank's GPU, or on its machine if it has no GPU."""
    gpu = state.gpu
    if gpu is None and state.rank.gpu_uuid is None:
        return "check the memory errors of its machine"
    if gpu is None:
        return "check the Xid and ECC errors of its GPU"
    if gpu.gpu.error:
        return f"{gpu.label} reports {fmt.printable(gpu.gpu.error, 80)}"
    return f"check the Xid and ECC errors of {gpu.label}"


def _not_finite(found: _Found, job: JobState) -> AlertText:
    event, word = found.event, _word(found.event)
    lasts = "since" if event.lasts else "at"
    alone = len(found.ranks) < len(job.ranks) or len(job.ranks) == 1
    return _alert(
        found,
        job,
        "critical",
        what=f"The {word} is NaN or Inf {lasts} step {event.step:,}",
        first=f"{word} is NaN or Inf, step {event.step:,}",
        advice="restart from a checkpoint and skip this batch; "
        f"check the data of step {event.step:,}; lower the learning rate if it happens again"
        f"{f'; {_gpu_errors(found.ranks[0])}' if alone else ''}",
    )


def _spike(found: _Found, job: JobState) -> AlertText:
    event = found.event
    excursion = event.excursion
    stays = excursion is not None and excursion.is_open
    is_diverged = stays and excursion is not None and excursion.points >= DIVERGED_POINTS
    value = excursion.value if excursion is not None else event.value
    return _alert(
        found,
        job,
        "critical" if is_diverged else "warning",
        what=f"The loss rose to {fmt.figure(value)} at step {event.step:,}",
        first=f"loss rose to {fmt.figure(value)} at step {event.step:,}",
        advice=(
            "restart from a checkpoint 100 steps before; skip 200 to 500 batches, or lower the learning rate"
            if is_diverged
            else f"check the data of step {event.step:,}; skip this batch if it happens again; "
            "if the loss stays high, restart from a checkpoint with a lower learning rate"
        ),
        other="the loss is still high" if stays else "the loss is normal again",
    )


def _norm_jump(found: _Found, job: JobState) -> AlertText:
    event = found.event
    value = event.excursion.value if event.excursion is not None else event.value
    return _alert(
        found,
        job,
        "warning",
        what=f"The gradient norm jumped to {fmt.figure(value)} at step {event.step:,}",
        first=f"norm jumped to {fmt.figure(value)} at step {event.step:,}",
        advice=f"check the data of step {event.step:,}; clip the gradient norm, or skip "
        "steps whose norm is above the usual range",
    )


def _scale_collapse(found: _Found, job: JobState) -> AlertText:
    event = found.event
    return _alert(
        found,
        job,
        "critical" if event.value is not None and event.value < limits.LEAST_SCALE else "warning",
        what=f"The loss scale fell to {fmt.figure(event.value)} at step {event.step:,}",
        first=f"loss scale: {fmt.figure(event.value)}, step {event.step:,}",
        advice="lower the learning rate, or train in bfloat16; "
        "check the gradients for NaN and Inf: they overflow in many steps",
    )


def _flat(found: _Found, job: JobState) -> AlertText:
    event = found.event
    return _alert(
        found,
        job,
        "info",
        what=f"The loss has stayed at {fmt.figure(event.value)} since step {event.step:,}",
        first=f"loss is unchanged since step {event.step:,}",
        advice="check the learning rate and which parameters train; "
        "check that the data still changes; no action if the training has converged",
        other=f"loss {fmt.figure(event.value)}",
    )


def _event_rule(
    alert_id: AlertId,
    make: Callable[[_Found, JobState], AlertText],
    text: RuleText,
    covered_by: frozenset[AlertId] = frozenset(),
) -> Rule[JobState]:
    return Rule[JobState](
        id=alert_id,
        holds=partial(_has_event, alert_id),
        describe=partial(_describe, make, alert_id),
        covered_by=covered_by,
        text=text,
    )


def _divergence(job: JobState) -> Divergence | None:
    return job.losses.divergence


def _diverged_alert(job: JobState) -> AlertText:
    found = _divergence(job)
    assert found is not None, "called only while the rule holds"
    by_key = {state.key: state for state in job.ranks}
    odd = [by_key[key] for key in found.odd if key in by_key] or list(job.ranks)
    others = [value for key, value in found.values.items() if key not in found.odd]
    usual = others[0] if others else None
    one = odd[0]
    own_text, others_text = _apart(found.values.get(one.key), usual) if usual is not None else ("", "")
    if others and len(odd) == 1:
        who = f"The loss of {one.role_label} differs from that of the other {len(others)} ranks"
    elif others:
        who = f"The losses of {len(odd)} of {len(found.values)} ranks differ from that of the others"
    else:
        who = f"The losses of {len(found.values)} ranks differ from each other"
    value = found.values.get(one.key)
    return AlertText(
        severity="critical",
        summary=f"{who} since step {found.step:,}, after {found.equal_steps:,} equal steps: "
        f"{_values_text(value, usual, found.values.values())}.",
        evidence={
            "metric": fmt.printable(found.metric, 64),
            "step": found.step,
            "value": value,
            "usual_low": usual,
            "usual_high": usual,
            "rank": one.rank.rank if others else None,
            "ranks": len(odd),
            "equal_steps": found.equal_steps,
        },
        next="restart all ranks from one checkpoint; "
        f"{_gpu_errors(one) if others else 'check the Xid and ECC errors of their GPUs'}; "
        "check that all ranks reduce gradients and loss in one process group",
        subject_rank=one if others else None,
        points=complete_clauses(
            f"losses of ranks differ, step {found.step:,}",
            f"{one.role_label} has {own_text}" if others else f"{len(found.values)} ranks",
            f"the others have {others_text}" if others else "",
            f"equal for {found.equal_steps:,} steps before",
        ),
    )


_NOT_JUDGED: Final = (
    f"Not judged: the first {limits.FIRST_STEPS} steps, fewer than {LEAST} values, and {limits.FIRST_STEPS} steps "
    "after the learning rate rose"
)
_LOSS, _NORM = limits.LOSS_LIMITS, limits.NORM_LIMITS

NON_FINITE: Final = _event_rule(
    "non_finite",
    _not_finite,
    RuleText(
        meaning="If such a gradient is applied, the parameters and all later losses are NaN.",
        condition="a logged loss, gradient norm or loss scale is NaN or Inf; where there is a loss scale, "
        f"{limits.OVERFLOWS} of the last ten gradient norms are",
        source="torch.amp.GradScaler raises the scale until a gradient overflows, skips that step and halves the "
        "scale: a single Inf is normal",
        clear_seconds=5.0,
    ),
)
LOSS_SPIKE: Final = _event_rule(
    "loss_spike",
    _spike,
    RuleText(
        meaning="After most spikes, the loss is normal again within some tens of steps; otherwise the training "
        "diverges.",
        condition=f"two of three losses are {_LOSS.pair.sigmas:.0f} standard deviations and "
        f"{100 * (_LOSS.pair.factor - 1):.0f} % above the trend, and {_LOSS.pair.times} times the largest "
        f"deviation of the last {REMEMBERED} values. Or one loss is {_LOSS.single.sigmas:.0f} standard "
        "deviations, "
        f"{100 * (_LOSS.single.factor - 1):.0f} % and {_LOSS.single.times} times that deviation above it. Noise "
        f"with the tail of the last {WINDOW} to {REMEMBERED} values must be that far above it less than once in "
        f"{1 / (_LOSS.pair.probability or 1):,.0f} values. For one loss: once in "
        f"{1 / (_LOSS.single.probability or 1):,.0f}; "
        f"critical if this lasts for {DIVERGED_POINTS} values. {_NOT_JUDGED}",
        source="the limit of seven standard deviations is that of the spike score of OLMo 2; going back 100 steps "
        "is the method of PaLM (section 5.1); the tail is a Weibull tail (Gardes and Girard 2005)",
        hold_seconds=1.0,
        clear_seconds=5.0,
    ),
    frozenset({"non_finite"}),
)
GRAD_NORM_JUMP: Final = _event_rule(
    "grad_norm_jump",
    _norm_jump,
    RuleText(
        meaning="A single batch moves the parameters far more than usual, unless its gradient is clipped.",
        condition=f"two of three norms are {_NORM.pair.sigmas:.0f} standard deviations above the trend; "
        f"they are also {_NORM.pair.factor:.0f} times the trend, and {_NORM.pair.times} times the largest "
        f"deviation of the last {REMEMBERED} values. Or one norm is {_NORM.single.sigmas:.0f} standard "
        f"deviations, {_NORM.single.factor:.0f} times the trend and {_NORM.single.times} times that deviation "
        f"above it. {_NOT_JUDGED}. Nor norms while the loss is below {100 * LEAST_RISE:.1f} % of its first values",
        source="the limit of seven standard deviations is that of the spike score of OLMo 2, which counts "
        "gradient norms too; ZClip and AdaGC clip at far smaller norms",
        hold_seconds=1.0,
        clear_seconds=5.0,
    ),
    frozenset({"non_finite"}),
)
LOSS_SCALE_COLLAPSE: Final = _event_rule(
    "loss_scale_collapse",
    _scale_collapse,
    RuleText(
        meaning="Gradients overflow at every scale, so the optimizer skips its steps, or small gradients become "
        "0.",
        condition=f"the loss scale falls to a {limits.SCALE_FALL:.0f}th within {limits.SCALE_STEPS} steps, once "
        f"it has stayed for {limits.FIRST_STEPS} or grown; or below {limits.LEAST_SCALE:.0f}",
        source="torch.amp.GradScaler halves a fitting scale at most once in growth_interval (2,000 steps); "
        "fairseq and DeepSpeed end a training that reaches their smallest scale",
        clear_seconds=5.0,
    ),
)
LOSS_FLAT: Final = _event_rule(
    "loss_flat",
    _flat,
    RuleText(
        meaning="Nothing is learned: a learning rate of 0, frozen parameters, a detached loss, or the model has "
        "converged.",
        condition=f"{SAME_VALUES} equal losses in a row; or no fall by {NEVER_PCT:.0f} % in the first "
        f"{NEVER_BLOCKS * BLOCK} values; or {LEVEL_VALUES} values at a level above the usual range",
        source="no criterion is published; these three cases do not occur in a healthy training",
        clear_seconds=5.0,
    ),
    frozenset({"non_finite"}),
)


def _values_text(value: float | None, usual: float | None, all_values: Iterable[float]) -> str:
    """Return the value that differs beside the others'; without a majority the lowest and the highest."""
    if usual is not None:
        one, other = _apart(value, usual)
        return f"{one}, the others {other}"
    known = [one for one in all_values if not math.isnan(one)]
    return "from {} to {}".format(*_apart(min(known), max(known))) if known else fmt.DASH


def _apart(value: float | None, other: float) -> tuple[str, str]:
    """Return two values with as many digits as they need to differ."""
    short = fmt.figure(value), fmt.figure(other)
    if value is None or value == other or short[0] != short[1]:
        return short
    texts = ((fmt.plain(value, digits), fmt.plain(other, digits)) for digits in range(5, _MOST_DIGITS + 1))
    return next((both for both in texts if both[0] != both[1]), short)


RANKS_DIVERGED: Final = Rule[JobState](
    id="ranks_diverged",
    holds=lambda job, _is_raised: _divergence(job) is not None,
    describe=_diverged_alert,
    covered_by=frozenset({"non_finite"}),
    text=RuleText(
        meaning="The ranks no longer train the same model: silent data corruption, or a missing all-reduce.",
        condition=f"losses that all ranks logged as equal for {LEAST_EQUAL} steps differ in {LEAST_DIFFERENT} "
        "steps",
        source="a loss that is averaged over all ranks is exactly equal on each of them; losses of single ranks "
        "differ from the first step on, and are not judged",
        clear_seconds=5.0,
    ),
)
HEALTH_RULES: Final = (NON_FINITE, LOSS_SPIKE, GRAD_NORM_JUMP, LOSS_SCALE_COLLAPSE, LOSS_FLAT, RANKS_DIVERGED)
