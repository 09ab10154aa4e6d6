"""Shapes, sizes of matrix products and bytes moved, from an operator's recorded inputs."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

_DTYPES: Final = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8",
    "long": "int64",
    "long int": "int64",
    "int": "int32",
    "bool": "bool",
    "unsigned char": "uint8",
    "signed char": "int8",
}
"""PyTorch's names of types, as C++ prints them."""
BYTES: Final[dict[str, int]] = {"bool": 1, "tf32": 4} | {
    "fp64": 8,
    "int64": 8,
    "fp32": 4,
    "int32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "uint8": 1,
    "int8": 1,
}
_LONGEST_TEXT: Final = 120

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Gemm:
    """The size of a matrix product: batch times (m x k) times (k x n)."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str | None
    """Type of the factors; None where not recorded."""

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each of m n k."""
        return 2 * self.batch * self.m * self.n * self.k

    def bytes(self, out: int, value: int) -> int:
        """Return the bytes of each factor read once and the product written once, the least possible.

        Args:
            out: bytes of a value of the product.
            value: bytes of a value of a factor.
        """
        factors = self.m * self.k + self.k * self.n
        return self.batch * (factors * value + self.m * self.n * out)


@functools.lru_cache(maxsize=4096)
def parse_inputs(text: str) -> tuple[tuple[Shape | None, str | None], ...]:
    """Shape and type of each input; of what is no tensor, and of a list of tensors, the shape is None.

    Args:
        text: JSON of the shapes, a space, JSON of the types, as a trace keeps it.
    """
    shapes, _, types = text.partition(" ")
    known, kinds = _parse_list(shapes), _parse_list(types)
    found = []
    for place, shape in enumerate(known):
        kind = kinds[place] if place < len(kinds) and isinstance(kinds[place], str) else None
        whole = isinstance(shape, list) and all(type(size) is int and 0 <= size < 1 << 48 for size in shape)
        # A tensor without dimensions is written as the scalars and lists are, as [], but has a tensor's type.
        tensor = whole and (bool(shape) or kind in _DTYPES)
        found.append((tuple(shape) if tensor else None, _DTYPES.get(kind) if kind else None))
    return tuple(found)


def _parse_list(text: str) -> list[Any]:
    try:
        found = msgspec.json.decode(text or "[]")
    except (msgspec.DecodeError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def shape_text(text: str) -> str:
    """Return the tensors among the inputs for a reader: 8944x1024, 1024x2816 bf16; "?" is an unknown type."""
    tensors = [(shape, dtype or "?") for shape, dtype in parse_inputs(text) if shape is not None]
    parts = ["x".join(map(str, shape)) or "scalar" for shape, _ in tensors]
    types = [dtype for _, dtype in tensors]
    for place, dtype in enumerate(types):
        if types[place + 1 : place + 2] != [dtype] and set(types) != {"?"}:
            parts[place] += f" {dtype}"
    said = ", ".join(parts)
    lists = [shape for shape in _parse_list(text.partition(" ")[0]) if isinstance(shape, list)]
    many = [len(shape) for shape in lists if shape and all(isinstance(one, list) for one in shape)]
    said = ", ".join([*(f"{number} tensors" for number in many), *([said] if said else [])])
    return said if len(said) <= _LONGEST_TEXT else said[: _LONGEST_TEXT - 1] + "…"


_FACTORS: Final = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::addmm_": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::baddbmm_": (1, 2),
    "aten::addbmm": (1, 2),
    "aten::_scaled_mm": (0, 1),
    "aten::_int_mm": (0, 1),
}
"""Which inputs are the factors."""


def parse_gemm(operator: str, text: str) -> Gemm | None:
    """Return the matrix product that an operator computes; None if it is none, or its shapes are not those of
    one."""
    places = _FACTORS.get(operator)
    if places is None:
        return None
    inputs = parse_inputs(text)
    if len(inputs) <= places[1]:
        return None
    (left, dtype), (right, _) = inputs[places[0]], inputs[places[1]]
    if (
        left is None
        or right is None
        or len(left) != len(right)
        or len(left) not in (2, 3)
        or left[-1] != right[-2]
    ):
        return None
    batch = left[0] if len(left) == 3 else 1
    if len(left) == 3 and right[0] != batch:
        return None
    sizes = (batch, left[-2], right[-1], left[-1])
    return Gemm(*sizes, dtype) if all(sizes) else None


_WRITE_ONLY: Final = {"aten::fill_", "aten::zero_"}
_PARTS_ONLY: Final = re.compile(
    r"index|gather|scatter|embedding|take|slice|select|unfold|unique|^aten::_?(?:cat|stack)$"
)
"""Names of operators that move parts of their inputs, or whose lists of inputs are not recorded whole."""
_INPUTS: Final = dict.fromkeys(("mul", "add", "sub", "div", "maximum", "minimum", "pow"), 2) | dict.fromkeys(
    ("sqrt", "rsqrt", "exp", "log", "neg", "abs", "sigmoid", "tanh", "relu", "silu", "gelu", "reciprocal"), 1
)
"""How many tensors these read: one more is where the result is written to (out=)."""
_TRUTH: Final = re.compile(r"^aten::(?:eq|ne|lt|le|gt|ge|logical_\w+|is\w+|signbit)$")
"""Operators whose result is of bool."""
_FLOATS: Final = frozenset({"fp64", "fp32", "bf16", "fp16", "fp8", "tf32"})


def moved_bytes(operator: str, text: str) -> int | None:
    """Return the bytes that an elementwise operator reads and writes: each input and the result once.

    Args:
        operator: its name; not checked for being elementwise.
        text: its inputs, as a trace keeps them.

    Returns:
        Bytes; None where a type or shape is not known, or the operator moves parts of its inputs.
    """
    tensors = [(shape, dtype) for shape, dtype in parse_inputs(text) if shape is not None]
    if not tensors or any(dtype is None for _, dtype in tensors) or _PARTS_ONLY.search(operator):
        return None
    sizes: list[int] = [math.prod(shape) * BYTES[dtype or ""] for shape, dtype in tensors]
    if operator in _WRITE_ONLY:
        return sizes[0]
    if operator == "aten::copy_":
        return sum(sizes[:2])
    if operator.endswith("_"):
        return sum(sizes) + sizes[0]
    reads = _INPUTS.get(operator.removeprefix("aten::"))
    if reads is not None and any(shape for shape, _ in tensors[reads:]):
        return sum(sizes)
    values = _values_of_result(tensors)
    return None if values is None else sum(sizes) + values * _bytes_of_result(operator, tensors)


def _values_of_result(tensors: list[tuple[Shape, str | None]]) -> int | None:
    """Return how many values the result has: as the inputs together, spread over one another; None if they do
    not fit."""
    widest = max(len(shape) for shape, _ in tensors)
    spread = [(1,) * (widest - len(shape)) + shape for shape, _ in tensors]
    if any(len({size for size in column if size != 1}) > 1 for column in zip(*spread, strict=True)):
        return None
    values: int = math.prod(0 if 0 in column else max(column) for column in zip(*spread, strict=True))
    return values


def _bytes_of_result(operator: str, tensors: list[tuple[Shape, str | None]]) -> int:
    """Return the bytes of a value of the result, by PyTorch's promotion of types.

    A scalar promotes only from integers to floating point, whose default is fp32
    (https://pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc).
    """
    if _TRUTH.match(operator):
        return 1
    sized = [dtype or "" for shape, dtype in tensors if shape]
    scalars = [dtype or "" for shape, dtype in tensors if not shape]
    if sized and not _FLOATS & set(sized) and _FLOATS & set(scalars):
        return BYTES["fp32"]
    return max(BYTES[dtype] for dtype in sized or scalars)
