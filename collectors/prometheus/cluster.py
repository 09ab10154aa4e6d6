"""`ClusterView` from answers: nodes that are down, hung, late or idle, and the order of nodes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from collectors.gpu import dcgm_names
from collectors.prometheus.client import Answer, Client, QueryError, SeriesValue
from collectors.prometheus.cluster_view import (
    ClusterView,
    GpuCell,
    HungRank,
    LateRank,
    Node,
    NodeAlert,
    NodeCharts,
    NodeOrder,
    NodeRates,
    Run,
    Series,
    ordered_nodes,
)
from collectors.prometheus.fleet_rules import SKEW_SECONDS
from collectors.prometheus.hung import LONGEST_NAME, hung_ranks
from collectors.prometheus.node_states import NodeState, lost_node, node_states
from collectors.prometheus.queries import NODE_RATES, TAG, Queries
from llmtop.format import counted, printable
from llmtop.model.bottlenecks import name_of

NOISE_SHARE = 0.02
"""Share of the step below which a rank is not late."""
_HUNG, _CRITICAL, _IDLE, _XID, _LINK, _LATE, _HOT = 90.0, 60.0, 50.0, 40.0, 35.0, 30.0, 10.0
CHART_POINTS = 120
MOST_RUNS = 4
"""Runs, the largest first, whose missing ranks are asked for: a question each."""
MAX_WORLD = 1 << 17
"""Ranks of the largest run whose missing ranks are named."""
T = TypeVar("T")


class _QueryResults(NamedTuple):
    """The answers of one round, by what was asked for; {} where there was none."""

    overview: Mapping[str, list[SeriesValue]]
    nodes: Mapping[str, list[SeriesValue]]
    ranks: Mapping[str, list[SeriesValue]]
    critical: Mapping[str, list[SeriesValue]]
    power: Mapping[str, list[SeriesValue]]


class Cluster:
    """One server's cluster, round after round. For one thread."""

    def __init__(self, client: Client, run: str | None = None) -> None:
        """Prepare.

        Args:
            client: of the server.
            run: name of the run to report on; None for all.
        """
        self._client = client
        self._run = run
        self._rules: bool | None = None
        self._instances: dict[str, set[str]] = {}
        self._problems: list[str] = []
        self._mute = False
        self._known: dict[str, float] = {}
        """Time of each node's last answer in this session, by name and the server's clock."""

    def query_view(
        self,
        page: slice = slice(0, 64),
        at: float | None = None,
        order: NodeOrder = "worst",
        *,
        reverse: bool = False,
    ) -> ClusterView:
        """Run all queries once.

        Args:
            page: range of the nodes in that order whose GPUs are queried.
            at: unix seconds of the instant; None for now.
            order: of the nodes.
            reverse: the other way round.
        """
        began, asked_at = time.monotonic(), time.time()
        self._problems, self._mute = [], False
        queries = Queries(rules=self._rules is not False, run=self._run)
        overview = _by_tag(self._ask(queries.overview, at))
        asking_seconds = time.monotonic() - began
        if overview.get("raw"):
            rules = bool(overview.get("rules"))
            if not rules and self._rules is not False:
                queries = Queries(rules=False, run=self._run)
                overview = _by_tag(self._ask(queries.overview, at)) or overview
            elif rules and self._rules is False:
                queries = Queries(rules=True, run=self._run)
            self._rules = rules
        found = _QueryResults(
            overview,
            *(
                _by_tag(self._ask(one, at))
                for one in (queries.nodes, queries.ranks, queries.critical, queries.power)
            ),
        )
        view = self._build_view(found, asked_at, at, asking_seconds)
        named = [self._name_missing(run, queries, at) for run in view.runs[:MOST_RUNS]]
        nodes = tuple(ordered_nodes(view.nodes, order, reverse=reverse))
        view = replace(view, runs=(*named, *view.runs[MOST_RUNS:]), nodes=nodes)
        nodes = view.nodes[page]
        if nodes and found.power:
            parts = _by_tag(self._ask(queries.cells([node.name for node in nodes]), at))
            cells, rates = _cells(parts.get("cell", ())), _rates(parts)
            shown = [
                replace(node, cells=() if node.is_stale else cells.get(node.name, ()), rates=rates.get(node.name))
                for node in nodes
            ]
            start = page.indices(len(view.nodes))[0]
            view = replace(view, nodes=(*view.nodes[:start], *shown, *view.nodes[start + len(shown) :]))
        return replace(view, problems=tuple(dict.fromkeys(self._problems)), took_seconds=time.monotonic() - began)

    def charts(self, node: str, seconds: float, at: float | None = None) -> NodeCharts:
        """Query the charts of one node.

        Args:
            node: its name as `ClusterView.nodes` has it.
            seconds: length of the window; it is cut into `CHART_POINTS` steps of 1 s or longer.
            at: unix seconds of the window's end by the server's clock; None: now by this machine's clock.

        Returns:
            Charts whose values are None where the server has none. Failed queries are sentences in `problems`, not
            errors.
        """
        end = time.time() if at is None else at
        step = max(1.0, seconds / CHART_POINTS)
        found, problems = [], []
        queries = Queries(rules=self._rules is not False)
        for chart in queries.charts(node, sorted(self._instances.get(node, ()))):
            try:
                lines = self._client.range(chart.promql, end - seconds, end, step)
            except QueryError as error:
                problems.append(str(error))
                if error.whole:
                    break
                continue
            if chart.optional and not lines:
                continue
            points = lines[0].points if lines else ()
            known = {round((when - end + seconds) / step): value for when, value in points}
            values = tuple(known.get(place) for place in range(int(seconds / step) + 1))
            found.append(Series(title=chart.title, unit=chart.unit, values=values))
        return NodeCharts(
            node=node, start=end - seconds, end=end, series=tuple(found), problems=tuple(dict.fromkeys(problems))
        )

    def _ask(self, promql: str, at: float | None) -> tuple[SeriesValue, ...]:
        """Return the samples; none where there is no answer, which is noted. A mute server is not asked more."""
        if self._mute:
            return ()
        try:
            answer: Answer = self._client.query(promql, at)
        except QueryError as error:
            self._problems.append(str(error))
            self._mute = error.whole
            return ()
        self._problems += [f"{self._client.name} says: {words}" for words in answer.warnings]
        return answer.samples

    def _name_missing(self, run: Run, queries: Queries, at: float | None) -> Run:
        """Add the numbers of the ranks that are not exported: one more question, where some are missing."""
        world, count = run.world_size, run.ranks_reporting
        if world is None or count is None or count >= world:
            return run
        numbers = {_text(one, "rank") for one in self._ask(queries.reporting_ranks(run.name, run.uid), at)}
        known = {int(number) for number in numbers if number.isascii() and number.isdecimal()}
        if not known:
            return run
        return replace(run, ranks_missing=tuple(sorted(set(range(min(world, MAX_WORLD))) - known)))

    def _build_view(
        self, found: _QueryResults, asked_at: float, at: float | None, asking_seconds: float
    ) -> ClusterView:
        now = _one(found.overview.get("now"))
        hosts = self._hosts(found.nodes)
        ahead = None if now is None or at is not None else now - asked_at
        if ahead is not None:  # the server read its clock at some moment of the question
            ahead = ahead - asking_seconds if ahead > asking_seconds else min(ahead, 0.0)
        runs = _runs(found.overview)
        late = tuple(_late_ranks(found.ranks.get("late", ()), hosts, runs))
        hung = tuple(hung_ranks(found.ranks, hosts))
        critical = tuple(_critical_alerts(found.critical, hosts))
        down = {one.labels.get("instance", "") for one in found.nodes.get("target", ())}
        states = self._node_states(node_states(found.nodes, hosts), down, asked_at if now is None else now, at)
        return ClusterView(
            server=self._client.name,
            time=asked_at if now is None else now,
            asked_at=asked_at,
            took_seconds=0.0,
            pinned=at is not None,
            clock_ahead_seconds=ahead if ahead is not None and abs(ahead) > SKEW_SECONDS else None,
            data_age_seconds=_one(found.overview.get("age")),
            rules=self._rules if found.overview.get("raw") else None,
            nodes_up=sum(state.up for state in states.values()) if states else None,
            nodes_down=sum(state.is_target and not state.up for state in states.values()) if states else None,
            nodes_removed=sum(not state.is_target for state in states.values()),
            alerts={
                printable(one.labels.get("id", ""), LONGEST_NAME): round(one.value)
                for one in sorted(found.overview.get("alerts", ()), key=lambda one: -one.value)
            },
            runs=runs,
            late=late,
            hung=hung,
            grave=critical,
            nodes=tuple(_nodes(found, states, late, hung, critical)),
        )

    def _node_states(
        self, found: dict[str, NodeState], down: set[str], now: float, at: float | None
    ) -> dict[str, NodeState]:
        """Add nodes that answered in this session, and of which the server has no series any more.

        Args:
            found: the states that the server knows.
            down: instances of targets that do not answer.
            now: unix time, by the server's clock.
            at: the moment that was asked for; None for now.
        """
        if at is not None or self._mute:
            return found
        if found:
            lost = {
                name: lost_node(seen_at, is_target=not down.isdisjoint(self._instances.get(name, ())))
                for name, seen_at in self._known.items()
                if name not in found
            }
            self._known |= {name: now for name, state in found.items() if state.up}
            return found | lost
        return found

    def _hosts(self, nodes: Mapping[str, list[SeriesValue]]) -> Callable[[str], str]:
        """Return the node name of an instance; its address where unknown."""
        hosts: dict[str, str] = {}
        for sample in (*nodes.get("seen", ()), *nodes.get("up", ())):
            instance = sample.labels.get("instance", "")
            name = sample.labels.get("hostname") or instance
            hosts[instance] = hosts[instance.rpartition(":")[0].strip("[]")] = _label_text(name)
            self._instances.setdefault(hosts[instance], set()).add(instance)
        return lambda instance: hosts.get(instance) or _label_text(instance)


def _by_tag(samples: Iterable[SeriesValue]) -> dict[str, list[SeriesValue]]:
    found: dict[str, list[SeriesValue]] = defaultdict(list)
    for sample in samples:
        found[sample.labels.get(TAG, "")].append(sample)
    return found


def _one(samples: list[SeriesValue] | None) -> float | None:
    return samples[0].value if samples else None


@lru_cache(maxsize=16384)
def _label_text(text: str) -> str:
    """Return a label for people; the same ones come with every answer."""
    return printable(text, LONGEST_NAME)


def _text(sample: SeriesValue, label: str) -> str:
    return _label_text(sample.labels.get(label, ""))


def _or_none(sample: SeriesValue, label: str) -> str | None:
    return _text(sample, label) or None


_RUN_FIELDS = {
    "tokens": "tokens_per_s",
    "steps": "steps_per_s",
    "p50": "step_seconds_p50",
    "p99": "step_seconds_p99",
    "ranks": "ranks",
    "quiet": "ranks_without_step",
    "span": "rate_span_seconds",
    "world": "world_size",
    "reporting": "ranks_reporting",
}
_COUNTS = ("ranks", "ranks_without_step", "world_size", "ranks_reporting")


def _runs(overview: Mapping[str, list[SeriesValue]]) -> tuple[Run, ...]:
    """Return the runs by name and user, the one with the most ranks first."""
    found: dict[tuple[str, str], Run] = {}
    for tag, field in _RUN_FIELDS.items():
        for sample in overview.get(tag, ()):
            key = _text(sample, "run"), _text(sample, "uid")
            value = round(sample.value) if field in _COUNTS else sample.value
            known = found.get(key) or Run(name=key[0], uid=key[1])
            found[key] = replace(known, **{field: value})
    return tuple(sorted(found.values(), key=lambda run: (-(run.ranks or 0), run.name, run.uid)))


def _late_ranks(
    samples: Iterable[SeriesValue], hosts: Callable[[str], str], runs: tuple[Run, ...]
) -> Iterable[LateRank]:
    steps = {(run.name, run.uid): run.step_seconds_p50 for run in runs}
    for one in sorted(samples, key=lambda one: -one.value):
        step = steps.get((_text(one, "run"), _text(one, "uid")))
        if step and one.value < NOISE_SHARE * step:
            continue
        yield LateRank(
            run=_text(one, "run"),
            rank=_text(one, "rank"),
            node=hosts(one.labels.get("instance", "")),
            pid=_text(one, "pid"),
            seconds=one.value,
            step_share=one.value / step if step else None,
        )


def _critical_alerts(found: Mapping[str, list[SeriesValue]], hosts: Callable[[str], str]) -> Iterable[NodeAlert]:
    for one in found.get("alert", ()):
        yield NodeAlert(
            id=_text(one, "id"),
            node=hosts(one.labels.get("instance", "")),
            gpu=_or_none(one, "gpu"),
            rank=_or_none(one, "rank"),
            pid=_or_none(one, "pid"),
        )
    for tag in ("xid", "ecc", "hot"):
        for one in found.get(tag, ()):
            yield NodeAlert(id=tag, node=_text(one, "node"), gpu=_or_none(one, "gpu"), value=one.value)
    for one in sorted(found.get("link", ()), key=lambda one: -one.value):
        link = f"{_text(one, 'device')} port {_text(one, 'port')} {_text(one, 'error')}"
        node = hosts(one.labels.get("instance", ""))
        yield NodeAlert(id="link_errors", node=node, value=one.value, link=link)


def _nodes(
    found: _QueryResults,
    states: Mapping[str, NodeState],
    late: Iterable[LateRank],
    hung: Iterable[HungRank],
    critical: Iterable[NodeAlert],
) -> list[Node]:
    """Return all nodes, the worst first; among equals the one whose GPUs draw least, then by name."""
    mean, least, idle = (
        {_text(one, "node"): one.value for one in found.power.get(tag, ())} for tag in ("mean", "least", "idle")
    )
    reasons: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for name, state in states.items():
        reasons[name] += state.reasons()
    for one in hung:
        if one.node:
            how = "does not answer" if one.missing else "behind"
            reasons[one.node].append((_HUNG, f"rank {one.rank} {how}"))
    for alert in critical:
        weight, words = _alert_weight(alert)
        reasons[alert.node].append((weight, words))
    for name, count in idle.items():
        reasons[name].append((_IDLE, f"{counted(round(count), 'GPU')} at low power"))
    for late_rank in late:
        if late_rank.is_straggler:
            reasons[late_rank.node].append((_LATE, f"rank {late_rank.rank} straggler"))
    nodes = []
    for name in {*states, *mean, *reasons}:
        mine = sorted(reasons[name], reverse=True)
        known = states.get(name)
        nodes.append(
            Node(
                name=name,
                badness=_badness([weight for weight, _ in mine]),
                reasons=tuple(dict.fromkeys(words for _, words in mine)),
                power_ratio=mean.get(name),
                power_ratio_least=least.get(name),
                **({} if known is None else known._asdict()),
            )
        )
    return ordered_nodes(nodes)


def _badness(weights: list[float]) -> float:
    """The most severe reason counts; the others, often of the same cause, only among equals."""
    return max(weights, default=0.0) + sum(weights) / 1000


def _alert_weight(alert: NodeAlert) -> tuple[float, str]:
    gpu = f" GPU {alert.gpu}" if alert.gpu else ""
    if alert.id == "xid":
        return _XID, f"Xid {alert.value:.0f}{gpu}"
    if alert.id == "ecc":
        return _XID, f"memory errors{gpu}"
    if alert.id == "hot":
        return _HOT, f"{alert.value:.0f} °C{gpu}"
    if alert.id == "link_errors":
        return _LINK, alert.link or name_of(alert.id)
    return _CRITICAL, f"{name_of(alert.id)}{gpu}"


def _rates(parts: Mapping[str, list[SeriesValue]]) -> dict[str, NodeRates]:
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for tag, name in NODE_RATES.items():
        recorded = (one for one in parts.get("", ()) if one.labels.get("__name__") == name)
        for one in (*parts.get(tag, ()), *recorded):
            found[_text(one, "node")][tag] = one.value
    return {name: NodeRates(**rates) for name, rates in found.items()}


def _cells(samples: Iterable[SeriesValue]) -> dict[str, tuple[GpuCell, ...]]:
    found: dict[str, list[GpuCell]] = defaultdict(list)
    for one in samples:
        gpu = _text(one, "gpu") + (f":{instance}" if (instance := _text(one, dcgm_names.INSTANCE_LABEL)) else "")
        found[_text(one, "node")].append(GpuCell(gpu=gpu, power_ratio=one.value))
    return {
        node: tuple(sorted(cells, key=lambda cell: (len(cell.gpu), cell.gpu))) for node, cells in found.items()
    }
