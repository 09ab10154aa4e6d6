"""Every program of `scripts`, without llmtop and with it. What is compared stands in tests/foreign/__init__.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign.__main__ import found_in
from tests.foreign.program import Program, programs
from tests.foreign.runs import LIMIT_S
from tests.support import machine

ALL = programs()


def _param(program: Program) -> object:
    why = program.says("slow")
    return pytest.param(program, id=program.name, marks=[pytest.mark.slow(why)] if why else [])


@pytest.mark.slow("one program stands for all; each runs twice", kept=("numpy_only",))
@pytest.mark.torch
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("program", [_param(program) for program in ALL])
def test_it_does_not_notice(program: Program, tmp_path: Path) -> None:
    if missing := program.missing():
        if program.says("by_hand"):
            machine.cannot(f"needs {', '.join(missing)}, installed by hand: {program.says('by_hand')}")
        pytest.skip(f"needs {', '.join(missing)}")
    found = found_in(program, tmp_path)
    assert not found, "\n".join(found)


def test_there_are_many() -> None:
    assert len(ALL) >= 60
