"""Real JAX on the CPU, stepping with llmtop's context; what JAX computes, compiles and records beside it."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port
from tests.support.processes import REPOSITORY, environment
from tests.support.real_jax import JAX, MARKS
from tests.support.steps import read

pytestmark = MARKS

TRAINING = """
import jax, jax.numpy as jnp, sys
{head}
from functools import partial
@partial(jax.jit, donate_argnums=0)
def train_step(state, batch):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch @ w - 1.0) ** 2))(state)
    return state - 0.1 * gradient, loss
state = jnp.zeros((8, 8))
batch = jnp.arange(64.0).reshape(8, 8) / 64
print("arguments:", jax.make_jaxpr(train_step)(state, batch).jaxpr.invars.__len__())
for index in range(12):
{body}
print("loss", repr(float(loss)), "compiled", train_step._cache_size())
"""
PLAIN = "    state, loss = train_step(state, batch)"
STEP = "    with step(tokens=64) as s:\n        state, loss = train_step(state, batch)\n        s.samples = 8"


def run(tmp_path: Path, body: str, head: str = "", tail: str = "", *, llmtop_run: bool = False) -> Any:
    program = tmp_path / "train.py"
    program.write_text(TRAINING.format(head=head, body=body) + tail)
    below = [sys.executable, "-m", "llmtop", "run", "--"] if llmtop_run else []
    env = environment(JAX_PLATFORMS="cpu", PYTHONPATH=str(REPOSITORY))
    return subprocess.run([*below, str(JAX), str(program)], env=env, capture_output=True, text=True, timeout=240)


HEAD = "from llmtop.integrations.jax import step"
SHOW = "\nfrom tests.support.steps import show; show()\n"


def test_steps_are_published_and_jax_computes_and_compiles_as_without(tmp_path: Path) -> None:
    plain, stepped = run(tmp_path, PLAIN), run(tmp_path, STEP, HEAD, SHOW)
    assert stepped.returncode == plain.returncode == 0, stepped.stderr
    assert stepped.stdout.splitlines()[:2] == plain.stdout.splitlines()
    assert stepped.stderr == plain.stderr
    found = read(stepped.stdout)
    assert [step.index for step in found["steps"]] == list(range(12))
    assert {(step.tokens, step.samples) for step in found["steps"]} == {(64, 8)}
    assert found["attached"]
    assert found["metrics"]["jax_compiles"] >= 1
    assert 0 < found["metrics"]["jax_compile_seconds"] < 60
    assert "dispatches asynchronously" in found["blind"]["what a JAX step does on its device"]


def test_a_step_that_compiles_anew_is_counted(tmp_path: Path) -> None:
    counted = "    batch = jnp.ones((8 + index // 6, 8))\n" + STEP
    steady = read(run(tmp_path, STEP, HEAD, SHOW).stdout)["metrics"]["jax_compiles"]
    assert read(run(tmp_path, counted, HEAD, SHOW).stdout)["metrics"]["jax_compiles"] > steady


def test_exceptions_nesting_and_decorator_are_as_with_plain_steps(tmp_path: Path) -> None:
    body = (
        "    try:\n        with step():\n            state, loss = train_step(state, batch)\n"
        "            if index == 3: raise ValueError\n    except ValueError: pass"
    )
    found = read(run(tmp_path, body, HEAD, SHOW).stdout)
    assert len(found["steps"]) == 11
    assert found["left_out"] == {"steps left by an exception": 1}
    nested = "    with step(), step():\n        state, loss = train_step(state, batch)"
    assert len(read(run(tmp_path, nested, HEAD, SHOW).stdout)["steps"]) == 12
    called = "    one = step(tokens=3)(train_step)\n    state, loss = one(state, batch)"
    assert [s.tokens for s in read(run(tmp_path, called, HEAD, SHOW).stdout)["steps"]] == [3] * 12


def test_steps_are_marked_by_number_in_what_jax_profiler_records(tmp_path: Path) -> None:
    head = f"{HEAD}\njax.profiler.start_trace({str(tmp_path / 'trace')!r})"
    done = run(tmp_path, STEP, head, "jax.profiler.stop_trace()\n")
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "trace").glob("plugins/profile/*/*.trace.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    marks = [event["args"]["step_num"] for event in events if event.get("name") == "llmtop.step"]
    assert marks == [str(index) for index in range(12)]
    if sys.version_info < (3, 11):
        pytest.skip("JAX 0.6, the last for 3.10, tells no operations of the CPU")
    said = subprocess.run(
        [sys.executable, "-m", "llmtop", "report", "--json", tmp_path / "trace"],
        capture_output=True, text=True, check=True,
    timeout=240,)  # fmt: skip
    report = json.loads(said.stdout)
    assert report["engine"] == "jax.profiler"
    assert report["devices"][0]["kernels"] > 0
    assert {row["module"] for row in report["operators"]} >= {"jit_train_step"}


def test_the_devices_are_not_started_by_us(tmp_path: Path) -> None:
    """A script may still call jax.distributed.initialize(), which must come before."""
    program = tmp_path / "early.py"
    program.write_text(
        "from llmtop.integrations.jax import step\n"
        "with step(): pass\n"
        "from jax._src import xla_bridge\n"
        "print('started', xla_bridge.backends_are_initialized())\n"
    )
    env = environment(JAX_PLATFORMS="cpu", PYTHONPATH=str(REPOSITORY))
    done = subprocess.run(
        [str(JAX), str(program)], env=env, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout == "started False\n"


def test_two_processes_are_ranks(tmp_path: Path) -> None:
    head = f"{HEAD}\njax.distributed.initialize('127.0.0.1:' + sys.argv[1], 1, 0)"
    program = tmp_path / "one.py"
    program.write_text(
        TRAINING.format(head=head, body=STEP)
        + "from llmtop.instrument.record import recorder\nfacts = recorder.get().facts\n"
        "print('rank', facts.rank, facts.world_size)\n"
    )
    env = environment(JAX_PLATFORMS="cpu", PYTHONPATH=str(REPOSITORY))
    done = subprocess.run(
        [str(JAX), str(program), str(free_port())], env=env, capture_output=True, text=True, timeout=240
    )
    assert "rank 0 1" in done.stdout, done.stderr


def test_llmtop_run_counts_nothing_in_a_jax_script_and_says_what_would(tmp_path: Path) -> None:
    plain, watched = run(tmp_path, PLAIN), run(tmp_path, PLAIN, llmtop_run=True)
    assert (watched.returncode, watched.stdout) == (0, plain.stdout)
    assert re.search(r"not attached: train.py .*llmtop\.integrations\.jax\.step\(\)", watched.stderr), (
        watched.stderr
    )


def test_llmtop_run_lets_the_context_attach(tmp_path: Path) -> None:
    done = run(tmp_path, STEP, HEAD, SHOW, llmtop_run=True)
    assert done.returncode == 0, done.stderr
    assert "llmtop: attached" in done.stderr
    assert len(read(done.stdout)["steps"]) == 12
