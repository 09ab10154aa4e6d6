"""Forward passes that go on with the sequences of the one before, by the shapes of their token ids alone."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch
MODEL, PART = object(), object()


def new_sequences() -> Any:
    """Sequences before the first forward pass. Imports torch, which is not for the collection of tests."""
    from llmtop.instrument.auto.inference.sequences import Sequences

    return Sequences()


def ids(batch: int, length: int) -> tuple[Any]:
    """Arguments of a model's call."""
    import torch

    return (torch.zeros(batch, length, dtype=torch.long),)


def test_a_prompt_and_one_token_a_pass_are_a_decoding_loop() -> None:
    sequences = new_sequences()
    assert not sequences.go_on(MODEL, ids(2, 30), {})
    assert all(sequences.go_on(MODEL, ids(2, 1), {}) for _ in range(8))
    assert sequences.decode


def test_tokens_whose_prompt_was_not_seen_do_not_count_against_it() -> None:
    """The prompt came through a part of the model, the tokens after it through the whole of it."""
    sequences = new_sequences()
    sequences.go_on(PART, ids(1, 30), {})
    assert [sequences.go_on(MODEL, ids(1, 1), {}) for _ in range(500)] == [False] * 500
    sequences.go_on(MODEL, ids(1, 30), {})
    for _ in range(8):
        sequences.go_on(MODEL, ids(1, 1), {})
    assert sequences.decode


@pytest.mark.parametrize(("prompts", "sequences_after", "goes_on"), [(1, 4, True), (2, 6, True), (2, 3, False)])
def test_a_beam_search_goes_on_with_several_sequences_for_each_prompt(
    prompts: int, sequences_after: int, goes_on: bool
) -> None:
    sequences = new_sequences()
    sequences.go_on(MODEL, ids(prompts, 20), {})
    assert sequences.go_on(MODEL, ids(sequences_after, 1), {}) == goes_on
    assert sequences.go_on(MODEL, ids(sequences_after, 1), {}) == goes_on
    assert not sequences.go_on(MODEL, ids(sequences_after * 2, 1), {})


def test_an_empty_batch_is_followed_by_nothing() -> None:
    sequences = new_sequences()
    sequences.go_on(MODEL, ids(0, 20), {})
    assert not sequences.go_on(MODEL, ids(4, 1), {})


def test_batches_of_single_tokens_are_no_decoding_loop() -> None:
    sequences = new_sequences()
    for _ in range(500):
        sequences.go_on(MODEL, ids(64, 1), {})
    assert not sequences.decode
