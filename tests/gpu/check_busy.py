"""How idle the monitor says that a GPU is, beside the truth: python -m tests.gpu.check_busy [CASE ...]

Each case is a training in a process of its own, watched by the real monitor for some seconds; then it profiles
itself. The truth is the device's busy time a step in that profile over the undisturbed step. Prints one JSON
object a case: the truth, what each witness said over the same seconds (GPU-Util as read and as the driver
sampled it, SM activity and the share of time in which the graphics engine worked, by GPM, and CUDA events), what
the monitor believed, and its alerts; `ok` says whether the figure was within 8 points, or a bound within 12, and
the verdict as planted. A case takes some 45 s. Needs one GPU; without one it only shows that the script runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from tests.support.processes import REPOSITORY, environment

IDLE_PCT = (7.0, 15.0)
"""Idle share of a GPU by the profile, from which an alert about it is right, and below which silence is: the rule
raises at 10 % by a figure that errs by some points."""
BOUND = {"launch_bound", "sync_bound", "input_bound", "h2d_bound", "communication_bound"}
PROFILED_STEPS = 12
GRAPHICS_UTIL = 1
"""NVML_GPM_METRIC_GRAPHICS_UTIL."""


@dataclass(frozen=True)
class Planted:
    """A training, and the alerts of which one is right; none where the GPU's own work is the limit."""

    plant: str
    size: str
    verdicts: frozenset[str] = frozenset()
    optimizer: str = "fused"
    strength: float = 1.0
    where: str = "layers"
    reads: int = 1
    item: bool = False
    """Whether the loss is read at the end of each step."""
    compiled: str | None = None
    processes: int = 1


CASES = {
    "healthy": Planted("healthy", "medium"),
    "healthy_item": Planted("healthy", "medium", item=True),
    "tiny": Planted("healthy", "tiny", frozenset({"launch_bound"}), optimizer="loop"),
    "tiny_item": Planted("healthy", "tiny", frozenset({"launch_bound"}), optimizer="loop", item=True),
    "deep": Planted("healthy", "deep", frozenset({"launch_bound"})),
    "small_item": Planted("healthy", "small", frozenset({"launch_bound", "sync_bound"}), item=True),
    "layers": Planted("sync", "medium", frozenset({"sync_bound"}), reads=12),
    "tiny_layers": Planted("sync", "tiny", frozenset({"sync_bound"}), reads=12),
    "starved": Planted("input", "medium", frozenset({"input_bound"}), strength=0.4),
    "starved_little": Planted("input", "medium", frozenset({"input_bound"}), strength=0.15),
    "compiled": Planted("healthy", "small", frozenset({"launch_bound"}), compiled="default"),
    "graphs": Planted("healthy", "small", compiled="reduce-overhead"),
    "shared": Planted("healthy", "tiny", frozenset({"launch_bound"}), optimizer="loop", processes=2),
}


class Witness(threading.Thread):
    """Asks the driver itself, beside the monitor."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.polled: list[int] = []
        self.found: dict[str, Any] = {}

    def run(self) -> None:
        """Poll until it is ended; then read what the driver sampled, and GPM over the whole time."""
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
        began = time.time_ns() // 1000
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlGpmSampleGet(handle, samples[0])
        while not self.ended.wait(0.25):
            self.polled.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        self.found["util_polled_pct"] = statistics.fmean(self.polled) if self.polled else None
        self._samples(handle, began)
        self._gpm(handle, samples)

    def _samples(self, handle: Any, began: int) -> None:
        try:
            before = time.perf_counter()
            _, sampled = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, began)
            self.found["samples_call_ms"] = 1000 * (time.perf_counter() - before)
        except pynvml.NVMLError as error:
            self.found["samples"] = str(error)
            return
        fresh = [one for one in sampled if one.timeStamp > began]
        stamps = [one.timeStamp for one in fresh]
        self.found |= {
            "util_sampled_pct": statistics.fmean(one.sampleValue.uiVal for one in fresh) if fresh else None,
            "samples": len(fresh),
            "samples_kept": len(sampled),
            "samples_apart_ms": (stamps[-1] - stamps[0]) / 1000 / (len(stamps) - 1) if len(stamps) > 1 else None,
        }

    def _gpm(self, handle: Any, samples: list[Any]) -> None:
        ask = pynvml.c_nvmlGpmMetricsGet_t()
        ask.version, ask.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 2
        ask.sample1, ask.sample2 = samples
        ask.metrics[0].metricId, ask.metrics[1].metricId = GRAPHICS_UTIL, pynvml.NVML_GPM_METRIC_SM_UTIL
        try:
            pynvml.nvmlGpmSampleGet(handle, samples[1])
            pynvml.nvmlGpmMetricsGet(ask)
        except pynvml.NVMLError as error:
            self.found["gpm"] = str(error)
            return
        self.found |= {"graphics_engine_pct": ask.metrics[0].value, "sm_active_pct": ask.metrics[1].value}


def inside(name: str, seconds: float) -> None:
    """Train for so long, say how long a step took, then profile some steps and say how busy the device was."""
    import torch

    import llmtop
    from tests.gpu.planted import Case, Loop

    device = "cuda" if torch.cuda.is_available() else "cpu"
    case = CASES[name]
    options = {"where": case.where, "reads": case.reads}
    size = case.size if device == "cuda" else "cpu"
    made = Case(name, case.plant, size, case.strength, optimizer=case.optimizer, options=options)
    plain = Loop(made, 0, 1, device, 0.0, lambda _: contextlib.nullcontext())
    usual = plain.seconds_a_step() if case.plant != "healthy" else 0.0
    without = Loop(replace(made, plant="healthy"), 0, 1, device, 0.0, lambda _: contextlib.nullcontext())
    unplanted = without.seconds_a_step(40)
    del without
    loop = Loop(made, 0, 1, device, usual, llmtop.phase)
    if case.compiled is not None:
        loop.model.compile(mode=case.compiled)
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    read = next(loop.model.parameters()).detach().view(-1)[0]

    def step() -> None:
        with llmtop.step():
            loop.step()
            if case.item:
                read.item()

    for _ in range(10):
        step()
    synchronize()
    print(json.dumps({"begun": True}), flush=True)
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        step()
        steps += 1
    synchronize()
    usual = (time.perf_counter() - began) / steps
    print(json.dumps({"step_ms": 1000 * usual, "unplanted_step_ms": 1000 * unplanted}), flush=True)
    activities = [
        torch.profiler.ProfilerActivity.CUDA if device == "cuda" else torch.profiler.ProfilerActivity.CPU
    ]
    with torch.profiler.profile(activities=activities):
        step()
        synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(PROFILED_STEPS):
            step()
        synchronize()
    busy = _busy_ns(profile) / PROFILED_STEPS / 1e9
    print(json.dumps({"busy_ms": 1000 * busy, "busy_pct": 100 * busy / usual}), flush=True)


def _busy_ns(profile: Any) -> int:
    """The union of all that ran on the device."""
    import torch

    events = profile.profiler.kineto_results.events()
    spans = sorted(
        (one.start_ns(), one.start_ns() + one.duration_ns())
        for one in events
        if one.device_type() == torch.autograd.DeviceType.CUDA
    )
    busy, reached = 0, 0
    for start, end in spans:
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    return busy


def right_verdicts(case: Planted, truth: dict[str, Any]) -> tuple[frozenset[str], bool]:
    """Return the alerts of which one is right by what was measured, and whether silence is right too.

    A host may be so slow that a plant is not what limits its steps: then launching is.
    """
    idle = 100.0 - truth["busy_pct"]
    if case.processes > 1:  # neither process shows which one has the turn
        return frozenset({"launch_bound"}), True
    if not case.verdicts:
        return frozenset({"launch_bound"} if idle >= IDLE_PCT[0] else ()), idle < IDLE_PCT[1]
    if case.plant == "sync":
        saved = 100.0 * (1.0 - truth["unplanted_step_ms"] / truth["step_ms"])
        return (case.verdicts if saved >= idle / 2 else frozenset({"launch_bound"})), False
    return case.verdicts, False


def watch(name: str, seconds: float) -> dict[str, Any]:
    """Run one case with the monitor beside it."""
    case = CASES[name]
    with tempfile.TemporaryDirectory(prefix="lt-") as directory:
        environ = environment(LLMTOP_DIR=directory)
        command = [sys.executable, "-m", "tests.gpu.check_busy", "--inside", name, "--seconds", str(seconds)]
        trainings = [
            subprocess.Popen(
                command, env=environ, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            for _ in range(case.processes)
        ]
        monitor = None
        try:
            told: list[dict[str, Any]] = []
            assert trainings[0].stdout is not None
            told.append(json.loads(trainings[0].stdout.readline()))
            monitor = subprocess.Popen(
                [sys.executable, "-m", "llmtop", "--json", "--interval", "0.5"],
                env=environ,
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                text=True,
            )
            snapshots: list[dict[str, Any]] = []
            threading.Thread(target=_collect, args=(monitor.stdout, snapshots), daemon=True).start()
            witness = Witness()
            witness.start()
            told.append(json.loads(trainings[0].stdout.readline()))
            watched = len(snapshots)
            witness.ended.set()
            witness.join(600)
            told.append(json.loads(trainings[0].stdout.readline()))
            truth = told[1] | told[2]
            return judged(name, truth, witness.found, snapshots[:watched], trainings[0].pid)
        finally:
            for one in trainings:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
            if monitor is not None:
                monitor.terminate()
                monitor.wait(10)


def _collect(lines: Any, snapshots: list[dict[str, Any]]) -> None:
    snapshots.extend(json.loads(line) for line in lines)


def judged(
    name: str, truth: dict[str, Any], witness: dict[str, Any], snapshots: list[dict[str, Any]], pid: int
) -> dict[str, Any]:
    """What the monitor said in the end, beside the truth."""
    case = CASES[name]
    ranks = [one for snapshot in snapshots for one in snapshot["ranks"] if one["pid"] == pid]
    last = ranks[-1] if ranks else {}
    tail = snapshots[-6:]
    alerts = {alert["id"]: alert["summary"] for snapshot in tail for alert in snapshot["alerts"]}
    busy, bound = last.get("gpu_busy_pct"), last.get("gpu_busy_bound")
    error = None if busy is None else busy - truth["busy_pct"]
    near = error is not None and (-1.0 <= error <= 12.0 if bound else abs(error) <= 8.0)
    raised = BOUND & alerts.keys()
    right, may_be_silent = right_verdicts(case, truth)
    fits = (len(raised) == 1 and raised <= right) or (not raised and may_be_silent)
    fits &= "is spinning or stuck" not in alerts.get("low_power_full_util", "")
    fields = ("gpu_busy_pct", "gpu_busy_source", "gpu_busy_bound", "gpu_busy_seconds", "gpu_wait_pct", "gpu_waits")
    own = (*fields, "gpu_idle_pct", "gpu_host_paced_pct", "outside_seconds", "overhead_seconds")
    figure_fits = (busy is None or bool(bound)) if case.processes > 1 else near
    return {
        "case": name,
        "ok": figure_fits and fits,
        "error_points": error,
        "truth": truth,
        "monitor": {field: last.get(field) for field in own},
        "witness": witness,
        "alerts": alerts,
        "planted": sorted(case.verdicts),
        "right": sorted(right),
    }


def main() -> int:
    """Run the cases named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--inside", choices=list(CASES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        inside(arguments.inside, arguments.seconds)
        return 0
    fine = True
    for name in arguments.cases or CASES:
        verdict = watch(name, arguments.seconds)
        print(json.dumps(verdict), flush=True)
        fine &= verdict["ok"]
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
