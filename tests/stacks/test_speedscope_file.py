"""Files of speedscope: those that llmtop writes, sampled and evented ones of others, and damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmtop.analysis.load_stacks import load_stacks
from llmtop.errors import UnusableInput
from llmtop.stacks.document import report_title, sampling_text
from llmtop.stacks.samples import read_folded, speedscope
from llmtop.stacks.speedscope_file import read_speedscope

_FRAMES = [{"name": "a"}, {"name": "b", "file": "x.py", "line": 3}, {"name": "c"}]


def _file(*profiles: dict[str, object]) -> bytes:
    schema = "https://www.speedscope.app/file-format-schema.json"
    return json.dumps({"$schema": schema, "shared": {"frames": _FRAMES}, "profiles": profiles}).encode()


def test_what_llmtop_writes_is_read_back(tmp_path: Path) -> None:
    stacks = read_folded("thread (7): MainThread;step (train.py:3);mm (torch/x.py:5) 30\nstep (train.py:3) 10\n")
    path = tmp_path / "py.speedscope.json"
    path.write_bytes(speedscope(stacks, "training", 100.0))
    report = load_stacks([path])
    assert report is not None
    threads = report.processes[0].threads
    assert sum(thread.samples for thread in threads) == 400_000  # 40 samples of 10 ms
    assert {thread.unit for thread in threads} == {"microseconds"}
    frames = {frame.frame for thread in threads for frame in thread.hottest}
    assert "step (train.py:3)" in frames


def test_samples_of_equal_weight_are_counted() -> None:
    profile = {
        "type": "sampled",
        "unit": "seconds",
        "name": "t",
        "samples": [[0, 1], [0, 1], [0]],
        "weights": [0.01] * 3,
    }
    stacks, unit, exporter, rate = read_speedscope(_file(profile), "x")
    assert (unit, exporter, rate) == ("samples", "", pytest.approx(100))
    assert [(len(stack.frames), stack.samples) for stack in stacks] == [(2, 1), (2, 1), (1, 1)]
    assert (stacks[0].frames[1].file, stacks[0].frames[1].line) == ("x.py", 3)


def test_frames_that_open_and_close() -> None:
    events = [("O", 0, 0), ("O", 2, 1), ("C", 5, 1), ("O", 5, 2), ("C", 9, 0)]
    profile = {
        "type": "evented",
        "unit": "milliseconds",
        "name": "t",
        "events": [{"type": kind, "at": at, "frame": frame} for kind, at, frame in events],
    }
    stacks, unit, _, rate = read_speedscope(_file(profile), "x")
    assert (unit, rate) == ("microseconds", None)
    assert [("".join(frame.name for frame in stack.frames), stack.samples) for stack in stacks] == [
        ("a", 2000),
        ("ab", 3000),
        ("ac", 4000),
    ]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "not a complete speedscope file"),
        (_file({"type": "sampled", "unit": "bytes", "samples": [[0]], "weights": [1]}), "counts bytes"),
        (_file({"type": "sampled", "unit": "none", "samples": [[9]], "weights": [1]}), "unknown frame"),
    ],
)
def test_what_cannot_be_read_is_said(data: bytes, why: str) -> None:
    with pytest.raises(UnusableInput, match=why):
        read_speedscope(data, "x")


def _written_by(exporter: str | None, file: str = "/src/train.py") -> bytes:
    frames = [{"name": "<module>", "file": file, "line": 7}, {"name": "step", "file": file, "line": 4}]
    profile = {
        "type": "sampled",
        "unit": "seconds",
        "name": 'Thread 31998 "MainThread"',
        "samples": [[0, 1]] * 72,
        "weights": [0.02] * 72,
    }
    whole = {"$schema": "https://www.speedscope.app/file-format-schema.json", "shared": {"frames": frames}}
    return json.dumps(whole | {"profiles": [profile]} | ({"exporter": exporter} if exporter else {})).encode()


@pytest.mark.parametrize(
    ("exporter", "said"),
    [("py-spy@0.4.3", "py-spy 0.4.3"), ("pyinstrument", "pyinstrument"), (None, "an unknown program")],
)
def test_the_program_that_wrote_a_file_is_named_with_its_rate(
    tmp_path: Path, exporter: str | None, said: str
) -> None:
    """py-spy record -f speedscope --rate 50 writes "exporter": "py-spy@0.4.3" and samples of 0.02 seconds."""
    path = tmp_path / "profile.json"
    path.write_bytes(_written_by(exporter))
    report = load_stacks([path])
    assert report is not None
    text = sampling_text(report)
    assert text.startswith(f"Sampled by {said} at 50 Hz;")
    assert "waiting ones included" not in text, "py-spy leaves them out without --idle, and the file does not say"
    assert report_title(report) == "Python stacks of the process"


def test_stacks_of_another_language_are_not_called_python(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(_written_by("cargo-flamegraph", "/src/main.rs"))
    report = load_stacks([path])
    assert report is not None
    assert report_title(report) == "Stacks of the process"
