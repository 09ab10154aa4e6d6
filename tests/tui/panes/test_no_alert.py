"""The first line without an alert: what is known, and what cannot be judged."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmtop.model.snapshot import Snapshot
from screenshots.scenes import scene
from tests.support.pairwise_screens import Case, moments
from tests.tui.paint.test_painting import LOOKS, painted, viewed

SIZES = [(60, 15), (80, 24), (120, 30), (250, 60)]


def first_line(shown: Snapshot, size: tuple[int, int], **fields: Any) -> str:
    """The line that says that there is no alert."""
    view = viewed(shown, **fields)
    view.alerts.since = shown.time - 89.0
    return next(line for line in painted(view, LOOKS["dark"], *size) if "no alerts" in line)


def low(ranks: str, alert: str = "critical") -> Snapshot:
    """Two GPUs in MIG mode, the second of which draws 119 of 700 W, as the rules leave them."""
    return moments(2, ranks, alert, "MIG")[-1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ranks", ["none", "eight"])
def test_low_power_of_a_gpu_in_mig_mode_is_known_and_not_judged(size: tuple[int, int], ranks: str) -> None:
    shown = low(ranks)
    parent = next(gpu for gpu in shown.gpus if gpu.index == 1 and gpu.mig_parent_uuid is None)
    assert parent.util_pct is None
    line = first_line(shown, size)
    assert f"not judged: {parent.power_watts:.0f} of {parent.power_limit_watts:.0f} W on MIG GPU 1" in line
    assert "no action needed" not in line
    assert ("the driver gives no utilization in MIG mode" in line) is (size[0] >= 250)


def test_a_gpu_in_mig_mode_without_a_user_or_with_much_power_is_no_matter() -> None:
    assert "no action needed" in first_line(low("eight", "none"), (80, 24))
    idle = replace(low("none"), processes=())
    assert "not judged:" not in first_line(idle, (80, 24))
    assert "steps are not judged" in first_line(idle, (80, 24))


@pytest.mark.parametrize("size", SIZES)
def test_without_a_training_steps_are_not_judged(size: tuple[int, int]) -> None:
    gpus = replace(scene(gpus=2, seconds=20)[-1], ranks=(), jobs=(), alerts=())
    assert "steps are not judged" in first_line(gpus, size)
    nothing = replace(scene(gpus=0, seconds=20)[-1], ranks=(), jobs=(), alerts=())
    assert "no GPU and no training to judge" in first_line(nothing, size)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_note_ends_where_a_clause_does(width: int) -> None:
    note = (
        "no driver found (libnvidia-ml.so.1), so no GPU is shown (in a container, start it with --gpus all); "
        "see below"
    )
    made = scene(gpus=0, ranks=1, seconds=20)[-1]
    shown = replace(made, host=replace(made.host, notes=(note,)))
    line = next(line for line in painted(viewed(shown), LOOKS["dark"], width, 30) if "no driver found" in line)
    said = line.strip(" •")
    assert "…" not in said
    assert note.startswith(said)
    assert note[len(said) :][:2] in ("", ", ", " (", "; ")


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_box_without_gpus_has_no_empty_row(width: int) -> None:
    case = Case((width, 40), 0, "none", "none", "llmtop-dark", "H100")
    lines = painted(viewed(*moments(case.gpus, case.ranks, case.alert, case.kind)), LOOKS["dark"], *case.size)
    top = next(y for y, line in enumerate(lines) if line.startswith("╭─ GPUs"))
    end = next(y for y, line in enumerate(lines[top:], top) if line.startswith("╰"))
    assert [line for line in lines[top + 1 : end] if not line.strip(" │")] == []


@pytest.mark.parametrize(("width", "columns"), [(80, 2), (120, 2), (160, 2), (170, 3), (250, 3)])
def test_the_phases_of_a_step_use_the_width(width: int, columns: int) -> None:
    lines = painted(viewed(*scene(gpus=2, seconds=30)), LOOKS["dark"], width, 50)
    head = next(line for line in lines if line.startswith(" phase") and "host share" in line)
    assert head.count("host share") == columns


def test_a_second_rank_on_a_mig_instance_shares_that_and_not_the_gpu() -> None:
    lines = painted(viewed(*moments(2, "eight", "none", "MIG")), LOOKS["dark"], 120, 50)
    assert sum("same instance" in line for line in lines) == 6, "eight ranks on two instances"
    assert not any("the same GPU" in line for line in lines)
