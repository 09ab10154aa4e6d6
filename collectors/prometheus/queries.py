"""The queries of the pane: six a refresh. Recorded series are asked for by name, or by what they are made of.

Without the recording rules on the server the same is asked for in full: right, and dearer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from functools import cache
from typing import Final, NamedTuple

from collectors.gpu import dcgm_names
from collectors.prometheus.fleet_rules import render

TAG: Final = "is"
"""Label that distinguishes the parts of one query."""
MAX_LATE, MAX_BEHIND, MAX_CRITICAL = 8, 20, 40
_POWER: Final = "gpu:llmtop_power:ratio"
NODE_RATES: Final = {
    "pcie_rx": "node:llmtop_pcie_receive:bytes_per_second",
    "pcie_tx": "node:llmtop_pcie_transmit:bytes_per_second",
    "nvlink_rx": "node:llmtop_nvlink_receive:bytes_per_second",
    "nvlink_tx": "node:llmtop_nvlink_transmit:bytes_per_second",
    "nic_rx": "node:llmtop_nic_receive:bytes_per_second",
    "nic_tx": "node:llmtop_nic_transmit:bytes_per_second",
    "nic_limit": "node:llmtop_nic_rate:bytes_per_second",
}
"""The recorded series of each field of `NodeRates`."""
_STUCK: Final = "communicator, pg, operation"
_RAS: Final = (
    ("ras waiting", "llmtop_ras_waiting", ""),
    ("ras behind", "llmtop_ras_behind", ", rank, host, rank_pid"),
    ("ras missing", "llmtop_ras_missing", ", rank, host, rank_pid"),
)
"""Query of NCCL RAS: one node's reply covers all nodes, and several may have queried it."""
_RECORD: Final = re.compile(r"^ {6}- record: (\S+)\n {8}expr: (.*(?:\n {9,}.*)*)", re.MULTILINE)
"""Recording rule in llmtop's own file: an expression goes on with deeper indentation."""


@cache
def recorded_expressions() -> dict[str, str]:
    """Return the expression of each recorded series of the shipped rules, down to scraped series."""
    text = render()
    found: dict[str, str] = {}
    for name, expr in _RECORD.findall(text):
        flat = " ".join(expr.removeprefix(">-").split())
        found[name] = re.sub(r"\w+:[\w:]+", lambda one: f"({found[one[0]]})" if one[0] in found else one[0], flat)
    return found


class ChartQuery(NamedTuple):
    """One chart of a node."""

    title: str
    unit: str
    promql: str
    optional: bool = False
    """Left out where the node has no such values."""


class Queries:
    """Queries with or without the server's recording rules, for one run or for all."""

    def __init__(self, *, rules: bool, run: str | None = None) -> None:
        self._rules = rules
        self._run = run

    def recorded_series(self, name: str) -> str:
        """Return the query of a recording rule: its name where the server has the rules, else its expression."""
        return name if self._rules else f"({recorded_expressions()[name]})"

    def _of_run(self, expr: str) -> str:
        """Return the expression for the requested run."""
        if self._run is None:
            return expr
        chosen = f"max by (run, uid) (llmtop_rank_info{{run={quote(self._run)}}})"
        return f"({expr}) and on (run, uid) {chosen}"

    @property
    def overview(self) -> str:
        """The server's clock, the newest snapshot's age, whether there are rules, alerts by id, and the runs."""
        by_run = {
            "tokens": "run:llmtop_tokens:rate1m",
            "steps": "run:llmtop_steps:rate1m",
            "p50": "run:llmtop_recent_step_seconds:p50",
            "p99": "run:llmtop_recent_step_seconds:p99",
            "ranks": "run:llmtop_ranks:count",
            "quiet": "run:llmtop_ranks_without_step:count",
            "span": "run:llmtop_rate_span:seconds",
            "world": "run:llmtop_world_size:max",
            "reporting": "run:llmtop_ranks_reporting:count",
        }
        fetched = "max(timestamp(llmtop_snapshot_timestamp_seconds))"
        return union_query(
            ("now", "vector(time())"),
            ("age", f"min({self.recorded_series('node:llmtop_snapshot_age:seconds')}) + time() - {fetched}"),
            ("rules", "cluster:llmtop_nodes:count"),
            ("raw", "count(llmtop_node_info)"),
            ("alerts", "count by (id) (llmtop_alert)"),
            *((tag, self._of_run(self.recorded_series(name))) for tag, name in by_run.items()),
        )

    @property
    def nodes(self) -> str:
        """Exporters that answer now, with the age of their values and the error of their clocks; and of those that
        do not, when they were fetched last, and the targets that do not answer, of whatever exporter: without
        recording rules nothing else is known of a node that answered for less than a minute."""
        known = "max by (instance, job, hostname) (llmtop_node_info)"
        seen = self.recorded_series("node:llmtop_last_seen:timestamp")
        return union_query(
            ("up", known),
            ("seen", f"({seen} unless on (instance, job, hostname) llmtop_node_info)"),
            ("target", "max by (instance, job) (up) == 0"),
            ("age", self.recorded_series("node:llmtop_snapshot_age:seconds")),
            ("stale", self.recorded_series("node:llmtop_stale:seconds")),
            ("ahead", self.recorded_series("node:llmtop_clock_ahead:seconds")),
        )

    def reporting_ranks(self, run: str, uid: str) -> str:
        """Return the numbers of the ranks of a run that are exported."""
        return f'group by (rank) (llmtop_rank_info{{run={quote(run)},uid={quote(uid)},rank!=""}})'

    @property
    def ranks(self) -> str:
        """Return the query for late ranks, ranks behind in a collective, and the number that wait there."""
        late = self._of_run(self.recorded_series("rank:llmtop_late_seconds:mean1m"))
        behind = self._of_run(self.recorded_series("rank:llmtop_collectives_behind:count"))
        return union_query(
            ("late", f"topk({MAX_LATE}, ({late}) > 0)"),
            ("behind", f"topk({MAX_BEHIND}, ({behind}) > 0)"),
            ("waiting", self._of_run(self.recorded_series("run:llmtop_ranks_waiting:count"))),
            *((tag, self._of_run(f"max by (run, uid, {_STUCK}{who}) ({name})")) for tag, name, who in _RAS),
        )

    @property
    def critical(self) -> str:
        """Critical alerts of the nodes, recent Xids and memory errors, GPUs much hotter than the others, and ports
        whose errors rise."""
        alerts = 'max by (instance, id, gpu, rank, pid) (llmtop_alert{severity="critical"})'
        gpus = {
            "xid": "gpu:llmtop_xid:recent",
            "ecc": "gpu:llmtop_memory_errors:recent",
            "hot": "gpu:llmtop_hot:celsius",
            "link": "link:llmtop_errors_rising:count",
        }
        return union_query(
            ("alert", f"topk({MAX_CRITICAL}, {alerts})"),
            *((tag, f"topk({MAX_CRITICAL}, {self.recorded_series(name)})") for tag, name in gpus.items()),
        )

    @property
    def power(self) -> str:
        """Per node: mean and least share of the power limit, and GPUs at low power and full utilization."""
        by_node = {
            "mean": "node:llmtop_power:ratio",
            "least": "node:llmtop_power_least:ratio",
            "idle": "node:llmtop_busy_but_idle:count",
        }
        return union_query(*((tag, self.recorded_series(name)) for tag, name in by_node.items()))

    def cells(self, nodes: Collection[str]) -> str:
        """Return the query for each GPU of these nodes, and the bytes per second of their links."""
        if not self._rules:  # the label "node" is made then, and cannot be selected by: all nodes are asked for
            parts = (("cell", _POWER), *NODE_RATES.items())
            return union_query(*((tag, self.recorded_series(name)) for tag, name in parts))
        chosen = f"node=~{quote('|'.join(re.escape(node) for node in nodes))}"
        names = quote("|".join(NODE_RATES.values()))  # one selector: a union of seven took three times as long
        return f"{union_query(('cell', f'{_POWER}{{{chosen}}}'))} or {{__name__=~{names},{chosen}}}"

    def charts(self, node: str, instances: Collection[str]) -> tuple[ChartQuery, ...]:
        """Return the charts of one node.

        Args:
            node: its name.
            instances: of its exporters, as Prometheus calls them.
        """
        mine = quote(node)
        there = f"instance=~{quote('|'.join(re.escape(one) for one in instances))}"

        def gpus(name: str) -> str:
            return f'({name}{{hostname={mine}}} or {name}{{Hostname={mine},hostname=""}})'

        def of_node(name: str) -> str:
            if self._rules:
                return f"{name}{{node={mine}}}"
            return f'{self.recorded_series(name)} and on (node) label_replace(vector(1), "node", {mine}, "", "")'

        wait = self.recorded_series("rank:llmtop_comm_wait_seconds:mean1m")
        rates = (
            ("PCIe, all GPUs rx", "pcie_rx"),
            ("NVLink, all GPUs rx", "nvlink_rx"),
            ("NIC rx", "nic_rx"),
            ("NIC tx", "nic_tx"),
        )
        return (
            ChartQuery("power of the limit, mean", "%", f"100 * ({of_node('node:llmtop_power:ratio')})"),
            ChartQuery("power of the limit, least", "%", f"100 * ({of_node('node:llmtop_power_least:ratio')})"),
            ChartQuery("SM active, mean", "%", f"100 * avg({gpus(dcgm_names.SM_ACTIVE)})"),
            ChartQuery("hottest GPU", " °C", f"max({gpus(dcgm_names.TEMPERATURE)})"),
            ChartQuery("step, slowest rank", " s", f'max(llmtop_recent_step_seconds{{percentile="50",{there}}})'),
            ChartQuery(
                "wait for other ranks, per step",
                " s",
                f"avg({wait} and on (instance, job, pid) llmtop_rank_info{{{there}}})",
            ),
            *(
                ChartQuery(title, " GB/s", f"({of_node(NODE_RATES[tag])}) / 1e9", optional=True)
                for title, tag in rates
            ),
        )


def union_query(*parts: tuple[str, str]) -> str:
    """Several questions as one."""
    return " or ".join(f'label_replace({expr}, "{TAG}", "{tag}", "", "")' for tag, expr in parts)


def quote(text: str) -> str:
    """Return a text as PromQL writes it."""
    return json.dumps(text, ensure_ascii=False)
