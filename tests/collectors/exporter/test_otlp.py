"""The exporter's series reach a real receiver of OTLP/HTTP as it would decode them."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from collectors.exporter.otlp import metrics_data
from tests.support import nvml_stub
from tests.support.preloaded import llmtop
from tests.support.processes import environment, wait_for

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")


class _Receiver(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.requests: list[tuple[str, str, Any]] = []
        """Path, authorization and the decoded message of each."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/metrics"


class _Handler(BaseHTTPRequestHandler):
    server: _Receiver

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        message = ExportMetricsServiceRequest.FromString(body)
        self.server.requests.append((self.path, self.headers.get("Authorization", ""), message))
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def receiver() -> Iterator[_Receiver]:
    running = _Receiver()
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join(10)


def _metrics(message: Any) -> dict[str, Any]:
    ((scope,),) = ([*one.scope_metrics] for one in message.resource_metrics)
    return {metric.name: metric for metric in scope.metrics}


def _util(message: Any) -> dict[str, float]:
    """Utilisation by GPU."""
    metric = _metrics(message).get("DCGM_FI_DEV_GPU_UTIL")
    points = () if metric is None else metric.gauge.data_points
    return {
        next(one.value.string_value for one in point.attributes if one.key == "gpu"): point.as_double
        or point.as_int
        for point in points
    }


def _start(receiver: _Receiver, tmp_path: Path, runtime_dir: Path) -> subprocess.Popen[str]:
    scenario = nvml_stub.Scenario.eight_gpus()
    scenario.set(3, util=57)
    env = nvml_stub.environment(
        nvml_stub.build(),
        scenario.write(tmp_path / "scenario"),
        **environment(LLMTOP_DIR=str(runtime_dir), OTEL_EXPORTER_OTLP_HEADERS="Authorization=Bearer%20abc"),
    )
    command = [sys.executable, "-m", "llmtop", "export", "--otlp", receiver.url, "-i", "0.5"]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def test_the_command_pushes_all_series_each_interval(
    receiver: _Receiver, tmp_path: Path, runtime_dir: Path
) -> None:
    process = _start(receiver, tmp_path, runtime_dir)
    try:
        wait_for(lambda: len(receiver.requests) >= 3)
        # On a busy machine the monitor has not read all GPUs before the first, nor while it ends.
        whole = wait_for(lambda: [one for one in receiver.requests if len(_util(one[2])) == 8])
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "9401" not in err  # no port is opened
    path, authorization, message = whole[-1]
    assert (path, authorization) == ("/v1/metrics", "Bearer abc")
    resource = {one.key: one.value.string_value for one in message.resource_metrics[0].resource.attributes}
    assert resource["service.name"] == "llmtop"
    assert _util(message)["3"] == 57


@pytest.mark.slow(
    "a second monitor; test_the_command_pushes_all_series_each_interval has one whose receiver takes them"
)
def test_a_receiver_that_refuses_is_named_once_and_its_recovery_too(
    receiver: _Receiver, tmp_path: Path, runtime_dir: Path
) -> None:
    receiver.status = 400
    process = _start(receiver, tmp_path, runtime_dir)
    try:
        wait_for(lambda: len(receiver.requests) >= 3)
        receiver.status = 200
        seen = len(receiver.requests)
        wait_for(lambda: len(receiver.requests) >= seen + 3)
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert err.count("does not take the metrics") == 1
    assert err.count("takes the metrics again") == 1
    assert receiver.url not in err


def test_counters_are_sums_without_total() -> None:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    steps = CounterMetricFamily("llmtop_steps", "Steps.", labels=["rank"])
    steps.add_metric(["0"], 41)
    idle = GaugeMetricFamily("llmtop_idle", "Idle.", value=0.5)
    (resource,) = metrics_data([steps, idle], 10, 20).resource_metrics
    first, second = resource.scope_metrics[0].metrics
    assert (first.name, first.data.is_monotonic, first.data.data_points[0].value) == ("llmtop_steps", True, 41)
    assert (first.data.data_points[0].start_time_unix_nano, first.data.data_points[0].time_unix_nano) == (10, 20)
    assert dict(first.data.data_points[0].attributes) == {"rank": "0"}
    assert (second.name, second.data.data_points[0].value) == ("llmtop_idle", 0.5)


def test_an_address_that_is_none_is_refused() -> None:
    found = llmtop("export", "--otlp", "host:4318", env=environment())
    assert found.returncode == 2
    assert "http://host:4318/v1/metrics" in found.stderr
