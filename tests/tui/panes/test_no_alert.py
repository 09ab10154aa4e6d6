"""The first line without an alert: what is known, and what cannot be judged."""

from __future__ import annotations

import re
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


ABSENT: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"power_limit_watts": None}, "a power limit", "119 W at 100 % util, SM active 1 %"),
    ({"power_watts": None}, "power", "100 % util, SM active 1 %"),
    ({"util_pct": None}, "utilization", "119 of 700 W, SM active 1 %"),
    (
        {"power_watts": None, "util_pct": None, "sm_active_pct": None, "mem_util_pct": None},
        "utilization, power, SM activity",
        "",
    ),
)
"""Values that the driver leaves out, their names, and what is known."""


@pytest.mark.parametrize(("absent", "names", "known"), ABSENT)
@pytest.mark.parametrize("ranks", [0, 2])
def test_what_a_driver_does_not_give_is_said_where_it_would_show_a_kernel_that_spins(
    absent: dict[str, Any], names: str, known: str, ranks: int
) -> None:
    """The values of a spinning thread on an H200, of which the driver leaves out some."""
    made = scene(gpus=2, ranks=2, seconds=30)[-1]
    spins = {
        "util_pct": 100.0, "power_watts": 119.0, "power_limit_watts": 700.0, "sm_active_pct": 0.8,
        "mem_util_pct": 0.0, "dram_active_pct": 0.0,
    }  # fmt: skip
    card = replace(made.gpus[1], **{**spins, **absent})
    shown = replace(made, gpus=(made.gpus[0], card), ranks=made.ranks[:ranks], alerts=())
    said = "; ".join(filter(None, [f"GPU 1 is not judged without {names}", known, "the driver gives none"]))
    assert said in first_line(shown, (250, 60))
    for size in SIZES[:3]:
        assert f"GPU 1 is not judged without {names.split(',', maxsplit=1)[0]}" in first_line(shown, size), (
            "the absent value comes first"
        )
        assert "no action needed" not in first_line(shown, size)
    works = replace(card, sm_active_pct=94.0)
    assert "the driver gives no" not in first_line(replace(shown, gpus=(made.gpus[0], works)), (250, 60)), (
        "it computes"
    )


def test_a_mig_instance_in_use_is_judged_only_by_a_training_on_it_or_by_a_full_gpu() -> None:
    """NVML gives neither power nor utilization of an instance, and its GPU draws much for the others."""
    shown = low("none", "none")
    used = next(gpu for gpu in shown.gpus if gpu.mig_parent_uuid is not None)
    half = tuple(replace(gpu, sm_active_pct=47.0) if gpu.mig_parent_uuid is None else gpu for gpu in shown.gpus)
    other = replace(shown.processes[0], gpu_uuid=used.uuid)
    line = first_line(replace(shown, gpus=half, processes=(other,)), (250, 60))
    assert "MIG instance 0:0 is not judged without utilization, power, SM activity; the driver" in line
    full = first_line(replace(shown, processes=(other,)), (250, 60))
    assert "the driver gives" not in full, (
        "94 % of the SMs are active: a spinning instance would leave a seventh idle"
    )
    trained = low("eight", "none")
    half = tuple(replace(gpu, sm_active_pct=47.0) if gpu.mig_parent_uuid is None else gpu for gpu in trained.gpus)
    assert "no action needed" in first_line(replace(trained, gpus=half, processes=()), (80, 24)), "it steps"


@pytest.mark.parametrize("size", SIZES)
def test_a_training_that_makes_no_step_is_no_calm(size: tuple[int, int]) -> None:
    made = scene(gpus=2, ranks=2, seconds=30)[-1]
    stands = [replace(rank, new_steps=(), last_step_at=made.time - 13.0) for rank in made.ranks]
    shown = replace(made, ranks=tuple(stands), alerts=())
    line = first_line(shown, size)
    assert "no step for 13 s" in line
    assert ("cause unknown" in line) is (size[0] >= 80)
    assert "no action needed" not in line
    lines = painted(viewed(shown), LOOKS["dark"], 120, 30)
    assert sum("no step for 13 s" in one for one in lines) >= 4, "both rows, the first line, the title of the step"
    assert not any(re.search(r"no step.*[0-9]k tokens/s", one) for one in lines), "a rate is of now"


@pytest.mark.parametrize("size", SIZES)
def test_without_a_training_steps_are_not_judged(size: tuple[int, int]) -> None:
    gpus = replace(scene(gpus=2, seconds=20)[-1], ranks=(), jobs=(), alerts=())
    assert "steps are not judged" in first_line(gpus, size)
    nothing = replace(scene(gpus=0, seconds=20)[-1], ranks=(), jobs=(), alerts=())
    assert "no GPU and no training to judge" in first_line(nothing, size)


def test_from_before_the_first_sample_there_is_no_duration() -> None:
    shown = replace(scene(gpus=2, seconds=20)[-1], alerts=())
    view = viewed(shown)
    view.alerts.since = shown.time + 3000.0
    line = next(line for line in painted(view, LOOKS["dark"], 120, 30) if "no alerts" in line)
    assert line.startswith(" • no alerts  → alerts of this time are known from the run's files only")


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
