"""Ranks whose run files have no end: a signal, a crash or os._exit() ended them before they could write one."""

from __future__ import annotations

from collections.abc import Iterable

from llmtop.format import duration
from llmtop.postmortem.answer.reasons import RankCase, Reason
from llmtop.postmortem.evidence import Mark
from llmtop.postmortem.job import JobFacts, RankFacts
from llmtop.postmortem.rank_text import rank_list
from llmtop.runs.store import KILLED

_WEIGHT = 80
"""The end is certain; that a signal caused it is likely: os._exit() leaves the same files."""


def without_end(ranks: Iterable[RankFacts]) -> dict[int, Mark]:
    """Return the last signs of ranks that wrote no end, and whose end no other file shows either."""
    found = {}
    for facts in ranks:
        sign = next((mark for mark in facts.marks if mark.kind == "last_sign" and mark.text == KILLED), None)
        has_end = any(end.signal is not None or end.code is not None for end in facts.ends)
        if sign is not None and not has_end and not any(error.kind == "own" for error in facts.errors):
            found[facts.rank] = sign
    return found


def add_unwritten_ends(cases: dict[int, RankCase]) -> None:
    """Suspect the one rank that wrote no end, where it is the only rank or all others lost a peer.

    Of several such ranks the launcher may have ended all but one, within the second between two writes.
    """
    signs = without_end(case.facts for case in cases.values())
    if len(signs) != 1:
        return
    ((rank, sign),) = signs.items()
    others = [case.facts for one, case in cases.items() if one != rank]
    if not all(_has_lost_peer(facts) for facts in others):
        return
    steps = [mark.number for mark in cases[rank].facts.marks if mark.kind == "step"]
    after = f" after step {max(steps)}" if steps else ""
    text = f"its run file has no end: a signal, a crash or os._exit() ended it{after}"
    if others:
        text += f", and {rank_list([facts.rank for facts in others])} lost the connection to a peer"
    cases[rank].reasons.append(Reason(_WEIGHT, "killed", text, sign.place))
    cases[rank].reasons.sort(key=lambda one: -one.weight)


def _has_lost_peer(facts: RankFacts) -> bool:
    """Return True if its errors show a peer that had gone, and no timeout: then a hang came first."""
    kinds = {error.kind for error in facts.errors if error.message or error.kind == "timed_out"}
    return "peer_lost" in kinds and "timed_out" not in kinds


def unwritten_ends_text(job: JobFacts) -> str:
    """Return what the files show of ranks that wrote no end; empty where there is none."""
    signs = without_end(job.ranks.values())
    if not signs:
        return ""
    text = f"{rank_list(list(signs))} ended without writing an end (a signal, a crash or os._exit())"
    if len(signs) == 1:
        return f"{text}, as the cause or because another rank had failed"
    times = [sign.time for sign in signs.values() if sign.time is not None]
    return (
        f"{text}; their last records are {duration(max(times) - min(times))} apart, which does not show the "
        "rank that ended first"
    )
