"""Judge `slower` and `rare_steps` on generated series, through the rules that a monitor applies.

``python -m tests.support.judged_series 2000`` prints how many series are right, missed and false, by kind.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from llmtop.model.snapshot import Alert
from llmtop.rules.engine import Rules
from llmtop.step_history.change_point import NORMAL_AFTER_SECONDS
from llmtop.step_history.step_changes import StepChanges
from tests.support import snapshots
from tests.support.step_series import STEPS, StepSeries, make_series

RULES = ("slower", "rare_steps")
_POLL_S = 1.0


@dataclass(frozen=True)
class Verdict:
    """What one rule made of one series."""

    kind: str
    rule: str
    result: str
    """"right", "missed" (it should have held), or "false" (it held where it must not, or is wrong)."""
    why: str = ""


def alerts_over_time(series: StepSeries) -> list[tuple[int, dict[str, Alert]]]:
    """Return the step of each poll with the alerts of both rules then, by id; polls are a second apart."""
    changes, rules, found = StepChanges(), Rules(), []
    next_poll = 0.0
    for whole in series.whole_steps():
        changes.add(whole)
        now = whole.step.started_at + whole.seconds
        if now < next_poll:
            continue
        next_poll = now + _POLL_S
        rank = snapshots.rank(
            kind="step",
            state="running",
            step=whole.step.index,
            step_seconds_p50=whole.seconds,
            last_step_at=now,
            change=changes.change,
            rare=changes.rare,
        )
        alerts = rules.apply(snapshots.snapshot(now, ranks=(rank,))).alerts
        found.append((whole.step.index, {alert.id: alert for alert in alerts if alert.id in RULES}))
    return found


def judge(seed: int) -> tuple[Verdict, Verdict]:
    """Return what both rules made of the series of a seed."""
    series = make_series(seed)
    polls = alerts_over_time(series)
    slower, rare = _slower(series, polls), _rare(series, polls)
    return Verdict(series.kind, "slower", *slower), Verdict(series.kind, "rare_steps", *rare)


def _slower(series: StepSeries, polls: list[tuple[int, dict[str, Alert]]]) -> tuple[str, str]:
    truth = series.truth
    told = [(step, found["slower"]) for step, found in polls if "slower" in found]
    warned = [(step, alert) for step, alert in told if alert.severity != "info"]
    last = polls[-1][1].get("slower")
    if truth.work is not None:
        if warned:
            return "false", f"step {warned[0][0]}: {warned[0][1].summary}"
        named = [alert for _, alert in told if alert.evidence.get("work") == truth.work]
        return ("right", "") if named else ("missed", f"{truth.work} not named")
    if truth.slower_since is not None:
        early = [step for step, _ in warned if step < truth.slower_since]
        if early:
            return "false", f"at step {early[0]}, before {truth.slower_since}"
        is_held = last is not None and last.severity != "info"
        return ("right", "") if is_held or (warned and _is_normal_by_now(series)) else ("missed", "")
    if told and not truth.slower_at_times:
        return "false", f"step {told[0][0]}: {told[0][1].summary}"
    if last is not None:
        return "false", f"still at the end: {last.summary}"
    return "right", ""


def _is_normal_by_now(series: StepSeries) -> bool:
    """Whether the change is so long ago at the end that the alert, as its condition states, is over."""
    seconds = (series.seconds + series.extra)[series.truth.slower_since :]
    return float(seconds.sum()) > NORMAL_AFTER_SECONDS


def _rare(series: StepSeries, polls: list[tuple[int, dict[str, Alert]]]) -> tuple[str, str]:
    truth = series.truth
    told = [(step, found["rare_steps"]) for step, found in polls if "rare_steps" in found]
    if truth.rare is False:
        return ("false", f"step {told[0][0]}: {told[0][1].summary}") if told else ("right", "")
    last = polls[-1][1].get("rare_steps")
    if last is None:
        return ("missed", f"{truth.rare_share:.1%} of the time") if truth.rare else ("right", "")
    every = last.evidence.get("every_steps")
    if (
        truth.rare_every is not None
        and isinstance(every, int | float)
        and abs(every - truth.rare_every) > 0.1 * truth.rare_every
    ):
        return "false", f"every {every} for {truth.rare_every}"
    return "right", ""


def judged(seeds: Iterable[int], processes: int = 2) -> list[Verdict]:
    """Return the verdicts of all seeds."""
    with ProcessPoolExecutor(processes) as pool:
        return [verdict for pair in pool.map(judge, seeds, chunksize=10) for verdict in pair]


def table(verdicts: list[Verdict]) -> str:
    """Return counts by rule and kind, then the totals of each rule with their shares."""
    lines = []
    for rule in RULES:
        counts = Counter((one.kind, one.result) for one in verdicts if one.rule == rule)
        kinds = dict.fromkeys(kind for kind, _ in counts)
        lines.append(f"{rule:<24}{'right':>8}{'missed':>8}{'false':>8}")
        lines += [f"  {kind:<22}" + "".join(f"{counts[kind, name]:>8}" for name in _RESULTS) for kind in kinds]
        totals = [sum(counts[kind, name] for kind in kinds) for name in _RESULTS]
        shares = ", ".join(
            f"{name} {100 * number / sum(totals):.1f} %" for name, number in zip(_RESULTS, totals, strict=True)
        )
        lines.append(f"  {'all':<22}" + "".join(f"{number:>8}" for number in totals) + f"  {shares}")
    return "\n".join(lines)


_RESULTS = ("right", "missed", "false")


def main() -> int:
    """Judge the series of the seeds from 0 on; with -v the first failures of each kind too."""
    arguments = [word for word in sys.argv[1:] if word != "-v"]
    number = int(arguments[0]) if arguments else 2000
    verdicts = judged(range(number))
    print(f"{number} series of {STEPS} steps")
    print(table(verdicts))
    if "-v" in sys.argv:
        for seed, one in enumerate(verdicts):
            if one.result != "right":
                print(f"seed {seed // 2} {one.rule} {one.kind}: {one.result} {one.why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
