"""What is no report of ncu, or a damaged one, gets one sentence; the library's crash is not ours."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from llmtop.errors import LlmtopError, NotPossibleHere, UnusableInput
from llmtop.ncu import read as reader
from llmtop.ncu.profile import KernelProfile
from llmtop.ncu.read import read
from tests.support.ncu_reports import unpacked
from tests.support.processes import environment


def refusal(path: Path) -> str:
    with pytest.raises(UnusableInput) as found:
        read(path)
    assert "\n" not in str(found.value)
    return str(found.value)


def outcome(path: Path) -> str | list[KernelProfile]:
    """The kernels, or the sentence of the refusal."""
    try:
        return read(path)[0]
    except LlmtopError as error:
        return str(error)


def test_what_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.ncu-rep"
    assert "x.ncu-rep" in refusal(path)
    for content in (b"", b"text", b"\0" * 5000):
        path.write_bytes(content)
        assert "no report of ncu" in refusal(path)
    assert "directory" in refusal(tmp_path) or "folder" in refusal(tmp_path)


def test_one_that_is_cut_is_refused_or_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = unpacked("gpt0", tmp_path).read_bytes()
    path = tmp_path / "cut.ncu-rep"
    for share in (0.001, 0.2, 0.5, 0.9):
        path.write_bytes(whole[: int(len(whole) * share)])
        found = outcome(path)
        assert "cut.ncu-rep" in found if isinstance(found, str) else found[0].numbers


def test_one_that_is_scribbled_over_never_ends_us(tmp_path: Path) -> None:
    whole = unpacked("gpt0", tmp_path).read_bytes()
    path = tmp_path / "bad.ncu-rep"
    chance = random.Random(20)
    for _ in range(4):
        damaged = bytearray(whole)
        for _ in range(300):
            damaged[chance.randrange(8, len(damaged))] = chance.randrange(256)
        path.write_bytes(bytes(damaged))
        found = outcome(path)
        assert "bad.ncu-rep" in found if isinstance(found, str) else found


def test_without_the_library_the_sentence_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "library", lambda: None)
    monkeypatch.setenv("LLMTOP_NCU", str(tmp_path / "none"))
    with pytest.raises(NotPossibleHere, match=r"pip install '\.\[kernels\]'; elsewhere: pip install ncu-report"):
        read(unpacked("gpt0", tmp_path))


def test_modules_in_the_folder_of_the_reader_hide_nothing(tmp_path: Path) -> None:
    (tmp_path / "ncu_report.py").write_text("raise SystemExit('taken from the current folder')")
    path = unpacked("gpt0", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "llmtop", "kernel", path.name],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Limited by compute (tensor)" in done.stdout


def test_llmtop_report_says_which_command_reads_it(tmp_path: Path) -> None:
    path = unpacked("gpt0", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "llmtop", "report", str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2
    assert f"llmtop kernel {path}" in done.stderr
