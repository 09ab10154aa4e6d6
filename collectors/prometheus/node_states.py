"""True if each node answers, since when not, how old its values are, and whether its clock is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from collectors.prometheus.client import SeriesValue
from collectors.prometheus.hung import LONGEST_NAME
from llmtop.format import printable

_DOWN, _STALE, _SKEWED = 100.0, 80.0, 20.0
"""How bad each is, among the reasons of `collectors.prometheus.cluster`. A node that is no target any more has no
weight: where its job ended, nothing is wrong."""


class NodeState(NamedTuple):
    """The fields of `Node` that its exporter decides."""

    up: bool
    last_seen_at: float | None = None
    is_target: bool = True
    data_age_seconds: float | None = None
    is_stale: bool = False
    clock_ahead_seconds: float | None = None

    def reasons(self) -> list[tuple[float, str]]:
        """Return the faults of the node, with weights."""
        if not self.up:
            return [(_DOWN, "down")] if self.is_target else []
        found = [(_STALE, "stale")] if self.is_stale else []
        return found + ([(_SKEWED, "clock")] if self.clock_ahead_seconds is not None else [])


def lost_node(seen_at: float, *, is_target: bool) -> NodeState:
    """Return the state of a node that answered in this session and of which the server has no series any more.

    Args:
        seen_at: unix time of the last answer that had it.
        is_target: whether one of its exporters is still a target.
    """
    return NodeState(up=False, last_seen_at=seen_at, is_target=is_target)


def node_states(nodes: Mapping[str, Sequence[SeriesValue]], hosts: Callable[[str], str]) -> dict[str, NodeState]:
    """Return the state of each node by name.

    A node with several exporters is up if one of them answers, and as old as the oldest of those that do.

    Args:
        nodes: the samples of `Queries.nodes`, by their tag.
        hosts: the name of the node behind an instance.
    """
    targets = {_key(one) for one in nodes.get("target", ())}
    found: dict[str, NodeState] = {}
    for one in nodes.get("seen", ()):
        name = printable(one.labels.get("hostname", ""), LONGEST_NAME) or hosts(one.labels.get("instance", ""))
        seen_at = max(one.value, (found[name].last_seen_at or 0.0) if name in found else 0.0)
        is_target = _key(one) in targets or (name in found and found[name].is_target)
        found[name] = NodeState(up=False, last_seen_at=seen_at, is_target=is_target)
    ages, ahead = ({_key(one): one.value for one in nodes.get(tag, ())} for tag in ("age", "ahead"))
    stale = {_key(one) for one in nodes.get("stale", ())}
    for one in nodes.get("up", ()):
        name, key = hosts(one.labels.get("instance", "")), _key(one)
        known = found.get(name, NodeState(up=False))
        known = known if known.up else NodeState(up=True)
        age = max((age for age in (known.data_age_seconds, ages.get(key)) if age is not None), default=None)
        found[name] = known._replace(
            data_age_seconds=age,
            is_stale=known.is_stale or key in stale,
            clock_ahead_seconds=ahead.get(key, known.clock_ahead_seconds),
        )
    return found


def _key(sample: SeriesValue) -> tuple[str, str]:
    return sample.labels.get("instance", ""), sample.labels.get("job", "")
