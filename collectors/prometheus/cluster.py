"""From answers to a `ClusterView`: who is down, hung, late or idle, and which nodes come first."""

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
    Run,
    Series,
    ordered_nodes,
)
from collectors.prometheus.hung import LONGEST_NAME, hung_ranks
from collectors.prometheus.queries import TAG, Queries, charts
from llmtop.format import counted, printable
from llmtop.model.bottlenecks import name_of

NOISE_SHARE = 0.02
"""Of the step, below which a rank is not late."""
_DOWN, _HUNG, _CRITICAL, _IDLE, _XID, _LATE, _HOT = 100.0, 90.0, 60.0, 50.0, 40.0, 30.0, 10.0
CHART_POINTS = 120
_CLOCK_SECONDS = 2.0
T = TypeVar("T")


class _QueryResults(NamedTuple):
    """The answers of one round, by what was asked for; {} where there was none."""

    overview: Mapping[str, list[SeriesValue]]
    nodes: tuple[SeriesValue, ...]
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
            self._ask(queries.nodes, at),
            *(_by_tag(self._ask(one, at)) for one in (queries.ranks, queries.critical, queries.power)),
        )
        view = self._build_view(found, asked_at, at)
        view = replace(view, nodes=tuple(ordered_nodes(view.nodes, order, reverse=reverse)))
        nodes = view.nodes[page]
        if nodes and found.power:
            cells = _cells(self._ask(queries.cells([node.name for node in nodes]), at))
            shown = [replace(node, cells=cells.get(node.name, ())) for node in nodes]
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
        for title, unit, promql in charts(node, sorted(self._instances.get(node, ()))):
            try:
                lines = self._client.range(promql, end - seconds, end, step)
            except QueryError as error:
                problems.append(str(error))
                if error.whole:
                    break
                continue
            points = lines[0].points if lines else ()
            known = {round((when - end + seconds) / step): value for when, value in points}
            values = tuple(known.get(place) for place in range(int(seconds / step) + 1))
            found.append(Series(title=title, unit=unit, values=values))
        return NodeCharts(
            node=node, start=end - seconds, end=end, series=tuple(found), problems=tuple(dict.fromkeys(problems))
        )

    def _ask(self, promql: str, at: float | None) -> tuple[SeriesValue, ...]:
        """The samples; none where there is no answer, which is noted. A mute server is not asked more."""
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

    def _build_view(self, found: _QueryResults, asked_at: float, at: float | None) -> ClusterView:
        now = _one(found.overview.get("now"))
        newest = _one(found.overview.get("newest"))
        hosts = self._hosts(found.nodes)
        ahead = None if now is None or at is not None else now - asked_at
        runs = _runs(found.overview)
        late = tuple(_late_ranks(found.ranks.get("late", ()), hosts, runs))
        hung = tuple(hung_ranks(found.ranks, hosts))
        critical = tuple(_critical_alerts(found.critical, hosts))
        up = [sample.value > 0 for sample in found.nodes]
        return ClusterView(
            server=self._client.name,
            time=asked_at if now is None else now,
            asked_at=asked_at,
            took_seconds=0.0,
            pinned=at is not None,
            clock_ahead_seconds=ahead if ahead is not None and abs(ahead) > _CLOCK_SECONDS else None,
            data_age_seconds=None if newest is None or now is None else now - newest,
            rules=self._rules if found.overview.get("raw") else None,
            nodes_up=sum(up) if found.nodes else None,
            nodes_down=len(up) - sum(up) if found.nodes else None,
            alerts={
                printable(one.labels.get("id", ""), LONGEST_NAME): round(one.value)
                for one in sorted(found.overview.get("alerts", ()), key=lambda one: -one.value)
            },
            runs=runs,
            late=late,
            hung=hung,
            grave=critical,
            nodes=tuple(_nodes(found, hosts, late, hung, critical)),
        )

    def _hosts(self, nodes: Iterable[SeriesValue]) -> Callable[[str], str]:
        """Return the node name of an instance; its address where unknown."""
        hosts: dict[str, str] = {}
        for sample in nodes:
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
    """A label for people; the same ones come with every answer."""
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
}


def _runs(overview: Mapping[str, list[SeriesValue]]) -> tuple[Run, ...]:
    """By name and user, the one with the most ranks first."""
    found: dict[tuple[str, str], Run] = {}
    for tag, field in _RUN_FIELDS.items():
        for sample in overview.get(tag, ()):
            key = _text(sample, "run"), _text(sample, "uid")
            value = round(sample.value) if field.startswith("ranks") else sample.value
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


def _nodes(
    found: _QueryResults,
    hosts: Callable[[str], str],
    late: Iterable[LateRank],
    hung: Iterable[HungRank],
    critical: Iterable[NodeAlert],
) -> list[Node]:
    """All nodes, the worst first; among equals the one whose GPUs draw least, then by name."""
    up: dict[str, bool] = {}
    for sample in found.nodes:
        name = hosts(sample.labels.get("instance", ""))
        up[name] = up.get(name, True) and sample.value > 0
    mean, least, idle = (
        {_text(one, "node"): one.value for one in found.power.get(tag, ())} for tag in ("mean", "least", "idle")
    )
    reasons: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for name, well in up.items():
        if not well:
            reasons[name].append((_DOWN, "down"))
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
    for name in {*up, *mean, *reasons}:
        mine = sorted(reasons[name], reverse=True)
        nodes.append(
            Node(
                name=name,
                up=up.get(name),
                badness=_badness([weight for weight, _ in mine]),
                reasons=tuple(dict.fromkeys(words for _, words in mine)),
                power_ratio=mean.get(name),
                power_ratio_least=least.get(name),
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
    return _CRITICAL, f"{name_of(alert.id)}{gpu}"


def _cells(samples: Iterable[SeriesValue]) -> dict[str, tuple[GpuCell, ...]]:
    found: dict[str, list[GpuCell]] = defaultdict(list)
    for one in samples:
        gpu = _text(one, "gpu") + (f":{instance}" if (instance := _text(one, dcgm_names.INSTANCE_LABEL)) else "")
        found[_text(one, "node")].append(GpuCell(gpu=gpu, power_ratio=one.value))
    return {
        node: tuple(sorted(cells, key=lambda cell: (len(cell.gpu), cell.gpu))) for node, cells in found.items()
    }
