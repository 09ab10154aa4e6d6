"""Groups of ranks by one coordinate, with their median and spread."""

from __future__ import annotations

from typing import Any

import pytest

from llmtop.model.role_groups import grouped, roles_of, roles_text
from llmtop.model.snapshot import Phase, Rank
from tests.support.snapshots import rank


def _rank(number: int, forward: float, communication: float | None = 0.01, **fields: Any) -> Rank:
    phases = [Phase(name="forward", host_seconds=forward), Phase(name="backward", host_seconds=2 * forward)]
    if communication is not None:
        phases.append(Phase(name="communication", host_seconds=communication))
    return rank(
        100 + number,
        rank=number,
        step_seconds_p50=0.2,
        roles={"pp": number // 2, "tp": number % 2},
        phases=tuple(phases),
        **fields,
    )


def test_each_group_has_its_own_median_and_spread() -> None:
    ranks = [_rank(0, 0.010), _rank(1, 0.011), _rank(2, 0.020), _rank(3, 0.030)]
    first, second = grouped(ranks, "pp")
    assert (first.name, second.name) == ("pp 0", "pp 1")
    assert [one.rank for one in second.ranks] == [2, 3]
    assert first.work_seconds is not None
    assert second.work_seconds is not None
    assert first.work_seconds.median == pytest.approx(0.0315)
    assert first.work_seconds.spread_pct == pytest.approx(100 * 0.003 / 0.0315)
    assert second.work_seconds.median == pytest.approx(0.075)
    assert second.step_seconds is not None
    assert second.step_seconds.spread_pct == 0.0
    assert [[one.rank for one in group.ranks] for group in grouped(ranks, "tp")] == [[0, 2], [1, 3]]


def test_backward_is_own_work_only_where_waits_have_a_phase() -> None:
    (group,) = grouped([_rank(0, 0.010, None), _rank(1, 0.012, None)], "pp")
    assert group.work_seconds is not None
    assert group.work_seconds.median == pytest.approx(0.011)


def test_what_one_rank_lacks_is_absent_for_its_group() -> None:
    lacking = rank(101, rank=1, roles={"pp": 0}, step_seconds_p50=None)
    (group,) = grouped([_rank(0, 0.01), lacking], "pp")
    assert (group.step_seconds, group.work_seconds) == (None, None)


def test_a_rank_that_has_ended_stands_in_its_group_but_in_no_figure() -> None:
    ranks = [_rank(0, 0.010), _rank(1, 0.5, state="gone")]
    (group,) = grouped(ranks, "pp")
    assert len(group.ranks) == 2
    assert group.work_seconds is not None
    assert group.work_seconds.median == pytest.approx(0.03)
    assert group.work_seconds.spread_pct is None, "of one rank"


def test_ranks_without_the_role_come_last() -> None:
    assert [one.name for one in grouped([rank(7, rank=9), _rank(2, 0.01)], "pp")] == ["pp 1", "no pp"]


def test_roles_in_words() -> None:
    assert roles_of([rank(7), _rank(0, 0.01)]) == ["pp", "tp"]
    assert roles_text({"pp": 1, "tp": 0}) == "pp 1, tp 0"
