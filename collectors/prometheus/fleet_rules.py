"""Recording and alerting rules for Prometheus, rendered from the thresholds of the live rules.

`llmtop/data/prometheus-rules.template.yml` has `@NAME@` for a threshold and `@per(A, B)@` for one counter over
another.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final, get_args

from llmtop.model import links
from llmtop.model.bottlenecks import AlertId
from llmtop.model.stall_thresholds import STALLED_SECONDS, STALLED_STEPS
from llmtop.naming import file_names
from llmtop.rules import gpu, limits, risk
from llmtop.rules.hang import OTHER_WORK_MAX_AGE_SECONDS
from llmtop.rules.state.training_health import LEAST_SCALE
from llmtop.rules.straggler import BEHIND_PCT

WINDOWS: Final = ("1m", "10m", "1h")
"""The last suits steps of up to 20 minutes."""
MIN_STEPS: Final = 3
"""Steps that a window must hold: a rate over fewer depends on where the window cuts them."""
STALE_SECONDS: Final = 60.0
"""Age from which on values are stale where the exporter names no limit of its own: targets are fetched every 15 or
30 s, and textfiles are read as rarely."""
SKEW_SECONDS: Final = 2.0
"""NTP keeps clocks within milliseconds; a scrape takes milliseconds, and its duration is taken off."""
FORGET_DAYS: Final = 7
"""For so long Prometheus knows a node that died: longer than a weekend with a holiday."""
_PLACE: Final = re.compile(r"@(\w+)(?:\((\w+), (\w+)\))?@")
_LIVE: Final = re.compile(r"^ {6}# live: (\w+)\n", re.MULTILINE)
_BLOCK: Final = re.compile(r"\n(?:      # (?!live:).*\n)*      # live: (\w+)\n(?: {6,}.*\n)+")

MISSING: Final[Mapping[AlertId, str]] = {
    "input_bound": "the GPU's idle time in a step and the wait for data, by both clocks",
    "launch_bound": "the GPU's idle time in a step and the host's time for launches",
    "sync_bound": "the GPU's idle time in a step and the host's time in synchronising calls",
    "h2d_bound": "the time of host-to-device copies in a step, by CUDA events",
    "communication_bound": "the exposed share of communication in a step, by CUDA events",
    "low_activity": "whether the process on a GPU is attached",
    "throttled": "the clock-event reasons of a GPU",
    "power_capped": "the clock-event reasons of a GPU and its highest SM clock",
    "outside": "the GPU's idle time in a step, and rare steps, which are not counted as outside",
    "rare_steps": "the time of single steps",
    "slower": "the time and the work of single steps",
    "memory_pressure": "retries and failures of torch's allocator",
    "memory_growth": "what torch's allocator holds",
    "loss_spike": "the logged loss of each step: a fetch has the last one alone",
    "grad_norm_jump": "the gradient norm of each step: a fetch has the last one alone",
    "loss_flat": "the logged loss of each step: a fetch has the last one alone",
    "ranks_diverged": "the logged losses of all ranks at one step",
    "imbalance": "the work of each rank without its waits",
}
"""Live rules without a fleet rule, and what no exported series has."""


def render() -> str:
    """Return the rules as YAML, with the configured thresholds and without alerts that are off."""
    template = (files("llmtop") / "data" / file_names.PROMETHEUS_RULES_TEMPLATE).read_text(encoding="utf-8")
    off = limits.CONFIGURED.off
    kept = _BLOCK.sub(lambda block: "" if block[1] in off else block[0], template)
    values = _values()

    def filled(place: re.Match[str]) -> str:
        if place[1] == "per":
            return _ratio(place[2], place[3])
        return values[place[1]]

    return _PLACE.sub(filled, kept)


@cache
def covered_ids() -> frozenset[str]:
    """Return the ids of live rules that have a fleet rule in the template."""
    template = (files("llmtop") / "data" / file_names.PROMETHEUS_RULES_TEMPLATE).read_text(encoding="utf-8")
    return frozenset(_LIVE.findall(template))


def _values() -> dict[str, str]:
    # What raises an alert and what keeps it, in percent, and what one in DCGM's unit is of that.
    pairs = {
        "dram_bound": (gpu.DRAM_BOUND, 100),
        "dram_low": (gpu.DRAM_LOW, 100),
        "mem_util_low": (gpu.MEM_UTIL_LOW, 1),
        "power_low": (gpu.POWER_LOW, 100),
        "sm_low": (gpu.SM_LOW, 100),
        "tensor_idle": (gpu.TENSOR_IDLE, 100),
        "util_full": (gpu.UTIL_FULL, 1),
    }
    numbers = {
        "behind": BEHIND_PCT[0] / 100,
        "far_factor": risk.FAR_FACTOR[0],
        "forget_days": FORGET_DAYS,
        "forget_seconds": FORGET_DAYS * 86_400,
        "least_scale": LEAST_SCALE,
        "link_min_downed": links.MIN_LINK_DOWNED,
        "link_min_errors": links.MIN_ERRORS,
        "memory_bound_util": gpu.MEMORY_BOUND_UTIL,
        "min_steps": MIN_STEPS,
        "other_work_seconds": OTHER_WORK_MAX_AGE_SECONDS,
        "risk_seconds": risk.RISK_HOURS * 3600,
        "skew_seconds": SKEW_SECONDS,
        "stale_seconds": STALE_SECONDS,
        "stalled_seconds": STALLED_SECONDS,
        "stalled_steps": STALLED_STEPS,
        "waste": risk.WASTE_PCT / 100,
        **{name: pair[0] / by for name, (pair, by) in pairs.items()},
        **{f"{name}_keep": pair[1] / by for name, (pair, by) in pairs.items()},
    }
    hours = risk.FAILURE_HOURS
    ranks = "clamp_min(run:llmtop_world_size:max or run:llmtop_ranks:count, 1)"
    shared = f"{risk.GPU_HOURS_PER_FAILURE * 3600:g} / {ranks}"
    texts = {
        "failure_interval": shared if hours is None else f"{hours * 3600:g} + 0 * run:llmtop_ranks:count",
        "gpu_hours": f"{risk.GPU_HOURS_PER_FAILURE:,.0f}",
        "link_downed": links.LINK_DOWNED,
        "link_errors": "|".join(one for one in links.ALERTING if one != links.LINK_DOWNED),
        "link_window": f"{links.WINDOW_SECONDS / 60:.0f}m",
        "missing": _missing_text(),
        "window": WINDOWS[0],
        "windows": ", ".join(WINDOWS),
    }
    return {name: f"{number:g}" for name, number in numbers.items()} | texts


def _ratio(counter: str, per: str) -> str:
    """Return one counter over another, in the shortest window that holds enough steps."""
    return " or ".join(
        f"(increase({counter}[{window}]) / (increase({per}[{window}]) > 0) "
        f"and on (instance, job, pid) increase(llmtop_steps_total[{window}]) >= {MIN_STEPS})"
        for window in WINDOWS
    )


def _missing_text() -> str:
    """Return a comment that lists the live rules without a fleet rule, in the order of their ids."""
    head = (
        "These live rules have no rule of their own here: the named series is not exported. "
        'llmtop_alert{id="..."} has what llmtop on the node itself reports.'
    )
    rows = [f"- {alert_id}: {MISSING[alert_id]}" for alert_id in get_args(AlertId) if alert_id in MISSING]
    lines = [*textwrap.wrap(head, 113), *(line for row in rows for line in textwrap.wrap(row, 113))]
    return "\n".join(f"# {line}" for line in lines)
