"""Captures that are unlike from the start: other GPUs, precision or work. The first sentence says it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from llmtop.analysis.analyze import analyze_trace
from llmtop.compare.compare import Comparison, compare_reports
from llmtop.compare.conditions import matrix_precision
from llmtop.errors import NotPossibleHere
from llmtop.report.model import Report, to_json
from llmtop.report_kinds.steps_kind import StepsKind
from llmtop.system.inputs import DEFAULT
from tests.support.traces import Capture

FP32, BF16 = "ampere_sgemm_128x64_tn", "ampere_bf16_s16816gemm_bf16_128x128"


def _report(
    folder: Path, gemm: str, took: float = 900, many: int = 4, gpu: str = "NVIDIA H100 80GB HBM3"
) -> Report:
    capture = Capture()
    for step in range(8):
        at = begin = step * 20_000
        capture.range("step", begin, begin + 20_000)
        for _ in range(many):
            capture.kernel(at, at + took, launched=at - 6, name=gemm)
            at += took + 10
    report = analyze_trace(capture.trace(folder))
    return structs.replace(report, devices=tuple(structs.replace(one, name=gpu) for one in report.devices))


def _first_sentence(found: Comparison) -> str:
    return found.summary.partition(". ")[0]


def test_other_hardware_is_the_first_sentence(tmp_path: Path) -> None:
    before = _report(tmp_path, BF16)
    after = _report(tmp_path, BF16, gpu="NVIDIA GeForce RTX 3060")
    found = compare_reports(before, after)
    assert _first_sentence(found) == "Not alike: GPU NVIDIA H100 80GB HBM3 before, NVIDIA GeForce RTX 3060 after"


def test_a_gpu_without_a_name_is_another_maker_s(tmp_path: Path) -> None:
    after = _report(tmp_path, BF16, gpu="")
    assert after.makeup is not None
    after = structs.replace(after, makeup=structs.replace(after.makeup, vendor="AMD"))
    found = compare_reports(_report(tmp_path, BF16), after)
    assert _first_sentence(found) == "Not alike: GPU NVIDIA H100 80GB HBM3 before, one of AMD's after"


def test_another_precision_is_the_first_sentence(tmp_path: Path) -> None:
    found = compare_reports(_report(tmp_path, FP32, took=1800), _report(tmp_path, BF16))
    assert found.unlike[0] == "matrix products in fp32 before, bf16 after"
    assert _first_sentence(found).startswith("Not alike: matrix products in fp32 before")


def test_other_work_is_the_first_sentence(tmp_path: Path) -> None:
    found = compare_reports(_report(tmp_path, BF16, many=4), _report(tmp_path, BF16, many=8))
    assert _first_sentence(found) == "Not alike: 2.00x the work in a step"


def test_the_same_work_on_the_same_gpu_is_alike(tmp_path: Path) -> None:
    found = compare_reports(_report(tmp_path, BF16), _report(tmp_path, BF16, took=800))
    assert found.unlike == ()
    assert not found.summary.startswith("Not alike")


def test_a_type_without_most_of_the_time_is_no_precision(tmp_path: Path) -> None:
    assert matrix_precision(_report(tmp_path, "gemm_of_any_type")) is None
    assert matrix_precision(_report(tmp_path, FP32)) == "fp32"


@pytest.mark.parametrize(("gpu", "took", "decided"), [("H100", 1200, True), ("A100", 1200, False)])
def test_nothing_is_decided_of_captures_that_are_unlike(
    tmp_path: Path, gpu: str, took: float, decided: bool
) -> None:
    paths = []
    for name, report in (
        ("a.json", _report(tmp_path, BF16, gpu="H100")),
        ("b.json", _report(tmp_path, BF16, took=took, gpu=gpu)),
    ):
        paths.append(tmp_path / name)
        paths[-1].write_bytes(to_json(report))
    found = StepsKind().compare(paths[0], paths[1], DEFAULT, 5.0)
    if decided:
        found.is_slower_by(5.0)
        return
    with pytest.raises(NotPossibleHere, match="cannot be decided: the two captures differ") as refused:
        found.is_slower_by(5.0)
    assert refused.value.exit_code == 3
