"""The page is what Prometheus' own client would write, to the byte."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UntypedMetricFamily

from collectors.exporter.stage import ExportStage
from collectors.exporter.text import page
from llmtop.model.snapshot import Snapshot
from llmtop.recording.reader_writer import Reader
from tests.support.data import DATA

VALUES = st.text(st.characters(exclude_categories=("Cs",)), max_size=20) | st.sampled_from(['"', "\\", "a\nb", ""])
KINDS = st.sampled_from([CounterMetricFamily, GaugeMetricFamily, UntypedMetricFamily])


class Given:
    """Gives families, as a collector."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        yield from self._families


def theirs(*families: Metric) -> bytes:
    """What the library writes."""
    registry = CollectorRegistry()
    registry.register(Given(*families))  # type: ignore[arg-type]  # only collect() is called
    return generate_latest(registry)


@given(kind=KINDS, words=VALUES, labels=st.lists(VALUES, max_size=4), number=st.floats() | st.integers(0, 1 << 80))
def test_any_label_help_and_value(kind: type[Metric], words: str, labels: list[str], number: float) -> None:
    names = [f"label_{(7 * place) % 5}" for place in range(len(labels))]
    family = kind("llmtop_made_up", words, labels=names)  # type: ignore[call-arg]
    family.add_metric(labels, number)  # type: ignore[attr-defined]
    family.add_metric(["x"] * len(labels), 1)  # type: ignore[attr-defined]
    assert page([family]) == theirs(family)


@pytest.mark.parametrize("name", ["monitor", "export", "hang_attached"])
def test_recorded_snapshots(name: str) -> None:
    stage = ExportStage(interval=1.0)
    reader = Reader(DATA / "many_gpus" / f"{name}.llmtop")
    last: Snapshot | None = None
    for _, last in reader.snapshots():
        stage(msgspec.structs.replace(last, monotonic=time.monotonic()))
    reader.close()
    assert last is not None
    told = page(stage.collect())
    assert told == generate_latest(stage)
    assert told.count(b"\n") > 50
