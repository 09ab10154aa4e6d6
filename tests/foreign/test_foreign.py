"""Every program of `scripts`, without llmtop and with it. What is compared stands in tests/foreign/__init__.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign.compared import differences, wrongly_heard
from tests.foreign.program import Program, programs
from tests.foreign.runs import Run

ALL = programs()


def _param(program: Program) -> object:
    why = program.says("slow")
    return pytest.param(program, id=program.name, marks=[pytest.mark.slow(why=why)] if why else [])


@pytest.mark.torch
@pytest.mark.parametrize("program", [_param(program) for program in ALL])
def test_it_does_not_notice(program: Program, tmp_path: Path) -> None:
    if missing := program.missing():
        pytest.skip(f"needs {', '.join(missing)}")
    kinds = ["plain", "run", *(["hands"] if program.says("hands") else [])]
    running = {kind: Run(program, tmp_path / kind, kind) for kind in kinds}
    outcomes = {kind: run.outcome() for kind, run in running.items()}
    plain = outcomes.pop("plain")
    # So that the program itself is right, and has got to its end.
    assert plain.exit == int(program.says("exit") or 0), plain.stderr
    assert plain.digests, "digest.end() was not called"
    found = []
    for kind, outcome in outcomes.items():
        says = program.says("says", kind) if kind == "run" else None
        lines = differences(plain, outcome, says) + wrongly_heard(program, kind, outcome.heard)
        found += [f"{kind}: {line}" for line in lines]
    assert not found, "\n".join(found)


def test_there_are_many() -> None:
    assert len(ALL) >= 60
