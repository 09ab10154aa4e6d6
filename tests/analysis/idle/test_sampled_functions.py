"""Stack samples beside the GPU's idle time: counts by where each instant lies, and the sentence that names one."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze
from llmtop.report.model import Report
from tests.support.nsys_tables import Frame, NsysTables
from tests.support.traces import MAIN, Capture, write_sqlite

_TOKENIZE: list[Frame] = [("bpe_merge", "/t/tokenizers.so"), ("encode", "/t/other.so")]
_LAUNCH: list[Frame] = [("dispatch", "/t/libtorch_cpu.so")]


def _starved() -> Capture:
    """Six steps of 10 ms: 4 ms of kernels, launched before, and then 6 ms without work for the GPU."""
    made = Capture()
    for step in range(6):
        begin = step * 10_000
        made.range("step", begin, begin + 10_000)
        for kernel in range(4):
            made.kernel(begin + kernel * 1000 + 20, begin + kernel * 1000 + 1015, launched=begin + kernel * 5)
    return made


@pytest.fixture
def report(tmp_path: Path) -> Report:
    path = write_sqlite(tmp_path / "made.sqlite", [_starved()])
    tables = NsysTables(path)
    for step in range(6):
        begin = step * 10_000
        tables.samples(MAIN, MAIN, [begin + 5000 + 500 * n for n in range(8)], _TOKENIZE)
        tables.samples(MAIN, MAIN, [begin + 500 + 1000 * n for n in range(3)], _LAUNCH)
        tables.samples(MAIN, MAIN, [begin + 2.0], _LAUNCH)  # inside the first launch
        tables.samples(MAIN, 555, [begin + 5000 + 10 * n for n in range(50)], [("spin", "/t/worker.so")])
    return analyze(path)


def test_samples_are_counted_by_what_the_gpu_did(report: Report) -> None:
    rows = {row.name: row for row in report.sampled}
    assert set(rows) == {"bpe_merge (tokenizers.so)", "dispatch (libtorch_cpu.so)"}, "of launching threads alone"
    tokenize, launch = rows["bpe_merge (tokenizers.so)"], rows["dispatch (libtorch_cpu.so)"]
    assert (tokenize.samples, tokenize.call_samples) == (48, 0)
    assert (launch.samples, launch.call_samples) == (24, 6)
    assert tokenize.caller == "encode (other.so)"
    # The last step has no next one: its idle time lies outside of the whole steps.
    assert tokenize.idle_samples == 40
    assert launch.idle_samples is not None
    assert launch.idle_samples <= 6
    assert tokenize.share_pct == pytest.approx(100 * 48 / 72)
    assert report.sampled[0] is tokenize


def test_the_finding_names_what_the_host_was_in(report: Report) -> None:
    said = [finding for finding in report.findings if "bpe_merge (tokenizers.so)" in finding.summary]
    assert said
    assert said[0].evidence["host_in"] == "bpe_merge (tokenizers.so)"
    assert said[0].evidence["host_in_pct_of_idle"] > 80  # 6 samples lie in the launch that ends a gap


def test_few_samples_make_no_sentence(tmp_path: Path) -> None:
    path = write_sqlite(tmp_path / "few.sqlite", [_starved()])
    NsysTables(path).samples(MAIN, MAIN, [5000.0 + n for n in range(10)], _TOKENIZE)
    report = analyze(path)
    assert report.sampled
    assert not [finding for finding in report.findings if "bpe_merge" in finding.summary]


def test_the_slowest_waits_are_placed(tmp_path: Path) -> None:
    made = _starved()
    waits = [made.call("cudaStreamSynchronize", step * 10_000 + 100, step * 10_000 + 4000) for step in range(6)]
    path = write_sqlite(tmp_path / "waits.sqlite", [made])
    tables = NsysTables(path)
    for number, call in enumerate(waits, 1):
        stack = [("sync", "/lib/libcudart.so.12"), ("item", "/t/libtorch_cuda.so")]
        tables.call_stack(number, call, stack)
    report = analyze(path)
    row = report.call_places[0]
    assert (row.call, row.kind, row.place) == ("cudaStreamSynchronize", "sync", "item (libtorch_cuda.so)")
    assert row.count == 6
    assert row.seconds == pytest.approx(6 * 3900e-6)
    assert row.max_us == pytest.approx(3900)
