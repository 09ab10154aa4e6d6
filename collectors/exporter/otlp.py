"""Pushes the exporter's series over OTLP/HTTP (protobuf), by OpenTelemetry's own exporter: the extra `otel`."""

from __future__ import annotations

import logging
import platform
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from collectors.base.interruptible_sleep import InterruptibleSleep
from collectors.exporter.stage import ExportStage
from llmtop.errors import NotPossibleHere
from llmtop.extras import how_to_install
from llmtop.model.snapshot import Snapshot
from llmtop.version import __version__

if TYPE_CHECKING:
    from prometheus_client import Metric

PUSH_SECONDS = 10.0
"""How long a receiver may take."""
EXTRA = f"llmtop export --otlp needs OpenTelemetry's exporter; {how_to_install('otel')}"
_COUNTER = "counter"


class OtlpPush:
    """A stage that has the series pushed after each snapshot, by a thread of its own.

    While a push waits for the receiver, snapshots that come are left out: the next push has the newest.
    """

    def __init__(self, url: str, stage: ExportStage, warn: Callable[[str], None]) -> None:
        """Begin to push.

        Args:
            url: where metrics are taken, as it stands: http://host:4318/v1/metrics. Headers, such as a token,
                are in $OTEL_EXPORTER_OTLP_HEADERS.
            stage: the series.
            warn: called with a sentence when pushes begin to fail, and when they succeed again.

        Raises:
            NotPossibleHere: OpenTelemetry's exporter is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        except ImportError:
            raise NotPossibleHere(EXTRA) from None
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)  # its lines have the address
        self._exporter = OTLPMetricExporter(endpoint=url, timeout=PUSH_SECONDS)
        self._stage = stage
        self._warn = warn
        self._fails = False
        self._started_ns = time.time_ns()
        self._closed = False
        self._wake = InterruptibleSleep()
        self._thread = threading.Thread(target=self._run, name="llmtop-otlp", daemon=True)
        self._thread.start()

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Push the series; comes after the stage that counts."""
        self._wake.set()
        return snapshot

    def close(self) -> None:
        """Stop within two seconds."""
        self._closed = True
        self._wake.set()
        self._exporter.shutdown(timeout_millis=1000)
        self._thread.join(2.0)

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(None)
            self._wake.clear()
            if not self._closed:
                self._push()

    def _push(self) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        data = metrics_data(self._stage.collect(), self._started_ns, time.time_ns())
        result = self._exporter.export(data, timeout_millis=1000 * PUSH_SECONDS)
        fails = result is not MetricExportResult.SUCCESS
        if fails != self._fails and not self._closed:
            self._warn(
                "the OTLP receiver does not take the metrics; check the address, the receiver, and "
                "$OTEL_EXPORTER_OTLP_HEADERS"
                if fails
                else "the OTLP receiver takes the metrics again"
            )
        self._fails = fails


def metrics_data(families: Iterable[Metric], started_ns: int, now_ns: int) -> Any:
    """Return series of Prometheus as OpenTelemetry's exporter takes them.

    Counters are cumulative monotonic sums without "_total", which receivers add; all else is a gauge.

    Args:
        families: of the exporter.
        started_ns: unix time in ns since which counters count.
        now_ns: unix time in ns of the values.
    """
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    found = []
    for family in families:
        by_name: dict[str, list[Any]] = {}
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            name = family.name if family.type == _COUNTER else sample.name
            point = export.NumberDataPoint(dict(sample.labels), started_ns, now_ns, sample.value)
            by_name.setdefault(name, []).append(point)
        for name, points in by_name.items():
            data = (
                export.Sum(points, export.AggregationTemporality.CUMULATIVE, True)
                if family.type == _COUNTER
                else export.Gauge(points)
            )
            found.append(export.Metric(name, family.documentation, None, data))
    resource = Resource({"service.name": "llmtop", "service.version": __version__, "host.name": platform.node()})
    scope = export.ScopeMetrics(InstrumentationScope("llmtop", __version__), found, "")
    return export.MetricsData([export.ResourceMetrics(resource, [scope], "")])
