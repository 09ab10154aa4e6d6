"""A .nsys-rep goes through the nsys of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.nsys_cli import tool
from llmtop.nsys_cli.export import export_beside, export_into
from llmtop.trace.files.open import open_trace
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
    done = subprocess.run([nsys, "profile", *options, *program], capture_output=True, text=True, timeout=240)
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


def nsys_that(folder: Path, does: str) -> str:
    """An nsys of which `export` does that with its output in $out; it answers 0 whatever happens, as nsys does."""
    program = folder / "nsys"
    program.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --version ] && { echo "NVIDIA Nsight Systems version 2023.4.4.54"; exit 0; }\n'
        'for word; do case "$word" in --output=*) out="${word#--output=}";; esac; done\n'
        f"{does}\n"
    )
    program.chmod(0o755)
    return str(program)


MAKES_TABLES = f"{sys.executable} -c \"import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('CREATE TABLE "
MAKES_TABLES += "StringIds (id, value)')\" $out"


@pytest.mark.parametrize(
    "does", [":", ": > $out", f"{MAKES_TABLES}; echo 'Import error: newer'", f"{MAKES_TABLES}; exit 1"]
)
def test_an_export_is_judged_the_same_beside_a_capture_and_for_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    monkeypatch.setenv("LLMTOP_NSYS", nsys_that(tmp_path, does))
    report = tmp_path / "some.nsys-rep"
    report.write_bytes(HEAD)
    with pytest.raises(UnusableInput, match="cannot export"):
        export_into(report, tmp_path)
    kept, notes = export_beside(tool.find_nsys(), report, uses_gpu=False)
    assert kept == report
    assert "nsys export failed" in notes[0]
    assert sorted(child.name for child in tmp_path.iterdir()) == ["nsys", "some.nsys-rep"]


def test_a_report_whose_name_speaks_of_an_error_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMTOP_NSYS", nsys_that(tmp_path, f'{MAKES_TABLES}; echo "Processing [$out]"'))
    report = tmp_path / "error_in_step_7.nsys-rep"
    report.write_bytes(HEAD)
    assert export_beside(tool.find_nsys(), report, uses_gpu=False)[0].suffix == ".sqlite"
