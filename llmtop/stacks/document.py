"""A report on Python stacks as a document: a tree a thread, and where each thread stands most often."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from llmtop.document.model import BRIEF_LINES, Block, Column, Document, Listing, Paragraph, Table, columns
from llmtop.format import counted, duration, percent, percent_text
from llmtop.stacks.model import Counters, HotFrame, ProcessStacks, StackNode, StackReport, ThreadStacks

OWN = "▸"
"""Before the script's own code; never colour alone."""
_BRIEF_PCT, _FULL_PCT = 3.0, 0.5
"""Frames with a smaller share of their thread's samples are left out of its tree."""
_BRIEF_THREADS, _BRIEF_HOTTEST = 3, 5
_DEEPEST_INDENT = 24
_PYTHON_FILE = re.compile(r"\.pyx?(?::\d+)?\)$")
"""How a frame of Python ends: "step (train.py:3)"."""
_WORTH_PCT = 5.0
"""Less waiting for a CPU is the usual neighbours'."""


@dataclass(frozen=True)
class Shown:
    """One tree to be shown: of one thread, or of the same thread in several workers."""

    title: str
    tree: StackNode
    hottest: tuple[HotFrame, ...]


def stacks_document(report: StackReport) -> Document:
    """Return all of it: every tree with frames down to half a percent."""
    blocks: list[Block] = [*_head(report)]
    for one in shown_trees(report):
        blocks += [Listing(one.title, list(tree_lines(one.tree, _FULL_PCT))), _hot_table(one, len(one.hottest))]
    blocks += [Paragraph(text) for text in (*_idle_threads_text(report), *report.notes)]
    return Document(report_title(report), blocks, warning=report.stopped_early or "")


def brief_stacks(report: StackReport) -> Document:
    """Return what is to be read first."""
    blocks: list[Block] = [replace(block, most_lines=3 if block.is_lead else None) for block in _head(report)]
    every = shown_trees(report)
    for one in every[:_BRIEF_THREADS]:
        lines = list(tree_lines(one.tree, _BRIEF_PCT, whole=False))
        blocks += [Listing(one.title, lines), _hot_table(one, _BRIEF_HOTTEST)]
    said = (*_idle_threads_text(report)[:2], *report.notes[:2])
    blocks += [Paragraph(text, "dim", most_lines=3) for text in said]
    left_out = len(every) - _BRIEF_THREADS
    more = f", and {counted(left_out, 'more thread')}" if left_out > 0 else ""
    blocks.append(Paragraph(f"llmtop report --full has every frame{more}.", "dim"))
    return Document(report_title(report), blocks, warning=report.stopped_early or "", most_lines=BRIEF_LINES)


def report_title(report: StackReport) -> str:
    """Return the title of the stacks: "Python stacks of rank 0 (pid 812) and 4 workers"."""
    asked = [process for process in report.processes if process.started_by is None]
    workers = len(report.processes) - len(asked)
    whose = ", ".join(process.name for process in asked[:4]) + (", …" if len(asked) > 4 else "")
    what = "Python stacks" if _is_python(report) else "Stacks"
    return f"{what} of {whose or 'no process'}" + (f" and {_workers(workers)}" if workers else "")


def _is_python(report: StackReport) -> bool:
    """Return True if the frames are Python's: of a file of another program, if one of them lies in a module."""
    if report.taken_by != "file":
        return report.taken_by != "linux-perf"
    threads = [thread for process in report.processes for thread in process.threads]
    return any(_PYTHON_FILE.search(hot.frame) for thread in threads for hot in thread.hottest)


def _workers(number: int) -> str:
    return "a process that it started" if number == 1 else f"{number} processes that it started"


def sampling_text(report: StackReport) -> str:
    """Return how they were taken, in one sentence."""
    by = {
        "py-spy": "py-spy from outside",
        "training": "the training itself",
        "file": report.exporter or "an unknown program",
    }
    parts = [f"Sampled by {by.get(report.taken_by, report.taken_by)}"]
    if report.window_seconds is not None:
        parts.append(f"for {duration(report.window_seconds)}")
    if report.rate_hz is not None:
        parts.append(f"at {report.rate_hz:g} Hz")
    native = ", with frames of native libraries" if report.native else ""
    units = {thread.unit for process in report.processes for thread in process.threads}
    of = "time" if units == {"microseconds"} else "samples"
    waiting = ", waiting ones included"
    if report.taken_by == "file":
        waiting = "; the file does not say whether waiting threads were sampled"
    return " ".join(parts) + f"{native}; percent of a thread's {of}{waiting}; {OWN} own code."


def summary(report: StackReport) -> str:
    """Return where the first thread stands most often, in one sentence."""
    first = next((one for one in shown_trees(report)), None)
    if first is None or not first.tree.samples:
        return "No thread was active during the samples."
    own = _deepest_own(first.tree)
    text = f"{first.title.partition(':')[0]}: "
    if own is not None:
        text += f"{percent_text(100 * own.samples / first.tree.samples)} of samples are in or below {_place(own)}"
    if first.hottest:
        hot = first.hottest[0]
        share = percent_text(100 * hot.self_samples / first.tree.samples)
        text += f"{', and ' if own is not None else ''}{share} have {hot.frame} innermost"
    return text + "."


def _deepest_own(tree: StackNode) -> StackNode | None:
    """Return the innermost frame of the script that the most samples of its like go through."""
    found, node = None, tree
    while node.children:
        node = node.children[0]
        if 2 * node.samples < tree.samples and found is not None:
            break
        if node.own:
            found = node
    return found


def shown_trees(report: StackReport) -> list[Shown]:
    """Return the trees of threads that work, the same thread of several workers as one."""
    found: list[Shown] = []
    groups: dict[tuple[int, str], list[ThreadStacks]] = {}
    workers: dict[int, int] = {}
    for process in report.processes:
        if process.started_by is None:
            found += (_single_thread_tree(process, thread) for thread in _working(process))
        else:
            workers[process.started_by] = workers.get(process.started_by, 0) + 1
            for thread in _working(process):
                groups.setdefault((process.started_by, thread.thread), []).append(thread)
    names = {process.pid: process.name for process in report.processes}
    for (by, name), threads in groups.items():
        found.append(_together(f"{names.get(by, f'pid {by}')}", workers[by], name, threads))
    return found


def _working(process: ProcessStacks) -> list[ThreadStacks]:
    return [thread for thread in process.threads if thread.kind == "working"]


def _single_thread_tree(process: ProcessStacks, thread: ThreadStacks) -> Shown:
    return Shown(_tree_title(f"{process.name}, {thread.thread}", [thread]), thread.tree, thread.hottest)


def _tree_title(name: str, threads: list[ThreadStacks]) -> str:
    number = sum(thread.samples for thread in threads)
    if threads[0].unit == "microseconds":
        return f"{name}: {duration(number / 1e6)}" + (" together" if len(threads) > 1 else "")
    said = f"{name}: {counted(number, 'sample')}"
    known = [(t.cpu_pct, t.cpu_wait_pct) for t in threads if t.cpu_pct is not None and t.cpu_wait_pct is not None]
    if len(known) < len(threads):
        return said
    on_cpu, waiting = (sum(each) / len(known) for each in zip(*known, strict=True))
    said += f", {percent_text(on_cpu)} of the time on a CPU"
    if waiting >= _WORTH_PCT:
        said += f" and {percent_text(waiting)} waiting for one"
    return said + (" each" if len(threads) > 1 else "")


def _together(parent: str, workers: int, name: str, threads: list[ThreadStacks]) -> Shown:
    hot: dict[str, HotFrame] = {}
    for seen in (frame for thread in threads for frame in thread.hottest):
        had = hot.get(seen.frame)
        hot[seen.frame] = (
            seen
            if had is None
            else structs.replace(
                had,
                self_samples=had.self_samples + seen.self_samples,
                total_samples=had.total_samples + seen.total_samples,
            )
        )
    which = f"{len(threads)} of {workers} workers" if len(threads) < workers else counted(workers, "worker")
    return Shown(
        _tree_title(f"{which} of {parent}, {name}", threads),
        merge_trees([thread.tree for thread in threads]),
        tuple(sorted(hot.values(), key=lambda frame: -frame.self_samples)),
    )


def merge_trees(trees: list[StackNode]) -> StackNode:
    """Several trees as one; the name is the first one's."""
    if len(trees) == 1:
        return trees[0]
    children: dict[tuple[str, str, int | None], list[StackNode]] = {}
    for tree in trees:
        for child in tree.children:
            children.setdefault((child.name, child.file, child.line), []).append(child)
    return StackNode(
        name=trees[0].name,
        file=trees[0].file,
        line=trees[0].line,
        samples=sum(tree.samples for tree in trees),
        self_samples=sum(tree.self_samples for tree in trees),
        own=trees[0].own,
        children=tuple(sorted((merge_trees(same) for same in children.values()), key=lambda node: -node.samples)),
    )


def tree_lines(root: StackNode, least_pct: float = 1.0, whole: bool = True) -> Iterator[str]:
    """Yield the tree as lines of text with the share of each frame.

    Args:
        root: the thread.
        least_pct: what has a smaller share is left out.
        whole: whether every frame has its line; else a run of library frames that call nothing else is cut short.
    """
    total = max(root.samples, 1)

    def walk(node: StackNode, depth: int) -> Iterator[str]:
        passed = 0
        while not whole and not node.own and (only := _only_child(node)) is not None:
            node, passed = only, passed + 1
        share = 100.0 * node.samples / total
        if share < least_pct:
            return
        through = f"… {passed} calls … " if passed > 1 else ""
        mark = OWN if node.own else " "
        indent = "  " * min(depth, _DEEPEST_INDENT)
        yield f"{share:5.1f}% {mark} {indent}{through}{_place(node)}"
        for child in node.children:
            yield from walk(child, depth + 1)

    for child in root.children:
        yield from walk(child, 0)


def _only_child(node: StackNode) -> StackNode | None:
    """Return the one frame that all samples of this one go on to."""
    one = len(node.children) == 1 and not node.self_samples
    return node.children[0] if one else None


def _place(node: StackNode) -> str:
    if not node.file:
        return node.name
    file = Path(node.file).name
    for part in ("site-packages/", "dist-packages/"):
        if part in node.file:
            file = node.file.rpartition(part)[2]
    return f"{node.name} ({file}{'' if node.line is None else f':{node.line}'})"


def _head(report: StackReport) -> list[Paragraph]:
    return [
        Paragraph(report_title(report), "dim"),
        Paragraph(summary(report), "title", is_lead=True),
        *(Paragraph(text, is_lead=True) for text in (*loading_text(report), *counters_text(report))),
        Paragraph(sampling_text(report), "dim"),
    ]


def counters_text(report: StackReport) -> list[str]:
    """Return the counters, one sentence per training."""
    return [f"{name}: {counted_text(one)}." for name, one in report.counters.items()]


def counted_text(one: Counters) -> str:
    """Return the counters of one training and its workers, with their meaning."""
    parts = []
    if one.cpus is not None:
        parts.append(f"{one.cpus:.2f} CPUs used")
    for what, value in (
        ("context switches", one.context_switches_per_s),
        ("moves to another CPU", one.migrations_per_s),
        ("page faults", one.page_faults_per_s),
    ):
        if value is not None:
            parts.append(f"{value:.0f} {what} a second")
    if one.ipc is not None:
        meaning = {"memory": ": the cores mostly wait, as a rule for memory", "compute": ": the cores compute"}
        parts.append(f"{one.ipc:.2f} instructions a cycle{meaning.get(one.bound or '', '')}")
    for what, value in (("cache", one.cache_miss_pct), ("branch", one.branch_miss_pct)):
        if value is not None:
            parts.append(f"{percent_text(value, 1)} {what} misses")
    if one.absent:
        parts.append(f"this machine does not count {', '.join(one.absent)}")
    return "; ".join(parts) or "nothing could be counted"


def loading_text(report: StackReport) -> list[str]:
    """Return the time shares of the data loaders with advice, one paragraph per training."""
    several = len(report.loading) > 1
    return [
        f"{f'{name}: ' if several else ''}{cost.summary}" + (f" To do: {cost.advice}." if cost.advice else "")
        for name, cost in report.loading.items()
    ]


def _hot_table(one: Shown, most: int) -> Table:
    """Return the frames that are innermost most often."""
    total = max(one.tree.samples, 1)
    rows = [
        (
            percent(100 * frame.self_samples / total, 1),
            percent(100 * frame.total_samples / total, 1),
            f"{OWN if frame.own else ' '} {frame.frame}",
        )
        for frame in one.hottest[:most]
    ]
    heads = (*columns((), ("innermost", "anywhere")), Column("frame", is_text=True, cut="middle"))
    return Table("", heads, rows, most=most)


def _idle_threads_text(report: StackReport) -> list[str]:
    """Return the threads that only wait, and llmtop's own, in a sentence each."""
    waiting: dict[str, int] = {}
    ours = 0
    for process in report.processes:
        for thread in process.threads:
            if thread.kind == "waiting":
                where = f" in {thread.hottest[0].frame}" if thread.hottest else ""
                whose = "" if process.started_by is None else "a worker's "
                said = f"{whose}{thread.thread}{where}"
                waiting[said] = waiting.get(said, 0) + 1
            ours += thread.kind == "llmtop"
    sentences = []
    if waiting:
        names = (name if number == 1 else f"{name} ({number} of them)" for name, number in waiting.items())
        sentences.append(f"Threads that only waited (not in the table): {', '.join(names)}.")
    if ours:
        sentences.append(f"Ignored: {counted(ours, 'thread')} of llmtop.")
    return sentences
