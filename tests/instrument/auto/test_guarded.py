"""Whatever fails in llmtop: the training ends as without it, bit by bit, and the monitor is told.

Each function of llmtop's that a training reaches is made to raise: once when it returns, and at each call. What
the script or torch calls is the door itself; what that calls in turn may raise anything.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.steps import Zygote

pytestmark = pytest.mark.torch

PLANTING = """
import gc, hashlib, json, os, sys, types
import llmtop, llmtop.instrument.startup, llmtop.instrument.serve.server, llmtop.instrument.run_log.writer
from llmtop.instrument.guest import guard
FOLDER = llmtop.__file__.rpartition("/")[0] + "/instrument/"
HOT = ("auto/", "loader.py", *(f"record/{name}.py" for name in
       ("recorder", "phase_tree", "open_phases", "state", "sanitize", "startup", "periodic")))
# What has a door of its own, or is one.
DOOR = ("Phase.__enter__", "Phase.__exit__", "Step.__enter__", "Step.__exit__", "Loop.lost", "._be_idle",
        "Recorder.step_failed", "State.cannot_see",
        "__next__", "_Waits.__init__", "<lambda>", "_wait_for", "__iter__", "timed_copy", "__call__", "backward",
        "Step.__init__", "State.after_step",
        # These ask objects of the script's, whose failing is none of llmtop's: what cannot be read is left out.
        "_float", "_is_cuda")
reached, planted, plan = set(), [], None

def name_of(code):
    return code.co_filename.removeprefix(FOLDER) + ":" + code.co_qualname

def all_functions():
    found = {}
    for function in gc.get_objects():
        if type(function) is types.FunctionType and function.__code__.co_filename.startswith(FOLDER):
            found.setdefault(name_of(function.__code__), []).append(function)
    return found

functions = all_functions()
# The half a million objects of torch, which each child would search for the script's modules. Those come later.
gc.collect()
gc.freeze()

def is_inside(frame):
    # of what the script or torch calls, which is the door
    code, caller = frame.f_code, frame.f_back
    return (
        code.co_filename.startswith(FOLDER)
        and code.co_filename.removeprefix(FOLDER).startswith(HOT)
        and not code.co_qualname.endswith(DOOR)
        and caller is not None
        and (caller.f_code.co_filename.startswith(FOLDER) or "timer" in caller.f_code.co_freevars)  # calls.py
        and caller.f_code.co_filename != guard.__file__
    )

def watch(frame, event, argument):
    if is_inside(frame):
        name = name_of(frame.f_code)
        reached.add(name)
        if plan is not None and plan[0] == name:
            frame.f_trace_lines = False
            return at_return
    return None

def at_return(frame, event, argument):
    if event == "return" and not planted:
        planted.append(frame.f_code.co_name)
        frame = argument = None  # who raises with the frame at hand is taken for a signal's handler of the script
        raise RuntimeError("planted")
    return at_return

def always_raises(name):
    def planted_always(*args, **kwargs):
        raise RuntimeError("planted")
    for function in functions.get(name, ()):
        if not function.__code__.co_freevars:
            function.__code__ = planted_always.__code__
            planted.append(name)

def in_child(chosen):
    # What a training ends with in which that function fails so; its plan is None, or (function, how).
    global plan
    take, give = os.pipe()
    if os.fork() == 0:
        plan = chosen
        try:
            if plan is not None and plan[1] == "always":
                always_raises(plan[0])
            else:
                sys.settrace(watch)
            weights = train()
            sys.settrace(None)
            r = llmtop.instrument.record.recorder.get()
            result = {"weights": weights, "reached": sorted(reached), "planted": planted, "blind": r.blind,
                      "off": r.off or r.server is None or planted == ["start"]}
        except BaseException as error:
            sys.settrace(None)
            import traceback
            result = {"raised": traceback.format_exc()[-900:]}
        os.write(give, json.dumps(result).encode())
        os._exit(0)
    os.close(give)
    with open(take) as answer:
        result = json.loads(answer.read())
    os.wait()
    return result
"""

TRAINING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
data = TensorDataset(torch.randn(12, 4))
"""
ENDING = """
    digest = hashlib.sha256()
    for value in [*net.state_dict().values(), torch.get_rng_state()]:
        digest.update(value.numpy().tobytes())
    assert net(torch.ones(1, 4)).shape == (1, 1)
    return digest.hexdigest()

if "llmtop.instrument.auto" in sys.modules:
    # There is no CUDA here: the device "meta" stands for it, which torch copies to in the same calls.
    from llmtop.instrument import auto
    from llmtop.instrument.auto.training import transfers
    transfers.time_copies_to("meta", auto.install())
undisturbed = in_child(None)
found = {}
for name in undisturbed["reached"][::EVERY] if EVERY else ():
    for how in ("return", "always"):
        found[name + " " + how] = in_child((name, how))
print("result: " + json.dumps([undisturbed, found]))
"""
SCRIPTS = {
    "hooks": """
for epoch in range(2):
    for (batch,) in DataLoader(data, batch_size=4, shuffle=True):
        batch.to("meta")
        net(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        for (batch,) in DataLoader(data, batch_size=8):
            net(batch)
    net.eval()
    net(batch).sum().backward()
    net.train()
""",
    "by hand": """
for batch in llmtop.loader(DataLoader(data, batch_size=4, shuffle=True)):
    with llmtop.step(tokens=4) as step:
        with llmtop.phase("forward"):
            loss = net(batch[0]).square().mean()
        with llmtop.phase("backward"):
            loss.backward()
        with llmtop.phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
    llmtop.log(loss=loss, rate=0.1)
for _ in llmtop.loader(iter([1, 2])):
    with llmtop.phase("between"):
        pass
""",
    "phases within hooks": """
def closure():
    optimizer.zero_grad()
    loss = net(batch).square().mean()
    loss.backward()
    return loss
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)
for (batch,) in DataLoader(data, batch_size=4, shuffle=True):
    with llmtop.phase("train"):
        optimizer.step(closure)
with llmtop.step():
    optimizer.step(closure)
""",
}


def run(zygote: Zygote, path: Path, script: str, every: int = 0) -> Any:
    """How the script ends undisturbed, and how for each so-manieth function and way; 0: for none."""
    body = "".join(f"    {line}\n" for line in SCRIPTS[script].splitlines())
    source = f"{PLANTING}{TRAINING}EVERY = {every}\ndef train():\n    global optimizer, net\n{body}{ENDING}"
    found = zygote.train(path, source)
    line = next(line for line in found["stdout"].splitlines() if line.startswith("result: "))
    return json.loads(line.removeprefix("result: "))


@pytest.mark.slow("every 24th call raises; the others take minutes", kept=("hooks-24",))
@pytest.mark.parametrize("every", [1, 24])
@pytest.mark.parametrize("script", SCRIPTS)
def test_whatever_of_ours_raises_the_training_is_the_same(
    script: str, every: int, bare_zygote: Zygote, zygote: Zygote, tmp_path: Path
) -> None:
    wanted = run(bare_zygote, tmp_path / "train.py", script)[0]["weights"]
    undisturbed, found = run(zygote, tmp_path / "train.py", script, every)
    assert undisturbed["weights"] == wanted
    assert undisturbed["blind"] == {}
    assert len(found) > 30 // every
    raised = {how: one["raised"] for how, one in found.items() if "raised" in one}
    assert not raised, "\n".join(f"{how}: {trace}" for how, trace in raised.items())
    assert {how for how, one in found.items() if one["weights"] != wanted} == set()
    assert sum(bool(one["planted"]) for one in found.values()) > len(found) / 2
    silent = {how for how, one in found.items() if one["planted"] and not one["blind"] and not one["off"]}
    assert not silent, sorted(silent)
    "what fails is said, unless nothing is published at all"
