"""Tables are sorted by a click on a title and by a key; the title shows it; the usual order comes back."""

from __future__ import annotations

import re

from msgspec.structs import replace
from textual.pilot import Pilot

from collectors.prometheus.cluster_view import ClusterView, GpuCell, Node
from llmtop.model.snapshot import Snapshot
from screenshots.scenes import low_power, scene
from tests.tui.driving import Held, reply, running, text
from tui.app import LlmtopApp
from tui.cluster import paint
from tui.cluster.state import ClusterState
from tui.core.columns import sorted_by, title_cells
from tui.paint.palette import THEMES, Palette
from tui.paint.rows import CellTheme


def machine(count: int = 4) -> Snapshot:
    """GPUs whose power falls and whose steps grow with their number."""
    made = scene(gpus=count, seconds=3)[-1]
    return replace(
        made,
        gpus=tuple(replace(gpu, power_watts=690.0 - 20 * gpu.index, util_pct=99.0) for gpu in made.gpus),
        ranks=tuple(
            replace(rank, step_seconds=0.1 + place / 10, step_seconds_p50=0.1 + place / 10)
            for place, rank in enumerate(made.ranks)
        ),
    )


def gpus_shown(app: LlmtopApp) -> list[str]:
    """The numbers in the column of the GPUs, from the top."""
    lines = text(app).splitlines()
    titles = next(place for place, line in enumerate(lines) if "GPU" in line and "state" in line)
    rows = lines[titles + 1 : titles + 1 + len(app.view.gpus())]
    return [row.lstrip("▸■▲ ").split()[0] for row in rows]


async def click_title(app: LlmtopApp, pilot: Pilot[int], title: str) -> None:
    lines = text(app).splitlines()
    y = next(place for place, line in enumerate(lines) if "GPU" in line and "state" in line)
    await pilot.click(offset=(lines[y].index(title) + len(title) - 1, y))
    await pilot.pause()


async def test_a_click_on_a_title_of_the_main_table_sorts_it_and_again_the_other_way() -> None:
    async with running(Held(machine()), (120, 30)) as (app, pilot):
        assert "▴GPU" in text(app), "the order of the driver"
        assert gpus_shown(app) == ["0", "1", "2", "3"]
        await click_title(app, pilot, "step")
        assert "▾step" in text(app)
        assert gpus_shown(app) == ["3", "2", "1", "0"]
        await click_title(app, pilot, "power")
        assert gpus_shown(app) == ["0", "1", "2", "3"]
        await click_title(app, pilot, "power")
        assert "▴power" in text(app)
        assert gpus_shown(app) == ["3", "2", "1", "0"]
        await click_title(app, pilot, "GPU")
        assert gpus_shown(app) == ["0", "1", "2", "3"]


async def test_a_key_goes_through_the_columns_and_another_reverses() -> None:
    async with running(Held(machine()), (120, 30)) as (app, pilot):
        await pilot.press("O")
        assert "▴rank" in text(app)
        await pilot.press("O")
        assert "▾power" in text(app)
        await pilot.press("R")
        assert "▴power" in text(app)
        assert gpus_shown(app) == ["3", "2", "1", "0"]
        await pilot.press("down")
        assert app.view.selected == app.view.gpus()[3].uuid, "down goes down the rows as they stand"
        await pilot.press("down")
        assert app.view.selected == app.view.gpus()[2].uuid


async def test_by_its_state_a_table_has_the_alerts_first_and_values_that_are_absent_come_last() -> None:
    made = machine()
    made = replace(
        made,
        alerts=(low_power(2, 30.0, made.time),),
        gpus=tuple(replace(gpu, power_watts=None if gpu.index == 1 else gpu.power_watts) for gpu in made.gpus),
    )
    async with running(Held(made), (120, 30)) as (app, pilot):
        assert gpus_shown(app) == ["0", "1", "2", "3"], "an alert moves no row"
        await click_title(app, pilot, "state")
        assert gpus_shown(app) == ["2", "0", "1", "3"]
        await click_title(app, pilot, "power")
        assert gpus_shown(app)[-1] == "1"
        await click_title(app, pilot, "power")
        assert gpus_shown(app)[-1] == "1"


async def test_an_accused_gpu_without_a_row_still_replaces_the_last_row_of_a_sorted_table() -> None:
    made = machine(16)
    async with running(feed := Held(made), (80, 24)) as (app, pilot):
        await pilot.press("O", "O")
        before = gpu_rows(app)
        feed.say(replace(made, time=made.time + 1, alerts=(low_power(15, 30.0, made.time),)))
        await pilot.pause()
        assert gpu_rows(app) == [*before[:-1], "15"]


def gpu_rows(app: LlmtopApp) -> list[str]:
    """The numbers of the GPUs that have a row."""
    found = (re.match(r"[▸■ ] +(\d+) +\d+ +\d+W", line) for line in text(app).splitlines())
    return [row[1] for row in found if row]


async def test_the_ranks_are_sorted_by_click_and_key() -> None:
    made = machine()
    async with running(Held(made), (120, 30)) as (app, pilot):
        await pilot.press("r")
        await pilot.pause()

        def shown() -> list[str]:
            return [line.strip("│ ▸").split()[0] for line in text(app).splitlines()[3:7]]

        assert "▴rank" in text(app)
        titles = text(app).splitlines()[2]
        await pilot.click(offset=(titles.index("p50") + 1, 2))
        await pilot.pause()
        assert "▾p50" in text(app)
        assert shown() == ["3", "2", "1", "0"]
        await pilot.press("R")
        assert shown() == ["0", "1", "2", "3"]
        await pilot.press("O")
        assert "▾idle" in text(app)


async def test_where_there_is_nothing_to_sort_the_key_says_so() -> None:
    async with running(Held(scene(gpus=0, ranks=0, seconds=2)[-1]), (80, 24)) as (app, pilot):
        await pilot.press("O")
        assert reply(app) == "There is no table to sort here."


def test_the_grid_of_a_cluster_is_sorted_and_says_by_what() -> None:
    nodes = tuple(
        Node(
            name=name, up=True, badness=bad, power_ratio=power, cells=(GpuCell(gpu="0", power_ratio=power or 0.0),)
        )
        for name, bad, power in (("c", 90.0, 0.5), ("b", 0.0, 0.2), ("a", 0.0, 0.9), ("d", 0.0, None))
    )
    state = ClusterState()
    state.view = ClusterView(server="s", time=0.0, asked_at=0.0, took_seconds=0.0, nodes=nodes)
    look = CellTheme.for_palette(Palette.build(THEMES[0], "full"), ascii_only=False)

    def drawn() -> str:
        return "\n".join(row.plain() for row in paint.rows(state, 100, 20, look))

    assert state.nodes[0].name == "c"
    assert "nodes 1 to 4 of 4, sorted by ▴worst name power" in drawn()
    state.order = "name"
    assert [node.name for node in state.nodes] == ["a", "b", "c", "d"]
    assert "▴name" in drawn()
    state.order = "power"
    assert [node.name for node in state.nodes] == ["b", "c", "a", "d"]
    state.reverse = True
    assert [node.name for node in state.nodes] == ["a", "c", "b", "d"], "an unknown power comes last either way"
    request = state.view_request()
    assert (request.order, request.reverse) == ("power", True), "the server is asked for the GPUs of these"


def test_absent_values_come_last_and_equal_ones_stay_in_their_order() -> None:
    pairs = [("a", 2.0), ("b", None), ("c", 1.0), ("d", 2.0), ("e", float("nan"))]
    for reverse, names in ((False, "cadbe"), (True, "adcbe")):
        assert "".join(one[0] for one in sorted_by(pairs, lambda one: one[1], reverse=reverse)) == names


def test_a_title_without_room_has_its_sign_in_the_gap_before_it() -> None:
    assert title_cells("util", 4, " ", "▾") == "▾util"
    assert title_cells("util", 6, " ", "▾") == "  ▾util"
    assert title_cells("GPU", 3, "  ", "") == "  GPU"
    assert title_cells("verdict", 12, "  ", "▴", right=False) == "  ▴verdict    "
