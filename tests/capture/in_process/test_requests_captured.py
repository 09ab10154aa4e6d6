"""A capture of a process that answers requests has their parts as phases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.conftest import LLMTOP
from tests.support.installed import needs
from tests.support.processes import environment, wait_for

needs("transformers")
pytestmark = pytest.mark.torch

ANSWERS = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
torch.set_num_threads(1)
model = GPT2LMHeadModel(GPT2Config(
    vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=None)).eval()
prompt = torch.randint(1, 64, (2, 16))
while True:
    model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
"""


@pytest.mark.slow("test_each_request_is_seen_from_its_call_to_its_return finds the same fault")
def test_prefill_and_decode_are_phases_of_a_capture(tmp_path: Path, runtime_dir: Path) -> None:
    script = tmp_path / "answers.py"
    script.write_text(ANSWERS)
    running = subprocess.Popen(
        [*LLMTOP, "-q", "--", sys.executable, str(script)], env=environment(OMP_NUM_THREADS="1"), cwd=tmp_path
    )
    try:
        wait_for(lambda: list(runtime_dir.glob("*.sock")), 120, "the process publishes")
        done = subprocess.run(
            [sys.executable, "-m", "llmtop", "capture", "--engine", "torch.profiler", "--steps", "3", "--json"],
            env=environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    finally:
        running.kill()
        running.wait(100)
    (report,) = (tmp_path / "llmtop-captures").glob("*/report.json")
    phases = {phase["name"]: phase for phase in json.loads(report.read_bytes())["phases"]}
    assert {"prefill", "decode"} <= phases.keys()
    for name in ("prefill", "decode"):
        assert phases[name]["count_per_step"] == pytest.approx(1)
        assert phases[name]["host_seconds"] > 0
