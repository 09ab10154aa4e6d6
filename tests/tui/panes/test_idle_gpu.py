"""How idle the GPU is, on the screen and in text: one figure, a bound as a bound, and nothing that denies it."""

from __future__ import annotations

import pytest

from llmtop.cli.live.snapshot_text import render
from llmtop.format import DASH
from llmtop.model.snapshot import Phase, Rank, Snapshot
from tests.support.snapshots import gpu, rank, snapshot
from tests.tui.driving import Held, running, text

LOOKED_AT = 0.3


def of(**fields: object) -> Snapshot:
    """A training whose phases add up to the whole step by CUDA events, as those of a GPU with gaps in them do."""
    phases = (
        Phase(name="forward", host_seconds=0.020, gpu_seconds=0.024),
        Phase(name="backward", host_seconds=0.040, gpu_seconds=0.049),
    )
    one: Rank = rank(
        4711,
        gpu_uuid=gpu(0).uuid,
        step=500,
        step_seconds=0.0737,
        step_seconds_p50=0.0737,
        step_seconds_mean=0.0737,
        window_seconds=15.0,
        phases=phases,
        gpu_idle_pct=0.8,
        **fields,
    )
    return snapshot(gpus=(gpu(0, util_pct=89.0),), ranks=(one,))


BY_UTIL = of(gpu_busy_pct=89.0, gpu_busy_source="util")
BY_EVENTS = of(gpu_busy_pct=99.2, gpu_busy_source="events")
BOUND = of(gpu_busy_pct=88.0, gpu_busy_source="events", gpu_busy_bound=True)
NOBODY = of()


@pytest.mark.parametrize(
    ("seen", "idle", "gpu_column"),
    [
        (BY_UTIL, "GPU 11 % idle by GPU-Util", "GPU≤"),
        (BY_EVENTS, "GPU 1 % idle by CUDA events", "GPU"),
        (BOUND, "GPU ≥ 12 % idle by CUDA events", "GPU≤"),
        (NOBODY, f"GPU {DASH} idle", "GPU≤"),
    ],
    ids=["by util", "by events", "a bound", "nobody"],
)
async def test_the_screen_has_one_figure_and_marks_what_is_a_bound(
    seen: Snapshot, idle: str, gpu_column: str
) -> None:
    async with running(Held(seen), (160, 50)) as (app, pilot):
        await pilot.pause(LOOKED_AT)
        shown = text(app)
    assert idle in shown
    (heading,) = [line for line in shown.splitlines() if "phase" in line and "share" in line]
    assert gpu_column in heading.split()
    assert "0.8%" not in shown, "what events alone say is not believed"


@pytest.mark.parametrize(
    ("seen", "idle", "clock"),
    [
        (BY_UTIL, "GPU idle 11 % (by GPU-Util)", "GPU clock, pauses in phases included"),
        (BY_EVENTS, "GPU idle 1 % (by CUDA events)", "host clock / GPU clock\n"),
        (BOUND, "GPU idle ≥ 12 % (by CUDA events)", "GPU clock, pauses in phases included"),
        (NOBODY, f"GPU idle {DASH}", "GPU clock, pauses in phases included"),
    ],
    ids=["by util", "by events", "a bound", "nobody"],
)
def test_the_text_of_once_says_the_same(seen: Snapshot, idle: str, clock: str) -> None:
    told = render(seen, 160)
    assert idle in told
    assert clock in told
    assert "0.8%" not in told
