"""The text of --once: it fits its width, and lets nothing through that a terminal obeys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtop.cli.live.snapshot_text import MAX_PROCESSES, render
from llmtop.format import DASH, printable
from llmtop.model.snapshot import Alert, Gpu, Host, Phase, Process, Rank, Snapshot
from tests.support.snapshots import gpu, rank, snapshot

EVIL = "\x1b[2J\x1b]0;title\x07\u202eevil\n" * 5


def full() -> Snapshot:
    busy = gpu(
        3,
        util_pct=100.0,
        power_watts=120.4,
        power_limit_watts=700.0,
        mem_used_bytes=85 << 30,
        mem_total_bytes=141 << 30,
        sm_clock_mhz=1455.0,
        sm_clock_max_mhz=1980.0,
        clock_event_reasons=("sw_power_cap",),
        pcie_rx_bytes_per_s=8.3e9,
        pcie_gen=5,
        pcie_width=16,
        error="Xid 79: the GPU has fallen off the bus",
    )
    training = rank(
        4711,
        rank=3,
        world_size=8,
        gpu_uuid=busy.uuid,
        step=1200,
        total_steps=5000,
        eta_seconds=7500.0,
        step_seconds=0.0601,
        step_seconds_p50=0.06,
        tokens_per_s=54_213.0,
        phases=(
            Phase(name="dataload", host_seconds=0.0012),
            Phase(name="forward", host_seconds=0.02, gpu_seconds=0.019),
        ),
        metrics={"loss": 2.3456},
        lost=3,
        state="stalled",
    )
    alert = Alert(
        id="low_power_full_util",
        severity="critical",
        gpu=busy.uuid,
        since=990.0,
        summary="busy with nothing",
        next="press s",
    )
    return snapshot(
        gpus=(busy,),
        ranks=(training,),
        processes=(Process(pid=4711, gpu_uuid=busy.uuid, user="ann", command="python train.py", cpu_pct=101.0),),
        alerts=(alert,),
        source="replay",
    )


def test_everything_known_is_there() -> None:
    text = render(full())
    for part in (
        "REPLAY",
        "GPU 3  NVIDIA H200",
        "error: Xid 79",
        "power 120 W of 700 W",
        "SM clock 1455 of 1980 MHz (sw_power_cap)",
        "PCIe rx 8.30 GB/s tx – (gen 5 x16)",
        "Rank 3 of 8  stalled",
        "pid 4711  GPU 3",
        "step 1200 of 5000",
        "left 2h 05m",
        "last 60.1 ms",
        "54.2k tokens/s",
        "dataload 1.20 ms / –",
        "forward 20.0 ms / 19.0 ms",
        "loss 2.346",
        "lost 3 steps",
        "python train.py",
        "critical: low_power_full_util GPU 3, for 10.0 s: busy with nothing",
        "next: press s",
    ):
        assert part in text


def test_what_is_absent_is_a_dash_and_never_a_zero() -> None:
    text = render(snapshot(gpus=(gpu(0),), ranks=(rank(1),)))
    assert "power – of –" in text
    assert "step –" in text
    assert " 0" not in text.replace("GPU 0", "").replace("GPU-00000000", "").split("\n", 1)[1]


def test_a_request_server_is_told_in_requests() -> None:
    text = render(snapshot(ranks=(rank(1, kind="request", step=7, steps_per_s=3.5),)))
    assert "request 7" in text
    assert "3.50 requests/s" in text


def test_a_machine_without_anything_is_still_told() -> None:
    text = render(Snapshot(time=0.0, host=Host(name="node", notes=("no NVIDIA driver here",))))
    assert "node" in text
    assert "no NVIDIA driver here" in text


def test_of_many_processes_the_rest_is_counted() -> None:
    text = render(snapshot(processes=tuple(Process(pid=i, command="x") for i in range(MAX_PROCESSES + 7))))
    assert "and 7 more" in text


@pytest.mark.parametrize("width", [40, 80, 132])
def test_no_line_is_wider_than_asked(width: int) -> None:
    assert max(len(line) for line in render(full(), width).splitlines()) <= width


@given(
    text=st.one_of(st.just(EVIL), st.text(max_size=300)),
    number=st.one_of(st.none(), st.floats(), st.sampled_from([1e30, -5.0, 0.0])),
    width=st.integers(30, 120),
)
def test_no_name_breaks_a_line_or_reaches_the_terminal_as_a_command(
    text: str, number: float | None, width: int
) -> None:
    evil = snapshot(
        host=Host(name=text, notes=(text,), driver_version=text, load_1m=number),
        gpus=(Gpu(index=0, uuid=text, name=text, error=text, util_pct=number, clock_event_reasons=(text,)),),
        ranks=(Rank(pid=1, host=text, note=text, metrics={text: number or 0.0}, eta_seconds=number),),
        processes=(Process(pid=1, user=text, command=text, cpu_pct=number),),
        alerts=(Alert(id=text, severity="info", since=0.0, summary=text, next=text),),
    )
    for line in render(evil, width).split("\n"):
        assert len(line) <= width
        assert printable(line) == line


def test_the_dash_is_that_of_every_output() -> None:
    assert DASH in render(snapshot(gpus=(gpu(0),)))


def test_requests_are_told_with_the_time_to_their_first_token() -> None:
    answers = rank(
        4712,
        kind="request",
        inference=True,
        step=80,
        step_seconds_p50=0.25,
        ttft_seconds_p50=0.051,
        ttft_seconds_p95=0.08,
        ttft_seconds_p99=0.3,
        tpot_seconds_p50=0.0102,
        tpot_seconds_p95=0.012,
        tpot_seconds_p99=0.02,
        tokens_in_per_s=320.0,
        tokens_out_per_s=105.0,
        batch=2.5,
    )
    said = " ".join(render(snapshot(ranks=(answers,)), 100).split())
    assert "Inference running" in said
    assert "request 80" in said
    assert "TTFT p50 51.0 ms p95 80.0 ms p99 300 ms" in said
    assert "TPOT p50 10.2 ms p95 12.0 ms p99 20.0 ms" in said
    assert "320 tokens/s in" in said
    assert "105 tokens/s out" in said
    assert "batch 2.5" in said
    assert "MFU" not in said
    assert "Training running" in " ".join(render(snapshot(ranks=(rank(1, step=3),)), 100).split())
    assert "TTFT" not in render(snapshot(ranks=(rank(1, step=3),)), 100)
