"""The summary that a training started by `llmtop run` prints at its orderly end. No rule is loaded for it."""

from __future__ import annotations

import os
import sys

from llmtop.format import counted, duration, number, percent_text, printable
from llmtop.naming import variable_names
from llmtop.naming.own_phases import OUTSIDE, phase_label
from llmtop.naming.phase_names import computes, role_of
from llmtop.runs import records

_LEAST_STEPS = 2
_LEAST_UNTIMED = 0.1
"""Share of the steps from which untimed work is reported where nothing waits: the threshold of its alert."""


def summary_lines(state: records.State, run: str, *, is_long: bool) -> list[str]:
    """Return the summary; empty where fewer than two steps were made.

    Args:
        state: the sums of all steps.
        run: id of the run.
        is_long: with a line for each phase.
    """
    if state.intervals < _LEAST_STEPS:
        return []
    p50, p95 = (records.histogram_percentile(state.histogram, share) for share in (0.5, 0.95))
    rate = ""
    if state.tokens is not None and state.interval_seconds > 0:
        rate = f", {number(state.tokens / state.interval_seconds)} tokens/s on this rank"
    lines = [f"{counted(state.steps, 'step')}, step p50 {duration(p50)}, p95 {duration(p95)}{rate}"]
    shares = {name: seconds / state.step_seconds for name, seconds in state.phases.items() if "/" not in name}
    shares[OUTSIDE] = max(0.0, 1.0 - sum(shares.values()))
    if is_long:
        ordered = sorted(shares.items(), key=lambda one: -one[1])
        lines += [
            f"{phase_label(name)} {percent_text(100 * share, 1)} of the steps' time" for name, share in ordered
        ]
    else:
        waits = {name: share for name, share in shares.items() if name != OUTSIDE and not _computes(name)}
        lines += _largest_wait(waits, shares[OUTSIDE])
    lines.append(f"restarts and where the time went: llmtop runs show {run}")
    return lines


def _largest_wait(waits: dict[str, float], untimed: float) -> list[str]:
    """Return the line about the longest wait, or about untimed work where that is more; both are shares."""
    name = max(waits, key=lambda one: waits[one], default="")
    wait = f"{name}, {percent_text(100 * waits[name], 1)}" if name else ""
    if untimed > (waits[name] if name else _LEAST_UNTIMED):
        more = f", more than the largest wait ({wait})" if wait else ""
        return [f"{phase_label(OUTSIDE)}: {percent_text(100 * untimed, 1)} of the steps' time{more}"]
    return [f"largest wait: {wait} of the steps' time"] if wait else []


def print_summary(state: records.State, run: str, rank: int | None) -> None:
    """Print the summary where `llmtop run` asked for one; in the process of rank 0 alone.

    Raises:
        OSError: the file that it is to go to cannot be written.
    """
    wanted = os.environ.get(variable_names.RUN_SUMMARY, "off")
    if wanted == "off" or rank not in (None, 0):
        return
    stream = sys.__stderr__
    if wanted not in ("auto", "short", "long"):
        lines = summary_lines(state, run, is_long=True)
        with open(wanted, "a", encoding="utf-8") as file:
            file.write("".join(f"{printable(line)}\n" for line in lines))
        return
    if stream is None or (wanted == "auto" and not stream.isatty()):
        return
    for line in summary_lines(state, run, is_long=wanted == "long"):
        stream.write(f"llmtop: {printable(line)}\n")
    stream.flush()


def _computes(name: str) -> bool:
    return computes(role_of(name)) or role_of(name) == "other"
