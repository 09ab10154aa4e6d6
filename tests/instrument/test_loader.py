"""What `llmtop.loader` returns is used as the loader itself."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import llmtop
from tests.support.recorded import Recorded

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("recorded")]


@pytest.fixture
def torch() -> Any:
    """Imported by what needs it, and not by whoever only collects tests."""
    return pytest.importorskip("torch")


@pytest.fixture
def data(torch: Any) -> Any:
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(torch.arange(12.0)), batch_size=4, shuffle=True)


def test_a_dataloader_stays_one_with_the_same_attributes(torch: Any, data: Any) -> None:
    wrapped = llmtop.loader(data)
    assert isinstance(wrapped, torch.utils.data.DataLoader)
    assert type(wrapped).__qualname__ == type(data).__qualname__
    assert wrapped.sampler is data.sampler
    assert len(wrapped) == 3
    wrapped.epoch = 5
    assert data.epoch == 5
    assert vars(wrapped) is vars(data)
    assert llmtop.loader(wrapped) is wrapped
    assert type(data) is torch.utils.data.DataLoader, "the original is as it was"


def test_it_is_copied_and_pickled_as_a_dataloader(torch: Any, data: Any) -> None:
    wrapped = llmtop.loader(data)
    for again in (pickle.loads(pickle.dumps(wrapped)), copy.deepcopy(wrapped), copy.copy(wrapped)):
        assert isinstance(again, torch.utils.data.DataLoader)
        again.epoch = 7
        assert not hasattr(data, "epoch")
        assert len(list(again)) == 3
    again = type(wrapped)(data.dataset, batch_size=6)  # as Lightning makes one anew
    assert [len(batch[0]) for batch in again] == [6, 6]


def test_random_numbers_are_drawn_where_the_script_begins_the_pass(
    torch: Any, data: Any, recorded: Recorded
) -> None:
    drawn = []
    for wrap in (lambda loader: loader, llmtop.loader):
        torch.manual_seed(3)
        batches = iter(wrap(data))
        weights = torch.randn(4)
        with llmtop.step():
            first = next(batches)[0]
        drawn.append((weights.tolist(), first.tolist(), torch.randn(1).item()))
    assert drawn[0] == drawn[1]
    assert [phase.name for phase in recorded.steps[1].phases] == ["dataload"]


def test_accelerate_shards_a_wrapped_loader(data: Any) -> None:
    loading = pytest.importorskip("accelerate.data_loader")
    prepared = loading.prepare_data_loader(llmtop.loader(data), num_processes=3, process_index=1)
    assert len(list(prepared)) == 1


def test_a_generator_stays_usable_as_one() -> None:
    def numbers() -> Iterator[int]:
        try:
            yield from range(5)
        finally:
            closed.append(True)

    closed: list[bool] = []
    wrapped: Any = llmtop.loader(numbers())
    assert wrapped
    assert next(wrapped) == 0
    assert next(iter(wrapped)) == 1
    assert list(wrapped) == [2, 3, 4]
    assert closed == [True]


def test_other_iterables_pass_on_what_is_asked_and_set() -> None:
    class Data(list):  # type: ignore[type-arg]
        epoch = 0

    data = Data([1, 2])
    wrapped: Any = llmtop.loader(data)
    wrapped.epoch = 3
    assert data.epoch == 3
    assert wrapped[1] == 2
    assert 2 in wrapped
    assert not llmtop.loader([])
    assert list(pickle.loads(pickle.dumps(llmtop.loader([1, 2])))) == [1, 2]


def test_a_bare_decorator_runs_the_function(recorded: Recorded) -> None:
    @llmtop.step  # type: ignore[arg-type]
    def train(number: int) -> int:
        return work(number)

    @llmtop.phase  # type: ignore[arg-type]
    def work(number: int) -> int:
        return number + 1

    assert train(1) == 2
    assert [phase.name for phase in recorded.step.phases] == ["work"]
