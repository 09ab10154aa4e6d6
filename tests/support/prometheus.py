"""A real Prometheus, where the machine has one, and a real `llmtop export` for it to scrape."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support import nvml_stub
from tests.support.ports import free_port
from tests.support.processes import REPOSITORY, environment, wait_for

Sample = tuple[str, dict[str, str], float]
NO_PROMETHEUS = "no Prometheus: put it on PATH, or run tests/fetch_prometheus.sh"


def find(program: str) -> str | None:
    """The path of prometheus, promtool or victoria-metrics: fetched to .cache/prometheus, else on PATH."""
    fetched = REPOSITORY / ".cache" / "prometheus" / program
    return str(fetched) if fetched.exists() else shutil.which(program)


def fetch(url: str, **headers: str) -> str:
    """The body of an answer.

    Raises:
        OSError: there is none, or one that is not well.
    """
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


def samples(text: str) -> list[Sample]:
    """All samples of a page, by Prometheus' own parser; none may stand there twice."""
    found = [
        (one.name, one.labels, one.value)
        for family in text_string_to_metric_families(text)
        for one in family.samples
    ]
    keys = [(name, tuple(sorted(labels.items()))) for name, labels, _ in found]
    assert len(keys) == len(set(keys)), "a series stands twice"
    return found


def of(page: list[Sample], name: str, **labels: str) -> list[Sample]:
    """The samples of that name which have these labels."""
    return [one for one in page if one[0] == name and labels.items() <= one[1].items()]


class Exporter:
    """`llmtop export` as a process (a context manager), over the driver's stand-in where a scenario is given."""

    def __init__(
        self,
        *arguments: str,
        scenario: Path | None = None,
        listens: bool = True,
        command: Sequence[str] = (sys.executable, "-m", "llmtop"),
        usual_dcgm: bool = False,
        **extra: str,
    ) -> None:
        env = environment(**extra)
        if scenario is not None:
            env = nvml_stub.environment(nvml_stub.build(), scenario, **env)
        given = [] if usual_dcgm or "--dcgm-exporter" in arguments else ["--dcgm-exporter", "none"]
        given += ["--port", "0"] if listens and "--port" not in arguments else []
        self.process = subprocess.Popen(
            [*command, "export", *given, *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = ""
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(100)

    @property
    def url(self) -> str:
        """Where it says that it can be fetched."""

        def said() -> str | None:
            assert self.process.poll() is None, self.said
            found = re.search(r"https?://\S+", self.said)
            return found[0] if found else None

        return wait_for(said, 60, "the exporter to say where it is") or ""

    @property
    def target(self) -> str:
        """Host and port, as Prometheus wants them."""
        return urllib.parse.urlsplit(self.url).netloc

    def page(self) -> list[Sample]:
        """All that it tells now."""
        return samples(fetch(self.url))

    def when(self, name: str, least: int = 1, seconds: float = 60.0, **labels: str) -> list[Sample]:
        """What it tells, as soon as it has so many samples of that name."""
        page: list[Sample] = []

        def there() -> bool:
            page[:] = self.page()
            return len(of(page, name, **labels)) >= least

        wait_for(there, seconds, f"{least} {name}{labels}")
        return page

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(240)


class Prometheus:
    """A server with its data in a folder (a context manager)."""

    def __init__(
        self,
        folder: Path,
        targets: Sequence[str],
        *,
        interval: str = "1s",
        rules: Path | None = None,
        scrape_configs: list[dict[str, object]] | None = None,
    ) -> None:
        binary = find("prometheus")
        assert binary is not None, NO_PROMETHEUS
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval, "scrape_timeout": interval},
            "rule_files": [str(rules)] if rules else [],
            "scrape_configs": scrape_configs
            or [{"job_name": "llmtop", "static_configs": [{"targets": list(targets)}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [
                *(binary, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"),
                *(f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=(folder / "log").open("w"),
            env={**os.environ, "GOMAXPROCS": "1"},
        )
        self.log = folder / "log"

    def __enter__(self) -> Prometheus:
        wait_for(self._is_ready, 60, "Prometheus to be ready")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(100)

    def _is_ready(self) -> bool:
        try:
            return bool(fetch(f"{self.url}/-/ready"))
        except OSError:
            return False

    def query(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """What an instant query finds now."""
        asked = urllib.parse.urlencode({"query": promql})
        try:
            answer: dict[str, Any] = json.loads(fetch(f"{self.url}/api/v1/query?{asked}"))
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None
        return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]

    def finds(self, promql: str, least: int = 1, seconds: float = 60.0) -> list[tuple[dict[str, str], float]]:
        """The same as soon as it finds so many."""
        return (
            wait_for(lambda: found if len(found := self.query(promql)) >= least else None, seconds, promql) or []
        )


class VictoriaMetrics:
    """The other server that speaks the API (a context manager); it has no rules."""

    def __init__(self, folder: Path, scrape_configs: list[dict[str, object]], interval: str = "1s") -> None:
        binary = find("victoria-metrics")
        assert binary is not None, NO_PROMETHEUS
        folder.mkdir(parents=True, exist_ok=True)
        config = {"global": {"scrape_interval": interval}, "scrape_configs": scrape_configs}
        (folder / "scrape.yml").write_text(json.dumps(config))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [
                *(binary, f"-storageDataPath={folder / 'data'}", f"-promscrape.config={folder / 'scrape.yml'}"),
                *(f"-httpListenAddr=127.0.0.1:{port}", "-search.latencyOffset=0s", "-memory.allowedPercent=5"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=(folder / "log").open("w"),
            env={**os.environ, "GOMAXPROCS": "1"},
        )

    def __enter__(self) -> VictoriaMetrics:
        wait_for(self._is_ready, 60, "VictoriaMetrics to be ready")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(100)

    def _is_ready(self) -> bool:
        try:
            return bool(fetch(f"{self.url}/health"))
        except OSError:
            return False
