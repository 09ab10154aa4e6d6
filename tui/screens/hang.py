"""Stacks of all ranks at a hung collective, grouped by equality; other nodes are asked through the job's store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from textwrap import wrap

from llmtop import format as fmt
from llmtop.capture import targets
from llmtop.capture.across.store_stacks import OtherNodes, stacks_of_other_nodes
from llmtop.capture.py_spy import engine as py_spy
from llmtop.errors import LlmtopError
from llmtop.model.snapshot import Rank
from llmtop.postmortem.answer.stack_groups import RankStack, StackGroup, group_ranks, groups_text, judge_live
from llmtop.postmortem.evidence import CodeLine
from llmtop.postmortem.model import PostmortemReport
from llmtop.postmortem.rank_text import rank_list
from llmtop.stacks.samples import MAIN
from tui.paint.rows import Row
from tui.screens.stacks import StacksScreen
from tui.state.process_ref import ProcessRef

_AT_ONCE = 8
_FRAMES = 6
"""Innermost frames of a group that are shown; w shows all."""


class HangScreen(StacksScreen):
    """Which ranks wait in which collective, and what the others do; tab goes to the stacks of one rank."""

    def __init__(self) -> None:
        super().__init__()
        self._groups: list[StackGroup] | None = None
        self._report: PostmortemReport | None = None
        self._is_grouped = True
        self._other_nodes = ""
        """Text on the other nodes."""

    def read_again(self) -> None:
        if not self._is_grouped:
            super().read_again()
            return
        if self._looking or (self.view.paused and self._groups is not None):
            return
        self._looking = True
        ranks = [rank for rank in self.view.ranks() if rank.rank is not None]
        self.in_background(lambda: _read_ranks(ranks), self._show_groups, "llmtop-hang")

    def _show_groups(self, stacks: list[RankStack]) -> None:
        """Show this node's, and ask the other nodes of the job if it has any."""
        world = self._world()
        pids = [one.pid for one in stacks if one.pid is not None]
        if pids and world > len(stacks):
            self._other_nodes = "requesting the stacks of the other nodes"
            pid = pids[0]
            self.in_background(
                lambda: _read_others(pid),
                lambda found: self._show_all(stacks, found),
                "llmtop-hang",
            )
        else:
            self._looking, self._other_nodes = False, ""
        self._group_all(stacks)

    def _show_all(self, stacks: list[RankStack], found: OtherNodes) -> None:
        self._looking = False
        others = _stacks_of(found)
        self._other_nodes = (
            f"other nodes: {found.problem}"
            if found.problem
            else f"{fmt.counted(len(others), 'rank')} on other nodes"
        )
        self._group_all([*stacks, *others])

    def _world(self) -> int:
        return max((rank.world_size or 0 for rank in self.view.ranks()), default=0)

    def _group_all(self, stacks: list[RankStack]) -> None:
        self._groups = group_ranks(stacks)
        self._report = judge_live(stacks, max(self._world(), len(stacks)))
        self.redraw()

    def lines(self, width: int) -> list[Row]:
        """Paint the groups, the ranks that are in no collective first."""
        if not self._is_grouped:
            return super().lines(width)
        palette = self.cell_theme.palette
        rows = [Row(width).add(" Stacks of all ranks of this node", palette.strong), Row(width)]
        if self._groups is None:
            return [*rows, Row(width).add("   reading the stacks with py-spy", palette.dim)]
        if not self._groups:
            return [
                *rows,
                Row(width).add(
                    "   no rank is attached on this node: start the training with llmtop run", palette.text
                ),
            ]
        room = max(width - 4, 20)
        rows += [Row(width).add(f" {one}", palette.strong) for one in wrap(groups_text(self._groups), room)]
        if self._report is not None:
            text = fmt.printable(self._report.summary)
            rows += [Row(width).add(f" {one}", palette.text) for one in wrap(text, room)]
        rows += [Row(width).add(f" {one}", palette.dim) for one in wrap(fmt.printable(self._other_nodes), room)]
        rows.append(Row(width))
        for group in self._groups:
            rows += self._group(group, width)
        return rows

    def _group(self, group: StackGroup, width: int) -> list[Row]:
        palette = self.cell_theme.palette
        style = palette.dim if group.is_waiting else palette.warning
        head = Row(width).add(f" {rank_list(group.ranks).capitalize()}", palette.strong)
        rows = [head.add(f"  {fmt.printable(group.what)}", style)]
        shown = group.frames if self._all else group.frames[:_FRAMES]
        rows += [Row(width).add(f"   {fmt.printable(frame.text)}", palette.text) for frame in shown]
        if len(group.frames) > len(shown):
            rows.append(Row(width).add(f"   {len(group.frames) - len(shown)} more; press w", palette.dim))
        return [*rows, Row(width)]

    def target_process(self) -> ProcessRef:
        """Return the rank that is in no collective, else the process whose stacks are shown."""
        named = self._report.culprits[0] if self._is_grouped and self._report and self._report.culprits else None
        if named is None or named.pid is None:
            return super().target_process()
        return ProcessRef(named.pid, f"rank {named.rank}", by_alert=True)

    def action_next_rank(self, step: int) -> None:
        """Show the stacks of one rank instead of the groups."""
        self._is_grouped = False
        super().action_next_rank(step)


def _read_others(pid: int) -> OtherNodes:
    """Query the other nodes of the job of that process."""
    try:
        known = targets.list_attached()
    except LlmtopError as refusal:
        return OtherNodes(problem=str(refusal))
    return stacks_of_other_nodes(known, pid)


def _stacks_of(found: OtherNodes) -> list[RankStack]:
    """Return the ranks of other nodes as those of this one; a rank without an answer has no stack, and why."""
    shown = [
        RankStack(
            rank,
            tuple(CodeLine(one.name, one.file, one.line) for one in told.stack),
            error=told.detail or told.state,
            pid=told.pid,
            host=host,
        )
        for rank, (told, host) in found.ranks.items()
    ]
    return shown + [RankStack(rank, (), error="no node has answered for it") for rank in found.silent]


def _read_ranks(ranks: list[Rank]) -> list[RankStack]:
    with ThreadPoolExecutor(_AT_ONCE, "llmtop-hang") as pool:
        return list(pool.map(_read_rank, ranks))


def _read_rank(rank: Rank) -> RankStack:
    number = rank.rank if rank.rank is not None else -1
    waiting = [one for one in rank.collectives if one.completed is not None and one.completed < one.enqueued]
    called = waiting[0].enqueued if waiting else None
    try:
        threads = py_spy.dump(rank.pid)
    except LlmtopError as refusal:
        return RankStack(number, (), called, str(refusal), rank.pid, rank.host or "")
    main = next((one for one in threads if one.name == MAIN), threads[0] if threads else None)
    frames = () if main is None else tuple(CodeLine(one.name, one.file, one.line or 0) for one in main.frames)
    return RankStack(number, frames, called, "", rank.pid, rank.host or "")
