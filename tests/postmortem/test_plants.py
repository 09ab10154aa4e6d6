"""Recorded plants: the culprit is right, and no innocent rank is named (docs/measurements.md, "postmortem")."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.postmortem.answer.decide import find_culprits
from tests.support.postmortem_faults import FAULTS, LIVE
from tests.support.postmortem_plants import truths, unpack
from tests.support.postmortem_recording import record

EXPECTED_RIGHT = 48


@pytest.mark.slow("reads 56 recorded jobs; test_decide.py has each rule alone")
def test_culprits_of_the_recorded_plants(tmp_path: Path) -> None:
    right, wrong = [], []
    for case, folder in unpack(tmp_path):
        truth = truths()[case]
        named = {one.rank for one in find_culprits([folder]).culprits}
        if named and "is_by_hand" not in truth:
            (right if named <= set(truth["ranks"]) else wrong).append(case)
    assert not wrong
    assert len(right) >= EXPECTED_RIGHT


@pytest.mark.torch
@pytest.mark.slow("a job of four gloo ranks each, up to a minute; the recorded plants have the same faults")
@pytest.mark.parametrize("name", LIVE)
def test_a_fault_that_is_planted_now(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    recording = tmp_path / "recording"
    record(name, recording)
    _check_evidence(name, recording)
    named = [one.rank for one in find_culprits([recording]).culprits]
    # gloo may abort a rank before it writes its dump: then "shape" may stay undecided, but names no innocent rank.
    assert named == [FAULTS[name].rank] or (name == "shape" and not named)


def _check_evidence(name: str, recording: Path) -> None:
    """Check that this torch records the fault as it was when the plants were recorded."""
    rank = FAULTS[name].rank
    dumps = {path.name for path in (recording / "dumps").iterdir() if path.suffix != ".json"}
    launched = (recording / "launcher.node-a.log").read_text()
    assert dumps
    if name == "subgroup":
        assert str(rank) in dumps
    elif name != "shape":  # there gloo aborts a rank that receives too much
        assert str(rank) not in dumps
    if name == "exception":
        assert f"[rank{rank}]: UnicodeDecodeError" in launched
    if name == "killed":
        assert "SIGKILL" in (recording / "launcher.node-b.log").read_text()
    if name == "gil":
        assert "active+gil" in (recording / "stacks" / f"{rank}.txt").read_text()
    if name == "shape":
        assert "Received data size doesn't match" in launched
