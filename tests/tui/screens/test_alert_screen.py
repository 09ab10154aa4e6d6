"""The screen of the alerts, key a."""

from __future__ import annotations

import pytest

from llmtop.model.snapshot import Gpu, Host, Snapshot
from llmtop.rules.engine import Rules
from tests.tui.driving import Held, running, text

SIZES = [(60, 15), (80, 24), (120, 30), (200, 50)]


def spinning(seconds: float) -> Snapshot:
    """Eight GPUs of which one is busy on paper, as the rules judge them after so long."""
    rules, snapshot = Rules(), None
    for tick in range(int(seconds) + 1):
        gpus = tuple(
            Gpu(
                index=index,
                uuid=f"GPU-{index}",
                name="NVIDIA H200",
                util_pct=100.0,
                power_watts=120.0 if index == 3 else 650.0,
                power_limit_watts=700.0,
                sm_active_pct=0.8 if index == 3 else 90.0,
                dram_active_pct=0.0 if index == 3 else 40.0,
            )
            for index in range(8)
        )
        snapshot = rules.apply(Snapshot(time=1000.0 + tick, host=Host(name="node"), gpus=gpus))
    assert snapshot is not None
    return snapshot


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ascii_only", [False, True])
async def test_an_alert_is_explained_with_its_numbers_and_the_next_step(
    size: tuple[int, int], ascii_only: bool
) -> None:
    async with running(Held(spinning(10)), size, ascii=ascii_only) as (app, pilot):
        await pilot.press("a")
        await pilot.pause()
        shown = text(app)
        assert "LOW POWER" in shown
        assert "GPU 3" in shown
        if size[1] >= 24:
            assert "util at least 95 %" in " ".join(shown.split())
            said = " ".join(shown.split())
            assert "power 120 W" in said
            assert "_watts" not in said
            assert "py-spy" in shown or "stacks" in shown
        await pilot.press("q")
        await pilot.pause()
        assert app.screen.NAME == "main"


async def test_without_alerts_it_says_so() -> None:
    calm = Snapshot(time=1.0, host=Host(name="node"))
    async with running(Held(calm), (80, 24)) as (app, pilot):
        await pilot.press("a")
        await pilot.pause()
        assert "There is no active alert" in text(app)
