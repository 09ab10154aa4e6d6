"""The examples on a machine without a GPU: one runs, the other says in a sentence what it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.processes import REPOSITORY, environment


def example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "examples" / name), *arguments]
    without = environment(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")  # a second thread waits for a core
    return subprocess.run(command, env=without, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.slow("imports torch for one sentence of an example")
@pytest.mark.torch
def test_without_cuda_the_bottlenecks_are_one_sentence_and_no_traceback() -> None:
    done = example("bottlenecks.py")
    assert done.returncode == 1
    assert done.stderr == (
        "bottlenecks.py needs a CUDA GPU, and PyTorch sees none. On a CPU: python examples/train_gpt.py\n"
    )


@pytest.mark.slow(
    "trains for 20 steps; test_the_script_of_the_page_on_attaching_runs_as_it_is trains by PyTorch as well"
)
@pytest.mark.torch
def test_the_training_lasts_on_a_cpu_and_ends_where_it_is_told_to() -> None:
    done = example("train_gpt.py", "--help")
    assert "optimizer steps" in done.stdout
    done = example("train_gpt.py", "--cpu", "--steps", "20")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step 20: loss ")
