"""Utilization, power, memory and PCIe beside step time and state, at every size, on every kind of GPU."""

from __future__ import annotations

import re
from itertools import product

import pytest
from msgspec.structs import replace

from llmtop.model.snapshot import Gpu, Snapshot
from screenshots.scenes import scene
from tests.support import pairwise_screens
from tests.tui.paint.test_painting import LOOKS, painted, viewed
from tui.core.layout import NAMED_PHASES, arrange
from tui.paint import alert_style
from tui.panes import node_table

WIDTHS, HEIGHTS = range(60, 251), range(15, 71)
GPM = {"sm_active_pct", "tensor_active_pct", "dram_active_pct", "sm_occupancy_pct", "fp32_active_pct"}
NVLINK = {"nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s"}
PCIE = {"pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"}
KINDS: dict[str, tuple[str, set[str]]] = {
    "hopper": ("NVIDIA", set()),
    "ampere": ("NVIDIA", GPM),
    "consumer": ("NVIDIA", GPM | NVLINK),
    "amd": ("AMD", GPM | NVLINK | PCIE),
    "no limit": ("NVIDIA", GPM | NVLINK | {"power_limit_watts"}),
}


def of_kind(gpu: Gpu, kind: str) -> Gpu:
    """The GPU as the driver of another kind of GPU gives it."""
    vendor, absent = KINDS[kind]
    names = set(gpu.__struct_fields__)
    return replace(gpu, vendor=vendor, **dict.fromkeys(absent & names))


def moment(gpus: int, kind: str, *, ranks: bool, tokens: bool = True) -> Snapshot:
    """One instant of a machine."""
    made = scene(gpus=gpus, seconds=20)[-1]
    shown = tuple(
        replace(rank, tokens_per_s=rank.tokens_per_s if tokens else None, waits_seconds=0.01 * place)
        for place, rank in enumerate(made.ranks)
    )
    return replace(
        made,
        gpus=tuple(of_kind(gpu, kind) for gpu in made.gpus),
        ranks=shown if ranks else (),
        jobs=made.jobs if ranks else (),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [True, False], ids=["ranks", "no ranks"])
def test_the_columns_of_the_core_four_stay_at_every_width(kind: str, ranks: bool) -> None:
    view = viewed(moment(8, kind, ranks=ranks))
    lines = node_table.entries(view)
    for width in WIDTHS:
        frame = node_table.table(view, lines, width)
        assert frame is not None
        plan = frame.plan
        keys = {column.key for column in plan.columns}
        needed = (
            {"power", "util", "memory"} | ({"step"} if ranks else set()) | ({"pcie"} if width >= 80 else set())
        )
        assert needed <= keys, (width, needed - keys)
        assert plan.state >= node_table.LEAST_STATE, width
        strips = [cells + plan.gap for cells in (plan.strip, plan.second) if cells]
        used = 2 + sum(column.width + plan.gap for column in plan.columns) + sum(strips) + plan.state
        assert used == width, width
        for entry in lines:
            for column in plan.columns:
                text = column.text(entry, frame.context)
                assert len(text) <= column.width, (width, column.title, text)


@pytest.mark.parametrize("gpus", range(1, 17))
@pytest.mark.parametrize("trains", [True, False], ids=["trains", "no training"])
def test_the_rows_leave_room_for_the_step_its_phases_and_the_time_line(gpus: int, trains: bool) -> None:
    for height, width in product(HEIGHTS, (60, 80, 120, 160)):
        layout = arrange(width, height, lines=gpus, phases=6 * trains, trains=trains, rows=9, processes=gpus)
        shown, whole = len(layout.entries), width >= 80 and height >= 24
        assert shown + layout.hidden == gpus
        assert shown >= min(gpus, 6), (height, width)
        assert layout.steps is not None
        assert layout.timeline is not None
        if trains and whole:
            columns = 1 if width < 70 else 2
            assert layout.steps.height >= 3 + NAMED_PHASES // columns, "title, a bar, titles, phases"
        if whole:
            assert layout.timeline.height >= 4, "step, power, utilization, ruler"


def test_an_accused_gpu_without_a_row_replaces_the_last_one_and_no_other_moves() -> None:
    usual = [place for place, _ in arrange(80, 24, lines=16, phases=6, trains=True).entries]
    accused = [place for place, _ in arrange(80, 24, lines=16, phases=6, trains=True, alerting=[14]).entries]
    assert accused == [*usual[:-1], 14]


def test_the_lines_without_a_row_are_summed_up() -> None:
    made = moment(16, "hopper", ranks=True)
    alike = replace(
        made, gpus=tuple(replace(gpu, power_watts=650.0 + gpu.index, util_pct=99.0) for gpu in made.gpus)
    )
    assert any("+6 more, all within 5 %" in line for line in painted(viewed(alike), LOOKS["dark"], 80, 24))
    odd = replace(
        made,
        gpus=tuple(
            replace(gpu, power_watts=100.0 if gpu.index == 15 else 650.0, util_pct=99.0) for gpu in made.gpus
        ),
    )
    line = next(line for line in painted(viewed(odd), LOOKS["dark"], 80, 24) if " more" in line)
    assert "power 14–93 % of the limit" in line


def test_a_rank_that_has_gone_is_counted_among_the_lines_without_a_row() -> None:
    made = moment(16, "hopper", ranks=True)
    gone = replace(
        made,
        gpus=tuple(replace(gpu, power_watts=650.0 + gpu.index, util_pct=99.0) for gpu in made.gpus),
        ranks=tuple(replace(one, state="gone") if one.rank == 15 else one for one in made.ranks),
    )
    line = next(line for line in painted(viewed(gone), LOOKS["dark"], 80, 24) if " more" in line)
    assert "+6 more: 1 GONE, values within 5 %" in line


SIZES = [(60, 15), (80, 24), (100, 30), (120, 30), (160, 40), (200, 50)]
PAIRS = [
    (size, gpus, kind, ranks)
    for number, (size, gpus, kind, ranks) in enumerate(product(SIZES, (1, 2, 8, 16), KINDS, (True, False)))
    if number % 2 == (number // 10 + number // 40) % 2
]


@pytest.mark.parametrize(("size", "gpus", "kind", "ranks"), PAIRS, ids=str)
def test_the_core_four_are_read_on_the_screen(size: tuple[int, int], gpus: int, kind: str, ranks: bool) -> None:
    made = moment(gpus, kind, ranks=ranks)
    lines = painted(viewed(made), LOOKS["dark"], *size)
    width, height = size
    for gpu in made.gpus:
        line = next((line for line in lines if re.match(rf"[▸▲■ ] +{gpu.index} ", line)), None)
        if line is None:
            assert gpus > 6, "only of many has one no row"
            continue
        watts, limit = gpu.power_watts or 0.0, gpu.power_limit_watts
        share = f" {100 * watts / limit:.0f}%" if limit else ""
        assert f"{watts:.0f}W{share}" in line
        assert f"{gpu.util_pct:.0f}%" in line.replace(f"W{share}", "", 1)
        assert f"{(gpu.mem_used_bytes or 0) / 2**30:.0f}/" in line
        if width >= 80:
            given = gpu.pcie_rx_bytes_per_s is not None
            assert bool(re.search(r" [\d.]+[KMG]?/[\d.]+[KMG]? ", line[20:])) or not given
    text = "\n".join(lines)
    if ranks:
        known = [name for name in ("dataload", "h2d", "forward", "backward", "optimizer") if name in text]
        assert len(known) >= (NAMED_PHASES if width >= 80 and height >= 24 else 1)
        heads = [place for place, line in enumerate(lines) if line.startswith(" phase") and "host share" in line]
        assert all(re.match(r" [a-z·] \w", lines[place + 1]) for place in heads), "no header without rows"


@pytest.mark.slow(
    "two parts of six, each of five screens",
    kept=(
        "2",
        "4",
    ),
)
@pytest.mark.parametrize("part", range(6))
def test_of_the_pairwise_screens_none_has_what_a_reader_stumbles_over(part: int) -> None:
    """Of the 120 screens that `tests.support.pairwise_screens` draws, every twenty-fourth for each part."""
    for number, case in list(enumerate(pairwise_screens.cases(), 1))[part::24]:
        moments = pairwise_screens.moments(case.gpus, case.ranks, case.alert, case.kind)
        look = {"mono": "mono", "ascii": "ascii", "16 colors": "16 colors"}.get(case.look, "dark")
        lines = painted(viewed(*moments), LOOKS[look], *case.size)
        where = f"{number}: {case}"
        processes = next((y for y, line in enumerate(lines) if line[2:].startswith(" processes ")), len(lines))
        assert not [line for line in lines[1:processes] if "…" in line], where
        heads = [y for y, line in enumerate(lines) if line.startswith(" phase") and "host share" in line]
        assert all(re.match(r" [a-z·-] \w", lines[y + 1]) for y in heads), where
        ruler = next(line.rstrip() for line in reversed(lines) if line.rstrip().endswith("now"))
        assert re.search(r"-\d+(s|m)", ruler), f"{where}: a ruler without a number"
        if case.gpus and case.size >= (80, 24):
            assert any(re.match(r" (GPU\d+ )?power ", line) for line in lines), where
        for alert in moments[-1].alerts:
            marked = [line for line in lines if line[:1] in "■▲#!" and alert_style.alert_word(alert) in line]
            assert all("CRIT" in line or "WARN" in line for line in marked), where
