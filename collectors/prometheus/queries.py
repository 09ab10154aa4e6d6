"""The queries of the pane: six a refresh. Recorded series are asked for by name, or by what they are made of.

Without the recording rules on the server the same is asked for in full: right, and dearer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from functools import cache
from typing import Final

from collectors.gpu import dcgm_names
from collectors.prometheus.fleet_rules import render

TAG: Final = "is"
"""Label that distinguishes the parts of one query."""
MAX_LATE, MAX_BEHIND, MAX_CRITICAL = 8, 20, 40
_STUCK: Final = "communicator, pg, operation"
_RAS: Final = (
    ("ras waiting", "llmtop_ras_waiting", ""),
    ("ras behind", "llmtop_ras_behind", ", rank, host, rank_pid"),
    ("ras missing", "llmtop_ras_missing", ", rank, host, rank_pid"),
)
"""From NCCL RAS: one node's reply covers all nodes, and several may have queried it."""
_RECORD: Final = re.compile(r"^ {6}- record: (\S+)\n {8}expr: (.*(?:\n {9,}.*)*)", re.MULTILINE)
"""As our own file has them: what an expression goes on with is further in."""


@cache
def recorded_expressions() -> dict[str, str]:
    """What each recorded series of the rules that ship is made of, down to series that are scraped."""
    text = render()
    found: dict[str, str] = {}
    for name, expr in _RECORD.findall(text):
        flat = " ".join(expr.removeprefix(">-").split())
        found[name] = re.sub(r"\w+:[\w:]+", lambda one: f"({found[one[0]]})" if one[0] in found else one[0], flat)
    return found


class Queries:
    """What is asked, with the server's rules or without, of one run or of all."""

    def __init__(self, *, rules: bool, run: str | None = None) -> None:
        self._rules = rules
        self._run = run

    def recorded_series(self, name: str) -> str:
        """A recorded series."""
        return name if self._rules else f"({recorded_expressions()[name]})"

    def _of_run(self, expr: str) -> str:
        """Of the run that was asked for."""
        if self._run is None:
            return expr
        chosen = f"max by (run, uid) (llmtop_rank_info{{run={quote(self._run)}}})"
        return f"({expr}) and on (run, uid) {chosen}"

    @property
    def overview(self) -> str:
        """The server's clock, the newest snapshot, whether there are rules, alerts by id, and the runs."""
        by_run = {
            "tokens": "run:llmtop_tokens:rate1m",
            "steps": "run:llmtop_steps:rate1m",
            "p50": "run:llmtop_recent_step_seconds:p50",
            "p99": "run:llmtop_recent_step_seconds:p99",
            "ranks": "run:llmtop_ranks:count",
            "quiet": "run:llmtop_ranks_without_step:count",
        }
        return union_query(
            ("now", "vector(time())"),
            ("newest", "max(llmtop_snapshot_timestamp_seconds)"),
            ("rules", "cluster:llmtop_nodes:count"),
            ("raw", "count(llmtop_node_info)"),
            ("alerts", "count by (id) (llmtop_alert)"),
            *((tag, self._of_run(self.recorded_series(name))) for tag, name in by_run.items()),
        )

    @property
    def nodes(self) -> str:
        """Each exporter of the last hour, and whether it answers now."""
        info = "max by (instance, job, hostname) (last_over_time(llmtop_node_info[1h]))"
        return f"{info} * on (instance, job) group_left () max by (instance, job) (up)"

    @property
    def ranks(self) -> str:
        """Who is late, who is behind in a collective, and how many wait there."""
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
        """Critical alerts of the nodes, recent Xids and memory errors, GPUs much hotter than the others."""
        alerts = 'max by (instance, id, gpu, rank, pid) (llmtop_alert{severity="critical"})'
        gpus = {
            "xid": "gpu:llmtop_xid:recent",
            "ecc": "gpu:llmtop_memory_errors:recent",
            "hot": "gpu:llmtop_hot:celsius",
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
        """Each GPU of these nodes."""
        if not self._rules:
            return self.recorded_series("gpu:llmtop_power:ratio")  # a label that is made cannot be selected by
        return f"gpu:llmtop_power:ratio{{node=~{quote('|'.join(re.escape(node) for node in nodes))}}}"


def charts(node: str, instances: Collection[str]) -> tuple[tuple[str, str, str], ...]:
    """Title, unit and query of each chart of one node.

    Args:
        node: its name.
        instances: of its exporters, as Prometheus calls them.
    """
    mine = quote(node)
    there = f"instance=~{quote('|'.join(re.escape(one) for one in instances))}"

    def gpus(name: str) -> str:
        return f'({name}{{hostname={mine}}} or {name}{{Hostname={mine},hostname=""}})'

    power, limit = gpus(dcgm_names.POWER_USAGE), gpus(dcgm_names.POWER_LIMIT)
    return (
        ("power of the limit, mean", "%", f"100 * avg({power}) / avg({limit})"),
        ("power of the limit, least", "%", f"100 * min({power}) / min({limit})"),
        ("SM active, mean", "%", f"100 * avg({gpus(dcgm_names.SM_ACTIVE)})"),
        ("hottest GPU", " C", f"max({gpus(dcgm_names.TEMPERATURE)})"),
        ("step, slowest rank", " s", f'max(llmtop_recent_step_seconds{{percentile="50",{there}}})'),
        ("wait for other ranks", " s/s", f"avg(rate(llmtop_comm_wait_seconds_total{{{there}}}[1m]))"),
    )


def union_query(*parts: tuple[str, str]) -> str:
    """Several questions as one."""
    return " or ".join(f'label_replace({expr}, "{TAG}", "{tag}", "", "")' for tag, expr in parts)


def quote(text: str) -> str:
    """A text as PromQL writes it."""
    return json.dumps(text, ensure_ascii=False)
