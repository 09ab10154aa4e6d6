"""The time line: whose GPU its rows are of, and the scale of each chart."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from llmtop.model.snapshot import Snapshot
from screenshots.scenes import scene, uuid
from tests.tui.paint.test_painting import LOOKS, viewed
from tui.panes import time_line

LOOK = LOOKS["dark"]
SCALE = re.compile(r"\d\S*–\d\S*$|constant$|\d\S*↑\S+$|\d\S*$")


def charts(moments: list[Snapshot], width: int, height: int) -> list[str]:
    """The rows of charts, without the title, bars of phases, alerts and the ruler."""
    rows = [row.strip(ascii_only=False).text for row in time_line.paint(viewed(*moments), width, height, LOOK)]
    return [row for row in rows[1:-1] if not row.startswith((" phases", " alerts")) and row.strip()]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_every_chart_has_a_scale(width: int) -> None:
    rows = charts(scene(gpus=2, seconds=150), width, 18)
    assert len(rows) >= 10
    assert [row for row in rows if not SCALE.search(row.rstrip())] == []


def test_a_logged_value_that_does_not_change_is_constant() -> None:
    rows = charts(scene(gpus=2, seconds=150), 120, 18)
    (rate,) = (row for row in rows if row.startswith(" lr "))
    assert rate.rstrip().endswith(" constant")


def healthy_but(index: int) -> list[Snapshot]:
    """Eight GPUs, of which one spins at full utilization and little power; no alert says so."""
    return [replace(moment, alerts=()) for moment in scene(gpus=8, spinning=(index,), seconds=150)]


def test_without_a_choice_the_rows_are_of_the_gpu_that_draws_clearly_least() -> None:
    assert any(row.startswith(" GPU5 power") for row in charts(healthy_but(5), 80, 8))
    assert any(row.startswith(" GPU0 power") for row in charts(scene(gpus=8, seconds=150), 80, 8))


def test_a_selected_gpu_goes_before_an_accused_one() -> None:
    view = viewed(*scene(gpus=8, spinning=(5,), seconds=150))
    shown = time_line.shown_gpu(view, view.rank())
    assert shown is not None
    assert shown.uuid == uuid(5)
    view.selected = uuid(2)
    shown = time_line.shown_gpu(view, view.rank())
    assert shown is not None
    assert shown.uuid == uuid(2)


def test_memory_is_in_binary_units_as_in_the_table_and_rates_in_decimal_ones() -> None:
    moments = scene(gpus=1, seconds=30)
    gpu = moments[-1].gpus[0]
    rows = charts(moments, 120, 30)
    (memory,) = (row for row in rows if row.startswith(" mem "))
    assert memory.split()[1] == f"{(gpu.mem_used_bytes or 0) / 2**30:.0f}G"
    assert memory.rstrip().endswith(f"{(gpu.mem_total_bytes or 0) / 2**30:.0f}G")
    (disk,) = (row for row in rows if row.startswith(" disk r "))
    assert disk.split()[2] == f"{(moments[-1].host.disk_read_bytes_per_s or 0) / 1e6:.0f}M"
