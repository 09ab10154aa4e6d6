"""The rule for untimed parts of the step: neither in a phase of the script nor in one of the hooks.

It is by the host's clock, from start to start of whole steps. Stack samples show what the host did then, so each
cause has its own advice.
"""

from __future__ import annotations

import re
from statistics import stdev
from typing import Final, NamedTuple

from llmtop import format as fmt
from llmtop.model.proportions import wilson_interval
from llmtop.model.snapshot import Cause
from llmtop.naming.phase_names import role_of
from llmtop.protocol.training_facts import CODE_AFTER
from llmtop.rules import limits
from llmtop.rules.inference import step_noun
from llmtop.rules.recent_steps import is_kept_busy, outside_pct
from llmtop.rules.rule import SAVE_LESS_OFTEN, AlertText, Rule, RuleText, complete_clauses
from llmtop.rules.state.rank import RankState
from llmtop.rules.state.step_costs import host_share_pct
from llmtop.rules.state.windows import finite_or_none

OUTSIDE_PCT: Final = limits.threshold_pair(limits.CONFIGURED.outside.step_pct, (10.0, 7.0))
"""Percent of the mean step, to raise and to stay raised; as for waiting for data."""
IDLE_PCT: Final = (5.0, 4.0)
"""Percent of the time: a GPU that is idle for less is kept busy, whatever its host does between phases."""
LEAST_STEPS: Final = 20
"""Steps after warm-up: one-time work at the beginning is not counted."""
MAIN_PCT: Final = 25.0
"""Percent of the time outside, from which a cause is named."""
FEW_SAMPLES: Final = 3
"""Number of samples, all at one line, that do not show that it takes more than half of the time: the lower
bound of their share is 0.44 (Wilson, 95 %). Then the line is named only if it takes `MAIN_PCT` by them."""
MOST_ALIKE: Final = 3
"""Most causes that are listed where samples do not show which is the largest."""
CAUSE_PART: Final = 0.5
"""Share of the threshold that the named causes take together. Without such a cause `NO_CAUSE_TIMES` the
threshold counts: the rest of a loop besides its phases is 10 to 11 % of the steps of healthy trainings on a
busy machine."""
NO_CAUSE_TIMES: Final = 2.0
"""Also for a training that waits for a CPU. Samples find lines where the kernel took the CPU, so a cause counts
for nothing there. With cold caches the same lines take more processor time: on two cores, 10 to 14 % of the steps
of a training alone were 12.5 to 17 % beside five others (docs/measurements.md)."""
MOST_LOAD: Final = 4.0
"""Threads per CPU, above which a share without a cause is no finding: where a step loses the CPU is chance. At 13
threads per CPU, trainings that were outside for 10 % of their CPU time had medians of 15 to 35 % of the step."""
_BLOCKS: Final = 8
"""The steps of the window are taken in so many blocks, whose difference tells how sure the share is."""
_ERRORS: Final = 2.0
"""Standard errors of the blocks' mean above the threshold: 98 % sure."""
_SEVERAL_LINES: Final = re.compile(r"\S+:(?:\d+-\d+|\d+(?= and \d)) ")


class CauseAdvice(NamedTuple):
    """Advice for a cause that contains one of these words."""

    words: tuple[str, ...]
    text: str


ADVICE: Final = (
    CauseAdvice(
        ("garbage collection", "gc.collect("),
        "call gc.freeze() after the model is built; or gc.disable(), and gc.collect() every 500 steps",
    ),
    CauseAdvice(
        ("torch.compile", "_dynamo", "_inductor"),
        "find the reason with TORCH_LOGS=recompiles; mark changing sizes as dynamic, or pad to a few shapes",
    ),
    CauseAdvice(
        (".item()", ".cpu()", ".tolist()", "float(", ".numpy()", "synchronize("),
        "keep these values on the GPU, and read them every 50 steps: each read waits for the GPU",
    ),
    CauseAdvice(
        ("print(", "log(", ".log", "logger", "tqdm", "wandb", "add_scalar", "set_postfix", "write("),
        "log every 50 steps instead of every step",
    ),
    CauseAdvice(
        ("save(", "checkpoint", "dump("),
        SAVE_LESS_OFTEN,
    ),
    CauseAdvice(("sleep(",), "remove the sleep from the training loop"),
)
_LOADS: Final = re.compile(r"(?:async )?for .+ in |.*(?:\bnext\(|get_batch)")
"""Lines that get a batch."""
_WRAP_LOADER: Final = (
    'wrap the data loader: for batch in llmtop.loader(batches); or with llmtop.phase("dataload"):'
)
_LOADER_IS_TIMED: Final = (
    "if this code prepares the batch, move it into the Dataset or collate_fn, and set num_workers; to time it, "
    'wrap it in: with llmtop.phase("NAME"):'
)
_DEFAULT_ADVICE: Final = 'press s for the Python stack; to time that code, wrap it in: with llmtop.phase("NAME"):'


def _share_pct(state: RankState) -> float | None:
    """Return the untimed share of the mean step in percent; None while unknown."""
    rank = state.rank
    outside, mean = finite_or_none(rank.outside_seconds), finite_or_none(rank.step_seconds_mean)
    if outside is None or not mean or not rank.phases:
        return None
    return 100.0 * outside / mean


def _rare_pct(state: RankState) -> float:
    """Return the share of the mean step caused by rare long steps, in percent; `rare_steps` reports these."""
    mean, usual = finite_or_none(state.rank.step_seconds_mean), finite_or_none(state.rank.step_seconds_p50)
    rare = state.rank.rare
    if rare is None or not mean or not usual:
        return 0.0
    lost = finite_or_none(rare.seconds_per_hour) or 0.0
    return min(100.0 * max(1.0 - usual / mean, 0.0), lost / 36.0)  # percent of an hour


def _is_outside(state: RankState, is_raised: bool) -> bool:
    if not state.is_working or state.rank.kind == "request" or len(state.steps) < LEAST_STEPS:
        return False
    share = _share_pct(state)
    if share is None:
        return False
    work, least = finite_or_none(state.rank.outside_work_pct), OUTSIDE_PCT[1 if is_raised else 0]
    if work is not None:  # it waits for a CPU
        share, least = min(share, work), NO_CAUSE_TIMES * least
    share -= _rare_pct(state)
    if share < least or share < host_share_pct(state.steps, ("input",)):
        return False  # the larger of both shares is reported, as INPUT-BOUND
    if not (is_raised or work is not None or _is_more_than_noise(state, share)):
        return False
    return not is_kept_busy(state, IDLE_PCT[1 if is_raised else 0])


def _is_more_than_noise(state: RankState, share: float) -> bool:
    """Return True if the steps differ too little to explain the share, and its causes are large enough."""
    size = len(state.steps) // _BLOCKS
    steps = list(state.steps)[-size * _BLOCKS :]
    blocks = [outside_pct(steps[at : at + size]) for at in range(0, len(steps), size)]
    if share - _ERRORS * stdev(blocks) / _BLOCKS**0.5 < OUTSIDE_PCT[0]:
        return False
    mean = finite_or_none(state.rank.step_seconds_mean) or 0.0
    known = [cause.seconds for cause in _main_causes(state) if not cause.what.startswith(CODE_AFTER)]
    named = 100.0 * sum(known) / mean if mean else 0.0
    if named < CAUSE_PART * OUTSIDE_PCT[0] and (state.load_per_cpu or 0.0) > MOST_LOAD:
        return False
    return share >= NO_CAUSE_TIMES * OUTSIDE_PCT[0] or named >= CAUSE_PART * OUTSIDE_PCT[0]


def _main_causes(state: RankState) -> list[Cause]:
    """Return the causes that take much of the time outside, the largest first."""
    outside = finite_or_none(state.rank.outside_seconds) or 0.0
    return [cause for cause in state.rank.outside_causes if cause.seconds * 100.0 >= MAIN_PCT * outside][:2]


def alike_causes(state: RankState) -> list[Cause]:
    """Return the largest cause and those that may be larger, as far as samples show: 95 % sure for each pair.

    Samples without a line do not count. One sample is no cause, and few samples are none of a small part. Empty
    without such a cause.
    """
    if not state.rank.outside_causes:
        return []
    first, *others = state.rank.outside_causes
    if (first.samples or 0) <= FEW_SAMPLES and first not in _main_causes(state):
        return []
    near = [
        one
        for one in others
        if one.samples and wilson_interval(first.samples or 0, (first.samples or 0) + one.samples)[0] <= 0.5
    ]
    return [first, *near][:MOST_ALIKE] if (first.samples or 0) > 1 else []


def _named_causes(state: RankState) -> tuple[list[Cause], str]:
    """Return the causes to name, and the clause that names them; "" without causes."""
    causes = _main_causes(state)
    if any(cause.samples is not None for cause in state.rank.outside_causes):
        alike = alike_causes(state)
        if len(alike) > 1:
            time = fmt.duration(sum(cause.seconds for cause in alike))
            counts = " and ".join(f"{cause.what} ({fmt.counted(cause.samples or 0, 'sample')})" for cause in alike)
            return alike, f"{time} in {counts}"
        causes = [cause for cause in causes if cause not in alike and (cause.samples or 0) > 1]
        causes = [*alike, *causes][:2]
    return causes, " and ".join(f"{fmt.duration(cause.seconds)} in {cause.what}" for cause in causes)


def _outside_alert(state: RankState) -> AlertText:
    rank = state.rank
    causes, listed = _named_causes(state)
    where = f" ({state.location})" if state.location else ""
    label = state.label[0].upper() + state.label[1:]
    return AlertText(
        severity="warning",
        summary=f"{label}{where}: {fmt.percent_text(_share_pct(state))} of each {step_noun(state)} "
        f"({fmt.duration(rank.outside_seconds)}) is spent outside all phases{': ' + listed if listed else ''}.",
        evidence={
            "outside_pct": _share_pct(state),
            "outside_seconds": rank.outside_seconds,
            "outside_work_pct": finite_or_none(rank.outside_work_pct),
            "step_seconds": rank.step_seconds_mean,
            "window_seconds": rank.window_seconds,
            **{f"cause_{place}": cause.what for place, cause in enumerate(causes, 1)},
            **{f"cause_{place}_seconds": cause.seconds for place, cause in enumerate(causes, 1)},
        },
        next=_advice(state, causes),
        points=complete_clauses(
            f"{fmt.percent_text(_share_pct(state))} of each {step_noun(state)} is untimed",
            *(f"{fmt.duration(cause.seconds)} in {fmt.shorten_middle(cause.what, 40)}" for cause in causes),
        ),
    )


def _advice(state: RankState, causes: list[Cause]) -> str:
    """Return what to do: about the largest cause; where any of several may be it, what is the same for all."""
    shown = causes if state.rank.outside_causes and alike_causes(state) == causes else causes[:1]
    found = {advice_for(state, cause.what) for cause in shown}
    return found.pop() if len(found) == 1 else _no_cause_advice(state)


def _no_cause_advice(state: RankState) -> str:
    stacks = f"press s for the Python stacks of {state.label}"
    return f"{stacks}, or run: py-spy record --pid {state.rank.pid} --duration 20 -o stacks.svg"


def advice_for(state: RankState, what: str) -> str:
    """Return what to do about a cause of untimed work.

    Args:
        state: of the rank; where a phase times its data loader, the cause is code of the loop beside it.
        what: the cause.
    """
    is_timed = any(role_of(phase.name) == "input" for phase in state.rank.phases)
    default = _LOADER_IS_TIMED if is_timed else _DEFAULT_ADVICE
    if _SEVERAL_LINES.match(what) or what.startswith(CODE_AFTER):
        return default  # which line it is is not known
    # Without the place in front, whose file may be called anything.
    call = what.partition(" ")[2] if ":" in what.partition(" ")[0] else what
    if not is_timed and _LOADS.match(call):
        default = _WRAP_LOADER
    call = f" {call} "
    return next((one.text for one in ADVICE if any(word in call for word in one.words)), default)


OUTSIDE: Final = Rule[RankState](
    id="outside",
    holds=_is_outside,
    describe=_outside_alert,
    covered_by=frozenset({"stalled", "hung_collective", "straggler", "h2d_bound", "sync_bound"}),
    text=RuleText(
        meaning="The untimed part can be logging, a wait for the GPU, garbage collection, or other code of the "
        "script "
        "outside the phases.",
        condition=f"{OUTSIDE_PCT[0]:.0f} % or more of the time from the start of a step to the start of the next "
        f"belongs to no phase, after {LEAST_STEPS} steps, and the noise of the steps does not explain it. Below "
        f"{NO_CAUSE_TIMES * OUTSIDE_PCT[0]:.0f} %, only if known causes take {CAUSE_PART * OUTSIDE_PCT[0]:.0f} % "
        f"of the step; above a load of {MOST_LOAD:.0f} per CPU, always only then. A training that waits for a CPU "
        f"needs {NO_CAUSE_TIMES * OUTSIDE_PCT[0]:.0f} % without these waits. Never for a training "
        "without phases, nor if more of the step waits for data, nor while its "
        f"GPU is idle for under {IDLE_PCT[0]:.0f} % of the time",
        source="the threshold is that of the alert INPUT-BOUND for waiting for data",
        hold_seconds=2.0,
        clear_seconds=5.0,
        fields=("step_seconds",),
    ),
)
