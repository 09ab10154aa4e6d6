"""What is painted, over all sizes and looks: rows of the asked size, odd input made harmless, alerts in words."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from llmtop.model.jobs import job_totals
from llmtop.model.snapshot import Alert, Gpu, Host, Phase, Process, Rank, Snapshot, Step
from screenshots.scenes import scene
from tests.support.examples import EXAMPLES
from tui.app import LlmtopApp
from tui.core.columns import ColumnContext
from tui.paint.charts import area, braille, nice_limit, spark, split
from tui.paint.palette import TERMINAL_THEME, THEMES, Palette
from tui.paint.rows import CellTheme, Row, clip, pad
from tui.panes import gpu_charts, process_table
from tui.screens.main import MainScreen
from tui.state.history import key_of
from tui.state.view import View

_BY_NAME = {theme.name: theme for theme in THEMES}
LOOKS = {
    "dark": CellTheme.for_palette(Palette.build(_BY_NAME["llmtop-dark"], "full"), ascii_only=False),
    "16 colors": CellTheme.for_palette(Palette.build(_BY_NAME[TERMINAL_THEME], "16"), ascii_only=False),
    "mono": CellTheme.for_palette(Palette.build(_BY_NAME[TERMINAL_THEME], "mono"), ascii_only=False),
    "ascii": CellTheme.for_palette(Palette.build(_BY_NAME[TERMINAL_THEME], "mono"), ascii_only=True),
}

QUICK = (Stage.explicit, Stage.reuse, Stage.generate)
"""Without shrinking: a snapshot is large, and its smallest form takes minutes to find."""

numbers = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 1e12)
names = st.text(max_size=30) | st.sampled_from(
    [
        "[red]x[/red]",
        "\x1b[2J\x1b]0;x\x07",
        "学習スクリプト",
        "👩‍🚀 rocket",
        "a" * 200,
        "",
        "\u202eevil",
        "tab\tand\nline",
    ]
)


@st.composite
def gpus(draw: st.DrawFn, index: int) -> Gpu:
    fields: dict[str, Any] = {
        f"{name}": draw(numbers)
        for name in (
            "util_pct",
            "power_watts",
            "power_limit_watts",
            "temperature_c",
            "sm_clock_mhz",
            "sm_clock_max_mhz",
            "sm_active_pct",
            "dram_active_pct",
            "pcie_rx_bytes_per_s",
            "nvlink_rx_bytes_per_s",
        )
    }
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        name=draw(names),
        mem_used_bytes=draw(st.none() | st.integers(0, 2**45)),
        mem_total_bytes=draw(st.none() | st.integers(0, 2**45)),
        error=draw(st.none() | names),
        clock_event_reasons=draw(st.none() | st.tuples(names)),
        **fields,
    )


@st.composite
def ranks(draw: st.DrawFn, index: int) -> Rank:
    seconds = draw(st.none() | st.floats(0, 1e4))
    phases = tuple(
        Phase(
            name=draw(names), host_seconds=draw(st.floats(0, 1e3)), gpu_seconds=draw(st.none() | st.floats(0, 1e3))
        )
        for _ in range(draw(st.integers(0, 12)))
    )
    return Rank(
        pid=1000 + index,
        host=draw(names),
        rank=draw(st.none() | st.just(index)),
        job=draw(names | st.sampled_from(["train.py · :29500", "train.py · run nightly-7"])),
        world_size=draw(st.none() | st.integers(0, 10**6)),
        overhead_seconds=draw(numbers),
        gpu_uuid=draw(st.none() | st.just(f"GPU-{index}")),
        command=draw(st.none() | names),
        step=draw(st.none() | st.integers(0, 10**12)),
        step_seconds=seconds,
        step_seconds_p50=seconds,
        tokens_per_s=draw(numbers),
        total_steps=draw(st.none() | st.integers(0, 10**12)),
        eta_seconds=draw(numbers),
        phases=phases,
        gpu_busy_pct=draw(numbers),
        gpu_busy_source=draw(st.none() | st.sampled_from(["events", "util", "sm", "from a newer version"])),
        gpu_busy_bound=draw(st.booleans()),
        metrics=draw(st.dictionaries(names, numbers, max_size=20)),
        state=draw(st.sampled_from(["running", "paused", "stopped", "stalled", "gone"])),
        lost=draw(st.integers(0, 10**9)),
        new_steps=tuple(Step(index=i, started_at=0.0, seconds=seconds or 0.1) for i in range(3)),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    shown = [draw(gpus(i)) for i in range(draw(st.integers(0, 4)))]
    attached = [draw(ranks(i)) for i in range(draw(st.integers(0, 4)))]
    alerts = tuple(
        Alert(
            id=draw(st.sampled_from(["low_power_full_util", "straggler", "something_new"])),
            severity=draw(st.sampled_from(["info", "warning", "critical"])),
            gpu=draw(st.none() | st.sampled_from([gpu.uuid for gpu in shown] or ["GPU-9"])),
            pid=draw(st.none() | st.integers(1000, 1005)),
            since=draw(st.floats(0, 2e9)),
            summary=draw(names),
            next=draw(names),
        )
        for _ in range(draw(st.integers(0, 4)))
    )
    return Snapshot(
        time=1e9,
        host=Host(
            name=draw(names),
            user=draw(st.none() | names),
            cpu_pct=draw(numbers),
            notes=tuple(draw(st.lists(names, max_size=2))),
        ),
        gpus=tuple(shown),
        ranks=tuple(attached),
        jobs=job_totals(attached),
        processes=tuple(
            Process(
                pid=1000 + i, user=draw(names), command=draw(names), gpu_uuid=f"GPU-{i}", started_at=draw(numbers)
            )
            for i in range(draw(st.integers(0, 4)))
        ),
        alerts=alerts,
    )


class _Screen(MainScreen):
    """The main screen without an app."""

    def __init__(self, view: View, look: CellTheme) -> None:
        super().__init__()
        self._view, self._look = view, look

    @property
    def view(self) -> View:
        return self._view

    @property
    def cell_theme(self) -> CellTheme:
        return self._look

    def paint_footer(self, width: int) -> Row:
        return Row(width).end(self._look.palette.text)


def viewed(*moments: Snapshot, **fields: Any) -> View:
    view = View(snapshot=moments[-1], **fields)
    for moment in moments:
        view.history.add(moment)
    return view


def painted(view: View, look: CellTheme, width: int, height: int) -> list[str]:
    """The screen's lines as text; raises where a part has another size than its place."""
    lines = [[" "] * width for _ in range(height)]
    for rect, rows in _Screen(view, look).parts(width, height):
        assert len(rows) == rect.height, rect
        for number, row in enumerate(rows):
            text = row.strip(ascii_only=look.glyphs.ascii).text
            assert cell_len(text) == rect.width == row.used, (rect, text)
            lines[rect.y + number][rect.x : rect.x + rect.width] = list(text)
    return ["".join(line) for line in lines]


@pytest.mark.slow(
    "a theme with and one without colours and Unicode",
    kept=(
        "dark",
        "ascii",
    ),
)
@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@settings(max_examples=EXAMPLES, deadline=None, phases=QUICK, suppress_health_check=[HealthCheck.too_slow])
@given(moment=snapshots(), width=st.integers(1, 250), height=st.integers(1, 70))
def test_any_snapshot_is_painted_at_any_size_in_exactly_its_place(
    look: CellTheme, moment: Snapshot, width: int, height: int
) -> None:
    lines = painted(viewed(moment, moment), look, width, height)
    text = "".join(lines)
    assert not [char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")]
    if look.glyphs.ascii:
        assert text.isascii()


@settings(max_examples=EXAMPLES, deadline=None, phases=QUICK, suppress_health_check=[HealthCheck.too_slow])
@given(moment=snapshots(), width=st.integers(20, 200), column=st.integers(0, len(process_table.COLUMNS) - 1))
def test_processes_with_odd_names_keep_to_their_line(moment: Snapshot, width: int, column: int) -> None:
    look = LOOKS["dark"]
    columns = process_table.plan(width, column)
    for process in process_table.rows_of(moment, column, reverse=True, wanted=""):
        row = process_table.line(process, columns, ColumnContext({}, moment.time), width, look, chosen=False)
        assert row.used == width


@settings(max_examples=EXAMPLES, deadline=None, phases=QUICK, suppress_health_check=[HealthCheck.too_slow])
@given(moment=snapshots().filter(lambda s: s.gpus), width=st.integers(12, 120), height=st.integers(2, 20))
def test_large_charts_keep_to_their_place(moment: Snapshot, width: int, height: int) -> None:
    from tui.core.layout import Rect

    view = viewed(moment, moment)
    for marker in ("braille", "blocks"):
        for metric in gpu_charts.shown_metrics(moment.gpus[0]):
            rows = gpu_charts.paint(metric, moment.gpus[0], view, Rect(0, 0, width, height), LOOKS["dark"], marker)  # type: ignore[arg-type]
            assert [row.used for row in rows] == [width] * height


@pytest.mark.slow(
    "each size once and each theme once",
    kept=(
        "size0-dark",
        "size1-ascii",
        "size2-mono",
        "size3-16 colors",
        "size4-ascii",
        "size5-dark",
    ),
)
@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 30), (200, 50), (200, 24), (100, 60)])
def test_the_gpu_with_the_alert_differs_in_text_from_its_neighbours(
    look: CellTheme, size: tuple[int, int]
) -> None:
    moments = scene(gpus=8, spinning=(3,))
    lines = painted(viewed(*moments), look, *size)
    mark = look.glyphs.critical
    worded = [line for line in lines if "LOW POWER" in line]
    assert len(worded) >= 2, "once in the strip and once at the GPU"
    marked = [
        number for number in range(8) if any(re.match(rf"{re.escape(mark)} +{number} ", line) for line in lines)
    ]
    assert marked == [3]
    assert any("1m 14s" in line for line in lines)


def test_a_healthy_gpu_at_100_percent_has_no_style_of_alarm() -> None:
    moments = scene(gpus=2)
    moments[-1] = replace(moments[-1], gpus=tuple(replace(gpu, util_pct=100.0) for gpu in moments[-1].gpus))
    look = LOOKS["dark"]
    palette = look.palette
    alarm = {palette.critical, palette.critical_badge, palette.warning, palette.warning_badge}
    used = {
        segment.style
        for _, rows in _Screen(viewed(*moments), look).parts(120, 30)
        for row in rows
        for segment in row.segments
    }
    assert not used & alarm


def test_an_absent_value_is_a_dash_and_never_a_zero() -> None:
    moment = Snapshot(time=1.0, host=Host(name="node"), gpus=(Gpu(index=0, uuid="GPU-0", name="NVIDIA H200"),))
    titles, line = painted(viewed(moment), LOOKS["dark"], 200, 30)[4:6]
    assert titles.split()[:2] == ["▴GPU", "power"]
    shown = line.replace("no process", "").split()
    assert shown[0] == "0"
    assert len(shown) >= 6
    assert set(shown[1:]) == {"–"}


@pytest.mark.parametrize(("watts", "limit"), [(300.0, 1e-307), (math.inf, 700.0), (math.nan, 700.0)])
def test_a_power_beyond_all_bounds_is_no_number(watts: float, limit: float) -> None:
    given = replace(scene(gpus=16, seconds=2)[-1], ranks=())
    odd = tuple(replace(one, power_watts=watts, power_limit_watts=limit) for one in given.gpus)
    for height in (15, 24, 40):
        text = "\n".join(painted(viewed(replace(given, gpus=odd)), LOOKS["dark"], 100, height))
        assert not re.search(r"\b(inf|nan)", text)


@pytest.mark.parametrize(("kind", "label", "most"), [("step", "step", 2.0), ("request", "latency", 0.5)])
def test_the_chart_says_whether_it_draws_intervals_or_latencies(kind: str, label: str, most: float) -> None:
    steps = (
        Step(index=0, started_at=1.0, seconds=0.5, kind=kind),
        Step(index=1, started_at=3.0, seconds=0.25, interval_seconds=2.0, kind=kind),
    )
    served = Rank(pid=9, host="node", kind=kind, step=1, step_seconds=0.25, new_steps=steps, state="running")
    view = viewed(Snapshot(time=4.0, host=Host(name="node"), ranks=(served,)))
    assert view.history.heights_from_zero((key_of(served), "step"), 40).most == pytest.approx(most)
    text = "\n".join(painted(view, LOOKS["dark"], 80, 24))
    assert f"\n {label} " in text


def test_without_a_gpu_the_note_and_the_way_to_attach_are_said() -> None:
    note = "No NVIDIA driver: libnvidia-ml.so.1 was not found."
    text = "\n".join(painted(viewed(*scene(gpus=0, ranks=0, seconds=2, notes=(note,))), LOOKS["dark"], 80, 24))
    assert note in text
    assert "import llmtop" in text
    assert "llmtop run -- python train.py" in text
    assert "llmtop doctor" in text


def test_ranks_that_stopped_or_lost_steps_say_so() -> None:
    moment = scene(gpus=2, seconds=2)[-1]
    first, second = moment.ranks
    odd = replace(moment, ranks=(replace(first, state="stopped"), replace(second, lost=12)))
    text = "\n".join(painted(viewed(odd), LOOKS["mono"], 120, 40))
    assert "STOPPED" in text
    assert re.search("12 (steps )?not received", text)


@given(st.lists(st.floats(0, 100), max_size=300), st.integers(1, 80), st.integers(1, 6))
def test_charts_are_as_wide_and_high_as_asked(values: list[float], width: int, height: int) -> None:
    glyphs = LOOKS["dark"].glyphs
    spreads = [(value, value / 2, value * 2) for value in values]
    for lines in (area(values, width, height, 100.0, glyphs), braille(spreads, width, height, 100.0)):
        assert [len(line) for line in lines] == [width] * height


def test_a_line_chart_has_a_stroke_where_a_sample_has_an_extreme() -> None:
    flat, spike = (10.0, 10.0, 10.0), (10.0, 10.0, 90.0)
    low, high = braille([flat] * 8, 4, 4, 100.0), braille([flat, flat, spike, flat] * 2, 4, 4, 100.0)
    assert low[0] == "⠀" * 4, "nothing above"
    assert [cell != "⠀" for cell in high[0]] == [False, True, False, True]


def test_the_axis_is_fixed_so_that_a_flat_99_is_flat() -> None:
    glyphs = LOOKS["dark"].glyphs
    wobble = [99.0, 98.0, 97.5, 99.5]
    assert set(area(wobble, 4, 1, 100.0, glyphs)[0]) == {"█"}
    assert spark([1, 1, 0, 8], 5, glyphs) == " ▁▁ █"
    assert area([0.0, math.nan, 50.0], 3, 2, 100.0, glyphs) == ["  ▁", "▁ █"]


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=12), st.integers(0, 200))
def test_a_proportional_bar_is_never_longer_than_its_place(parts: list[float], width: int) -> None:
    total = sum(parts)
    cells = split(parts, total, width)
    assert sum(cells) <= width
    if total > 1e-6:
        assert all(abs(cell - part / total * width) <= 1 for cell, part in zip(cells, parts, strict=True))


@given(st.floats(1e-6, 1e9))
def test_a_nice_limit_lies_above_by_less_than_half(value: float) -> None:
    assert value <= nice_limit(value) * (1 + 1e-9)
    assert nice_limit(value) <= 2 * value * (1 + 1e-9)


@given(names, st.integers(0, 40))
def test_text_is_cut_to_cells_not_characters(text: str, width: int) -> None:
    from llmtop.format import printable

    clean = printable(text)
    assert cell_len(clip(clean, width)) <= width
    assert cell_len(pad(clean, width)) == width


async def test_styles_are_built_once_a_theme() -> None:
    from screenshots.draw import StaticFeed

    app = LlmtopApp(StaticFeed(scene(gpus=1, seconds=3)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        before = app.cell_theme
        app.redraw()
        assert app.cell_theme is before
