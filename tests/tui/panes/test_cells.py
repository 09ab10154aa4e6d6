"""Every cell of the main screen, over sizes, looks, one and eight GPUs, with and without alerts."""

from __future__ import annotations

import re
from functools import cache

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from llmtop.model.snapshot import Process, Snapshot
from screenshots.scenes import scene
from tests.tui.paint.test_painting import LOOKS, painted, viewed
from tui.core.layout import alert_rows
from tui.panes.time_line import LABEL, NARROW_LABEL
from tui.state.view import View

SIZES = [(60, 15), (80, 24), (100, 12), (120, 30), (200, 50), (250, 70)]


@cache
def seen(gpus: int, alerts: bool) -> View:
    bad = (gpus - 1,) if alerts else ()
    return viewed(*scene(gpus=gpus, spinning=bad, slow_rank=0 if alerts else None, seconds=330))


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("alerts", [True, False], ids=["alerts", "quiet"])
@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_nothing_is_cut_left_blank_or_beside_its_place(
    size: tuple[int, int], gpus: int, alerts: bool, look: object
) -> None:
    width, height = size
    lines = painted(seen(gpus, alerts), look, width, height)  # type: ignore[arg-type]  # each part as large as its place
    assert all(cell_len(line) == width for line in lines)
    top = 2 if height < 30 else 3
    rows = lines[top + alert_rows(height, gpus) - 1 : -1]
    text = "\n".join(rows)
    command = text.find("processes")
    assert "…" not in text[: command if command > 0 else None], "what is told is told whole"
    table = [line for line in rows if re.match(r"[▸>▲■!# ] +\d+( +\d+)? +\d+W +\d+% ", line)]
    fits = gpus if height > 12 else min(gpus, 4)
    assert len(table) == fits
    assert len({line.index("ms") for line in table}) == 1, "figures stand below each other"
    said = [line for line in table if "LOW POWER" in line or "STRAGGLER" in line]
    assert len(said) == (0 if not alerts else 1 if gpus == 1 else 2)
    assert all(re.search(r"(ok|LOW POWER|STRAGGLER)( \+\d)?\s*$", line) for line in table)
    assert rows[-1].rstrip().endswith(("now", "╯", "+")), "the ruler, or the frame below it, ends the screen"
    blank = [number for number, line in enumerate(rows) if not line.strip()]
    assert len(blank) <= (3 if height >= 70 else 0), "only within charts that are several rows high"
    if gpus > fits:
        assert f"+{gpus - fits} more" in text


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("size", [(60, 15), (120, 30), (200, 50)], ids=str)
@pytest.mark.parametrize("seconds", [2, 5, 12, 40])
def test_a_young_history_is_told_whole(size: tuple[int, int], seconds: int, look: object) -> None:
    moments = scene(gpus=1, slow_rank=0, seconds=30 + seconds)[-seconds:]
    ruler = next(
        line.rstrip()
        for line in painted(viewed(*moments), look, *size)  # type: ignore[arg-type]
        if line.rstrip().endswith("now")
    )
    assert "…" not in ruler
    label = NARROW_LABEL if size[0] < 80 else LABEL
    blank = len(ruler) - len(ruler.lstrip()) - label - 1
    assert "since" in ruler or "no data before" in ruler or blank < len("since 20:27 ")


def test_figures_of_one_screen_agree() -> None:
    """The step's length is told in the table, in the step's title and on the time line."""
    for size in SIZES[1:]:
        text = "\n".join(painted(seen(8, alerts=False), LOOKS["dark"], *size))
        told = {one.replace(" ", "") for one in re.findall(r"\b\d+ ?ms\b", text) if one.startswith("111")}
        assert told == {"111ms"}


def _odd() -> Snapshot:
    """Two MIG instances, a GPU of somebody else's, a free one, one that a process of ours uses, one in a job."""
    moment = scene(gpus=5, ranks=1, seconds=3)[-1]
    split, *others = moment.gpus
    parts = [
        replace(
            split,
            uuid=f"MIG-{n}",
            mig_parent_uuid=split.uuid,
            mig_index=n,
            power_watts=None,
            power_limit_watts=None,
        )
        for n in range(2)
    ]
    rank = replace(moment.ranks[0], gpu_uuid=others[3].uuid)
    processes = (
        Process(pid=1, gpu_uuid=others[0].uuid, user="bob", command="python /home/bob/serve.py"),
        Process(pid=2, gpu_uuid=others[2].uuid, user="ann", command="python prepare.py"),
    )
    others[1] = replace(others[1], util_pct=0.0, mem_used_bytes=500 << 20)
    return replace(
        moment,
        host=replace(moment.host, user="ann"),
        gpus=(split, *parts, *others),
        ranks=(rank,),
        processes=processes,
    )


@pytest.mark.parametrize("size", SIZES[1:], ids=str)
def test_what_is_not_of_the_job_is_said_to_be_so(size: tuple[int, int]) -> None:
    if size[1] == 12:
        pytest.skip("four rows show no seven lines")
    lines = painted(viewed(_odd()), LOOKS["mono"], *size)

    def line(number: str) -> str:
        return next(line for line in lines if re.match(rf"[▸ ] +{number} ", line))

    assert "2 MIG instances" in line("0")
    assert "MIG" in line("0:0")
    assert "MIG" in line("0:1")
    assert "used by bob" in line("1")
    assert "no process" in line("2")
    assert "not attached" in line("3")
    assert re.search(r"\bok\b", line("4"))


def test_who_shares_a_gpu_has_a_line_of_his_own() -> None:
    moment = scene(gpus=1, ranks=2, seconds=3)[-1]
    both = replace(moment, ranks=tuple(replace(one, gpu_uuid=moment.gpus[0].uuid) for one in moment.ranks))
    lines = painted(viewed(both), LOOKS["dark"], 120, 30)
    place = next(number for number, line in enumerate(lines) if re.match(r"[▸ ] +0 +0 ", line))
    assert "the same GPU" in lines[place + 1]
    assert "41201" in lines[place + 1] or re.match(r" +1 ", lines[place + 1])


def test_ranks_without_a_gpu_have_their_steps_as_the_strip() -> None:
    lines = painted(viewed(*scene(gpus=0, ranks=2, seconds=60)), LOOKS["dark"], 120, 30)
    titles = next(line for line in lines if "step, " in line)
    assert "power" not in titles
    assert sum("41200" in line or "41201" in line for line in lines) >= 2
