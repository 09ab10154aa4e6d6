"""What --vary asks for, and what is said of the values."""

from __future__ import annotations

import pytest

from llmtop.bench.parameter_sweep import parameter_variants
from llmtop.bench.rank import rank_values
from llmtop.bench.statistics.step_statistics import metric_named
from llmtop.errors import UnusableInput
from tests.support.bench_runs import made_runs

TOKENS = metric_named("tokens_per_s")


def test_a_variable_of_the_environment_is_set() -> None:
    made = parameter_variants("NUM_WORKERS=2,4, 8", ["python", "train.py"])
    assert [(one.label, dict(one.variables)) for one in made] == [
        ("NUM_WORKERS=2", {"NUM_WORKERS": "2"}),
        ("NUM_WORKERS=4", {"NUM_WORKERS": "4"}),
        ("NUM_WORKERS=8", {"NUM_WORKERS": "8"}),
    ]
    assert {one.command for one in made} == {("python", "train.py")}


@pytest.mark.parametrize(("text", "label"), [("batch=8,16", "batch=8"), ("8,16", "8")])
def test_a_hole_in_the_command_is_filled_and_nothing_is_set(text: str, label: str) -> None:
    first, second = parameter_variants(text, ["python", "train.py", "--batch={}", "{}"])
    assert (first.label, first.command) == (label, ("python", "train.py", "--batch=8", "8"))
    assert second.command[-1] == "16"
    assert not first.variables


@pytest.mark.parametrize(
    "text", ["X=1", "X=1,1", "X=1,,2", "1,2", "=1,2", "2X=1,2", "X", f"X={','.join('abcdefghijklmnopq')}"]
)
def test_what_varies_nothing_is_refused(text: str) -> None:
    with pytest.raises(UnusableInput, match="--vary"):
        parameter_variants(text, ["python", "train.py"])


@pytest.mark.parametrize("text", ["HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345,2", "API_KEY=1234abcd5678,2"])
def test_values_that_look_like_secrets_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UnusableInput) as refused:
        parameter_variants(text, ["python", "train.py"])
    assert text.partition("=")[2].partition(",")[0] not in str(refused.value)


def test_the_best_value_is_named_and_those_behind_it() -> None:
    runs = {f"W={workers}": made_runs(step, 5, seed=workers) for workers, step in ((2, 0.13), (4, 0.1), (8, 0.11))}
    found = rank_values(runs, TOKENS)
    assert [value.label for value in found.values] == ["W=4", "W=8", "W=2"]
    assert [value.as_good_as_best for value in found.values] == [True, False, False]
    assert found.differs
    assert found.summary.startswith("W=4 is best: better than W=8 (")
    assert found.values[2].behind_low_pct < 30.0 < found.values[2].behind_high_pct


def test_values_that_noise_cannot_tell_apart_are_not_ranked_in_words() -> None:
    runs = {f"W={workers}": made_runs(0.1, 5, seed=workers, between=0.01) for workers in (2, 4, 8)}
    found = rank_values(runs, TOKENS)
    assert not found.differs
    assert found.summary.startswith("no difference beyond noise")


def test_two_values_may_do_equally_well_and_a_third_worse() -> None:
    runs = {"a": made_runs(0.1, 5, seed=1), "b": made_runs(0.1, 5, seed=2), "c": made_runs(0.13, 5, seed=3)}
    found = rank_values(runs, TOKENS)
    assert "do equally well within noise, and better than c" in found.summary


@pytest.mark.slow("test_values_that_noise_cannot_tell_apart_are_not_ranked_in_words finds the same fault")
def test_equal_values_are_seldom_called_different() -> None:
    wrong = 0
    for seed in range(40):
        runs = {str(place): made_runs(0.1, 5, seed=10 * seed + place, between=0.01) for place in range(4)}
        wrong += rank_values(runs, TOKENS).differs
    assert wrong <= 4, wrong
