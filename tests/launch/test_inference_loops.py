"""Forward passes without backward ones, as scripts write them, under `llmtop run`: each is held against stamps of
the script's own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.installed import needs
from tests.support.processes import environment
from tests.support.steps import Zygote, train

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("runtime_dir")]

LASTS = """
import json, time, torch
from time import perf_counter as now
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
stamps = []
end, wanted = now() + 2.5, 12
def lasting():
    # On a busy machine until there are as many steps as the test asks for.
    from llmtop.instrument.record.recorder import get
    few = not get().facts.inference or get().ring.count < wanted
    return now() < end or (few and now() < end + 60)
def more():
    stamps.append(now())
    return lasting()
"""
"""The loops last longer than it takes to be taken for one for inference."""
SHOWS = "\nprint('stamps: ' + json.dumps(stamps))\n"


LOOPS = {
    "eval and no_grad": """
net.eval()
with torch.no_grad():
    while more():
        net(torch.randn(8, 16))
        time.sleep(0.01)
""",
    "inference_mode, never in evaluation mode": """
@torch.inference_mode()
def serve():
    while more():
        net(torch.randn(8, 16))
        time.sleep(0.01)
serve()
""",
    "frozen, no_grad in each turn": """
net.requires_grad_(False)
while more():
    with torch.no_grad():
        net(torch.randn(8, 16))
    time.sleep(0.01)
""",
    "gradients forgotten": """
net.eval()
while more():
    net(torch.randn(8, 16))
    time.sleep(0.01)
""",
    "below what is evaluated": """
class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net
    def encode(self, batch):
        with torch.no_grad():
            return self.inner(batch)
holder = Holder().eval()
while more():
    holder.encode(torch.randn(8, 16))
    time.sleep(0.01)
""",
}


@pytest.mark.slow("one of five loops; each starts a process", kept=("below what is evaluated",))
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_over_a_model_has_its_forwards_as_steps_from_start_to_start(
    loop: str, zygote: Zygote, tmp_path: Path
) -> None:
    found = zygote.train(tmp_path / "loop.py", LASTS + LOOPS[loop] + SHOWS)
    assert (found["kind"], found["inference"], found["attached"]) == ("step", True, True)
    assert (found["left_out"], found["blind"]) == ({}, {})
    steps = found["steps"]
    assert len(steps) >= 10
    assert all(set(step.phases) == {"forward"} and step.samples == 8 for step in steps)
    (line,) = (line for line in found["stdout"].splitlines() if line.startswith("stamps: "))
    stamps = json.loads(line.removeprefix("stamps: "))[:-1]  # the last stamp ended the loop
    # Not from the first, in which the process began to publish. Over many ends: where others have the core, the
    # forward pass begins long after the stamp.
    last, ends = len(steps) - 1, min(12, len(steps) // 2 - 1)
    ratios = []
    for begin, end in zip(range(1, 1 + ends), range(1 + last - ends, 1 + last), strict=True):
        spent = sum(step.interval for step in steps[begin + 1 : end + 1])
        ratios.append(spent / (stamps[end - last - 1] - stamps[begin - last - 1]))
    assert statistics.median(ratios) == pytest.approx(1, rel=0.03), ratios


def test_an_evaluation_that_is_a_program_waits_for_its_batches(zygote: Zygote, tmp_path: Path) -> None:
    source = """
from torch.utils.data import DataLoader, TensorDataset
class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.005)
        return super().__getitem__(index)
net.eval()
with torch.no_grad():
    while lasting():
        for (batch,) in DataLoader(Slow(torch.randn(40, 16)), batch_size=4):
            net(batch).argmax(1).tolist()
"""
    found = zygote.train(tmp_path / "loop.py", LASTS + source)
    assert (found["kind"], found["inference"], found["left_out"]) == ("step", True, {})
    assert all(set(step.phases) == {"dataload", "forward"} for step in found["steps"][1:])
    for step in found["steps"][1:]:
        assert 4 * 0.005 <= step.time("dataload") <= step.seconds


DECODES = """
class Language(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 8)
        self.head = torch.nn.Linear(8, 64)
    def forward(self, ids, cache=None):
        time.sleep(0.04 if ids.shape[1] >= 16 else 0.01)
        return self.head(self.embed(ids)), ids
model = Language().eval()
truth, wanted = [], 4
"""


def test_decoding_by_hand_with_a_cache_is_a_request_a_prompt(zygote: Zygote, tmp_path: Path) -> None:
    source = """
with torch.no_grad():
    while lasting():
        prompt = torch.randint(0, 64, (3, 16))
        begun = now()
        logits, cache = model(prompt)
        token = logits[:, -1:].argmax(-1)
        first = now()
        for _ in range(9):
            logits, cache = model(token, cache=cache)
            token = logits[:, -1:].argmax(-1)
        truth.append([first - begun, now() - first])
        time.sleep(0.1)  # somebody asks again
print('truth: ' + json.dumps(truth))
"""
    # So long that a token counted in the wrong phase is more than a machine adds that has to fetch pages first.
    slow = DECODES.replace("0.04", "0.2").replace("0.01", "0.05")
    found = zygote.train(tmp_path / "decodes.py", LASTS + slow + source)
    assert (found["kind"], found["inference"], found["left_out"]) == ("request", True, {})
    (line,) = (line for line in found["stdout"].splitlines() if line.startswith("truth: "))
    truth = json.loads(line.removeprefix("truth: "))
    steps = found["steps"]
    assert len(steps) >= 2
    assert all((step.samples, step.tokens, step.tokens_in) == (3, 30, 48) for step in steps)
    # The last request is told when the next begins, which never comes; in the first the process began to publish.
    # Between its stamp and ours a process may stand without a core, on one core in most of them, but not in all.
    pairs = list(zip(steps[1:], truth[-len(steps) : -1], strict=True))
    for name, place in (("prefill", 0), ("decode", 1)):
        apart = min(abs(step.time(name) - told[place]) for step, told in pairs)
        assert apart <= 0.02 + 0.05 * statistics.median(told[place] for _, told in pairs)


@pytest.mark.slow(
    "a refinement; test_decoding_by_hand_with_a_cache_is_a_request_a_prompt has a model that shows it"
)
def test_a_model_too_slow_to_show_that_it_decodes_shows_it_later(zygote: Zygote, tmp_path: Path) -> None:
    source = """
slow = 5
with torch.no_grad():
    for _ in range(6):
        logits, cache = model(torch.randint(0, 64, (3, 16)))
        for _ in range(5):
            time.sleep(0.3 if slow > 0 else 0)
            slow -= 1
            logits, cache = model(logits[:, -1:].argmax(-1), cache=cache)
"""
    found = zygote.train(tmp_path / "decodes.py", LASTS + DECODES + source)
    assert (found["kind"], found["inference"], found["left_out"]) == ("request", True, {})
    requests = [step for step in found["steps"] if "decode" in step.phases]
    assert found["steps"][-len(requests) :] == requests
    assert 0 < found["kind_since"] == len(found["steps"]) - len(requests)
    assert all((step.samples, step.tokens, step.tokens_in) == (3, 18, 48) for step in requests)
    assert {path for step in found["steps"] for path in step.phases} == {"forward", "prefill", "decode"}


@pytest.mark.slow("test_decoding_by_hand_with_a_cache_is_a_request_a_prompt finds the same fault")
def test_decoding_by_hand_without_a_cache_is_one_too(zygote: Zygote, tmp_path: Path) -> None:
    source = """
with torch.no_grad():
    while lasting():
        ids = torch.randint(0, 64, (2, 5))
        for _ in range(12):
            logits, _ = model(ids[:, -12:])
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
"""
    found = zygote.train(tmp_path / "grows.py", LASTS + DECODES + source)
    assert (found["kind"], found["inference"], found["left_out"]) == ("request", True, {})
    assert len(found["steps"]) >= 2
    assert all((step.samples, step.tokens, step.tokens_in) == (2, 24, 10) for step in found["steps"])


@pytest.mark.slow("test_a_loop_over_a_model_has_its_forwards_as_steps_from_start_to_start has one shape")
def test_forwards_of_varying_shapes_are_steps(zygote: Zygote, tmp_path: Path) -> None:
    source = """
import random
random.seed(0)
wanted = 40
with torch.inference_mode():
    while lasting():
        sequences, length = random.choice([(1, 16), (2, 5), (4, 1), (3, 7), (8, 1), (2, 13)])
        model(torch.randint(0, 64, (sequences, length)))
"""
    found = zygote.train(tmp_path / "serves.py", LASTS + DECODES + source)
    assert (found["kind"], found["inference"], found["left_out"]) == ("step", True, {})
    shapes = {(step.samples, step.tokens) for step in found["steps"]}
    assert shapes <= {(1, 16), (2, 10), (4, 4), (3, 21), (8, 8), (2, 26)}
    assert len(shapes) > 3


@pytest.mark.slow("test_requests_of_several_threads_at_once_are_told_apart finds the same fault")
def test_loops_of_two_threads_are_told_apart_call_by_call(zygote: Zygote, tmp_path: Path) -> None:
    source = """
import threading
from llmtop.instrument.record.recorder import get
def decode():
    with torch.no_grad():
        while now() < end or not enough() and now() < end + 60:
            logits, cache = model(torch.randint(0, 64, (3, 16)))
            for _ in range(9):
                logits, cache = model(logits[:, -1:].argmax(-1), cache=cache)
enough = lambda: get().facts.inference and get().ring.count >= 4
decode()
enough = lambda: True
for _ in range(3):  # a thread for each, one after the other
    end = now() + 0.2
    thread = threading.Thread(target=decode)
    thread.start()
    thread.join()
print("before:", json.dumps(dict(get().left_out)))
end, begun = now() + 2, get().ring.count
enough = lambda: get().left_out and get().ring.count >= begun + 12
threads = [threading.Thread(target=decode) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    found = zygote.train(tmp_path / "threads.py", LASTS + DECODES + source)
    assert (found["kind"], found["inference"]) == ("request", True)
    assert "before: {}" in found["stdout"], "threads that follow each other do not overlap"
    assert set(found["left_out"]) == {"requests that were under way when others came beside them"}
    assert {"forward"} == set(found["steps"][-1].phases)
    assert sum("decode" in step.phases for step in found["steps"]) >= 2, "before the second thread came"
    assert sum("forward" in step.phases for step in found["steps"]) >= 10


def test_a_script_that_evaluates_first_and_then_trains_is_a_training(zygote: Zygote, tmp_path: Path) -> None:
    source = """
net.eval()
with torch.no_grad():
    while more():
        net(torch.randn(8, 16))
from llmtop.instrument.record.recorder import get
print("before:", get().facts.inference, get().ring.count > 0)
net.train()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for turn in range(12):
    net(torch.randn(8, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if turn % 4 == 3:
        net.eval()
        with torch.no_grad():
            net(torch.randn(8, 16))
        net.train()
print("left:", [hasattr(kind.__enter__, "__wrapped__") for kind in (torch.no_grad, torch.inference_mode)])
"""
    found = zygote.train(tmp_path / "both.py", LASTS + source)
    assert "before: True True" in found["stdout"]
    assert "left: [False, False]" in found["stdout"], "a training turns gradients off as without"
    assert (found["kind"], found["inference"], found["left_out"]) == ("step", False, {})
    trained = [step for step in found["steps"] if "optimizer" in step.phases]
    assert [step.index for step in trained] == list(range(1, 12))
    assert found["steps"][-11:] == trained
    assert all(step.count("forward") == step.count("backward") == 1 for step in trained)


def test_layers_that_a_training_has_evaluated_cost_it_nothing(zygote: Zygote, tmp_path: Path) -> None:
    """Statistics that are not to change are often kept by calling `eval()` on each layer that has some."""
    source = """
for layer in net.modules():
    layer.eval()
print("before:", "__call__" in vars(torch.nn.Linear))
net.train()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for turn in range(5):
    net(torch.randn(8, 16)).sum().backward()
    optimizer.step()
print("left:", "__call__" in vars(torch.nn.Linear))
"""
    found = zygote.train(tmp_path / "both.py", LASTS + source)
    assert "before: True" in found["stdout"]
    assert "left: False" in found["stdout"]
    assert (found["kind"], found["inference"], found["blind"]) == ("step", False, {})
    assert [step.index for step in found["steps"]] == list(range(1, 5))
    assert all(step.count("forward") == 1 for step in found["steps"])


@pytest.mark.slow("a second start of torch, in a process that is switched off")
def test_who_is_switched_off_listens_to_no_forward_pass(zygote: Zygote, tmp_path: Path) -> None:
    source = """
import torch
from torch import nn
net = nn.Linear(2, 2).eval()
with torch.no_grad():
    net(torch.ones(1, 2))
told = nn.Module.eval, torch.no_grad.__enter__, torch.inference_mode.__enter__
print([hasattr(one, "__wrapped__") for one in told], "__call__" in vars(nn.Linear))
"""
    on, off = tmp_path / "on.py", tmp_path / "off.py"
    zygote.start(on, source)
    assert zygote.end(on)[0].strip() == "[True, False, False] True"
    off.write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "llmtop", "run", "--", sys.executable, str(off)],
        env=environment(LLMTOP_OFF="1"),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stdout.strip() == "[False, False, False] False"


def test_a_short_look_before_training_is_nothing(zygote: Zygote, tmp_path: Path) -> None:
    source = """
from llmtop.instrument.auto.inference import forward_passes
forward_passes.LOOKED_AT_NS = 60_000_000_000  # longer than twenty passes take on any machine
net.eval()
with torch.no_grad():
    for _ in range(20):
        net(torch.randn(8, 16))
from llmtop.instrument.record.recorder import get
print("before:", get().attached)
net.train()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for turn in range(5):
    net(torch.randn(8, 16)).sum().backward()
    optimizer.step()
"""
    found = zygote.train(tmp_path / "both.py", LASTS + source)
    assert "before: False" in found["stdout"]
    assert (found["kind"], found["inference"]) == ("step", False)
    assert [step.index for step in found["steps"]] == list(range(1, 5))


@pytest.mark.slow("test_a_script_that_evaluates_first_and_then_trains_is_a_training finds the same fault")
def test_gradients_by_hand_after_forwards_make_it_a_training(zygote: Zygote, tmp_path: Path) -> None:
    source = """
net.eval()
with torch.no_grad():
    while more():
        net(torch.randn(8, 16))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    loss = net(torch.randn(8, 16)).sum()
    for parameter, gradient in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters()))):
        parameter.grad = gradient
    optimizer.step()
"""
    found = zygote.train(tmp_path / "grad.py", LASTS + source)
    assert (found["kind"], found["inference"]) == ("step", False)
    assert [step.index for step in found["steps"] if "optimizer" in step.phases] == list(range(1, 5))


COMPILED = {
    "module": ("called = torch.compile(net, backend='eager')", True),
    "in place": ("net.compile(backend='eager')\ncalled = net", True),
    "function": ("called = torch.compile(lambda batch: net(batch).relu(), backend='eager')", False),
    "without gradients within": (
        """
@torch.compile(backend='eager')
def called(batch):
    if torch.is_grad_enabled() and net.training:
        return net(batch)
    with torch.no_grad():
        return net.eval()(batch)
""",
        False,
    ),
}
"""How it is compiled, and whether a call of the module is seen from outside."""


@pytest.mark.slow("torch.compile itself")
@pytest.mark.parametrize("kind", COMPILED)
def test_what_is_compiled_is_compiled_as_without(kind: str, tmp_path: Path) -> None:
    how, seen = COMPILED[kind]
    source = """
from torch._dynamo.utils import counters
def tell():
    print("compiled:", json.dumps([counters[name] for name in ("stats", "graph_break", "frames")]))
net.eval()
HOW
end, turns = now() + 3, 0
with torch.no_grad():
    while now() < end or turns < 20:
        called(torch.randn(8 if turns % 2 else 4, 16))
        turns += 1
        if turns == 5:
            tell()
net.train()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    called(torch.randn(8, 16)).sum().backward()
    optimizer.step()
tell()
""".replace("HOW", how)
    said = []
    for options in ((), ("--no-auto", "--no-kineto")):
        found = train(tmp_path / "compiled.py", LASTS + source, *options, TORCH_LOGS="dynamo")
        said.append([line for line in found["stdout"].splitlines() if line.startswith("compiled:")])
        if not options:
            assert (sum(set(step.phases) == {"forward"} for step in found["steps"]) >= 10) is seen
            assert [step.index for step in found["steps"] if "optimizer" in step.phases] == [1, 2, 3]
    assert len(said[0]) == 2
    assert said[0] == said[1]


@pytest.mark.slow(
    "unpickles in a second process with torch; test_pickles_by_value_hold_nothing_of_llmtop has other classes"
)
def test_a_class_of_the_script_s_own_is_pickled_without_what_times_it(zygote: Zygote, tmp_path: Path) -> None:
    source = """
import cloudpickle, os, pickle, subprocess, sys
class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 4)
    def forward(self, batch):
        return self.linear(batch)
own = Own().eval()
with torch.no_grad():
    while more():
        own(torch.randn(8, 16))
data = cloudpickle.dumps(own)
# Loaded where llmtop is not installed. Its name may be in the data: as the folder that torch is installed in.
code = "import sys; sys.modules['llmtop'] = None; import pickle, torch; "
code += "print(tuple(pickle.loads(sys.stdin.buffer.read())(torch.ones(2, 16)).shape))"
done = subprocess.run([sys.executable, "-I", "-c", code], input=data, capture_output=True)
print("unpickled:", done.stdout.decode(), done.stderr.decode())
"""
    needs("cloudpickle")
    found = zygote.train(tmp_path / "pickles.py", LASTS + source)
    assert found["inference"]
    assert "unpickled: (2, 4)" in found["stdout"]


def test_a_part_that_is_found_first_stands_for_the_module_that_holds_it(zygote: Zygote, tmp_path: Path) -> None:
    """As in transformers: gradients are off while a part is made, and `eval` is the class's own."""
    source = """
class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 16)
        with torch.no_grad():
            self.embed.weight.mul_(0.5)
    def forward(self, ids):
        return self.embed(ids)
class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()
        self.head = torch.nn.Linear(16, 4)
    def forward(self, ids):
        time.sleep(0.02)
        return self.head(self.part(ids))
    def eval(self):
        return self.train(False)
whole = Whole().eval()
with torch.no_grad():
    while more():
        whole(torch.randint(0, 64, (4, 16)))
"""
    found = zygote.train(tmp_path / "part.py", LASTS + source)
    assert len(found["steps"]) >= 10
    for step in found["steps"]:
        assert (step.samples, step.tokens) == (4, 64)
        assert step.phases["forward"][1] >= 0.02


MADE = {
    "traced": "made = torch.jit.trace(net.eval(), torch.ones(4, 16))",
    "scripted": "made = torch.jit.script(net.eval())",
    "compiled": "made = torch.compile(net.eval(), backend='eager')",
}


@pytest.mark.slow("each imports torch; the classes of such modules alone differ")
@pytest.mark.parametrize("how", MADE)
def test_a_module_that_is_made_of_another_within_no_grad_is_seen(how: str, tmp_path: Path) -> None:
    source = f"""
with torch.no_grad():
    {MADE[how]}
    made(torch.randn(4, 16))
    end = now() + 2.5
    while more():
        made(torch.randn(4, 16))
        time.sleep(0.005)
"""
    found = train(tmp_path / "made.py", LASTS + source)
    assert (found["inference"], found["blind"]) == (True, {})
    assert len(found["steps"]) >= 12
    assert {step.samples for step in found["steps"]} == {4}


def test_the_first_step_has_no_data_of_the_passes_before_it(zygote: Zygote, tmp_path: Path) -> None:
    source = """
from torch.utils.data import DataLoader, TensorDataset
net.eval()
loader = DataLoader(TensorDataset(torch.randn(100_000, 16)), batch_size=4)
with torch.no_grad():
    for (batch,) in loader:
        if not more():
            break
        net(batch)
        time.sleep(0.01)
"""
    found = zygote.train(tmp_path / "loader.py", LASTS + source)
    assert len(found["steps"]) >= 10
    assert {step.count("dataload") for step in found["steps"]} == {1}


@pytest.mark.slow("test_an_evaluation_that_is_a_program_waits_for_its_batches finds the same fault")
def test_a_trainer_that_only_evaluates_is_no_training(tmp_path: Path) -> None:
    needs("transformers")
    source = """
import tempfile
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
ids = torch.randint(0, 64, (16,))
data = [{"input_ids": ids, "labels": ids} for _ in range(64)]
arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_eval_batch_size=4, report_to=[],
                              use_cpu=True, disable_tqdm=True)
trainer = Trainer(model, arguments, eval_dataset=data)
end = now() + 4
while more():
    trainer.evaluate()
"""
    found = train(tmp_path / "evaluates.py", LASTS + source)
    assert (found["kind"], found["inference"]) == ("step", True)
    assert len(found["steps"]) >= 10
    for step in found["steps"]:
        assert {"forward"} <= set(step.phases) <= {"dataload", "forward"}
        assert (step.samples, step.tokens) == (4, 64)
    assert sum("dataload" in step.phases for step in found["steps"]) >= 5, "accelerate fetches a batch ahead"
