"""Stacks of all ranks at one moment: grouped by equality, and judged as by the command."""

from __future__ import annotations

from llmtop.postmortem.answer.stack_groups import RankStack, group_ranks, groups_text, judge_live
from llmtop.postmortem.evidence import CodeLine

_INSIDE = (
    CodeLine("all_reduce", "/env/site-packages/torch/distributed/distributed_c10d.py", 3252),
    CodeLine("wrapper", "/env/site-packages/torch/distributed/c10d_logger.py", 83),
    CodeLine("timed", "/src/llmtop/instrument/auto/communication.py", 104),
    CodeLine("train", "/job/train.py", 90),
)
_LOADING = (
    CodeLine("timed", "/src/llmtop/instrument/auto/loaders.py", 60),
    CodeLine("DataLoader.__next__", "/env/site-packages/torch/utils/data/dataloader.py", 700),
    CodeLine("train", "/job/train.py", 88),
)


def _job(number: int | None = 1979) -> list[RankStack]:
    return [
        RankStack(rank, _LOADING if rank == 5 else _INSIDE, None if rank == 5 else number) for rank in range(8)
    ]


def test_equal_stacks_are_one_group_and_the_other_rank_comes_first() -> None:
    groups = group_ranks(_job())
    assert [group.ranks for group in groups] == [(5,), (0, 1, 2, 3, 4, 6, 7)]
    assert groups_text(groups) == "7 ranks in all_reduce #1979; rank 5 in DataLoader.__next__, train.py:88"


def test_without_counts_the_number_is_left_out() -> None:
    assert groups_text(group_ranks(_job(None))).startswith("7 ranks in all_reduce; ")


def test_a_rank_that_cannot_be_read_is_a_group_with_the_reason() -> None:
    stacks = [*_job()[:7], RankStack(7, (), error="py-spy may not read pid 7")]
    groups = group_ranks(stacks)
    assert [group.ranks for group in groups if not group.frames] == [(7,)]
    assert "py-spy may not read pid 7" in groups_text(groups)


def test_other_lines_are_other_groups() -> None:
    other = (*_INSIDE[:2], CodeLine("train", "/job/train.py", 91))
    stacks = [*_job()[:5], RankStack(5, other, 1979)]
    assert [group.ranks for group in group_ranks(stacks)] == [(0, 1, 2, 3, 4), (5,)]


def test_the_command_s_logic_names_the_rank_that_is_elsewhere() -> None:
    report = judge_live(_job(), 8)
    assert [(one.rank, one.failure) for one in report.culprits] == [(5, "data")]
    assert report.waiting[0].ranks == (0, 1, 2, 3, 4, 6, 7)


def test_all_ranks_in_the_collective_name_nobody() -> None:
    stacks = [RankStack(rank, _INSIDE, 3) for rank in range(4)]
    assert not judge_live(stacks, 4).culprits
