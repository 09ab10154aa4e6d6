"""The ranks screen with roles: their column, and groups by any dimension of the mesh."""

from __future__ import annotations

import pytest

from llmtop.model import jobs
from llmtop.model.snapshot import Alert, Phase, Rank, Snapshot
from tests.support.snapshots import rank, snapshot
from tests.tui.driving import Held, running, text

LOOKED_AT = 0.3


def _mesh(**fields: object) -> Snapshot:
    ranks = []
    for number in range(8):
        pp, dp, tp = number // 4, number // 2 % 2, number % 2
        forward = 0.010 + 0.020 * pp + 0.005 * (number == 5)
        phases = (
            Phase(name="forward", host_seconds=forward),
            Phase(name="communication", host_seconds=0.04 - forward),
        )
        ranks.append(
            rank(
                100 + number,
                rank=number,
                world_size=8,
                job="train.py",
                step=9,
                step_seconds_p50=0.04,
                roles={"pp": pp, "dp": dp, "tp": tp},
                phases=phases,
            )
        )
    return snapshot(ranks=tuple(ranks), jobs=jobs.job_totals(ranks), **fields)


def _lines(shown: str) -> list[str]:
    return [line.strip(" │") for line in shown.splitlines()]


async def test_the_key_goes_through_the_dimensions_and_each_group_has_its_figures() -> None:
    async with running(Held(_mesh()), (120, 30)) as (app, pilot):
        seen = []
        await pilot.press("r")
        for _ in range(5):
            await pilot.pause(LOOKED_AT)
            seen.append(_lines(text(app)))
            await pilot.press("M")
    assert [next((line.split(" (M)")[0][-2:] for line in lines if "(M)" in line), "") for lines in seen] == [
        *("", "pp", "dp", "tp", ""),
    ]
    starts = [place for place, line in enumerate(seen[1]) if line.startswith(("pp 0 ", "pp 1 "))]
    assert starts[1] - starts[0] == 5, "four ranks stand below their stage"
    assert seen[1][starts[0]].startswith(
        "pp 0 · 4 ranks · p50 40.0 ms (spread 0.0 %) · own work by host clock 10.0 ms"
    )
    assert "own work by host clock 30.0 ms (spread 16.7 %)" in seen[1][starts[1]]
    assert any("pp1 dp0 tp1" in line for line in seen[1])
    assert "M group" in "\n".join(seen[0])


@pytest.mark.slow("one size stands for all", kept=("size0",))
@pytest.mark.parametrize("size", [(80, 24), (120, 30), (200, 50)])
async def test_moving_passes_over_the_lines_of_groups(size: tuple[int, int]) -> None:
    async with running(Held(_mesh()), size) as (app, pilot):
        await pilot.press("r", "M", "g")
        found = []
        for _ in range(9):
            shown = app.view.rank()
            assert isinstance(shown, Rank)
            found.append(shown.rank)
            await pilot.press("down")
        await pilot.pause(LOOKED_AT)
    assert found == [0, 1, 2, 3, 4, 5, 6, 7, 7]


async def test_without_roles_the_key_says_why_nothing_changes() -> None:
    async with running(Held(snapshot(ranks=(rank(7, rank=0), rank(8, rank=1)))), (120, 30)) as (app, pilot):
        await pilot.press("r", "M")
        await pilot.pause(LOOKED_AT)
        assert "No rank is in a named parallel group" in text(app)
        assert "roles" not in text(app)


async def test_an_alert_names_the_roles_of_its_rank() -> None:
    alert = Alert(
        id="straggler", severity="warning", pid=105, since=990.0, summary="-", points=("adds 5 ms per step",)
    )
    async with running(Held(_mesh(alerts=(alert,))), (120, 30)) as (app, pilot):
        await pilot.pause(LOOKED_AT)
        assert "rank 5 (pp 1, dp 0, tp 1)" in text(app)
        await pilot.press("a")
        await pilot.pause(LOOKED_AT)
        assert "rank 5 (pp 1, dp 0, tp 1)" in text(app)
