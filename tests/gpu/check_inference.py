"""Requests and forward passes under `llmtop run`, held against stamps of the script's own; needs transformers.

    python -m tests.gpu.check_inference [--device cpu] [--seconds 20] [--captures] [NAME…]

Runs each of `SCRIPTS` (random weights, nothing is downloaded), which stamps its own tokens, and looks at it as
`llmtop --json` does. Prints a JSON object a script: what llmtop said last, what the script stamped of the same
seconds, and the difference in percent; with --captures also what a report says of prefill and decode, by
torch.profiler and by nsys. Exits with 1 if llmtop gave no duration for a script.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from collectors.trainings.step_window import LEAST_STEPS, RECENT_SECONDS
from tests.support.processes import REPOSITORY, environment, wait_for

HEAD = """
import json, sys, time, torch
from time import perf_counter as now
device, seconds = sys.argv[1], float(sys.argv[2])
torch.manual_seed(0)
truth, end = [], None
def goes_on():  # its time begins with the first request: a cold machine imports for longer than that
    global end
    end = end or now() + seconds
    return now() < end
def sync():
    if device != "cpu":
        torch.cuda.synchronize()
"""
LANGUAGE = """
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.generation.streamers import BaseStreamer
small = device == "cpu"
config = GPT2Config(n_embd=256 if small else 1024, n_layer=4 if small else 24, n_head=4 if small else 16,
                    bos_token_id=0, eos_token_id=None)
model = GPT2LMHeadModel(config).to(device, torch.float32 if small else torch.bfloat16).eval()
class Stamps(BaseStreamer):
    def __init__(self):
        self.at = []
    def put(self, value):  # the prompt, then each token, on the host
        self.at.append(now())
    def end(self):
        pass
def ask(batch, **options):
    ids = torch.randint(1, 50000, (batch, 256), device=device)
    sync()
    stamps = Stamps() if batch == 1 else None
    begun = now()
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False, pad_token_id=0,
                   streamer=stamps, **options)
    sync()
    ended = now()
    first = stamps.at[1] - begun if stamps else None
    each = (ended - begun - first) / 63 if stamps else None
    truth.append({"ttft": first, "tpot": each, "seconds": ended - begun, "at": time.time()})
"""
TAIL = """
with open(sys.argv[3], "w") as file:
    json.dump(truth, file)
"""
SCRIPTS = {
    "streamed": LANGUAGE + "while goes_on():\n    ask(1)\n",
    "batch": LANGUAGE + "while goes_on():\n    ask(4)\n",
    # On a GPU the first request compiles the model, which may take longer than all that is timed.
    "static": LANGUAGE
    + "ask(1, cache_implementation='static')\ntruth.clear()\n"
    + "while goes_on():\n    ask(1, cache_implementation='static')\n",
    "by_hand": LANGUAGE
    + """
with torch.inference_mode():
    while goes_on():
        ids = torch.randint(1, 50000, (2, 256), device=device)
        sync()
        begun = now()
        out = model(input_ids=ids, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
        token.tolist()
        first = now() - begun
        for _ in range(31):
            out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
            token.tolist()
        ended = now()
        each = (ended - begun - first) / 31
        truth.append({"ttft": first, "tpot": each, "seconds": ended - begun, "at": time.time()})
""",
    "loop": """
net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(16)]).to(device).eval()
with torch.inference_mode():
    while goes_on():
        begun = now()
        net(torch.randn(256, 2048, device=device)).sum().item()
        truth.append({"ttft": None, "tpot": None, "seconds": now() - begun, "at": time.time()})
""",
}
SAID = {"ttft": "ttft_seconds_p50", "tpot": "tpot_seconds_p50", "seconds": "step_seconds_p50"}


def llmtop(*arguments: str, folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What a command of llmtop's says."""
    command = [sys.executable, "-m", "llmtop", *arguments]
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=3600
    )


def run(name: str, device: str, seconds: float, captures: bool) -> dict[str, Any]:
    """One script: what was said of it, and what it has stamped."""
    folder = Path(tempfile.mkdtemp(prefix="lt-"))
    variables = environment(LLMTOP_DIR=str(folder / "s"), PYTHONPATH=str(REPOSITORY))
    script, stamps = folder / f"{name}.py", folder / "stamps.json"
    script.write_text(HEAD + SCRIPTS[name] + TAIL)
    options = ["--nsys"] if captures and device != "cpu" else []
    command = [sys.executable, "-m", "llmtop", "run", "-q", *options, "--", sys.executable, str(script), device]
    started = subprocess.Popen(
        [*command, str(seconds), str(stamps)], cwd=folder, env=variables, start_new_session=True
    )
    rank: dict[str, Any] = {}
    at = 0.0
    taken: dict[str, Any] = {}
    try:
        wait_for(lambda: started.poll() is not None or list((folder / "s").glob("*.sock")), 300, "it publishes")
        if started.poll() is not None:
            raise AssertionError(f"{name} ended with {started.returncode} before it published")
        if captures:
            for engine in ("nsys",) if options else ("torch.profiler",):
                done = llmtop("capture", "--engine", engine, "--steps", "3", folder=folder, variables=variables)
                taken[engine] = _stages(folder) if done.returncode == 0 else done.stderr[-300:]
        while started.poll() is None:
            said = llmtop("--once", "--json", folder=folder, variables=variables).stdout
            snapshot = json.loads(said) if said else {"ranks": [], "time": 0.0}
            for one in snapshot["ranks"]:
                if one["state"] == "running":
                    rank, at = one, snapshot["time"]
            time.sleep(1)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(600)
    truth = json.loads(stamps.read_text())
    heard = [one for one in truth if one["at"] <= at]
    recent = [one for one in heard if one["at"] > at - RECENT_SECONDS]
    of_window = heard[-max(len(recent), LEAST_STEPS) :]
    true = {key: _median([one[key] for one in of_window]) for key in SAID}
    told = {key: rank.get(field) for key, field in SAID.items()}
    off = {key: 100 * (told[key] / true[key] - 1) for key in SAID if told[key] and true[key]}
    about = {key: rank.get(key) for key in ("kind", "inference", "batch", "tokens_in_per_s", "tokens_out_per_s")}
    return {"script": name, **about, "told": told, "true": true, "off_pct": off, "captures": taken}


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _stages(folder: Path) -> Any:
    newest = max((folder / "llmtop-captures").glob("*/report.json"), key=os.path.getmtime)
    report = json.loads(newest.read_bytes())
    wanted = [phase for phase in report["phases"] if phase["name"] in ("prefill", "decode")]
    return {
        "verdict": report["verdict"],
        "stages": (report["makeup"] or {}).get("stages"),
        "phases": [{key: phase[key] for key in ("name", "host_seconds", "gpu_seconds")} for phase in wanted],
    }


def main() -> int:
    """Run the scripts that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*SCRIPTS, []])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--captures", action="store_true")
    arguments = parser.parse_args()
    if importlib.util.find_spec("transformers") is None:
        raise SystemExit("not run: transformers is not on this machine")
    durations = []
    for name in arguments.names or SCRIPTS:
        result = run(name, arguments.device, arguments.seconds, arguments.captures)
        print(json.dumps(result), flush=True)
        durations.append(result["told"]["seconds"])
    return int(None in durations)


if __name__ == "__main__":
    sys.exit(main())
