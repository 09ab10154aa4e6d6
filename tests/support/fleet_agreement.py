"""Live rules against the rules in Prometheus.

    python -m tests.support.fleet_agreement [SITUATIONS] [SEED]   # by promtool, three minutes for 200
    python -m tests.support.fleet_agreement --prometheus          # six through a real Prometheus, five minutes

Each situation is judged by the live engine, snapshot by snapshot, and by the rules over what `llmtop export` gives
of the same snapshots each 15 s. `llmtop_alert`, which has what the live engine found, is taken out first.
"""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from collectors.exporter.stage import ExportStage
from collectors.prometheus import fleet_rules
from llmtop.model.snapshot import Alert, Snapshot
from llmtop.rules.engine import Rules
from llmtop.rules.straggler import BEHIND_PCT
from tests.support.fleet_situations import situation
from tests.support.prometheus import Prometheus, find

SCRAPE_SECONDS = 15
STEADY_SECONDS = 200.0
"""An alert is compared if it held, or never held, for so long before the end: the rules have windows of 1m and
wait for 2m."""
SERVED_SECONDS = 270.0
SIX = (1, 2, 3, 7, 10, 11)
"""Situations of seed 1: memory-bound, spinning, throttled, two jobs, hung, straggler."""
ALERTS = {
    "LlmtopGpuBusyButIdle": "low_power_full_util",
    "LlmtopGpuMemoryBound": "memory_bound",
    "LlmtopRankStalled": "stalled",
    "LlmtopRankLate": "straggler",
    "LlmtopRankBehind": "hung_collective",
    "LlmtopCollectiveHangs": "hung_collective",
    "LlmtopXid": "gpu_error",
    "LlmtopMemoryErrors": "gpu_error",
    "LlmtopLinkErrors": "link_errors",
}
Finding = tuple[str, str]
"""Id of the live rule, and the GPU's UUID, the job or the pid that it is about."""
_FAILED = re.compile(r'alertname!=\\"([^"\\]*)\\".*\n\s*exp:.*\n\s*got: (.*)')
_GOT = re.compile(r"\{[^}]*\}")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass
class Observed:
    """One situation, as both sides see it."""

    name: str
    kind: str
    minutes: int
    live_always: set[Finding] = field(default_factory=set)
    """What the live engine reported all along the steady time."""
    live_ever: set[Finding] = field(default_factory=set)
    """What it reported at any moment of it."""
    undecided: set[Finding] = field(default_factory=set)
    """What of it no exported series can decide."""
    undecided_ids: set[str] = field(default_factory=set)
    """Ids of alerts without a fleet rule."""
    fleet: set[Finding] = field(default_factory=set)
    series: dict[str, list[str]] = field(default_factory=dict)


def observe(number: int, seed: int) -> Observed:
    """Return a situation with the live engine's alerts and the exported series."""
    made, rng = situation(number, seed)
    seen = Observed(f"{number} {made.kind}", made.kind, made.minutes)
    rules, stage = Rules(), ExportStage(interval=1e9)
    end, always = 60.0 * made.minutes, None
    covered = fleet_rules.covered_ids()
    for snapshot in made.snapshots(rng):
        alerts = rules.apply(snapshot).alerts
        stage(snapshot)
        if snapshot.time % SCRAPE_SECONDS == 0:
            _scrape(stage, int(snapshot.time) // SCRAPE_SECONDS, seen.series)
        if snapshot.time > end - STEADY_SECONDS:
            found = {_finding(alert, snapshot) for alert in alerts if alert.id in covered}
            seen.undecided_ids |= {alert.id for alert in alerts} - covered
            seen.undecided |= {_finding(alert, snapshot) for alert in alerts if not _is_decidable(alert)}
            seen.live_ever |= found
            always = found if always is None else always & found
    for values in seen.series.values():
        _mark_gap(values, int(end) // SCRAPE_SECONDS + 1)
    seen.live_always = always or set()
    return seen


def _is_decidable(alert: Alert) -> bool:
    """Whether the exported series can tell: of a rank's own work only what makes others wait is exported."""
    return alert.id != "straggler" or float(alert.evidence.get("share_of_step_pct") or 0) >= BEHIND_PCT[0]


def _finding(alert: Alert, snapshot: Snapshot) -> Finding:
    job = next((rank.job for rank in snapshot.ranks if rank.pid == alert.pid), None)
    if alert.id == "stalled":
        return alert.id, str(job or (snapshot.ranks[0].job if snapshot.ranks else ""))
    return alert.id, str(alert.pid) if alert.id == "straggler" else str(alert.gpu)


def _scrape(stage: ExportStage, tick: int, into: dict[str, list[str]]) -> None:
    for family in stage.collect():
        for sample in family.samples:
            if sample.name == "llmtop_alert" or sample.name.endswith("_created"):
                continue
            labels = {"instance": "node:9401", "job": "llmtop", **sample.labels}
            text = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items() if value)
            values = into.setdefault(f"{sample.name}{{{text}}}", [])
            _mark_gap(values, tick)
            values.append(repr(float(sample.value)))


def _mark_gap(values: list[str], tick: int) -> None:
    """Fill up to a tick as Prometheus does for a series that a scrape lacks: stale, then nothing."""
    if values and len(values) < tick and values[-1] not in ("_", "stale"):
        values.append("stale")
    values += ["_"] * (tick - len(values))


def evaluate(observed: list[Observed], rules: Path, folder: Path) -> None:
    """Have promtool evaluate the rules over each, and enter what fires at its end.

    Raises:
        RuntimeError: promtool says something else than what fires.
    """
    tests = [
        {
            "interval": f"{SCRAPE_SECONDS}s",
            "input_series": [{"series": name, "values": " ".join(values)} for name, values in one.series.items()],
            "promql_expr_test": [
                {
                    "expr": f'ALERTS{{alertstate="firing",alertname!="{one.name}"}}',
                    "eval_time": f"{one.minutes}m",
                    "exp_samples": [],
                }
            ],
        }
        for one in observed
    ]
    case = {"rule_files": [str(rules)], "evaluation_interval": f"{SCRAPE_SECONDS}s", "tests": tests}
    (folder / "case.json").write_text(json.dumps(case))
    done = subprocess.run(
        [str(find("promtool")), "test", "rules", str(folder / "case.json")],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    by_name = {one.name: one for one in observed}
    parts = _FAILED.findall(done.stdout + done.stderr)
    if not parts and done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    for name, got in parts:
        for labels in _GOT.findall(got):
            _enter(by_name[name], dict(_LABEL.findall(labels)))


def by_promtool(count: int, seed: int) -> list[Observed]:
    """Return so many situations, judged by both sides."""
    observed = [observe(number, seed) for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="lt-") as name:
        rules = Path(name) / "rules.yml"
        rules.write_text(fleet_rules.render())
        evaluate(observed, rules, Path(name))
    return observed


def by_prometheus(numbers: tuple[int, ...], seed: int) -> list[Observed]:
    """Return these situations, of which a real Prometheus has scraped the last minutes in real time."""
    observed = [observe(number, seed) for number in numbers]
    with tempfile.TemporaryDirectory(prefix="lt-") as name, _Pages(observed) as pages:
        folder = Path(name)
        (folder / "rules.yml").write_text(fleet_rules.render())
        with Prometheus(
            folder, [], interval="5s", rules=folder / "rules.yml", scrape_configs=pages.scrape_configs()
        ) as server:
            time.sleep(SERVED_SECONDS)
            for labels, _ in server.query('ALERTS{alertstate="firing"}'):
                _enter(observed[int(labels.get("run", labels.get("node", "0")).partition("/")[0])], labels)
    return observed


class _Pages:
    """Serves the last minutes of each situation as the page of a node of its own (a context manager)."""

    def __init__(self, observed: list[Observed]) -> None:
        began = time.time()
        pages = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                number = int(self.path.strip("/"))
                end = 60 * observed[number].minutes // SCRAPE_SECONDS
                tick = end - int(SERVED_SECONDS + 30 - (time.time() - began)) // SCRAPE_SECONDS
                body = pages.page(observed[number], number, min(tick, end), began).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: object) -> None:
                pass

        self._count = len(observed)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def __enter__(self) -> _Pages:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def scrape_configs(self) -> list[dict[str, object]]:
        """What has Prometheus fetch them."""
        target = f"127.0.0.1:{self._server.server_port}"
        paths = [
            {"instance": f"node{number}:9401", "__metrics_path__": f"/{number}"} for number in range(self._count)
        ]
        return [{"job_name": "llmtop", "static_configs": [{"targets": [target], "labels": one} for one in paths]}]

    @staticmethod
    def page(one: Observed, number: int, tick: int, began: float) -> str:
        """What that node exports at a tick; runs, hosts and GPUs are named after the situation."""
        lines = []
        shift = began - (60.0 * one.minutes - SERVED_SECONDS - 30)
        for name, values in one.series.items():
            if tick >= len(values) or values[tick] in ("_", "stale"):
                continue
            value = float(values[tick]) + (shift if "_timestamp_seconds" in name else 0.0)
            labelled = re.sub(r'(run|UUID|[Hh]ostname)="', rf'\1="{number}/', name)
            labelled = re.sub(r'instance="[^"]*",job="[^"]*",?', "", labelled)
            lines.append(f"{labelled} {value!r}")
        return "\n".join(lines) + "\n"


def _enter(one: Observed, labels: dict[str, str]) -> None:
    """Enter an alert of the fleet."""
    rule_id = ALERTS.get(labels["alertname"], labels["alertname"])
    subject = {"stalled": "run", "straggler": "pid"}.get(rule_id, "UUID")
    one.fleet.add((rule_id, labels.get(subject, "").rpartition("/")[2]))


def main(arguments: list[str]) -> int:
    """Print the agreement; exit 1 over 5 % of misses or with any other disagreement."""
    if arguments == ["--prometheus"]:
        observed = by_prometheus(SIX, 1)
    else:
        count, seed = (int(one) for one in (arguments + ["200", "1"][len(arguments) :])[:2])
        observed = by_promtool(count, seed)
    missed, extra, both = disagreements(observed)
    undecided = Counter(rule_id for one in observed for rule_id, _ in one.live_always & one.undecided)
    print(f"{len(observed)} situations: {sum(both.values())} alerts of both, {len(missed)} missed, ", end="")
    print(f"{len(extra)} of the fleet alone")
    print("of both:", dict(both))
    print("not decided by the exported series:", dict(undecided))
    print("no fleet rule:", dict(Counter(alert for one in observed for alert in one.undecided_ids)))
    kinds = defaultdict(int)
    for one in observed:
        kinds[one.kind] += 1
    print("situations:", dict(kinds))
    for title, rows in (("missed", missed), ("of the fleet alone", extra)):
        for row in rows:
            print(f"{title}: {row}")
    return int(bool(extra) or len(missed) > 0.05 * (sum(both.values()) + len(missed)))


def disagreements(observed: list[Observed]) -> tuple[list[str], list[str], Counter[str]]:
    """Return what the fleet missed, what it alone reported, and by id what both reported."""
    missed = [
        f"{one.name}: {finding}"
        for one in observed
        for finding in sorted(one.live_always - one.fleet - one.undecided)
    ]
    extra = [f"{one.name}: {finding}" for one in observed for finding in sorted(one.fleet - one.live_ever)]
    return missed, extra, Counter(rule_id for one in observed for rule_id, _ in one.live_always & one.fleet)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
