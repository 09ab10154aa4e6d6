"""Each state of a row of the main screen and of the ranks screen: no value beside it contradicts it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

from msgspec.structs import replace

from llmtop.format import DASH
from llmtop.model.bottlenecks import BOTTLENECKS, AlertId
from llmtop.model.jobs import job_totals
from llmtop.model.snapshot import Alert, CollectiveCount, Gpu, Process, Rank, RankState, Snapshot
from screenshots.scenes import scene
from tests.tui.driving import Held, running, text
from tests.tui.paint.test_painting import LOOKS, viewed
from tui.paint.rows import Row
from tui.panes import node_table, rank_table, time_line
from tui.panes.header_footer import header

LOOK = LOOKS["mono"]
STANDS_STILL = {"STALLED", "STOPPED", "PAUSED", "GONE", "HUNG", "waits . all_reduce"}
"""States beside which a rate or an idle share would be of earlier steps."""
RATE = re.compile(r"\d[\d.]*[kM]? (?:tokens|samples|steps)/s|left\b")


def _busy() -> tuple[Snapshot, Gpu, Rank]:
    """A moment of one GPU and one rank of a job without an alert, and these two."""
    moment = scene(gpus=1, seconds=3)[-1]
    (card,), (first,) = moment.gpus, moment.ranks
    first = replace(
        first,
        waits_seconds=0.012,
        job="train.py · :29500",
        tokens_per_s=147e3,
        steps_per_s=9.0,
        total_steps=100_000,
        eta_seconds=3600.0,
    )
    return _with_ranks(replace(moment, alerts=()), first), card, first


def _with_ranks(moment: Snapshot, *ranks: Rank) -> Snapshot:
    return replace(moment, ranks=ranks, jobs=job_totals(ranks))


def _rank_states() -> Iterator[tuple[str, Snapshot]]:
    """Each state of a row with a rank: the word that it begins with, and a moment."""
    busy, card, first = _busy()
    for state in get_args(RankState):
        yield "ok" if state == "running" else state.upper(), _with_ranks(busy, replace(first, state=state))
    for alert_id in get_args(AlertId):
        raised = Alert(
            id=alert_id, severity="warning", since=busy.time, summary="why", gpu=card.uuid, pid=first.pid
        )
        yield BOTTLENECKS[alert_id].badge, replace(busy, alerts=(raised,))
    open_one = CollectiveCount(group="default", enqueued=8, completed=7, operation="nccl:all_reduce")
    yield "waits . all_reduce", _with_ranks(busy, replace(first, collectives=(open_one,)))
    yield "ok", _with_ranks(busy, replace(first, gpu_busy_pct=99.8, gpu_busy_bound=True))
    yield "ok", _with_ranks(busy, replace(first, lost=12))
    new = Rank(pid=first.pid, host=first.host, gpu_uuid=card.uuid, rank=0, job=first.job)
    yield "no step yet", _with_ranks(busy, new)
    yield "no request yet", _with_ranks(busy, replace(new, kind="request"))


def _gpu_states() -> Iterator[tuple[str, Snapshot]]:
    """Each state of a row that is of its GPU, not of its rank."""
    busy, card, first = _busy()
    for alert_id in get_args(AlertId):
        raised = Alert(id=alert_id, severity="warning", since=busy.time, summary="why", gpu=card.uuid)
        yield BOTTLENECKS[alert_id].badge, replace(busy, alerts=(raised,))
    yield "ERROR", replace(busy, gpus=(replace(card, error="Xid 79", util_pct=None, power_watts=None),))
    alone = replace(busy, ranks=(), processes=(), jobs=())
    yield "hidden process", alone
    yield "hidden process", replace(alone, gpus=(replace(card, util_pct=0.0),))
    yield "no process", replace(alone, gpus=(replace(card, util_pct=0.0, mem_used_bytes=600 << 20),))
    of_me = replace(busy, host=replace(busy.host, user="me"))
    theirs = Process(pid=77, user="ann", gpu_uuid=card.uuid, gpu_mem_bytes=1 << 30)
    mine = Process(pid=first.pid, user="me", gpu_uuid=card.uuid, gpu_mem_bytes=1 << 30)
    yield "ok . used by ann too", replace(of_me, processes=(theirs, mine))


def _drawn(rows: list[Row]) -> str:
    return "\n".join("".join(segment.text for segment in row.segments) for row in rows)


def test_no_value_of_a_row_of_the_main_screen_contradicts_its_state() -> None:
    for word, moment in (*_rank_states(), *_gpu_states()):
        view = viewed(moment)
        (entry,) = node_table.entries(view)
        frame = node_table.table(view, [entry], 250)
        assert frame is not None
        texts = {column.key: column.text(entry, frame.context) for column in frame.plan.columns}
        drawn = _drawn([node_table.line(frame, entry, view, 250, LOOK)])
        assert re.search(rf"\b{word}\b", drawn), (word, drawn)
        assert word.startswith("ok") or not re.search(r"\bok\b", drawn), drawn
        now = {key: texts.get(key, DASH) for key in ("idle", "tokens", "waits") if moment.ranks}
        if word in STANDS_STILL:
            assert set(now.values()) == {DASH}, (word, now)
        elif moment.ranks and not word.startswith("no "):
            assert now["tokens"] != DASH, (word, now)
        assert "≥ 0" not in texts.get("idle", ""), (word, now)
        if word == "ERROR":
            assert (texts["util"], texts["power"]) == (DASH, DASH)


def test_header_and_time_line_show_no_rate_of_a_rank_that_stands_still() -> None:
    for word, moment in _rank_states():
        view = viewed(moment)
        above = header(view, 200, LOOK).strip(ascii_only=False).text
        lines = _drawn(time_line.paint(view, 120, 20, LOOK)).splitlines()
        rate = next((line for line in lines if "tok/s" in line), "")
        known = moment.ranks[0].tokens_per_s is not None
        assert (" left" in above) == (known and word not in STANDS_STILL), (word, above)
        assert ("147k" in rate) == (known and word not in STANDS_STILL), (word, rate)


def test_no_value_of_a_row_of_the_ranks_screen_contradicts_its_state() -> None:
    for word, moment in _rank_states():
        view = viewed(moment)
        shown = _drawn(rank_table.paint(view, 250, 12, LOOK, framed=True, top=0))
        title, _, line, *_ = shown.splitlines()
        assert re.search(rf"\b{word}\b", line) or (word == "ok" and not re.search(r"[A-Z]{4}", line)), (word, line)
        still = word in STANDS_STILL
        assert bool(RATE.search(title)) == (not still and not word.startswith("no ")), (word, title)
        assert "≥ 0" not in line
        if still:
            assert not re.search(r"147k|\d%", line), (word, line)


async def test_a_job_of_several_has_no_rate_while_one_of_its_ranks_stands_still() -> None:
    busy, _card, first = _busy()
    open_one = CollectiveCount(group="default", enqueued=8, completed=7, operation="nccl:all_reduce")
    for collectives, rates in (((), 2), ((open_one,), 1)):
        waiting = replace(first, pid=first.pid + 1, rank=1, collectives=collectives)
        other = replace(first, pid=first.pid + 2, job="other.py · :29501")
        async with running(Held(_with_ranks(busy, first, waiting, other)), (160, 50)) as (app, pilot):
            await pilot.press("r")
            await pilot.pause()
            shown = [line for line in text(app).splitlines() if " · 1 rank" in line or " · 2 ranks" in line]
        assert len(shown) == 2
        assert sum("tokens/s" in line for line in shown) == rates, shown
