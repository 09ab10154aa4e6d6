"""Roles and verdicts of real trainings: pipelines, tensor parallel, FSDP2 and meshes of two dimensions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.role_runs import RUNS, watch

pytestmark = [pytest.mark.torch, pytest.mark.slow("four processes with torch each")]


@pytest.mark.parametrize("name", RUNS)
def test_each_rank_has_its_coordinates_and_the_planted_cause_is_named(name: str, tmp_path: Path) -> None:
    run = RUNS[name]
    found = watch(name, tmp_path, seconds=240.0, enough=20 if run.verdict else 8)
    assert found["stepped"]
    assert found["roles"] == run.roles
    if run.verdict:
        assert max(found["alerts"], key=found["alerts"].__getitem__) == run.verdict
