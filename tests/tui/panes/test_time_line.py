"""The time line: whose GPU its rows are of, and the scale of each chart."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from llmtop.model.jobs import job_totals
from llmtop.model.snapshot import Alert, Snapshot
from screenshots.scenes import scene, uuid
from tests.tui.paint.test_painting import LOOKS, viewed
from tui.core import keys
from tui.panes import time_line

LOOK = LOOKS["dark"]
SCALE = re.compile(r"\d\S*–\d\S*( \S+)?$|constant$|\d\S*↑\S+( \S+)?$|\d\S*( \S+)?$")


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
    assert memory.rstrip().endswith(f"{(gpu.mem_total_bytes or 0) / 2**30:.0f} GiB")
    (disk,) = (row for row in rows if row.startswith(" disk r "))
    assert disk.split()[2] == f"{(moments[-1].host.disk_read_bytes_per_s or 0) / 1e6:.0f}M"


def machine(*disk_bytes_per_s: float) -> list[Snapshot]:
    """A training beside a disk that reads so much in each second."""
    moments = scene(gpus=0, ranks=1, seconds=len(disk_bytes_per_s))
    return [
        replace(moment, host=replace(moment.host, disk_read_bytes_per_s=rate))
        for moment, rate in zip(moments, disk_bytes_per_s, strict=True)
    ]


def disk_scale(*disk_bytes_per_s: float) -> str:
    (row,) = (row for row in charts(machine(*disk_bytes_per_s), 120, 30) if row.startswith(" disk r "))
    return row.rstrip().rpartition("  ")[2].rpartition("█ ")[2].strip()


def test_a_burst_on_a_disk_that_is_idle_is_not_clipped_to_an_axis_of_one_byte() -> None:
    assert disk_scale(*[0.0] * 40, *[65e6] * 3, *[0.0] * 17) == "80.0 MB/s"


def test_the_axis_shows_what_is_there_most_of_the_time_and_clips_what_is_rare() -> None:
    assert "↑" not in disk_scale(*[1e6, 100e6] * 30)
    assert "↑" in disk_scale(*[1e6] * 58, 100e6, 1e6)


def test_a_rate_that_is_always_zero_has_no_axis() -> None:
    assert disk_scale(*[0.0] * 60) == "constant"


def test_both_ends_of_a_logged_value_s_axis_are_there() -> None:
    moments = scene(gpus=0, ranks=1, seconds=60)
    moments = [
        replace(
            one, ranks=tuple(replace(rank, metrics={"loss": 0.009091 + 0.04 * (place < 9)}) for rank in one.ranks)
        )
        for place, one in enumerate(moments)
    ]
    (row,) = (row for row in charts(moments, 80, 18) if row.startswith(" loss "))
    assert row.split()[-1] == "0.009–0.049"


def test_the_tokens_of_a_job_are_told_from_those_of_the_rank_above_them() -> None:
    moments = []
    for one in scene(gpus=2, seconds=30):
        ranks = tuple(replace(rank, job="run") for rank in one.ranks)
        moments.append(replace(one, ranks=ranks, jobs=job_totals(ranks)))
    view = viewed(*moments)
    rows = [row.strip(ascii_only=False).text for row in time_line.paint(view, 120, 18, LOOK)]
    assert any(row.startswith(" job tok/s ") for row in rows)
    assert not any(row.startswith(" tok/s ") for row in rows)


@pytest.mark.parametrize(("width", "unit"), [(80, "80.0 MB/s"), (200, "80.0 MB/s"), (60, "80.0M")])
def test_the_scale_of_a_rate_has_its_unit_where_there_is_room(width: int, unit: str) -> None:
    moments = machine(*[60e6] * 60)
    row = next(row for row in charts(moments, width, 18) if row.startswith((" disk r ", " read ")))
    assert row.rstrip().endswith(unit)


def test_power_without_a_limit_is_drawn_in_watts() -> None:
    moments = [
        replace(
            one,
            gpus=tuple(
                replace(gpu, power_limit_watts=None, power_watts=90.0 if place >= 20 and gpu.index == 1 else 350.0)
                for gpu in one.gpus
            ),
        )
        for place, one in enumerate(scene(gpus=2, seconds=60))
    ]
    view = viewed(*moments)
    view.selected = uuid(1)
    rows = [row.strip(ascii_only=False).text for row in time_line.paint(view, 80, 9, LOOK)]
    (row,) = (row for row in rows if row.startswith(" GPU1 power"))
    assert " 90 W " in row
    assert row.rstrip().endswith(" W")
    levels = [" ▁▂▃▄▅▆▇█".index(cell) for cell in row[17:68].strip()]
    assert levels[0] >= 3 * levels[-1] > 0


def alerted(since: float, until: float, seconds: int = 120) -> list[Snapshot]:
    """A training of so many seconds, with one alert from one second to another."""
    moments = scene(gpus=1, ranks=1, seconds=seconds)
    begin = moments[0].time
    alert = Alert(
        id="launch_bound", severity="warning", summary="x", since=begin + since, pid=moments[0].ranks[0].pid
    )
    return [
        replace(one, alerts=(alert,) if since <= one.time - begin <= until else (), jobs=job_totals(one.ranks))
        for one in moments
    ]


@pytest.mark.parametrize(
    ("since", "until", "place"), [(40.0, 44.0, "after"), (116.0, 200.0, "before"), (20.0, 100.0, "in it")]
)
def test_the_line_of_an_alert_has_its_name_in_it_or_beside_it(since: float, until: float, place: str) -> None:
    rows = [
        row.strip(ascii_only=False).text for row in time_line.paint(viewed(*alerted(since, until)), 80, 12, LOOK)
    ]
    (row,) = (row for row in rows if "▲" in row)
    name, sign, end = row.index("LAUNCH-BOUND"), row.index("▲"), row.rindex("━")
    assert {"after": end < name, "before": name < sign, "in it": sign < name < end}[place]


@pytest.mark.parametrize(("width", "seconds"), [(80, 70), (120, 100), (200, 200), (120, 299)])
def test_the_bars_of_phases_stand_where_the_steps_were(width: int, seconds: int) -> None:
    view = viewed(*scene(gpus=1, ranks=1, seconds=seconds))
    view.history.span = 300.0
    rows = [row.strip(ascii_only=False).text for row in time_line.paint(view, width, 12, LOOK)]
    label, room = time_line.LABEL + 1, width - time_line.LABEL - 1 - 12
    (phases,) = (row[label:] for row in rows if row.startswith(" phases"))
    first = label + len(phases) - len(phases.lstrip())
    begins = label + room * (1 - (seconds - 1) / 300.0)
    assert begins - 1 <= first <= begins + 1.5, "cells"
    assert len(phases.rstrip()) >= room - 2, "they go on to now"


def test_while_rewound_the_title_names_the_key_that_returns() -> None:
    moments = scene(gpus=0, ranks=1, seconds=120)
    view = viewed(*moments)
    view.history.instant = moments[60].time
    title = time_line.paint(view, 80, 12, LOOK)[0].strip(ascii_only=False).text
    (back,) = (key for key in keys.for_screen(keys.MAIN) if key.action == "last")
    assert f" {back.shown} now " in title


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_label_of_a_chart_is_cut(width: int) -> None:
    logged = tuple(f" {name[:4]}" for name in scene(gpus=0, ranks=1, seconds=2)[-1].ranks[0].metrics)
    rows = charts(scene(gpus=0, ranks=1, seconds=60), width, 24)
    assert [row for row in rows if "…" in row and not row.startswith(logged)] == []


def test_a_figure_whose_history_has_no_room_has_no_row() -> None:
    moments = scene(gpus=16, seconds=60)
    view = viewed(*moments)
    view.selected = uuid(5)
    rows = [row.strip(ascii_only=False).text for row in time_line.paint(view, 200, 40, LOOK)]
    labelled = [row for row in rows[1:-1] if row[1:].strip() and row[1] != " "]
    assert any(row.startswith(" GPU5 util") for row in labelled)
    assert [row for row in labelled if not row[time_line.LABEL + 1 :].strip() and " alerts" not in row] == []
    of_gpus = {(gpu.uuid, key) for gpu in moments[-1].gpus for key in ("pcie_tx", "nvlink_rx")}
    assert any(map(view.history.is_left_out, of_gpus)), "16 GPUs have more figures than there is room for"


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_bars_of_phases_end_where_the_last_step_did(width: int) -> None:
    made = [replace(one, alerts=()) for one in scene(gpus=2, seconds=80)]
    ended = made[60].time
    shown = [
        one
        if one.time <= ended
        else replace(one, ranks=tuple(replace(rank, new_steps=(), last_step_at=ended) for rank in one.ranks))
        for one in made
    ]
    view = viewed(*shown)
    view.history.span = 120.0
    rows = [row.strip(ascii_only=False).text for row in time_line.paint(view, width, 14, LOOK)]
    (phases,) = (row for row in rows if row.startswith(" phases"))
    label = time_line.LABEL + 1
    room = width - label - 12
    last = room * (1 - (shown[-1].time - ended) / 120.0)
    assert len(phases.rstrip()) - label <= last + 1, "no step ended in the last 19 s"
    assert len(phases.rstrip()) - label >= last - 0.1 * room, "the bars go on to the last step"
