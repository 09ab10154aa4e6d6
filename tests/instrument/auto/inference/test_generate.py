"""`generate` of transformers under `llmtop run`, without a word of it in the script: held against stamps by hand.

The models have random weights and some thousand parameters; what a forward pass takes is planted with a sleep.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.support.installed import needs
from tests.support.steps import Recorded, Zygote, train

needs("transformers")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("runtime_dir")]

TIMES = 5
MODEL = """
import json, sys, threading, time, torch
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter as now
from tests.support.processes import core_waits, waited_since
from transformers import GPT2Config, GPT2LMHeadModel, StoppingCriteria
torch.manual_seed(0)
tiny = dict(vocab_size=64, n_positions=256, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=None)

class Planted(GPT2LMHeadModel):
    def forward(self, input_ids=None, **kwargs):
        length = kwargs["inputs_embeds"].shape[1] if input_ids is None else input_ids.shape[1]
        time.sleep(0.1 if length > 6 else 0.02)
        return super().forward(input_ids=input_ids, **kwargs)

class Stamps(StoppingCriteria):
    # Called once a token, when that has been chosen.
    def __init__(self):
        self.at = []
    def __call__(self, ids, scores, **kwargs):
        self.at.append(now())
        return torch.zeros(ids.shape[0], dtype=torch.bool)

model = Planted(GPT2Config(**tiny)).eval()
prompt = torch.randint(1, 64, (2, 24))
truth = []

def ask(model=model, inputs=prompt, **options):
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, **options}
    stamps, before = Stamps(), core_waits()
    begun = now()
    given = {"inputs_embeds": inputs} if inputs.is_floating_point() else {"inputs": inputs}
    out = model.generate(**given, stopping_criteria=[stamps], **options)
    ended = now()
    parts = [stamps.at[0] - begun, ended - stamps.at[0], ended - begun]
    truth.append([*parts, list(out.shape), waited_since(before)])
    return out
"""
ENDS = "\nprint('truth: ' + json.dumps(truth))\n"

WAYS = {
    "batch": "ask()",
    "sampled": "ask(do_sample=True, num_return_sequences=3)",
    "beams": "ask(num_beams=3)",
    "streamed": """
from transformers.generation.streamers import BaseStreamer
class Shown(BaseStreamer):
    def put(self, value):
        pass
    def end(self):
        pass
ask(inputs=prompt[:1], streamer=Shown())""",
    "in a thread each": """
with ThreadPoolExecutor(1) as pool:
    pool.submit(ask).result()""",
    "static cache": "ask(cache_implementation='static')",
    "chunked": "ask(prefill_chunk_size=12)",
    "embeddings": "ask(inputs=torch.randn(2, 24, 16), max_new_tokens=4)",
    "no cache": "ask(use_cache=False)",
}
NEW = {"embeddings": 4}


def of(found: dict[str, Any]) -> Iterator[tuple[Recorded, list[Any]]]:
    """Each request as it was recorded, and as the script has stamped it."""
    line = next(line for line in found["stdout"].splitlines() if line.startswith("truth: "))
    truth = json.loads(line.removeprefix("truth: "))
    assert len(found["steps"]) == len(truth)
    return zip(found["steps"], truth, strict=True)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """Runs programs below `llmtop run` with transformers loaded."""
    folder = tempfile.mkdtemp(prefix="lt-")
    zygote = Zygote("transformers.models.gpt2.modeling_gpt2", "transformers.generation.utils", LLMTOP_DIR=folder)
    yield zygote
    zygote.close()
    shutil.rmtree(folder)


def _indented(source: str) -> str:
    return "".join(f"    {line}\n" for line in source.strip().splitlines())


@pytest.mark.slow(
    "two of nine ways; each asks five times",
    kept=(
        "batch",
        "beams",
    ),
)
@pytest.mark.parametrize("way", WAYS)
def test_each_request_is_seen_from_its_call_to_its_return(way: str, zygote: Zygote, tmp_path: Path) -> None:
    source = MODEL + f"\nfor _ in range({TIMES}):\n" + _indented(WAYS[way]) + ENDS
    found = zygote.train(tmp_path / "generate.py", source)
    assert (found["kind"], found["inference"], found["left_out"], found["blind"]) == ("request", True, {}, {})
    assert len(found["steps"]) == TIMES
    new, excesses = NEW.get(way, 6), []
    for request, (first, rest, whole, shape, without_core) in of(found):
        assert set(request.phases) == {"prefill", "decode"}
        prompt = 0 if way == "embeddings" else 24
        assert (request.samples, request.tokens) == (shape[0], shape[0] * (shape[1] - prompt))
        assert request.tokens == shape[0] * new
        given = {"streamed": 24, "embeddings": None}.get(way, 48)
        assert request.tokens_in == given
        ours = [request.time("prefill"), request.time("decode"), request.time("prefill") + request.time("decode")]
        excesses.append(beyond(ours, [first, rest, whole], without_core))
    assert max(map(median, zip(*excesses, strict=True))) < 0.05, excesses


def beyond(ours: list[float], truth: list[float], without_core: float) -> list[float]:
    """How far each figure is from the script's, as a share of it, beyond what the machine may have had a hand in:
    beside other programs both may be held up between two stamps that belong together."""
    return [max(0.0, abs(one - true) - without_core) / true for one, true in zip(ours, truth, strict=True)]


@pytest.mark.slow("test_each_request_is_seen_from_its_call_to_its_return finds the same fault")
def test_assisted_decoding_is_one_request_for_all_its_drafts(zygote: Zygote, tmp_path: Path) -> None:
    source = """
draft = GPT2LMHeadModel(GPT2Config(**tiny)).eval()
for _ in range(5):
    ask(inputs=prompt[:1], assistant_model=draft, max_new_tokens=12)
"""
    found = zygote.train(tmp_path / "assisted.py", MODEL + source + ENDS)
    excesses = []
    for request, (first, rest, _, shape, without_core) in of(found):
        assert (request.samples, request.tokens, request.tokens_in) == (1, shape[1] - 24, 24)
        ours = [request.time("prefill"), request.time("decode")]
        excesses.append(beyond(ours, [first, rest], without_core))
    assert max(map(median, zip(*excesses, strict=True))) < 0.05, excesses


@pytest.mark.slow("test_each_request_is_seen_from_its_call_to_its_return finds the same fault")
def test_an_encoder_and_decoder_counts_what_the_decoder_says(zygote: Zygote, tmp_path: Path) -> None:
    source = """
from transformers import T5Config, T5ForConditionalGeneration
t5 = T5ForConditionalGeneration(T5Config(
    vocab_size=64, d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2, decoder_start_token_id=0)).eval()
for _ in range(3):
    t5.generate(prompt, max_new_tokens=5, min_new_tokens=5)
"""
    found = zygote.train(tmp_path / "t5.py", MODEL + source)
    assert [(one.samples, one.tokens, one.tokens_in) for one in found["steps"]] == 3 * [(2, 10, 48)]
    assert all(set(one.phases) == {"prefill", "decode"} for one in found["steps"])


def test_what_is_no_whole_request_is_not_counted_and_those_beside_it_are(zygote: Zygote, tmp_path: Path) -> None:
    source = """
class Breaks(StoppingCriteria):
    def __call__(self, ids, scores, **kwargs):
        raise ValueError("no more")

ask()
try:
    model.generate(prompt, max_new_tokens=4, pad_token_id=0, stopping_criteria=[Breaks()])
except ValueError as error:
    print(error)
ask()
ask(max_new_tokens=1)
model(prompt)
ask()
"""
    found = zygote.train(tmp_path / "breaks.py", MODEL + source + ENDS)
    assert "no more" in found["stdout"]
    assert found["left_out"] == {"steps left by an exception": 1}
    assert [set(one.phases) for one, _ in of(found)] == [
        {"prefill", "decode"},
        {"prefill", "decode"},
        {"prefill"},
        {"prefill", "decode"},
    ]


def test_requests_of_several_threads_at_once_are_told_apart(zygote: Zygote, tmp_path: Path) -> None:
    source = """
both = threading.Barrier(2)
def serve():
    for _ in range(4):
        both.wait()
        ask()
threads = [threading.Thread(target=serve) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    found = zygote.train(tmp_path / "serves.py", MODEL + source)
    # Whether a phase of the other thread is cut as well depends on when the system lets each one run.
    left_out = {
        reason: count for reason, count in found["left_out"].items() if reason != "phases of other threads"
    }
    assert left_out == {"requests that were under way when others came beside them": 1}
    assert not found["blind"]
    assert len(found["steps"]) == 7
    assert all((one.samples, one.tokens, one.tokens_in) == (2, 12, 48) for one in found["steps"])
    assert all(set(one.phases) == {"prefill", "decode"} for one in found["steps"])
    assert min(one.time("decode") for one in found["steps"]) >= 5 * 0.02


@pytest.mark.slow("torch.compile itself")
def test_a_compiled_decode_is_timed_and_compiled_as_without(tmp_path: Path) -> None:
    source = """
import torch._dynamo
from torch._dynamo.utils import counters
from transformers.generation.configuration_utils import CompileConfig
config = CompileConfig(backend="eager", mode=None)
config._compile_all_devices = True
plain = GPT2LMHeadModel(GPT2Config(**tiny)).eval()
for _ in range(3):
    out = plain.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0,
                         cache_implementation="static", compile_config=config)
assert counters["stats"]["unique_graphs"], "nothing was compiled"
print("compiled:", json.dumps([out.tolist(), dict(counters["stats"]), dict(counters["graph_break"])]))
"""
    said = []
    for options in ((), ("--no-auto", "--no-kineto")):
        found = train(tmp_path / "compiled.py", MODEL + source, *options)
        said.append([line for line in found["stdout"].splitlines() if line.startswith("compiled:")])
        if not options:
            assert [(one.samples, one.tokens, one.tokens_in) for one in found["steps"]] == 3 * [(2, 12, 48)]
            assert all(set(one.phases) == {"prefill", "decode"} for one in found["steps"])
    assert said[0] == said[1] != []


@pytest.mark.slow("test_an_evaluation_is_a_phase_of_the_step_that_follows finds the same fault")
def test_generate_within_a_training_stays_its_evaluation(zygote: Zygote, tmp_path: Path) -> None:
    source = """
import tempfile
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration
t5 = T5ForConditionalGeneration(T5Config(
    vocab_size=64, d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2, decoder_start_token_id=0))
data = [{"input_ids": prompt[0], "labels": prompt[0][:8]} for _ in range(24)]
arguments = Seq2SeqTrainingArguments(
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, num_train_epochs=1, eval_strategy="steps",
    eval_steps=2, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, predict_with_generate=True,
    generation_max_length=6, eval_on_start=True)
calls = []
class Counts(T5ForConditionalGeneration):
    def generate(self, *args, **kwargs):
        calls.append(1)
        return super().generate(*args, **kwargs)
t5.__class__ = Counts
Seq2SeqTrainer(
    t5, arguments, train_dataset=data, eval_dataset=data[:8], compute_metrics=lambda _: {}).train()
assert calls
"""
    found = zygote.train(tmp_path / "train.py", MODEL + source)
    assert (found["kind"], found["inference"], found["auto"]) == ("step", False, True)
    assert [step.index for step in found["steps"]] == list(range(1, 6))
    for step in found["steps"]:
        assert not {"prefill", "decode", "generate"} & set(step.phases)
    assert sum(step.count("evaluation") > 0 for step in found["steps"]) >= 2


@pytest.mark.slow("test_a_script_that_evaluates_first_and_then_trains_is_a_training finds the same fault")
def test_a_script_that_answers_first_and_then_trains_is_a_training(zygote: Zygote, tmp_path: Path) -> None:
    source = """
for _ in range(2):
    ask()
trained = GPT2LMHeadModel(GPT2Config(**tiny))
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
for _ in range(6):
    trained(prompt, labels=prompt).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.generate(prompt, max_new_tokens=3, pad_token_id=0)
"""
    found = zygote.train(tmp_path / "rollout.py", MODEL + source)
    assert (found["kind"], found["inference"]) == ("step", False)
    of_training = [step for step in found["steps"] if "optimizer" in step.phases]
    assert [step.index for step in of_training] == list(range(1, 6))
    assert found["steps"][-1] is of_training[-1]
    for step in of_training:
        assert [step.count(name) for name in ("forward", "backward", "optimizer")] == [1, 1, 1]
        assert "decode" not in step.phases


@pytest.mark.slow("test_what_is_no_whole_request_is_not_counted_and_those_beside_it_are finds the same fault")
def test_calls_by_hand_take_over(zygote: Zygote, tmp_path: Path) -> None:
    source = """
import llmtop
for _ in range(3):
    with llmtop.step(kind="request", tokens=12):
        ask()
"""
    found = zygote.train(tmp_path / "by_hand.py", MODEL + source)
    assert (found["kind"], found["inference"]) == ("request", False)
    assert [(step.tokens, step.phases) for step in found["steps"]] == 3 * [(12, {})]
