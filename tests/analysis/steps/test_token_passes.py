"""Passes over prompts and for single tokens, identified by their kernels alone."""

from __future__ import annotations

import pytest

from llmtop.analysis.steps.token_passes import TokenPasses, token_passes
from tests.support.tables import Tables

PROMPT, TOKEN = "ampere_bf16_gemm_128x256", "gemv2T_kernel_bf16_gemm_small"
CHOICE = "reduce_kernel<ArgMaxOps<float>>"


def _passes(pattern: str, *, choice: str = CHOICE, took: dict[str, int] | None = None) -> TokenPasses | None:
    """Passes one after another, 1000 ns each: "P" over a prompt (700 ns of work), "t" for a token (400 ns), "o"
    another kernel that computes no products (700 ns); each ends with 20 ns that choose a token."""
    took = {"P": 700, "t": 400, "o": 700} | (took or {})
    names = {"P": PROMPT, "t": TOKEN, "o": "layer_norm_kernel"}
    made = Tables()
    for number, kind in enumerate(pattern):
        at = 1000 * number
        made.op(at, at + took[kind], names[kind])
        made.op(at + 900, at + 920, choice)
    return token_passes(made.trace())


def test_prompts_and_tokens_are_distinguished() -> None:
    found = _passes("PttttPtttt")
    assert found is not None
    assert found.prefill.tolist() == [True, *[False] * 4] * 2
    assert found.of.tolist() == [number for number in range(10) for _ in range(2)]
    assert found.ends.tolist() == [1000 * number + 920 for number in range(10)]
    # A token's pass begins when the one before has ended, a prompt's with its own first work.
    assert found.starts.tolist() == [0, 920, 1920, 2920, 3920, 5000, 5920, 6920, 7920, 8920]
    assert found.seconds(prefill=True) == pytest.approx(920e-9)
    assert found.seconds(prefill=False) == pytest.approx(1000e-9)
    assert found.rows(prefill=True).tolist() == ([True] * 2 + [False] * 8) * 2
    assert found.rows(prefill=False).tolist() == ([False] * 2 + [True] * 8) * 2


@pytest.mark.parametrize(
    ("pattern", "prompts"),
    [
        ("Pttttttt", 1),  # eight tokens are enough
        ("Ptttttt", None),  # seven are not
        ("tttttttt", None),  # no prompt
        ("PoPoPoPo", None),  # no token like the one before
        ("PtttPtttPtt", 3),  # the last has too few passes behind it to decide
        ("PtttPttP", None),  # one of two is followed by three tokens: not more than half
    ],
)
def test_what_shows_prompts(pattern: str, prompts: int | None) -> None:
    found = _passes(pattern)
    assert (None if found is None else int(found.prefill.sum())) == prompts


def test_most_prompts_must_be_followed_by_three_tokens() -> None:
    assert _passes("PtttPttoPttt") is not None, "two of three"
    assert _passes("PtttPttoPttoPttt") is None, "two of four"


def test_a_prompt_with_exactly_three_passes_behind_it_decides() -> None:
    """Of two prompts the last is followed by two tokens and another kernel: with three behind it it counts."""
    assert _passes("PttttttPtto") is None
    assert _passes("PttttttPtt") is not None


@pytest.mark.parametrize(("took", "is_prompt"), [(320, True), (304, True), (303, False)])
def test_a_prompt_s_pass_works_at_least_four_fifths_of_a_token_s(took: int, is_prompt: bool) -> None:
    """A token's pass works 400 + 20 - 15 ns here: 0.8 of 405 is 324, less the 20 ns of the choice 304."""
    found = _passes("Pttttttttt", took={"P": took, "t": 385})
    assert (found is not None) == is_prompt


@pytest.mark.parametrize(
    ("choice", "known"),
    [
        ("void at::native::reduce_kernel<512, 1, ArgMaxOps<float>>", True),
        ("argmax_kernel", True),
        ("void at::native::sampleMultinomialOnce<float>", True),
        ("TopPSamplingFromProbKernel", True),
        ("TopKTopPSamplingKernel", True),
        ("void cub::DeviceRadixSort", False),
        ("fooargmax", False),
    ],
)
def test_kernels_that_choose_a_token(choice: str, known: bool) -> None:
    assert (_passes("PttttPtttt", choice=choice) is not None) == known


def test_a_first_pass_that_is_cut_is_none() -> None:
    found = _passes("ttttPtttt")
    assert found is not None
    assert found.prefill.tolist() == [False] * 3 + [True] + [False] * 4
    assert found.of.tolist()[:4] == [-1, -1, 0, 0]


def test_work_behind_the_last_token_is_of_no_pass() -> None:
    made = Tables()
    for number, name in enumerate((PROMPT, *[TOKEN] * 8)):
        at = 1000 * number
        made.op(at, at + (700 if name == PROMPT else 400), name)
        made.op(at + 900, at + 920, CHOICE)
    made.op(9000, 9400, TOKEN)
    found = token_passes(made.trace())
    assert found is not None
    assert found.of.tolist()[-1] == -1
    assert not found.rows(prefill=False)[-1]
    assert not found.rows(prefill=True)[-1]


def test_the_device_with_most_tokens_is_looked_at() -> None:
    made = Tables()
    for device, pattern in enumerate(("Ptttttttt", "Pttttttttttttttttttttttt", "Pttttttttttt")):
        for number, kind in enumerate(pattern):
            at = 1000 * number
            made.op(at, at + (700 if kind == "P" else 400), PROMPT if kind == "P" else TOKEN, device=device)
            made.op(at + 900, at + 920, CHOICE, device=device)
    trace = made.trace()
    found = token_passes(trace)
    assert found is not None
    assert set(trace.ops.device[found.of >= 0].tolist()) == {1}
    assert len(found.prefill) == 24


def test_copies_choose_no_token() -> None:
    made = Tables()
    for number in range(9):
        made.op(1000 * number, 1000 * number + 5, CHOICE, kind=1)
    assert token_passes(made.trace()) is None
