"""A process that answers requests, on the screen."""

from __future__ import annotations

import pytest

from llmtop.model import jobs
from llmtop.model.snapshot import Phase, Rank
from tests.support.snapshots import rank, snapshot
from tests.tui.driving import Held, running, text

LOOKED_AT = 0.3
ANSWERS = rank(
    100,
    job="generate.py · pid 100",
    kind="request",
    inference=True,
    step=59,
    step_seconds_p50=0.25,
    step_seconds_mean=0.3,
    ttft_seconds_p50=0.0512,
    ttft_seconds_p95=0.08,
    ttft_seconds_p99=0.31,
    tpot_seconds_p50=0.0102,
    tpot_seconds_p95=0.012,
    tpot_seconds_p99=0.02,
    tokens_per_s=105.0,
    tokens_in_per_s=320.0,
    tokens_out_per_s=105.0,
    batch=2.0,
    phases=(Phase(name="prefill", host_seconds=0.05), Phase(name="decode", host_seconds=0.2)),
)


async def pane(one: Rank, width: int) -> str:
    """What is on a screen of that width, with single spaces."""
    shown = snapshot(ranks=(one,), jobs=jobs.job_totals((one,)))
    async with running(Held(shown), (width, 50)) as (app, pilot):
        await pilot.pause(LOOKED_AT)
        return " ".join(text(app).split())


@pytest.mark.parametrize("width", [80, 200])
async def test_times_to_the_first_token_and_of_those_after_it_come_first(width: int) -> None:
    shown = await pane(ANSWERS, width)
    assert "request 59 · inference" in shown
    assert "TTFT 51.2 ms · TPOT 10.2 ms" in shown
    assert "decode" in shown
    if width == 200:
        assert "105 tokens/s out" in shown
        assert "TTFT p95, p99 80.0 ms, 310 ms" in shown


async def test_a_loop_of_forward_passes_is_called_inference_and_a_training_is_not() -> None:
    loop = rank(100, inference=True, step=7, step_seconds_p50=0.02, samples_per_s=400.0)
    assert "step 7 · inference" in await pane(loop, 160)
    assert "inference" not in await pane(rank(100, step=7, step_seconds_p50=0.02), 160)
