"""Samples and tokens of a model's call, by the name under which it gets its batch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from llmtop.instrument.auto.model.batch_shape import count_tokens
from llmtop.instrument.record.recorder import Step

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("name", "batch", "samples", "tokens"),
    [
        ("input_ids", torch.zeros(4, 16, dtype=torch.long), 4, 64),
        ("inputs_embeds", torch.zeros(4, 16, 8), 4, None),
        ("pixel_values", torch.zeros(4, 3, 8, 8), 4, None),
        ("input_values", torch.zeros(4, 1600), 4, None),
        ("input_features", torch.zeros(4, 80, 30), 4, None),
        ("unknown", torch.zeros(4, 16), 0, None),
    ],
)
def test_a_batch_is_found_by_the_names_of_transformers(
    name: str, batch: torch.Tensor, samples: int, tokens: int | None
) -> None:
    step = Step()
    assert count_tokens(step, (), {"attention_mask": torch.ones(9, 16), name: batch}) == samples
    assert step.tokens == tokens


def test_text_comes_before_its_images() -> None:
    step = Step()
    given = {"pixel_values": torch.zeros(2, 3, 8, 8), "input_ids": torch.zeros(4, 16, dtype=torch.long)}
    assert (count_tokens(step, (), given), step.tokens) == (4, 64)
    assert count_tokens(Step(), (), {"input_ids": None, "inputs_embeds": torch.zeros(4, 16, 8)}) == 4
