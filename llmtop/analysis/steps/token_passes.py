"""Forward passes of a language model that answers, in a capture that names none of them.

Each pass ends with the choice of a token, by a kernel of its own. Passes that decode run one after another with
the same matrix and attention kernels, while the pass over a prompt has more rows and so other ones, and none like
it beside it: that distinguishes them. Where no prompt and its tokens are in the capture, the result is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from llmtop.naming.kernel_names import kind_of
from llmtop.trace import model
from llmtop.trace.groups import distinct_values, grouped
from llmtop.trace.intervals import Ns

TOKEN_CHOICE = re.compile(r"ArgMaxOps|\bargmax|sampleMultinomialOnce|TopPSampling|TopKTopPSampling", re.I)
"""Kernels that choose a token: torch's argmax, of which its multinomial of one sample is made; servers' own."""
FEWEST_TOKENS = 8
_IN_A_ROW = 3
"""Number of decoding passes that follow a prompt's pass."""
_LEAST_WORK = 0.8
"""Least device time of the pass over a prompt, as a share of a decoding pass's: a last, smaller batch has less."""
_COMPUTE = frozenset({"GEMM", "attention", "convolution"})


@dataclass(frozen=True)
class TokenPasses:
    """Passes of one process on one device. A first one whose beginning is not in the capture is left out."""

    of: npt.NDArray[np.int64]
    """For each row of the trace's device work the number of its pass; -1 for none."""
    prefill: npt.NDArray[np.bool_]
    """For each pass whether it is over a prompt."""
    starts: Ns
    """When each pass's first work began on the device. Of a decoding pass, when the pass before it had ended."""
    ends: Ns
    """When its token had been chosen."""

    def rows(self, *, prefill: bool) -> npt.NDArray[np.bool_]:
        """Return which rows of the device work belong to passes of that stage."""
        return np.asarray((self.of >= 0) & (self.prefill[self.of] == prefill))

    def seconds(self, *, prefill: bool) -> float:
        """Return how long such a pass takes on average, on the device's clock."""
        mine = self.prefill == prefill
        return float((self.ends - self.starts)[mine].mean()) / 1e9


def token_passes(trace: model.Trace) -> TokenPasses | None:
    """Return the passes on the device that has most of them; None where nothing distinguishes prompts from
    tokens."""
    ops = trace.ops
    chooses = _matching_names(trace, lambda name: TOKEN_CHOICE.search(name) is not None)[ops.full_name] & (
        ops.kind == model.KERNEL
    )
    best: tuple[int, int, int] | None = None
    pairs, which = grouped(ops.process[chooses], ops.device[chooses])
    for place, (process, device) in enumerate(pairs):
        count = int((which == place).sum())
        if count >= FEWEST_TOKENS and (best is None or count > best[0]):
            best = count, process, device
    if best is None:
        return None
    rows = np.flatnonzero((ops.process == best[1]) & (ops.device == best[2]))
    rows = rows[np.argsort(ops.start[rows], kind="stable")]
    return _find_passes(trace, rows, np.flatnonzero(chooses[rows]))


def _find_passes(trace: model.Trace, rows: Ns, marks: Ns) -> TokenPasses | None:
    """Return the passes of these rows, each of which ends with the row at one of these places."""
    ops = trace.ops
    number = np.searchsorted(marks, np.arange(len(rows)))  # behind the last mark: of a pass that did not end
    names = ops.full_name[rows]
    computes = _matching_names(trace, lambda name: kind_of(name) in _COMPUTE)[names]
    begins = np.append(0, marks[:-1] + 1)
    took = np.add.reduceat((ops.end - ops.start)[rows[: marks[-1] + 1]], begins)
    work = [
        frozenset(names[begin:end][computes[begin:end]].tolist())
        for begin, end in zip(begins.tolist(), (marks + 1).tolist(), strict=True)
    ]
    follows = {one for one, following in pairwise(work) if one == following}
    decodes = np.array([one in follows for one in work])
    usual = float(np.median(took[decodes])) if decodes.any() else 0.0
    prefill = ~decodes & (took >= _LEAST_WORK * usual) & np.array([bool(one) for one in work])
    if not _separates_stages(prefill, decodes):
        return None
    starts = ops.start[rows[begins]]
    ends = ops.end[rows[marks]]
    starts[1:][decodes[1:]] = ends[:-1][decodes[1:]]
    counted = prefill | decodes
    counted[0] &= bool(prefill[0])
    renumbered = np.append(np.where(counted, np.cumsum(counted) - 1, -1), -1)
    of = np.full(len(ops), -1, dtype=np.int64)
    of[rows] = renumbered[np.minimum(number, len(marks))]
    return TokenPasses(of, prefill[counted], starts[counted], ends[counted])


def _separates_stages(prefill: npt.NDArray[np.bool_], decodes: npt.NDArray[np.bool_]) -> bool:
    """Return True if a prompt's pass is there, and tokens after most of them."""
    places = np.flatnonzero(prefill)
    followed = [bool(decodes[place + 1 : place + 1 + _IN_A_ROW].all()) for place in places.tolist()]
    whole = [place + _IN_A_ROW < len(prefill) for place in places.tolist()]
    known = [one for one, enough in zip(followed, whole, strict=True) if enough]
    return bool(known) and 2 * sum(known) > len(known)


def _matching_names(trace: model.Trace, fits: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
    """Return which of the names of device work fit."""
    like = np.zeros(len(trace.names), dtype=bool)
    for number in distinct_values(trace.ops.full_name).tolist():
        like[number] = fits(trace.names[number])
    return like
