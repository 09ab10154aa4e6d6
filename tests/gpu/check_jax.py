"""Check llmtop.integrations.jax on a GPU: python -m tests.gpu.check_jax [> facts.json]

Needs a Python with JAX for CUDA ($JAX_PYTHON, by default this one), and in it msgspec and nvtx. Trains an MLP and
a small transformer (tests/gpu/jax_training.py), plain, with a step context, and with one and a wait of the host
planted, and prints one JSON object: that the loss is the same to the last digit, the mean step that a monitor
reads over the socket beside the script's own, and NVML's GPU-Util. Takes about two minutes and changes nothing.
Exits 1 when something does not hold; "failed" then says what. On a CPU, `mlp --width 16` tries the program.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
STEPS = 1200
WITHIN = 0.03
"""Of the script's own mean step, the most that a monitor's may be off; and what the context may add to it."""


def main() -> int:
    """Train, watch and print."""
    models = [name for name in ("mlp", "transformer") if name in sys.argv] or ["mlp", "transformer"]
    more = [one for one in sys.argv[1:] if one not in models]
    facts: dict[str, Any] = {"failed": []}
    for model in models:
        plain = train(model, facts, *more)
        stepped = train(model, facts, "--llmtop", *more, watched=True)
        starved = train(model, facts, "--llmtop", "--wait-ms", "30", *more, steps=200, watched=True)
        facts[model] = {"plain": plain, "stepped": stepped, "starved": starved}
        judge(model, facts)
    print(json.dumps(facts, indent=1))
    return 1 if facts["failed"] else 0


def train(
    model: str, facts: dict[str, Any], *options: str, steps: int = STEPS, watched: bool = False
) -> dict[str, Any]:
    """One training, and what a monitor that streams beside it said last of its steps and its GPU."""
    with tempfile.TemporaryDirectory() as directory:
        env = {**os.environ, "LLMTOP_DIR": directory, "PYTHONPATH": str(REPOSITORY)}
        env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        python = os.environ.get("JAX_PYTHON", sys.executable)
        script = [python, "-m", "tests.gpu.jax_training", model, "--steps", str(steps), *options]
        training = subprocess.Popen(script, env=env, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        seen = watch(training, env) if watched else {}
        told = training.communicate(timeout=110)[0]
    found = re.search(r"loss (\S+), (\S+) ms a step on (.*)", told)
    if training.returncode or found is None:
        facts["failed"].append(f"{model} {options}: it ended with {training.returncode}: {told[-300:]}")
        return {}
    return {"loss": found[1], "step_ms": float(found[2]), "device": found[3], **seen}


def watch(training: subprocess.Popen[str], env: dict[str, str]) -> dict[str, Any]:
    """The newest figures that a monitor had of the training while it stepped."""
    stream = subprocess.Popen(
        [sys.executable, "-m", "llmtop", "--json", "-i", "0.25"],
        env=env, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    seen: dict[str, Any] = {}
    assert stream.stdout is not None
    until = time.monotonic() + 100
    for line in stream.stdout:
        snapshot = json.loads(line)
        for rank in snapshot["ranks"]:
            if rank["state"] == "running" and rank["step_seconds_mean"]:
                seen = {"seen_step_ms": 1000 * rank["step_seconds_mean"], "seen_steps": rank["step"] + 1}
                seen["metrics"] = rank["metrics"]
                seen["note"] = rank["note"]
                seen["util_pct"] = [gpu["util_pct"] for gpu in snapshot["gpus"]]
        if training.poll() is not None or time.monotonic() > until:
            break
    stream.terminate()
    stream.communicate()
    return seen


def judge(model: str, facts: dict[str, Any]) -> None:
    """What must hold of one model's three trainings."""
    plain, stepped, starved = (facts[model][name] for name in ("plain", "stepped", "starved"))
    failed = facts["failed"]
    if not (plain and stepped and starved):
        return
    if plain["loss"] != stepped["loss"]:
        failed.append(f"{model}: the loss is {stepped['loss']} with the context and {plain['loss']} without")
    if stepped["step_ms"] > plain["step_ms"] * (1 + WITHIN) + 0.05:
        failed.append(
            f"{model}: a step takes {stepped['step_ms']} ms with the context, {plain['step_ms']} without"
        )
    for name, one in (("stepped", stepped), ("starved", starved)):
        if "seen_step_ms" not in one:
            failed.append(f"{model}, {name}: no monitor saw its steps")
        elif abs(one["seen_step_ms"] / one["step_ms"] - 1) > WITHIN:
            failed.append(f"{model}, {name}: {one['seen_step_ms']} ms a step seen, {one['step_ms']} by itself")


if __name__ == "__main__":
    raise SystemExit(main())
