"""`llmtop bench` that compares, with real runs of a program whose steps are sleeps of a known length."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.processes import REPOSITORY

TRAINING = """
import os, sys, time
from pathlib import Path
import llmtop

count = Path("count")
count.write_text(str(int(count.read_text()) + 1 if count.exists() else 1))
step = float(os.environ.get("STEP_MS", "100")) / 1e3
if os.environ.get("ODD_RUN") == count.read_text():
    step *= 1.5
try:
    due = time.monotonic()
    while True:
        due = max(due, time.monotonic() - step) + step  # after a late end a step is shorter, within limits
        with llmtop.step(tokens=1000):
            time.sleep(max(0.0, due - time.monotonic()))
except KeyboardInterrupt:
    sys.exit(0)
"""
BENCH = ("--warmup", "5", "--steps", "40", "--runs", "3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAINING)
    return tmp_path


def _bench(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "count").unlink(missing_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "llmtop", "bench", *options, "--", sys.executable, "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "LLMTOP_DIR": str(folder / "sockets"), **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _made(folder: Path, out: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / out / "metrics.json").read_text())
    return found


@pytest.mark.slow("test_runs_are_held_to_a_baseline finds the same fault")
def test_a_baseline_is_kept_and_equal_slower_and_noisy_runs_are_held_to_it(folder: Path) -> None:
    first = _bench(folder, *BENCH, "--out", "a", "--save-baseline", "b.json")
    assert first.returncode == 0, first.stderr
    gate = ("--baseline", "b.json", "--fail-over")
    equal = _bench(folder, *BENCH, "--out", "equal", *gate, "5")
    assert equal.returncode in (0, 3), equal.stdout  # 3: on a busy machine noise may hide as much as the limit
    assert ("decision: undecidable" in equal.stdout) == (equal.returncode == 3)
    slower = _bench(folder, *BENCH, "--out", "slower", *gate, "5%", "--junit", "j.xml", STEP_MS="250")
    assert slower.returncode == 1, slower.stdout
    assert "decision: regression" in slower.stdout
    assert ElementTree.parse(folder / "j.xml").getroot()[0].get("failures") == "1"
    noisy = _bench(folder, *BENCH, "--out", "noisy", *gate, "5", "--summary", "s.md", ODD_RUN="2")
    assert noisy.returncode == 3, noisy.stdout
    assert "decision: undecidable" in noisy.stdout
    assert "undecidable" in (folder / "s.md").read_text().splitlines()[0]


@pytest.mark.slow("test_drift_that_both_of_a_pair_share_drops_out finds the same fault")
def test_two_commands_are_run_in_turns_and_compared_as_pairs(folder: Path) -> None:
    found = _bench(
        folder, "--warmup", "2", "--steps", "10", "--runs", "2", "--out", "o",
        "--against", f"env STEP_MS=100 {sys.executable} train.py", "--json", STEP_MS="200",
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert [run["label"] for run in told["runs"]] == ["baseline", "candidate", "candidate", "baseline"]
    assert told["comparison"]["paired"]
    assert told["comparison"]["changes"][0]["worse_pct"] > 30.0
    assert _made(folder, "o")["comparison"] == told["comparison"]


@pytest.mark.slow("test_values_that_noise_cannot_tell_apart_are_not_ranked_in_words finds the same fault")
def test_the_values_of_a_knob_are_run_in_turns_and_ranked(folder: Path) -> None:
    found = _bench(
        folder, "--warmup", "2", "--steps", "10", "--runs", "2", "--out", "o", "--vary", "STEP_MS=20,60"
    )
    assert found.returncode == 0, found.stderr
    made = _made(folder, "o")
    assert [run["label"] for run in made["runs"]] == ["STEP_MS=20", "STEP_MS=60", "STEP_MS=60", "STEP_MS=20"]  # type: ignore[attr-defined,index]
    assert "STEP_MS=20" in found.stdout
    assert made["ranking"]["values"][0]["label"] == "STEP_MS=20"  # type: ignore[index]


@pytest.mark.slow("test_runs_are_held_to_a_baseline finds the same fault")
def test_five_runs_are_made_where_runs_are_compared_and_a_failed_one_is_no_decision(folder: Path) -> None:
    (folder / "train.py").write_text("import sys; sys.exit(7)")
    found = _bench(folder, "--out", "o", "--save-baseline", "b.json", "--summary", "s.md")
    assert found.returncode == 3
    assert "5 times" in found.stderr
    assert not (folder / "b.json").exists()
    assert "llmtop bench: failed" in (folder / "s.md").read_text()


def test_what_contradicts_itself_is_refused_before_anything_runs(folder: Path) -> None:
    found = _bench(folder, "--out", "o", "--fail-over", "5")
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert not (folder / "count").exists()
    assert not (folder / "o").exists()
