"""What the training adds to a snapshot of its allocator: steps, phases, whose tensors lie where."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from llmtop.instrument.control.allocator_snapshot import Marks, add_marks, owners
from llmtop.memory.snapshot import load
from tests.support.installed import needs

needs("torch")


def test_steps_and_phases_are_read_as_they_were_written(tmp_path: Path) -> None:
    marks = Marks()
    marks.step()
    with marks.phase("forward"):
        pass
    with pytest.raises(ValueError, match="its own"), marks.phase("backward"):
        raise ValueError("its own")
    marks.step()
    data: dict[str, object] = {"segments": []}
    add_marks(data, marks, {"parameters": [512]})
    path = tmp_path / "one.pickle"
    path.write_bytes(pickle.dumps(data))
    found = load(path)
    assert [phase.name for phase in found.phases] == ["forward", "backward"]
    assert found.steps_us[0] <= found.phases[0].begin_us <= found.phases[-1].end_us <= found.steps_us[1]
    assert found.owners == {512: "parameters"}


@pytest.mark.slow("random or many inputs; a neighbour has one case of each kind")
def test_parameters_and_state_of_all_optimizers_are_found() -> None:
    import torch

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    found = owners("cpu")
    assert {parameter.untyped_storage().data_ptr() for parameter in model.parameters()} <= set(found["parameters"])
    averages = {state["exp_avg"].untyped_storage().data_ptr() for state in optimizer.state.values()}
    assert averages <= set(found["optimizer"])
    assert not any(owners("cuda").values())
