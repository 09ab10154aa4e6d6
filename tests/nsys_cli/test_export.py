"""A .nsys-rep goes through the nsys of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.trace.open import open_trace
from tests.support.nsys import NO_NSYS, find_nsys

HEAD = b"NVIDIA Tegra Profiler Report 36398880.\n"


@pytest.mark.nsys
@pytest.mark.skipif(find_nsys() is None, reason=NO_NSYS)
def test_a_report_is_exported_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nsys = find_nsys()
    assert nsys is not None
    monkeypatch.setenv("LLMTOP_NSYS", nsys)
    program = [sys.executable, "-c", "import time; [time.sleep(0.02) for _ in range(5)]"]
    options = ["--trace=osrt", "--sample=none", "--cpuctxsw=none", "-o", str(tmp_path / "made"), "-f", "true"]
    done = subprocess.run([nsys, "profile", *options, *program], capture_output=True, text=True, timeout=120)
    report = tmp_path / "made.nsys-rep"
    assert report.exists(), done.stdout + done.stderr
    before = sorted(child.name for child in tmp_path.iterdir())
    trace = open_trace(report)
    assert len(trace.host) > 0, "calls into the C library"
    assert trace.version
    assert sorted(child.name for child in tmp_path.iterdir()) == before, "nothing is left beside the report"


@pytest.mark.nsys
@pytest.mark.skipif(find_nsys() is None, reason=NO_NSYS)
def test_a_report_that_nsys_cannot_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMTOP_NSYS", str(find_nsys()))
    report = tmp_path / "foreign.nsys-rep"
    report.write_bytes(HEAD + os.urandom(2000))
    with pytest.raises(UnusableInput, match="cannot export"):
        open_trace(report)


def test_without_an_nsys_the_sentence_says_how_to_get_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMTOP_NSYS", str(tmp_path / "no-nsys"))
    report = tmp_path / "some.nsys-rep"
    report.write_bytes(HEAD)
    with pytest.raises(NotPossibleHere, match="nsys export --type sqlite"):
        open_trace(report)
