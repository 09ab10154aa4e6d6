"""What kind of program a capture is of, by the names that it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze_trace
from llmtop.analysis.work.workload import is_language_model
from llmtop.trace.files.open import open_trace
from tests.support.traces import Capture, write_chrome


def _steps(operator: str, kernel: str = "gemm_kernel") -> Capture:
    capture = Capture()
    for begin in range(0, 5000, 1000):
        capture.operator(operator, begin, begin + 20)
        capture.kernel(begin + 10, begin + 900, launched=begin, name=kernel)
    return capture


@pytest.mark.parametrize(
    ("operator", "kernel", "serves", "language"),
    [
        ("aten::embedding", "gemm_kernel", False, True),
        ("aten::mm", "gemm_kernel", False, False),
        ("aten::mm", "gemm_kernel", True, True),
        ("aten::embedding", "implicit_convolve_sgemm", False, False),
        ("aten::embedding", "implicit_convolve_sgemm", True, False),
    ],
)
def test_a_language_model_looks_up_tokens_and_convolves_next_to_nothing(
    tmp_path: Path, operator: str, kernel: str, serves: bool, language: bool
) -> None:
    trace = _steps(operator, kernel).chrome_trace(tmp_path)
    assert is_language_model(trace, serves=serves) is language


def test_without_operators_nobody_knows(tmp_path: Path) -> None:
    capture = Capture()
    capture.kernel(10, 900, launched=0)
    assert is_language_model(capture.chrome_trace(tmp_path), serves=False) is None


def test_a_copy_within_the_device_waits_for_no_host(tmp_path: Path) -> None:
    shares = []
    for direction in ("HtoD", "DtoD"):
        capture = Capture()
        for begin in range(0, 5000, 1000):
            capture.range("step", begin, begin + 1000)
            capture.copy(begin + 10, begin + 510, 4096, direction, "Pinned", launched=begin)
            capture.kernel(begin + 510, begin + 1000, launched=begin + 6)
        path = tmp_path / f"{direction}.json"
        write_chrome(path, capture)
        (device,) = analyze_trace(open_trace(path)).devices
        shares.append(device.copy_only_pct)
    assert shares == [pytest.approx(50.0, abs=1.5), 0.0]
