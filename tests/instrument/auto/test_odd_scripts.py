"""Scripts that nobody had in mind when the hooks were written: they run as without llmtop, and are told right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.odd_model import MODEL, PARTS
from tests.support.steps import Zygote

pytestmark = pytest.mark.torch


ODD_MODULES = {
    "parameters() that returns groups": """
class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
    def parameters(self, recurse=True):
        return [{"params": list(super().parameters())}]
odd = Odd()
""",
    "an attribute called parameters": """
odd = nn.Linear(2, 2)
odd.__dict__["parameters"] = [1, 2]
""",
    "never initialised": """
class Odd(nn.Module):
    def __init__(self):
        pass
odd = Odd()
""",
    "attributes that raise": """
class Odd(nn.Module):
    def __getattr__(self, name):
        raise RuntimeError(name)
    def children(self):
        raise RuntimeError("children")
odd = Odd()
""",
    "a tensor class of its own": """
class Odd(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError("asked")
odd = nn.Module()
odd.__dict__["_parameters"]["w"] = torch.zeros(2).as_subclass(Odd)
""",
    "a module that holds itself": """
odd = nn.Sequential(nn.Linear(2, 2))
odd._modules["self"] = odd
""",
}


@pytest.mark.slow(
    "two of six modules; each trains",
    kept=(
        "parameters() that returns groups",
        "attributes that raise",
    ),
)
@pytest.mark.parametrize("odd", ODD_MODULES)
def test_a_module_that_merely_lives_in_the_process_harms_nothing(odd: str, zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(tmp_path / "train.py", MODEL + ODD_MODULES[odd] + "\ntrain(5)\n")
    assert len(found["steps"]) == 4
    assert all(set(step.phases) == PARTS for step in found["steps"])
    assert found["blind"] == {}


def test_a_class_that_cannot_be_changed_is_left_alone_and_said(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
class Closed(type):
    def __setattr__(cls, name, value):
        raise TypeError(f"{cls.__name__} is closed")
class Own(Net, metaclass=Closed):
    pass
net = Own()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
train(5)
""",
    )
    assert len(found["steps"]) == 4
    assert found["blind"] == {"the modules of this script": "TypeError: Own is closed"}


OWN_CALLS = {
    "partialmethod": "__call__ = functools.partialmethod(lambda self, twice, x: self.forward(x) * twice, 2)",
    "staticmethod": "__call__ = staticmethod(lambda x: kept[0].forward(x) * 2)",
    "classmethod": "__call__ = classmethod(lambda cls, x: kept[0].forward(x) * 2)",
    "function": "def __call__(self, x): return super().__call__(x) * 2",
}


@pytest.mark.slow("one descriptor stands for all; each trains", kept=("staticmethod",))
@pytest.mark.parametrize("own", OWN_CALLS)
def test_a_call_that_is_any_descriptor_is_called_as_one(own: str, zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + f"""
class Own(Net):
    {OWN_CALLS[own]}
kept = [Own()]
net = kept[0]
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
before = net.forward(ids) * 2
assert net(ids).equal(before)
train(1)
assert net(ids).equal(net.forward(ids) * 2)
train(4)
""",
    )
    assert len(found["steps"]) == 4
    assert all(step.count("forward") == 1 for step in found["steps"][1:])


def test_pickles_by_value_hold_nothing_of_llmtop(zygote: Zygote, tmp_path: Path) -> None:
    """By what cloudpickle and dill do with a class of `__main__`: take each thing that stands in it."""
    zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
import io, pickle, sys
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 1)
    def forward(self, x):
        return self.layer(x.float()).mean()
    def __call__(self, x):
        return super().__call__(x)
own = Own()
both = torch.optim.SGD([*net.parameters(), *own.parameters()], lr=1e-3)
without = {kind: kind.__call__ for kind in (Net, Own)}
for _ in range(4):
    (net(ids) + own(ids)).backward()
    both.step()
assert Net.__call__ is not without[Net] and Own.__call__ is not without[Own]
import types
def of(function):
    for cell in function.__closure__ or ():
        yield cell.cell_contents
        if type(cell.cell_contents) is types.FunctionType:
            yield from of(cell.cell_contents)
for kind in (Net, Own):
    standing = vars(kind)["__call__"]
    assert type(standing) is types.FunctionType and standing.__module__ == "__main__"
    assert set(standing.__globals__) == {"__builtins__", "__name__"}, "nothing comes along"
    for held in of(standing):
        if type(held) is not type and type(held).__module__.startswith("llmtop"):
            assert pickle.loads(pickle.dumps(held)) is None and copy.deepcopy(held) is None
from llmtop.instrument import auto
from llmtop.instrument.record import recorder
for thing in (auto.install(), recorder.get()):
    assert pickle.loads(pickle.dumps(thing)) is thing and copy.deepcopy(thing) is thing
for library in ("cloudpickle", "dill"):
    try:
        pickler = __import__(library)
    except ImportError:
        continue
    child = "import sys, pickle; sys.modules['llmtop'] = None; kept = pickle.load(sys.stdin.buffer)"
    child += "; print(kept[0](kept[2]))"
    import os, subprocess
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("LLMTOP", "PYTHONPATH"))}
    clean["PYTHONPATH"] = os.path.dirname(os.path.dirname(pickler.__file__))
    dumped = pickler.dumps((net, own, ids, net.forward, lambda: net))
    printed = subprocess.run([sys.executable, "-c", child], input=dumped, env=clean, capture_output=True)
    assert printed.returncode == 0, printed.stderr.decode()
    assert printed.stdout.decode().strip().startswith(str(net(ids))[:12]), printed.stdout
    again = pickler.loads(dumped)[0]
    assert again(ids).equal(net(ids))
    print(library)
""",
    )


def test_phases_by_hand_lie_within_the_steps_that_hooks_see(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
import llmtop
for (batch,) in llmtop.loader(DataLoader(TensorDataset(ids), batch_size=4)):
    with llmtop.phase("forward"):
        loss = net(batch)
    with llmtop.phase("loss"):
        time.sleep(0.001)
    with llmtop.phase("train"):
        loss.backward()
        with llmtop.phase("update"):
            optimizer.step()
    llmtop.log(loss=loss)
""",
    )
    assert found["left_out"] == {}
    assert len(found["steps"]) == 9
    for step in found["steps"]:
        assert {path: count for path, (count, _) in step.phases.items()} == {
            "dataload": 1, "forward": 1, "loss": 1, "train": 1, "train/backward": 1, "train/update": 1,
            "train/update/optimizer": 1,
        }  # fmt: skip
        assert (step.samples, step.tokens) == (4, 48)
        assert sum(seconds for path, (_, seconds) in step.phases.items() if "/" not in path) <= step.seconds
    assert "Warning" not in found["stderr"], "of a loss with a graph torch warns when it is made a number"


def test_a_loader_that_is_none_of_torchs_leaves_an_evaluation_out(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
import llmtop
for epoch in range(3):
    for batch in llmtop.loader(ids[n : n + 4] for n in range(0, 40, 8)):
        net(batch).backward()
        optimizer.step()
    with torch.no_grad():
        for batch in llmtop.loader(ids[n : n + 4] for n in range(0, 40, 8)):
            net(batch)
            time.sleep(0.1)
""",
    )
    assert len(found["steps"]) == 14
    assert all(step.count("dataload") == 1 for step in found["steps"])
    whole = [step for step in found["steps"] if step.time("evaluation") >= 0.5]
    assert len(whole) == 2, "one with its sleeps lasts 0.5 s; the last one is after all steps"


def test_a_phase_around_many_steps_is_left_out_and_said(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
import llmtop
train(1)
for epoch in range(2):
    with llmtop.phase("epoch"):
        train(5)
""",
    )
    assert len(found["steps"]) == 10
    assert [step.count("epoch/forward") for step in found["steps"]] == [1, 0, 0, 0, 0] * 2
    assert found["left_out"] == {"phases that enclose a step or were not ended within it": 2}


def test_a_forward_that_a_backward_follows_is_no_evaluation(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
for epoch in range(3):
    for (batch,) in DataLoader(TensorDataset(ids), batch_size=4):
        net(batch).backward()
        optimizer.step()
    net.eval()  # and never back
    if epoch == 0:
        for (batch,) in DataLoader(TensorDataset(ids), batch_size=8):
            net(batch)  # with gradients, which nobody needs
            time.sleep(0.1)
""",
    )
    assert len(found["steps"]) == 29
    for step in found["steps"]:
        assert all(step.count(part) == 1 for part in ("dataload", *PARTS))
        assert (step.samples, step.tokens) == (4, 48)
    assert sum(step.time("evaluation") >= 0.5 for step in found["steps"]) == 1, "with its sleeps"


@pytest.mark.parametrize("hidden", [False, True])
def test_parameters_can_be_swapped_for_others(hidden: bool, zygote: Zygote, tmp_path: Path) -> None:
    freeze = "gc.freeze()" if hidden else ""
    found = zygote.train(
        tmp_path / "train.py",
        f"""
{MODEL}
{freeze}
class Own:
    def step(self):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.sub_(0.1 * parameter.grad)
        net.zero_grad(set_to_none=False)
train(6, Own())
torch.__future__.set_swap_module_params_on_conversion(True)
net.double()  # raises where anybody has a weak reference to a parameter
assert next(net.parameters()).dtype == torch.float64
train(6, Own())
""",
    )
    assert len(found["steps"]) >= 9
    assert found["blind"] == {}


@pytest.mark.parametrize("kept_in", ["globals", "a function"])
def test_modules_that_gc_freeze_hides_are_found_by_their_classes(
    kept_in: str, zygote: Zygote, tmp_path: Path
) -> None:
    body = """
class Wrapper(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def forward(self, ids):
        return self.net(ids)
wrapped = Wrapper(net)
gc.freeze()
for _ in range(8):
    wrapped(ids).backward()
    optimizer.step()
"""
    if kept_in == "a function":
        body = "def main():" + body.replace("\n", "\n    ") + "\nmain()\n"
    found = zygote.train(tmp_path / "train.py", MODEL + body + "\nassert '__call__' not in vars(Net)\n")
    assert len(found["steps"]) == 7
    assert all(step.count("forward") == 1 and step.tokens == 480 for step in found["steps"])
    assert found["blind"] == {}


def test_packed_tokens_are_tokens_by_their_name_and_else_nothing(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
class Packed(Net):
    def forward(self, input_ids, cu_seqlens=None):
        return super().forward(input_ids)
net = Packed()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(5):
    (net(ids.flatten()) if number > 2 else net(input_ids=ids.flatten())).backward()
    optimizer.step()
""",
    )
    counted = [(step.samples, step.tokens) for step in found["steps"]]
    assert counted == [(None, 480.0)] * 2 + [(None, None)] * 2
