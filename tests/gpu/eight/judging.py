"""How what check_eight.py measured is judged: functions of what was recorded, without a GPU."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

CHUNK = 50
"""All-reduces between two looks at the clock."""
PHASES = {"idle": 14.0, "all_reduce": 14.0, "products": 30.0}
"""Seconds of each phase of the known load. The last is long: the system counts processor time in 10 ms."""
ROUND_MS = 30.0
"""A sampling round, p95, of eight GPUs."""
LINK_PCT = 10.0
"""By which bytes on NVLink may differ from what the all-reduces sent."""
LOADED_SM_PCT, IDLE_SM_PCT = 70.0, 5.0
POWER_RATIO = 2.0
"""A GPU that multiplies draws at least so many times what one does that rests."""
CPU_RATIO = 1.25
"""llmtop's processor time over nvitop's, both once a second: docs/figures.md."""
PAUSE_PCT = 3.0
"""By which a step may be longer after a capture than before."""
EXPORT_STEP_PCT, EXPORT_CORE_PCT = 1.0, 1.0
"""What an exporter may add to a step; what it may take of a core."""
TELLS_PCT = 3.0
"""By which steps may differ among blocks without an exporter, for what one adds to be told."""
SETTLE_S = 1.5
"""Left out at both ends: a rate is over the time since the look before."""


def planted(ranks: int) -> list[int]:
    """The ranks whose GPUs are loaded: three of them, and of two or three fewer, so that one rests."""
    wanted = [ranks - 1, ranks // 2, 1][: max(1, min(3, ranks - 1))]
    return sorted(set(wanted))


def sizes(gpu: bool) -> tuple[int, int]:
    """Bytes of the message that is reduced, and the width of the matrices that are multiplied."""
    return (256 << 20, 8192) if gpu else (1 << 20, 256)


def sent_bytes(message: int, ranks: int, calls: int) -> float:
    """What each GPU sends for so many all-reduces in a ring: every byte goes round twice, but for its own part."""
    return calls * message * 2 * (ranks - 1) / ranks


def p95(values: Sequence[float]) -> float:
    """The smallest that 95 % do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-95 * len(ordered) // 100) - 1)]


def rounds(taken: dict[str, Sequence[float]]) -> dict[str, Any]:
    """Sampling rounds in seconds, by what the GPUs did meanwhile."""
    told = {
        name: {"median_ms": 1e3 * statistics.median(them), "p95_ms": 1e3 * p95(them), "rounds": len(them)}
        for name, them in taken.items()
    }
    return {"rounds": told, "ok": bool(told) and all(one["p95_ms"] <= ROUND_MS for one in told.values())}


def within(snapshots: Iterable[dict[str, Any]], begun: float, ended: float) -> dict[int, list[dict[str, Any]]]:
    """GPU -> its readings between two unix times, each once."""
    found: dict[int, dict[float, dict[str, Any]]] = {}
    for snapshot in snapshots:
        for gpu in snapshot["gpus"]:
            at = gpu["sampled_at"]
            if at is not None and begun + SETTLE_S <= at <= ended - SETTLE_S / 3:
                found.setdefault(gpu["index"], {})[at] = gpu
    return {index: list(by_time.values()) for index, by_time in found.items()}


def mean(readings: Iterable[dict[str, Any]], field: str) -> float | None:
    """Of those that have a value."""
    known = [one[field] for one in readings if one[field] is not None]
    return statistics.fmean(known) if known else None


def links(
    work: dict[str, Any], ranks: int, snapshots: Sequence[dict[str, Any]], counters: Sequence[Any]
) -> dict[str, Any]:
    """What the monitor and the driver's own totals say of NVLink, over what the all-reduces sent.

    Args:
        work: begun, ended, calls, message_bytes.
        ranks: how many GPUs take part, those with the first indices.
        snapshots: of the monitor.
        counters: of link_counters.py, before and after.
    """
    expected = sent_bytes(work["message_bytes"], ranks, work["calls"])
    rate = expected / (work["ended"] - work["begun"])
    seen = within(snapshots, work["begun"], work["ended"])
    told = []
    for index in range(ranks):
        row: dict[str, Any] = {"gpu": index}
        for way in ("tx", "rx"):
            monitored = mean(seen.get(index, ()), f"nvlink_{way}_bytes_per_s")
            row[f"monitor_{way}"] = None if monitored is None else monitored / rate
            before, after = (totals[index][way] if totals else None for totals in counters)
            row[f"driver_{way}"] = None if None in (before, after) else (after - before) / expected
        told.append(row)
    right = [row[f"monitor_{way}"] for row in told for way in ("tx", "rx")]
    return {
        "calls": work["calls"],
        "expected_bytes": expected,
        "expected_gb_per_s": rate / 1e9,
        "over_expected": told,
        "ok": all(one is not None and abs(one - 1) <= LINK_PCT / 100 for one in right),
    }


def load(work: dict[str, Any], ranks: int, snapshots: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whether SM activity and power are those of the GPUs that were loaded, and of no other."""
    seen = within(snapshots, work["begun"], work["ended"])
    told = [
        {
            "gpu": index,
            "loaded": index in work["planted"],
            "readings": len(seen.get(index, ())),
            **{name: mean(seen.get(index, ()), name) for name in ("sm_active_pct", "power_watts", "util_pct")},
        }
        for index in range(ranks)
    ]
    full = [row for row in told if row["loaded"]]
    rest = [row for row in told if not row["loaded"]]
    known = all(row[name] is not None for row in told for name in ("sm_active_pct", "power_watts"))
    return {
        "gpus": told,
        "ok": known
        and all(row["sm_active_pct"] >= LOADED_SM_PCT for row in full)
        and all(row["sm_active_pct"] <= IDLE_SM_PCT for row in rest)
        and min(row["power_watts"] for row in full) >= POWER_RATIO * max(row["power_watts"] for row in rest),
    }


def cost(shares: dict[str, float | None]) -> dict[str, Any]:
    """Of a core in percent: llmtop's screen beside nvitop's, where that is here."""
    ours, theirs = shares["llmtop"], shares["nvitop"]
    ratio = None if ours is None or not theirs else ours / theirs
    return {"core_pct": shares, "ratio": ratio, "ok": None if ratio is None else ratio <= CPU_RATIO}


def intervals(snapshots: Iterable[dict[str, Any]]) -> dict[int, dict[int, tuple[float, float]]]:
    """Rank -> step -> when it began, unix seconds, and how long it was until the next began."""
    begun: dict[int, dict[int, float]] = {}
    found: dict[int, dict[int, tuple[float, float]]] = {}
    for snapshot in snapshots:
        for rank in snapshot["ranks"]:
            starts = begun.setdefault(rank["rank"], {})
            for step in rank["new_steps"]:
                starts[step["index"]] = step["started_at"]
                if step["interval_seconds"] is not None and step["index"] - 1 in starts:
                    whole = (starts[step["index"] - 1], step["interval_seconds"])
                    found.setdefault(rank["rank"], {})[step["index"] - 1] = whole
    return found


def pauses(
    steps: dict[int, dict[int, tuple[float, float]]], begun: float, ended: float, rest: float
) -> dict[str, Any]:
    """Each rank's step before, its longest during, and its step after something from `begun` to `ended`.

    Args:
        steps: of `intervals`.
        begun: unix seconds.
        ended: likewise.
        rest: seconds after the end that count as neither.
    """
    told = {}
    for rank, whole in sorted(steps.items()):
        before = [length for at, length in whole.values() if at + length < begun]
        during = [length for at, length in whole.values() if at <= ended and at + length >= begun]
        after = [length for at, length in whole.values() if at > ended + rest]
        told[rank] = {
            "before_ms": 1e3 * statistics.median(before) if before else None,
            "longest_ms": 1e3 * max(during) if during else None,
            "paused_ms": 1e3 * (max(during) - statistics.median(before)) if before and during else None,
            "after_ms": 1e3 * statistics.median(after) if after else None,
            "changed_pct": 100 * (statistics.median(after) / statistics.median(before) - 1)
            if before and after
            else None,
        }
    changed = [one["changed_pct"] for one in told.values()]
    return {"ranks": told, "ok": bool(told) and all(one is not None and one <= PAUSE_PCT for one in changed)}


def capture(facts: dict[str, Any], ranks: int, steps: int, culprit: int | None, gpu: bool) -> dict[str, Any]:
    """Whether a capture has whole windows of all ranks, and whether its report names the rank that is slow.

    Args:
        facts: what `llmtop capture --json` printed.
        ranks: how many there are.
        steps: how many whole steps were asked for.
        culprit: the rank that holds the others up; None: nobody does.
        gpu: whether there is anything of a GPU to be in it.
    """
    info, report = facts["capture"], facts.get("report") or {}
    devices = [
        {name: one.get(name) for name in ("rank", "device", "steps", "kernels", "nccl_pct", "nccl_exposed_pct")}
        for one in report.get("devices", ())
    ]
    found = next((one["evidence"] for one in report.get("findings", ()) if one["id"] == "straggler"), None)
    named = None if found is None else found.get("culprit_rank")
    judged = (report.get("steps") or {}).get("count")
    whole = (info["steps"] or 0) >= steps and Counter(info["ranks"]) == Counter(range(ranks))
    if gpu:
        whole = whole and judged == steps
        whole = whole and Counter(one["rank"] for one in devices) == Counter(range(ranks))
        whole = whole and all((one["steps"] or 0) >= steps - 1 and one["kernels"] for one in devices)
    begins = info["at_step"] is None or info["first_step"] == info["at_step"]
    return {
        "whole": whole,
        "recorded_steps": info["steps"],
        "judged_steps": judged,
        "begins_at_its_step": begins,
        "at_step": info["at_step"],
        "first_step": info["first_step"],
        "devices": devices,
        "exposed_pct": {one["rank"]: one["nccl_exposed_pct"] for one in devices},
        "verdict": report.get("verdict"),
        "straggler": found,
        "named": named,
        "paused_s": info["paused_seconds"],
        "stages_s": info["stage_seconds"],
        "bytes": facts["bytes"],
        "files": {file["name"]: file["bytes"] for file in info["files"]},
        "notes": info["notes"],
        "ok": whole and begins and (not gpu or named == culprit),
    }


def blocks(
    stamps: Sequence[float], taken: Sequence[tuple[str, float, float]], usual: str = "off"
) -> dict[str, Any]:
    """Steps in blocks of time that came in turns: each block's median, and by how much it is longer than those of
    the usual blocks around it.

    Args:
        stamps: when steps ended, ascending.
        taken: what ran beside, from when to when, by the same clock; in order.
        usual: the name of the blocks in which nothing did.
    """
    medians = []
    for name, begun, ended in taken:
        inside = [at for at in stamps if begun <= at <= ended]
        lengths = [b - a for a, b in pairwise(inside)]
        medians.append((name, statistics.median(lengths) if lengths else None))
    added = []
    for i, (name, length) in enumerate(medians):
        around = [one for other, one in medians[max(0, i - 1) : i + 2] if other == usual and one is not None]
        if name != usual and length is not None and around:
            added.append(100 * (length / statistics.fmean(around) - 1))
    plain = [length for name, length in medians if name == usual and length is not None]
    return {
        "median_step_ms": [(name, None if length is None else round(1e3 * length, 4)) for name, length in medians],
        "added_pct": added,
        "added_pct_median": statistics.median(added) if added else None,
        "usual_spread_pct": 100 * (max(plain) / min(plain) - 1) if plain else None,
    }


def export(step: dict[str, Any], core_pct: float, series: dict[str, int], gpus: int) -> dict[str, Any]:
    """What an exporter costs, and whether its page has all GPUs and ranks.

    `ok` is None where steps differ too much by themselves for what it adds to be told.
    """
    added, spread = step["added_pct_median"], step["usual_spread_pct"]
    good: bool | None = core_pct <= EXPORT_CORE_PCT and (series["gpus"], series["ranks"]) == (gpus, gpus)
    if good:
        good = None if added is None or spread > TELLS_PCT else added <= EXPORT_STEP_PCT
    return {
        "step": step,
        "core_pct": core_pct,
        "series": series,
        "ok": good,
    }
