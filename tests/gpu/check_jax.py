"""Check JAX on a GPU: python -m tests.gpu.check_jax [steps] [windows] [mlp] [transformer] [--keep FOLDER]

Needs a Python with JAX for CUDA ($JAX_PYTHON, by default this one), and in it msgspec and nvtx. Trains an MLP and
a small transformer (tests/gpu/jax_training.py) and prints one JSON object. Changes nothing. Exits 1 when something
does not hold; "failed" then says what. On a CPU, `windows mlp --width 64` tries the program.

windows (if neither is named; about a minute): a window of each by `llmtop capture --engine jax.profiler`, the
transformer's with a wait of the host planted. Its report's busy % beside the union of what the file's device
plane shows, as jaxlib's own reader of .xplane.pb has it, and beside xprof's where that is installed ($JAX_PYTHON);
within 3 points. With --keep the captures are copied there.

steps (two minutes): plain, with a step context, and with one and a planted wait: that the loss is the same to the
last digit, the mean step that a monitor reads over the socket beside the script's own, and NVML's GPU-Util.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = {"mlp": 0, "transformer": 4}
"""And the wait of the host in ms that is planted in each one's window."""
STEPS = 1200
WITHIN = 0.03
"""Of the script's own mean step, the most that a monitor's may be off; and what the context may add to it."""
POINTS = 3.0
"""Of busy %, the most that the report's may be off from what else reads the window."""
UNION = """
import json, sys
from jax.profiler import ProfileData
found = {}
for plane in ProfileData.from_file(sys.argv[1]).planes:
    spans = []
    for line in plane.lines:
        device = plane.name.startswith("/device:GPU:") and line.name.startswith("Stream #")
        for event in line.events:
            on_cpu = plane.name == "/host:CPU" and "hlo_op" in dict(event.stats)
            if device or on_cpu:
                spans.append((event.start_ns, event.start_ns + event.duration_ns))
    if not spans:
        continue
    spans.sort()
    busy, until = 0.0, spans[0][0]
    for begin, end in spans:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    length = until - spans[0][0]
    found[plane.name] = {"busy_pct": 100 * busy / length, "events": len(spans), "ns": length}
print(json.dumps(found))
"""
XPROF = """
import json, sys
try:
    import xprof
    from xprof.convert import raw_to_tool_data
except ImportError as error:
    print(json.dumps({"absent": str(error)}))
    raise SystemExit
data, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], "overview_page", {})
text = data.decode() if isinstance(data, bytes) else str(data)
found = {"version": getattr(xprof, "__version__", "")}
def look(thing):
    if isinstance(thing, dict):
        for key, value in thing.items():
            if "idle" in str(key).lower() or "busy" in str(key).lower():
                found[key] = value
            look(value)
    elif isinstance(thing, list):
        for one in thing:
            look(one)
look(json.loads(text))
print(json.dumps(found))
"""


def main() -> int:
    """Train, watch, capture and print."""
    given = sys.argv[1:]
    keep = Path(given.pop(given.index("--keep") + 1)).resolve() if "--keep" in given else None
    parts = [part for part in ("windows", "steps") if part in given] or ["windows"]
    models = [name for name in MODELS if name in given] or list(MODELS)
    more = [one for one in given if one not in ("--keep", *MODELS, "windows", "steps")]
    facts: dict[str, Any] = {"failed": []}
    for model in models:
        facts[model] = {}
        if "windows" in parts:
            facts[model]["window"] = window(model, facts, keep, *more)
        if "steps" in parts:
            facts[model]["plain"] = train(model, facts, *more)
            facts[model]["stepped"] = train(model, facts, "--llmtop", *more, watched=True)
            facts[model]["starved"] = train(
                model, facts, "--llmtop", "--wait-ms", "30", *more, steps=200, watched=True
            )
            judge(model, facts)
    print(json.dumps(facts, indent=1))
    return 1 if facts["failed"] else 0


def window(model: str, facts: dict[str, Any], keep: Path | None, *options: str) -> dict[str, Any]:
    """A window of a training that runs, its report, and what else reads it."""
    with tempfile.TemporaryDirectory() as directory:
        env = environment(directory)
        wait = ("--wait-ms", str(MODELS[model])) if MODELS[model] else ()
        begun = time.monotonic()
        training = subprocess.Popen(
            script(model, 1_000_000, "--llmtop", *wait, *options),
            env=env, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            stepped = bool(watch(training, env, until_step=60))
            ready = time.monotonic()
            took = capture(training, env, f"{directory}/captures") if stepped else None
            runs_on = training.poll() is None
            after = watch(training, env, until_step=0) if stepped else {}
        finally:
            training.kill()
            told = training.communicate(timeout=600)[0]
        if took is None:
            facts["failed"].append(f"{model}: it made no 60 steps in time: {told[-600:]}")
            return {}
        found: dict[str, Any] = {"start_s": ready - begun, "capture_s": time.monotonic() - ready}
        if took.returncode:
            facts["failed"].append(f"{model}: no window: {took.stderr[-600:]}")
            return found
        (folder,) = Path(directory, "captures").iterdir()
        if keep is not None:
            shutil.copytree(folder, keep / model, dirs_exist_ok=True)
        found |= read(folder) | {"runs_on": runs_on, "step_ms_after": after.get("seen_step_ms")}
        judge_window(model, found, facts)
        return found


def capture(training: subprocess.Popen[str], env: dict[str, str], out: str) -> subprocess.CompletedProcess[str]:
    """Take a window of ten steps."""
    return subprocess.run(
        [sys.executable, "-m", "llmtop", "capture", "--engine", "jax.profiler", "--steps", "10",
         "--pid", str(training.pid), "--out", out],
        env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def read(folder: Path) -> dict[str, Any]:
    """The report's figures, and those of other readers of the same window."""
    report = json.loads((folder / "report.json").read_bytes())
    info = json.loads((folder / "capture.json").read_bytes())
    (space,) = (folder / "traces").glob("*.xplane.pb")
    sizes = {path.name: path.stat().st_size for path in (folder / "traces").iterdir()}
    device = report["devices"][0] if report["devices"] else {}
    figures = ("busy_pct", "idle_pct", "kernels", "steps", "step_seconds", "lost_pct", "launches_per_step", "name")
    return {
        "report": {name: device.get(name) for name in figures},
        "verdict": report["verdict"],
        "summary": report["summary"],
        "found_by": report["steps"]["found_by"],
        "gaps": {gap["cause"]: gap["share_pct"] for gap in report["gaps"]},
        "operators": [[one["name"], one["share_pct"]] for one in report["operators"][:5]],
        "kernels": [[one["name"], one["kind"], one["share_pct"]] for one in report["kernels"][:5]],
        "notes": report["notes"],
        "captured": {name: info.get(name) for name in ("notes", "step_seconds", "stage_seconds", "steps")},
        "bytes": sizes,
        "jaxlib": by_other(UNION, space),
        "xprof": by_other(XPROF, space),
    }


def by_other(program: str, space: Path) -> dict[str, Any]:
    """What a program in the Python that has JAX says of a window."""
    python = os.environ.get("JAX_PYTHON", sys.executable)
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    done = subprocess.run(
        [python, "-c", program, str(space)], capture_output=True, text=True, env=env, timeout=60, check=False
    )
    if done.returncode:
        return {"failed": done.stderr[-400:]}
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def judge_window(model: str, found: dict[str, Any], facts: dict[str, Any]) -> None:
    """What must hold of a window."""
    failed, report = facts["failed"], found["report"]
    if not found["runs_on"]:
        failed.append(f"{model}: the training ended with its capture")
    if not report["steps"] or report["steps"] < 8:
        failed.append(f"{model}: {report['steps']} whole steps on the device, of 10 that were asked for")
    others = [one["busy_pct"] for one in found["jaxlib"].values() if isinstance(one, dict)]
    if not others:
        failed.append(f"{model}: jaxlib's reader shows no device: {found['jaxlib']}")
    elif report["busy_pct"] is None or abs(report["busy_pct"] - others[0]) > POINTS:
        failed.append(f"{model}: busy {report['busy_pct']} %, by jaxlib's reader {others[0]} %")


def environment(directory: str) -> dict[str, str]:
    """Of a training, and of the monitor beside it."""
    env = {**os.environ, "LLMTOP_DIR": directory, "PYTHONPATH": str(REPOSITORY)}
    env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return env


def script(model: str, steps: int, *options: str) -> list[str]:
    """The command of a training."""
    python = os.environ.get("JAX_PYTHON", sys.executable)
    return [python, "-m", "tests.gpu.jax_training", model, "--steps", str(steps), *options]


def train(
    model: str, facts: dict[str, Any], *options: str, steps: int = STEPS, watched: bool = False
) -> dict[str, Any]:
    """One training, and what a monitor that streams beside it said last of its steps and its GPU."""
    with tempfile.TemporaryDirectory() as directory:
        env = environment(directory)
        command = script(model, steps, *options)
        training = subprocess.Popen(command, env=env, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        seen = watch(training, env) if watched else {}
        told = training.communicate(timeout=110)[0]
    found = re.search(r"loss (\S+), (\S+) ms a step on (.*)", told)
    if training.returncode or found is None:
        facts["failed"].append(f"{model} {options}: it ended with {training.returncode}: {told[-300:]}")
        return {}
    return {"loss": found[1], "step_ms": float(found[2]), "device": found[3], **seen}


def watch(training: subprocess.Popen[str], env: dict[str, str], until_step: int | None = None) -> dict[str, Any]:
    """The newest figures that a monitor had of the training while it stepped.

    Args:
        training: the process.
        env: of both.
        until_step: stop there; None: when it ends.
    """
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
        arrived = until_step is not None and seen.get("seen_steps", -1) > until_step
        if arrived or training.poll() is not None or time.monotonic() > until:
            break
    stream.terminate()
    stream.communicate(timeout=600)
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
