"""Hung ranks, by the ranks' own collective counters and by NCCL RAS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from collectors.prometheus.client import SeriesValue
from collectors.prometheus.cluster_view import HungRank
from llmtop.format import printable

LONGEST_NAME = 80


def hung_ranks(ranks: Mapping[str, list[SeriesValue]], hosts: Callable[[str], str]) -> Iterable[HungRank]:
    """Yield the ranks that do not answer, then those behind, the furthest first; then groups in which all wait.

    Args:
        ranks: the samples of `Queries.ranks`, by their tag.
        hosts: the name of the node behind an instance, or behind an address.
    """
    own = list(_by_counts(ranks, hosts))
    named = {(one.run, one.rank) for one in own if one.rank is not None}
    told = [one for one in _by_nccl(ranks, hosts) if one.missing or (one.run, one.rank) not in named]
    runs = {one.run for one in told}
    # Where NCCL names a rank, it is known that a group waits.
    waiting = [one for one in own if one.rank is not None or one.run not in runs]
    yield from (one for one in told if one.missing)
    yield from (one for one in waiting if one.rank is not None)
    yield from (one for one in told if not one.missing)
    yield from (one for one in waiting if one.rank is None)


def _by_counts(ranks: Mapping[str, list[SeriesValue]], hosts: Callable[[str], str]) -> Iterator[HungRank]:
    waiting = {
        (_text(one, "run"), _text(one, "uid"), _text(one, "pg")): round(one.value)
        for one in ranks.get("waiting", ())
    }
    told = set()
    for one in sorted(ranks.get("behind", ()), key=lambda one: -one.value):
        key = _text(one, "run"), _text(one, "uid"), _text(one, "pg")
        told.add(key)
        yield HungRank(
            run=key[0],
            process_group=key[2],
            rank=_text(one, "rank"),
            node=hosts(one.labels.get("instance", "")),
            pid=_text(one, "pid"),
            behind=round(one.value),
            waiting=waiting.get(key, 0),
        )
    for key, count in waiting.items():
        if key not in told:
            yield HungRank(run=key[0], process_group=key[2], waiting=count)


def _by_nccl(ranks: Mapping[str, list[SeriesValue]], hosts: Callable[[str], str]) -> Iterator[HungRank]:
    groups: dict[tuple[str, str], str] = {}
    waiting: dict[tuple[str, str], int] = {}
    for one in ranks.get("ras waiting", ()):
        key = _text(one, "run"), _text(one, "communicator")
        waiting[key] = max(waiting.get(key, 0), round(one.value))
        groups[key] = groups.get(key) or _text(one, "pg")
    seen = set()
    for tag in ("ras missing", "ras behind"):
        for one in sorted(ranks.get(tag, ()), key=lambda one: -one.value):
            key = _text(one, "run"), _text(one, "communicator")
            who = (*key, _text(one, "rank"))
            if who in seen:  # reported by another node as well
                continue
            seen.add(who)
            yield HungRank(
                run=key[0],
                process_group=groups.get(key, "") or _text(one, "pg"),
                rank=_text(one, "rank"),
                node=hosts(one.labels.get("host", "")),
                pid=_text(one, "rank_pid"),
                behind=None if tag == "ras missing" else round(one.value),
                waiting=waiting.get(key, 0),
                operation=_text(one, "operation") or None,
                communicator=key[1],
                missing=tag == "ras missing",
            )


def _text(sample: SeriesValue, label: str) -> str:
    return printable(sample.labels.get(label, ""), LONGEST_NAME)
