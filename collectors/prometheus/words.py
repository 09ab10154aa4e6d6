"""Sentences of a `ClusterView`: the same on the screen and in text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from collectors.prometheus.cluster_view import ClusterView, HungRank, LateRank, NodeAlert, Run
from collectors.prometheus.fleet_rules import MIN_STEPS, STALE_SECONDS
from collectors.prometheus.node_words import node_notes
from llmtop import format as fmt
from llmtop.hardware.gpu_errors import xid_text
from llmtop.model.bottlenecks import name_of
from llmtop.model.links import WINDOW_SECONDS

SHORT_SPAN = 45.0
"""Seconds of steps, of the minute that rates are over, below which the span is named: a counter's first minute."""
RATE_SECONDS = 60.0
"""Seconds of the first of `fleet_rules.WINDOWS`."""
MOST_RANKS = 8
"""Ranks, or ranges of ranks, that a sentence names."""


def counts_text(view: ClusterView) -> str:
    """Return the nodes up and down, and alerts by name; "no alerts" only where there is no other fault either."""
    if view.nodes_up is None:
        nodes = f"nodes {fmt.DASH}"
    else:
        nodes = f"{fmt.counted(view.nodes_up, 'node')} up, {view.nodes_down} down"
        nodes += f", {view.nodes_removed} removed" if view.nodes_removed else ""
        nodes += f", {view.nodes_acknowledged} acknowledged" if view.nodes_acknowledged else ""
    alerts = ", ".join(f"{count} {name_of(name)}" for name, count in view.alerts.items())
    if view.nodes_up is None:
        return f"{nodes}; alerts {fmt.DASH}"
    alerts = alerts or ("" if _has_fault(view) else "no alerts")
    return f"{nodes}; {alerts}" if alerts else nodes


def _has_fault(view: ClusterView) -> bool:
    """Return True if something of the view is critical or a warning, besides alerts of llmtop on the nodes."""
    return (
        bool(view.hung or view.grave)
        or any(one.is_straggler for one in view.late)
        or any(map(missing_text, view.runs))
        or any(note.severity != "info" for note in node_notes(view))
    )


def state_notes(view: ClusterView, now: float | None = None) -> Iterator[str]:
    """Yield notes on the answer itself: missing parts, its age, skewed clocks.

    Args:
        view: the answer.
        now: unix time; by default that of the question.
    """
    yield from view.problems
    if view.pinned:
        yield f"as it was at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(view.time))}"
    if now is not None and is_overdue(view, now):
        yield f"no answer for {fmt.duration(float(round(now - view.asked_at)))}: this is what was known then"
    if view.data_age_seconds is not None and view.data_age_seconds > STALE_SECONDS:
        age = fmt.duration(float(round(view.data_age_seconds)))
        yield f"the newest values are {age} old; check the targets of Prometheus"
    if view.clock_ahead_seconds is not None:
        direction = "ahead of" if view.clock_ahead_seconds > 0 else "behind"
        yield f"the server's clock is {fmt.duration(abs(view.clock_ahead_seconds))} {direction} this machine's"
    if not view.problems and view.nodes_up is None:
        yield "Prometheus has no llmtop exporter; on each node, run: llmtop export --bind ADDRESS"
    elif view.rules is False:
        every = "" if view.every_seconds is None else f", asked every {fmt.duration(view.every_seconds)}"
        yield f"no recording rules on the server{every}; llmtop export --rules prints them"
    elif view.every_seconds is not None and view.took_seconds > view.every_seconds / 2:
        yield f"the server takes {fmt.duration(view.took_seconds)} to answer"


def is_overdue(view: ClusterView, now: float) -> bool:
    """Return True if the next answer should have been there long before `now` (unix time)."""
    return not view.pinned and now - view.asked_at > max(10.0, 2.5 * (view.every_seconds or 0.0))


def run_text(run: Run, width: int | None = None) -> str:
    """Return one run in a line, with as many of its figures as fit whole.

    Args:
        run: the run.
        width: cells; None: no limit.
    """
    ranks = "" if run.ranks is None else fmt.counted(run.ranks, "rank")
    if _is_incomplete(run):
        ranks = f"{run.ranks_reporting} of {run.world_size} ranks"
    parts = [
        ranks,
        f"{fmt.count(run.tokens_per_s)} tokens/s{_span_text(run)}" if run.tokens_per_s is not None else "",
        f"step p50 {fmt.duration(run.step_seconds_p50)}, p99 {fmt.duration(run.step_seconds_p99)}",
        f"{run.ranks_without_step} without a step for 1 minute" if run.ranks_without_step else "",
    ]
    text = f"{run.name}: "
    for part in filter(None, parts):
        longer = text + (part if text.endswith(": ") else f", {part}")
        if width is not None and fmt.width_of(longer) > width and not text.endswith(": "):
            break
        text = longer
    return text


def _span_text(run: Run) -> str:
    """Over which time a run's rates are, where that is not the usual minute."""
    span, step = run.rate_span_seconds, run.step_seconds_p50
    if span is None:
        slow = step is not None and MIN_STEPS * step > RATE_SECONDS
        return f" over more than {fmt.duration(RATE_SECONDS)}" if slow else ""
    return f" over {fmt.duration(round(span, 1))}" if span < SHORT_SPAN else ""


def _is_incomplete(run: Run) -> bool:
    known = run.world_size is not None and run.ranks_reporting is not None
    return known and (run.ranks_reporting or 0) < (run.world_size or 0)


def missing_text(run: Run) -> str:
    """Return which ranks of a run do not report; "" where all do, or their number is unknown."""
    if not _is_incomplete(run):
        return ""
    text = f"{run.ranks_reporting} of {run.world_size} ranks report ({run.name})"
    if not run.ranks_missing:
        return text
    ranges = number_ranges(run.ranks_missing)
    more = f" and {len(ranges) - MOST_RANKS} more ranges" if len(ranges) > MOST_RANKS else ""
    noun = "rank" if len(run.ranks_missing) == 1 else "ranks"
    return f"{noun} {', '.join(ranges[:MOST_RANKS])}{more}; {text}"


def number_ranges(numbers: Sequence[int]) -> list[str]:
    """Return ascending numbers as "3" and "8 to 15"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [f"{first}" if first == last else f"{first} to {last}" for first, last in found]


def late_text(one: LateRank) -> str:
    """Return the straggler and how much it adds to each step."""
    share = "" if one.step_share is None else f" ({fmt.percent_text(100 * one.step_share)})"
    return f"rank {one.rank} on {one.node} (pid {one.pid}) adds {fmt.duration(one.seconds)} per step{share}"


def hung_text(one: HungRank) -> str:
    """Return the rank that has not called a collective, and the number that wait."""
    waiting = f"{one.waiting} rank{'' if one.waiting == 1 else 's'} wait{'s' if one.waiting == 1 else ''}"
    if one.rank is None:
        return f"{waiting} in a collective of {one.process_group} that does not complete ({one.run})"
    who = f"rank {one.rank} on {one.node} (pid {one.pid})"
    if one.communicator is None:
        return f"{who} is {fmt.counted(one.behind or 0, 'collective')} behind in {one.process_group}; {waiting}"
    group = one.process_group or f"NCCL communicator {one.communicator}"
    if one.missing:
        return f"{who} does not reply to NCCL; {waiting} in {group}"
    calls = f"{one.behind} {one.operation or 'collective'}{'' if one.behind == 1 else 's'}"
    return f"{who} is {calls} behind in {group} (NCCL); {waiting}"


def critical_text(one: NodeAlert) -> str:
    """Return the fault and its place."""
    where = "".join(
        f", {what} {value}" for what, value in (("GPU", one.gpu), ("rank", one.rank), ("pid", one.pid)) if value
    )
    if one.id == "xid":
        return f"driver error {xid_text(int(one.value or 0))}, on {one.node}{where}"
    if one.id == "ecc":
        return f"uncorrectable memory errors on {one.node}{where}"
    if one.id == "hot":
        return f"temperature of {one.value:.0f} °C on {one.node}{where}"
    if one.id == "link_errors":
        return f"{one.link} +{one.value:.0f} in {fmt.duration(WINDOW_SECONDS)} on {one.node}"
    return f"{name_of(one.id)} on {one.node}{where}"
