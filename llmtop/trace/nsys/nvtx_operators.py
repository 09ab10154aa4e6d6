"""Operators that PyTorch itself marks as NVTX ranges (torch.autograd.profiler.emit_nvtx), recognized by their
names.

A range is called "aten::mm, seq = 12, op_id = 345, sizes = [[64, 128], [128, 32]], input_op_ids = [[(3,0)]]"; each
of the parts after the name may be missing, and no two are the same, so as names they would fill the memory.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_MARKS = (", op_id = ", ", seq = ")
_OPERATOR = re.compile(
    r"(?P<name>.+?)(?:, seq = (?P<seq>\d{1,9}))?(?:, op_id = \d+)?(?:, sizes = (?P<sizes>\[[\[\]\d, ]*\]))?"
    r"(?:, input_op_ids = .*)?$",
    re.S,
)


class OperatorRange(NamedTuple):
    """One call of an operator."""

    name: str
    sequence: int
    """One more than autograd's sequence number; 0 where there is none."""
    inputs: str
    """Inputs as in `HostSpans.inputs`; the types are not in the range's name. Empty where not recorded."""


def parse_operator_range(text: str) -> OperatorRange | None:
    """Return the operator that a range marks; None for a range of anything else."""
    if not any(mark in text for mark in _MARKS):
        return None
    found = _OPERATOR.match(text)
    if found is None or found["name"] == text:
        return None
    sizes = (found["sizes"] or "").replace(" ", "")
    return OperatorRange(
        name=found["name"],
        sequence=int(found["seq"]) + 1 if found["seq"] else 0,
        inputs=f"{sizes} []" if sizes not in ("", "[]") else "",
    )
