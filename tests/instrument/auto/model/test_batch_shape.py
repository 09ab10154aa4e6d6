"""Samples and tokens of a model's call, by the name under which it gets its batch."""

from __future__ import annotations

import pytest

from llmtop.instrument.record.recorder import Step

pytestmark = pytest.mark.torch
IDS = (4, 16)


def counted(**shapes: tuple[int, ...] | None) -> tuple[int, float | None]:
    """Return samples and tokens of a call with tensors of these shapes under these names."""
    import torch

    from llmtop.instrument.auto.model.batch_shape import count_tokens

    kinds = {"input_ids": torch.long}
    given = {
        name: None if shape is None else torch.zeros(shape, dtype=kinds.get(name))
        for name, shape in shapes.items()
    }
    step = Step()
    return count_tokens(step, (), given), step.tokens


@pytest.mark.parametrize(
    ("name", "shape", "samples", "tokens"),
    [
        ("input_ids", IDS, 4, 64),
        ("inputs_embeds", (4, 16, 8), 4, None),
        ("pixel_values", (4, 3, 8, 8), 4, None),
        ("input_values", (4, 1600), 4, None),
        ("input_features", (4, 80, 30), 4, None),
        ("unknown", (4, 16), 0, None),
    ],
)
def test_a_batch_is_found_by_the_names_of_transformers(
    name: str, shape: tuple[int, ...], samples: int, tokens: int | None
) -> None:
    assert counted(attention_mask=(9, 16), **{name: shape}) == (samples, tokens)


def test_text_comes_before_its_images() -> None:
    assert counted(pixel_values=(2, 3, 8, 8), input_ids=IDS) == (4, 64)
    assert counted(input_ids=None, inputs_embeds=(4, 16, 8)) == (4, None)
