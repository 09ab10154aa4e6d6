"""True if what marks divide repeats as steps do: compared by the kernels that were launched between the marks.

A mark in each layer comes several times in a step, one in each second step too rarely. So a period of marks is
accepted only where the kernels repeat with it better than with what is shorter: with fewer marks, or with a part
of the stretch between two of them. Where a model is run once its layers repeat as well, and nothing in the order
of kernels distinguishes that from steps: then something has to come once in each period that a layer has not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmtop.naming.kernel_names import computes_products, is_step_work, kind_of
from llmtop.trace import model
from llmtop.trace.groups import distinct_values, is_among
from llmtop.trace.intervals import Ns, Numbers

FEWEST_KERNELS = 10
"""Fewest kernels of a step. Work that repeats after fewer is a part of a step."""
RARER = 0.002
"""Share of the kernels, and of their time, that may come less often than a step: a log, a check, the edges."""
_FEWEST_STEPS = 3
_MOST_MARKS, _MOST_HOST_MARKS = 2000, 200
"""Marks that are compared; of operators, which no device's work holds them to, fewer."""
_MOST_PERIODS = 256
_AS_GOOD = 0.03
"""Two periods whose kernels agree to so near repeat equally well; the shorter one is taken."""
_LEAST_ALIKE = 0.5
"""Share of kernels that two steps have in common. Shapes that vary have other products, but the same functions
on single values."""
_REPEATS = 0.9
"""Share of a part's kernels that the next part has at the same place, where a stretch consists of parts."""
_MOST_PARTS = 64
_EXAMINED = 4
"""How many stretches are searched for parts."""
_USUAL = 0.9
"""Share of the stretches in which an event must occur to count as part of each step."""
_LAYERS = 2
"""More attention than that in one stretch is of several layers, so that the stretch is none."""
_LEAST_COPY_BYTES = 256
_OWN_OPERATORS = 0.2
"""Share of a training's operators that its main thread makes, at least: forward and optimizer, while the autograd
thread may make the forward once more (checkpointing) and twice as much for the gradients."""


@dataclass(frozen=True)
class LaunchedKernels:
    """The kernels and graphs of a process in the order in which the host launched them; where nothing ran on a
    device, the operators of one thread."""

    trace: model.Trace
    rows: Ns
    """Rows of `Trace.ops`; none for operators."""
    launched: Ns
    """When each was launched, ns; when it ran where the capture has no calls."""
    name: Ns
    """Full name of each, renumbered from 0."""
    titles: Numbers
    """For each number of `name` its row in `Trace.names`."""
    copied: Ns
    """When copies between host and device were launched, ns, in order."""

    @staticmethod
    def from_trace(trace: model.Trace, process: int) -> LaunchedKernels:
        """Return those of a process; kept by the trace."""
        return trace.once("launched kernels", process, lambda: _launched_kernels(trace, process))

    @staticmethod
    def of_thread(trace: model.Trace, process: int, thread: int) -> LaunchedKernels:
        """Return those of a process; its operators on that thread where it has none."""
        kernels = LaunchedKernels.from_trace(trace, process)
        if len(kernels.rows):
            return kernels
        return trace.once("operators", (process, thread), lambda: _operators(trace, process, thread))

    @functools.cached_property
    def products(self) -> Ns:
        """Rows of `Trace.calls` that launched matrix products, convolutions or attention."""
        numbers = self.trace.ops.full_name[self.rows]
        wanted = [n for n in distinct_values(numbers).tolist() if computes_products(self.trace.names[n])]
        called = self.trace.launched_by[self.rows[is_among(numbers, wanted)]]
        return distinct_values(called[called >= 0])

    def chosen_names(self, fits: Callable[[str], bool]) -> list[int]:
        """Return which numbers of `name` stand for a name that fits."""
        return [number for number, name in enumerate(self.titles.tolist()) if fits(self.trace.names[name])]

    def places(self, marks: Ns) -> Ns:
        """Before which kernel each mark lies; the marks are instants in ns, in order."""
        return np.searchsorted(self.launched, marks)

    def counts(self, places: Ns) -> npt.NDArray[np.float64]:
        """Return how often each name comes between places, shape (stretches, names)."""
        names = int(self.name.max()) + 1 if len(self.name) else 1
        inside = np.arange(places[0], places[-1])
        stretch = np.searchsorted(places, inside, side="right") - 1
        flat = np.bincount(stretch * names + self.name[inside], minlength=(len(places) - 1) * names)
        return flat.reshape(len(places) - 1, names).astype(np.float64)


def _launched_kernels(trace: model.Trace, process: int) -> LaunchedKernels:
    ops = trace.ops
    mine = ops.process == process
    rows = np.flatnonzero(mine & is_among(ops.kind, (model.KERNEL, model.GRAPH)))
    copies = np.flatnonzero(
        mine
        & (ops.kind == model.MEMCPY)
        & is_among(ops.direction, (model.HOST_TO_DEVICE, model.DEVICE_TO_HOST))
        & ((ops.bytes >= _LEAST_COPY_BYTES) | (ops.direction == model.DEVICE_TO_HOST))
    )
    called = trace.launched_by[rows]
    known = len(trace.calls) > 0 and bool((called >= 0).all())
    launched = trace.calls.start[called] if known else ops.start[rows]
    called = trace.launched_by[copies]
    launched_copies = np.where(known & (called >= 0), _start_of(trace, called), ops.start[copies])
    order = np.lexsort((ops.start[rows], launched))
    rows = rows[order]
    titles, name = np.unique(ops.full_name[rows], return_inverse=True)
    return LaunchedKernels(trace, rows, launched[order], name.reshape(-1), titles, np.sort(launched_copies))


def _operators(trace: model.Trace, process: int, thread: int) -> LaunchedKernels:
    host = trace.host
    mine = (host.process == process) & (host.thread == thread) & (host.kind == model.OPERATOR)
    rows = np.flatnonzero(mine)
    starts = host.start[rows]
    if (starts[1:] < starts[:-1]).any():
        rows = rows[np.argsort(starts, kind="stable")]
        starts = host.start[rows]
    titles = distinct_values(host.name[rows])
    number = np.zeros(len(trace.names), dtype=np.int64)
    number[titles] = np.arange(len(titles))
    none = np.empty(0, dtype=np.int64)
    return LaunchedKernels(trace, none, starts, number[host.name[rows]], titles, none)


def makes_the_operators(trace: model.Trace, process: int, thread: int, marks: Ns) -> bool:
    """Return True if a thread makes enough of the operators between marks to make the steps; True where the
    capture has none.

    The threads of a server have ranges each for its own requests, or for what hands these on.
    """
    host = trace.host
    of_process = host.thread[
        (marks[0] <= host.start)
        & (host.start < marks[-1])
        & (host.kind == model.OPERATOR)
        & (host.process == process)
    ]
    return bool(np.count_nonzero(of_process == thread) >= _OWN_OPERATORS * len(of_process))


def _start_of(trace: model.Trace, called: Ns) -> Ns:
    if not len(trace.calls):
        return np.zeros(len(called), dtype=np.int64)
    return np.asarray(trace.calls.start[np.maximum(called, 0)])


def period_of(kernels: LaunchedKernels, marks: Ns) -> int | None:
    """Return how many marks make a step: the shortest period with which the kernels between them repeat.

    Args:
        kernels: of the process.
        marks: instants in ns, in order.

    Returns:
        1 where each mark begins a step, or no kernels are known; None where the kernels repeat with no number of
        marks, or with a part of what lies between two of them.
    """
    marks = marks[: _MOST_MARKS if len(kernels.rows) else _MOST_HOST_MARKS]
    places = kernels.places(marks)
    if len(places) < 3 or places[-1] == places[0]:
        return 1
    counts = kernels.counts(places)
    sizes = counts.sum(axis=1)
    longest = min((len(places) - 1) // 2, _MOST_PERIODS)
    alike = np.array([_shared_fraction(counts, sizes, period) for period in range(1, longest + 1)])
    if not len(alike):
        return 1
    if alike.max() < _LEAST_ALIKE and np.median(sizes) >= FEWEST_KERNELS:
        return None
    # What comes once in a pass may be a hundredth of its kernels; a log in some of the steps is as much.
    as_good = _AS_GOOD if _is_like_steps(kernels, marks) else RARER
    period = int(np.flatnonzero(alike >= alike.max() - as_good)[0]) + 1
    if period == 1 and _consists_of_parts(kernels, places):
        return None
    return period


def _shared_fraction(counts: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64], period: int) -> float:
    """Return the share of kernels that a stretch has in common with the one a period later, over all of them."""
    common = np.minimum(counts[:-period], counts[period:]).sum()
    return float(common / max(np.maximum(sizes[:-period], sizes[period:]).sum(), 1.0))


def _consists_of_parts(kernels: LaunchedKernels, places: Ns) -> bool:
    """Return True if the stretches between marks are the same order of kernels several times over."""
    pairs = list(zip(places[:-1].tolist(), places[1:].tolist(), strict=True))
    middle = [pair for pair in pairs if pair[1] - pair[0] >= 2 * FEWEST_KERNELS][:_EXAMINED]
    if not middle:
        return False
    return sum(_parts(kernels.name[low:high]) > 1 for low, high in middle) * 2 > len(middle)


def is_loop_of(kernels: LaunchedKernels, marks: Ns, most: int) -> bool:
    """Return True if what lies between marks is a loop of few kernels: the same ones, again and again.

    Work that repeats after fewer kernels than a step has is a part of one, and a program that launches nothing
    else has no steps, however regular its marks are.

    Args:
        kernels: of the process.
        marks: instants in ns, in order.
        most: kernels of the loop, at most; 0: only what is one kernel throughout.
    """
    if not len(kernels.rows):
        return False
    places = kernels.places(marks)
    pairs = [pair for pair in zip(places[:-1].tolist(), places[1:].tolist(), strict=True) if pair[0] < pair[1]]
    middle = pairs[len(pairs) // 2 :][:_EXAMINED]
    return bool(middle) and sum(_repeats_within(kernels, low, high, most) for low, high in middle) * 2 > len(
        middle
    )


def _repeats_within(kernels: LaunchedKernels, low: int, high: int, most: int) -> bool:
    """Return True if the kernels of a stretch repeat after at most so many, without what comes once in a step."""
    rows, order = kernels.rows[low:high], kernels.name[low:high]
    used = distinct_values(order)
    if (kernels.trace.ops.kind[rows] == model.GRAPH).any():
        return False
    if len(used) == 1:
        return True
    if any(is_step_work(kernels.trace.names[title]) for title in kernels.titles[used].tolist()):
        return False
    longest = min(most, len(order) // _FEWEST_STEPS)
    return any(float((order[after:] == order[:-after]).mean()) >= _REPEATS for after in range(1, longest + 1))


def _parts(order: Ns) -> int:
    """Return the number of equal parts of an order of kernels; 1 where it is no repetition."""
    counts = np.unique(order, return_counts=True)[1]
    for parts in range(2, min(_MOST_PARTS, len(order) // FEWEST_KERNELS) + 1):
        length = round(len(order) / parts)
        # Of layers as well most kernels come again, but not the embedding and the loss around them.
        if counts[counts % parts != 0].sum() > RARER * len(order) or len(counts) < 3:
            continue
        if (order[length:] == order[:-length]).mean() >= _REPEATS:
            return parts
    return 1


def group_marks(kernels: LaunchedKernels, marks: Ns, period: int) -> Ns:
    """Return each `period`-th mark, from the first after the stretch that has most kernels of its own.

    The last stretch of a step is the one with all that comes once; the marks after it begin the next step. If all
    kernels behind the last whole step are those of a step again, its end is added: the last launch and 1 ns.

    Args:
        kernels: of the process.
        marks: instants in ns, in order; at least two periods of them.
        period: how many marks make a step.
    """
    places = kernels.places(marks)
    counts = kernels.counts(places)
    usual = np.median(counts, axis=0)
    odd = np.abs(counts - usual).sum(axis=1)
    by_phase = [float(odd[phase::period].mean()) for phase in range(min(period, len(odd)))]
    first = (int(np.argmax(by_phase)) + 1) % period
    chosen = marks[first::period]
    begins = kernels.places(chosen)
    ahead = int(begins[0])
    # Where the first pass is whole: what was launched before its first mark comes before all others' too.
    if 0 < ahead < begins[-1] - begins[-2] and all(
        np.array_equal(kernels.name[place - ahead : place], kernels.name[:ahead]) for place in begins.tolist()
    ):
        begins = begins - ahead
        chosen = kernels.launched[begins]
    if len(begins) > 1:
        edges = np.append(begins, len(kernels.launched))
        sizes = kernels.counts(edges)
        same = np.minimum(sizes[-1], sizes[-2]).sum() / max(sizes[-1].sum(), sizes[-2].sum(), 1.0)
        if same >= 1 - _AS_GOOD:
            chosen = np.append(chosen, kernels.launched[-1] + 1)
    return chosen


def repeating_ns(kernels: LaunchedKernels, marks: Ns) -> int:
    """Return how long the stretches between marks took on the host, in ns, whose neighbour has the same kernels.

    Args:
        kernels: of the process.
        marks: instants in ns, in order.

    Returns:
        0 with fewer than three such stretches, or where they may be layers.
    """
    marks = marks[:_MOST_MARKS]
    places = kernels.places(marks)
    if len(places) <= _FEWEST_STEPS or places[-1] == places[0] or may_be_layers(kernels, marks):
        return 0
    counts = kernels.counts(places)
    sizes = counts.sum(axis=1)
    common = np.minimum(counts[:-1], counts[1:]).sum(axis=1)
    same = common >= (1 - _AS_GOOD) * np.maximum(sizes[:-1], sizes[1:])
    repeats = (np.append(same, False) | np.append(False, same)) & (sizes >= FEWEST_KERNELS)
    return int(np.diff(marks)[repeats].sum()) if repeats.sum() >= _FEWEST_STEPS else 0


def may_be_layers(kernels: LaunchedKernels, marks: Ns) -> bool:
    """Return True if what marks divide may be the layers of one pass instead of steps.

    Args:
        kernels: of the process.
        marks: instants in ns, in order.

    Returns:
        False where there is more than two layers' attention from mark to mark, or none at all, or where the usual
        stretch has what a layer has not: an optimizer, a loss, an embedding, the choice of a token, or a copy
        between host and device.
    """
    if not len(kernels.rows):
        marks = marks[:_MOST_HOST_MARKS]
    attends = _most_attention(kernels, marks)
    return 0 < attends <= _LAYERS and not _have_step_work(kernels, marks)


def _is_like_steps(kernels: LaunchedKernels, marks: Ns) -> bool:
    """Return True if the usual stretch between marks has what a layer has not."""
    return _most_attention(kernels, marks) > _LAYERS or _have_step_work(kernels, marks)


def _most_attention(kernels: LaunchedKernels, marks: Ns) -> float:
    """Return how often the attention kernel that is most frequent there comes in the usual stretch between
    marks."""
    attends = kernels.counts(kernels.places(marks))[:, kernels.chosen_names(_attends)]
    return float(np.median(attends.max(axis=1))) if attends.shape[1] else 0.0


def _have_step_work(kernels: LaunchedKernels, marks: Ns) -> bool:
    """Return True if nearly each stretch has an optimizer, a loss, an embedding, the choice of a token, or a
    copy."""
    counts = kernels.counts(kernels.places(marks))
    once = counts[:, kernels.chosen_names(is_step_work)].sum(axis=1) > 0
    copies = np.diff(np.searchsorted(kernels.copied, marks)) > 0
    return bool(np.mean(once | copies) >= _USUAL)


def hold_the_work(kernels: LaunchedKernels, marks: Ns, as_steps: bool) -> bool:
    """Return True if most kernels of the process lie between the marks, of at least three steps.

    Args:
        kernels: of the process.
        marks: instants in ns, in order.
        as_steps: whether a step needs as many kernels as one that no range marks.
    """
    within = np.diff(kernels.places(marks))
    if len(within) < _FEWEST_STEPS or len(kernels.launched) < FEWEST_KERNELS:
        return False
    enough = FEWEST_KERNELS if as_steps else 1
    return bool(np.median(within) >= enough and 2 * within.sum() >= len(kernels.launched))


def _attends(name: str) -> bool:
    # A softmax of single operators has its exponential.
    return kind_of(name) == "attention" or "softmax" in name.lower() or "exp_kernel" in name
