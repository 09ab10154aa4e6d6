"""Reports on devices that are no GPU call them what they are, and advise nothing of GPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze
from llmtop.document.html import write_html
from llmtop.document.text import write_text
from llmtop.report.advice.table import ADVICE, Situation, advice_for
from llmtop.report.document import brief_document, report_document
from tests.support.traces import Capture, write_chrome
from tests.support.xla_traces import on_gpu, unpacked, written

OF_GPUS = re.compile(r"GPU|gpu-bound|CUDA|cuda|cuBLAS|NCCL|tensor core|\bnsys\b|\bncu\b|nvidia|NVLink")


@pytest.mark.parametrize("recorded", ["cpu_window", "cpu_own"])
def test_a_capture_of_jax_on_the_cpu_does_not_speak_of_gpus(tmp_path: Path, recorded: str) -> None:
    report = analyze(unpacked(recorded, tmp_path))
    for document in (brief_document(report), report_document(report)):
        text = write_text(document, 100)
        assert not OF_GPUS.findall(text), text
    assert "the CPU" in text


def test_its_page_has_the_time_line_of_the_same_device(tmp_path: Path) -> None:
    report = analyze(unpacked("cpu_window", tmp_path), page=True)
    assert report.whole_timeline is not None
    assert not any("GPU" in device.label for device in report.whole_timeline.devices)
    assert report.whole_timeline.title == "1 CPU, 8 steps"
    assert report.whole_timeline.title in write_html(report_document(report))


def test_a_capture_of_jax_on_a_gpu_does(tmp_path: Path) -> None:
    report = analyze(written(tmp_path / "node.trace.json.gz", on_gpu()))
    assert "the GPU waits for the next batch" in report.summary


def test_advice_on_the_cpu_of_what_can_be_found_there_names_no_library_of_gpus() -> None:
    for kind in ("launch_bound", "communication_bound", "unknown", "unsteady_steps", "hot_kernel"):
        found = advice_for(kind, Situation(vendor="CPU", framework="JAX", workload="training"))
        assert kind in ADVICE
        assert not OF_GPUS.findall(f"{found.fix} {found.next}"), kind


def test_a_training_without_device_work_is_not_told_of_cublas(tmp_path: Path) -> None:
    made = Capture()
    for step in range(8):
        at = step * 10_000.0 + (20_000 if step > 5 else 0)
        took = 29_000 if step == 5 else 9_000
        made.range(f"ProfilerStep#{step}", at, at + took)
        for place in range(12):
            made.operator("aten::mm", at + place * 100, at + place * 100 + 90)
    report = analyze(write_chrome(tmp_path / "cpu.json", made))
    (slow,) = (one for one in report.findings if one.id == "unsteady_steps")
    assert "recompiling" in slow.fix
    assert "cuBLAS" not in slow.fix
