"""Bytes that elementwise operators move, against tensors of PyTorch's own."""

from __future__ import annotations

import json

import pytest

from llmtop.analysis.work.tensor_shapes import moved_bytes

KINDS = {
    "bfloat16": "c10::BFloat16",
    "float32": "float",
    "float64": "double",
    "int64": "long int",
    "bool": "bool",
}


def recorded(*inputs: tuple[list[int], str]) -> str:
    """What the profiler keeps of inputs: their shapes, then their types."""
    parts = ([shape for shape, _ in inputs], [KINDS[kind] for _, kind in inputs])
    return " ".join(json.dumps(part, separators=(",", ":")) for part in parts)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("mul", [([64, 32], "bfloat16"), ([], "float64")]),
        ("mul", [([64, 32], "bfloat16"), ([64, 1], "float32")]),
        ("mul", [([64, 32], "int64"), ([], "float64")]),
        ("add", [([64, 32], "float32"), ([32], "float32")]),
        ("lt", [([64, 32], "float32"), ([], "float64")]),
        ("eq", [([64, 32], "int64"), ([64, 32], "int64")]),
        ("sqrt", [([64, 32], "float32")]),
        ("where", [([64, 32], "bool"), ([64, 32], "bfloat16"), ([64, 32], "bfloat16")]),
    ],
)
def test_each_input_and_the_result_are_counted_once(name: str, inputs: list[tuple[list[int], str]]) -> None:
    import torch

    tensors = [torch.ones(shape, dtype=getattr(torch, kind)) for shape, kind in inputs]
    # A number of Python's is recorded as a double without dimensions, and promotes as a number.
    result = getattr(torch, name)(*(tensor if tensor.dim() else tensor.item() for tensor in tensors))
    moved = sum(tensor.nbytes for tensor in (*tensors, result))
    assert moved_bytes(f"aten::{name}", recorded(*inputs)) == moved


def test_a_tensor_for_the_result_is_the_result() -> None:
    large = ([64, 32], "float32")
    assert moved_bytes("aten::mul", recorded(large, large, large)) == 3 * 64 * 32 * 4
    assert moved_bytes("aten::sqrt", recorded(large, large)) == 2 * 64 * 32 * 4


@pytest.mark.parametrize("name", ["index", "gather", "index_select", "embedding", "cat", "scatter_add_"])
def test_what_moves_a_part_of_its_inputs_has_no_rate(name: str) -> None:
    """A gather of 8 rows of a table would have the rate of the whole table: more than any memory has."""
    assert moved_bytes(f"aten::{name}", recorded(([50_000, 1024], "float32"), ([8], "int64"))) is None
