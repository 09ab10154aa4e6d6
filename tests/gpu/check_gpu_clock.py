"""The GPU clock on a real GPU, against what is planted: python -m tests.gpu.check_gpu_clock [CASE ...]

Each case runs in a process of its own and prints one JSON object: its figures, and `ok`, whether they are what was
planted or promised. Exits 1 when one is not. ``--cpu`` only shows that the script itself runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import llmtop
from llmtop import wire
from llmtop.instrument.gpu.clock import BUDGET
from llmtop.instrument.gpu.times import gpu_time
from llmtop.instrument.record.recorder import get
from tests.support.processes import REPOSITORY, environment
from tests.support.recorded import steps_of

sys.path.insert(0, str(REPOSITORY / "examples"))
from train_gpt import GPT, options

CPU = bool(os.environ.get("CHECK_GPU_CLOCK_CPU"))
DEVICE = torch.device("cpu" if CPU else "cuda")
Verdict = dict[str, Any]

WATCH = """
import sys
from pathlib import Path
from llmtop.client import Connection
connection = Connection.open(Path(sys.argv[1]))
print("watching", flush=True)
while True:
    connection.receive(5)
"""


def synchronise() -> None:
    if not CPU:
        torch.cuda.synchronize()


# --- trainings ---------------------------------------------------------------------------------------------------


class Gpt:
    """The example's GPT in bf16; a healthy step of about 110 ms on an H200."""

    def __init__(self) -> None:
        self.size = options().parse_args([])
        self.model = GPT(self.size).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=not CPU)
        shape = (self.size.batch, self.size.sequence + 1)
        self.pageable = [torch.randint(self.size.vocabulary, shape) for _ in range(8)]

    def loss(self, ids: Tensor) -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            logits = self.model(ids[:, :-1])
            return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def bare(self, number: int) -> Tensor:
        """A step as a script without llmtop takes it."""
        ids = self.pageable[number % 8].to(DEVICE)
        loss = self.loss(ids)
        loss.backward()
        self.update()
        return loss

    def recorded(self, number: int) -> Tensor:
        """The same step, attached."""
        with llmtop.phase("dataload"):
            ids = self.pageable[number % 8].to(DEVICE)
        with llmtop.step(tokens=ids.numel()):
            with llmtop.phase("forward"):
                loss = self.loss(ids)
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                self.update()
        return loss


class Tiny:
    """Launch-bound: many small kernels, an unfused optimizer."""

    def __init__(self, layers: int = 4) -> None:
        self.model = nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(64, 64), nn.GELU())))
        self.model.to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, foreach=False)
        self.x = torch.randn(16, 64, device=DEVICE)

    def bare(self, number: int) -> Tensor:
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def recorded(self, number: int) -> Tensor:
        with llmtop.step(tokens=16):
            with llmtop.phase("dataload"):
                pass
            with llmtop.phase("forward"):
                loss = self.model(self.x).square().mean()
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
        return loss


# --- what was recorded -------------------------------------------------------------------------------------------


def gpu_times(since: int = 0) -> list[wire.GpuTime]:
    """The timed steps from index `since` on."""
    recorder = get()
    if recorder.clock is None:
        return []
    _, timed = recorder.clock.timed.read(0)
    return [gpu_time(step, recorder.paths.names) for step in timed if step.step_index >= since]


def host_steps(since: int = 0) -> list[wire.StepDone]:
    """The recorded steps from index `since` on."""
    return [step for step in steps_of(get()) if step.index >= since]


def share(times: list[wire.GpuTime], phase: str) -> float:
    """GPU time of a phase by GPU time of the steps."""
    return sum(dict(time.phases).get(phase, 0) for time in times) / max(1, sum(time.gpu_ns for time in times))


def idle_share(times: list[wire.GpuTime]) -> float | None:
    """Idle time by GPU time; None when it is told for less than half of the steps."""
    told = [time for time in times if time.idle_ns is not None]
    if 2 * len(told) < len(times) or not told:
        return None
    return sum(time.idle_ns or 0 for time in told) / sum(time.gpu_ns for time in told)


# --- cases -------------------------------------------------------------------------------------------------------


def overhead(training: Gpt | Tiny, block: int, rounds: int, limit: float) -> Verdict:
    """Blocks of steps with and without llmtop in turn, a monitor reading: medians of seconds a step."""
    for number in range(3 * block):
        training.recorded(number)
    (path,) = Path(os.environ["LLMTOP_DIR"]).glob("*.sock")
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCH, str(path)], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert watcher.stdout is not None
    watcher.stdout.readline()
    # A second bare arm shows what the machine itself does to equal blocks: a GPU at its power limit is not steady.
    arms = {"bare": training.bare, "recorded": training.recorded, "control": training.bare}
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    before = len(gpu_times())
    for turn in range(rounds):
        for place in range(len(arms)):
            name = list(arms)[(turn + place) % len(arms)]
            synchronise()
            begun = time.perf_counter()
            for number in range(block):
                arms[name](number)
            synchronise()
            seconds[name].append((time.perf_counter() - begun) / block)
    watcher.kill()
    bare, recorded, control = (statistics.median(taken) for taken in seconds.values())
    timed = len(gpu_times()) - before
    return {
        "bare_ms": 1e3 * bare,
        "recorded_ms": 1e3 * recorded,
        "ratio": recorded / bare,
        "control_ratio": control / bare,
        "limit": limit,
        "timed_steps": timed,
        "ok": recorded <= limit * max(bare, control) and (timed > 0 or CPU),
    }


def gpt_overhead() -> Verdict:
    """A healthy GPT step with llmtop and GPU timing: within 0.2 %."""
    return overhead(Gpt(), 2 if CPU else 20, 2 if CPU else 15, 1.002)


LAUNCH_BOUND_SECONDS = 1.4e-3
"""The step that the promise is about; how many layers that takes depends on the machine."""


def launch_bound_overhead() -> Verdict:
    """A launch-bound step of 1.4 ms: within 3 %."""
    probe = Tiny()
    for number in range(300):
        probe.bare(number)
    synchronise()
    begun = time.perf_counter()
    for number in range(300):
        probe.bare(number)
    synchronise()
    a_step = (time.perf_counter() - begun) / 300
    layers = max(4, round(4 * LAUNCH_BOUND_SECONDS / a_step))
    return {"layers": layers, **overhead(Tiny(layers), 300, 20, 1.03)}


def healthy_clocks() -> Verdict:
    """The copy to the GPU waits for the step before: dataload long on the host's clock, short on the GPU's."""
    training = Gpt()
    for number in range(4 if CPU else 40):
        training.recorded(number)
    synchronise()
    times, steps = gpu_times(10), host_steps(10)
    host = sum(step.phases[0].host_ns for step in steps) / max(1, sum(step.host_ns for step in steps))
    gpu, idle = share(times, "dataload"), idle_share(times)
    ok = host > 0.5 and gpu < 0.02 and idle is not None and idle < 0.03
    return {
        "dataload_host_share": host,
        "dataload_gpu_share": gpu,
        "idle_share": idle,
        "timed": len(times),
        "ok": ok,
    }


def starved(wanted: float) -> Verdict:
    """A loader that sleeps: the idle share is 1 - (GPU-bound step) / (starved step), both measured here."""
    training = Gpt()
    steps = 3 if CPU else 25

    def run(delay_s: float) -> float:
        def batches() -> Iterator[Tensor]:
            for number in range(steps):
                time.sleep(delay_s)
                yield training.pageable[number % 8].pin_memory() if not CPU else training.pageable[number % 8]

        synchronise()
        begun = time.perf_counter()
        for batch in llmtop.loader(batches()):
            with llmtop.step():
                with llmtop.phase("h2d"):
                    ids = batch.to(DEVICE, non_blocking=True)
                with llmtop.phase("forward"):
                    loss = training.loss(ids)
                with llmtop.phase("backward"):
                    loss.backward()
                with llmtop.phase("optimizer"):
                    training.update()
        synchronise()
        return (time.perf_counter() - begun) / steps

    run(0.0)
    plain = run(0.0)
    first = 2 * steps + 3
    planted = run(plain / (1 - wanted))
    truth = 1 - plain / planted
    times = gpu_times(first)
    measured, idle = share(times, "dataload"), idle_share(times)
    ok = bool(times) and abs(measured - truth) < 0.05 and idle is not None and abs(idle - truth) < 0.05
    return {"truth": truth, "dataload_gpu_share": measured, "idle_share": idle, "timed": len(times), "ok": ok}


def starved_30() -> Verdict:
    """Idle for 30 % of the step."""
    return starved(0.3)


def starved_60() -> Verdict:
    """Idle for 60 % of the step."""
    return starved(0.6)


def launch_bound_clocks() -> Verdict:
    """Where the host sets the pace idle time is not told, and that is said; events keep to their budget."""
    training = Tiny()
    for number in range(500):
        training.recorded(number)
    recorder = get()
    clock = recorder.clock
    if clock is None:
        return {"ok": False, "why": "no GPU clock"}
    spent = 0
    mark, read = clock.mark, clock.read

    def timed_mark(slot: int, begins: bool) -> None:
        nonlocal spent
        begun = time.perf_counter_ns()
        mark(slot, begins)
        spent += time.perf_counter_ns() - begun

    def timed_read() -> None:
        nonlocal spent
        begun = time.perf_counter_ns()
        read()
        spent += time.perf_counter_ns() - begun

    clock.mark, clock.read = timed_mark, timed_read  # type: ignore[method-assign]
    begun = time.perf_counter_ns()
    first = recorder.next_index
    for number in range(5000):
        training.recorded(number)
    whole = time.perf_counter_ns() - begun
    synchronise()
    times = gpu_times(first)
    paced = sum(step.host_paced_ns for step in times) / max(1, sum(step.gpu_ns for step in times))
    told = sum(step.idle_ns is not None for step in times)
    return {
        "step_ms": whole / 5000 / 1e6,
        "timed": len(times),
        "host_paced_share": paced,
        "steps_with_idle_told": told,
        "clock_share_of_time": spent / whole,
        "ok": len(times) > 5 and paced > 0.8 and told < 0.1 * len(times) and spent / whole < 1.5 * BUDGET,
    }


def cuda_graph() -> Verdict:
    """A step captured into a graph inside phases, replayed inside phases: nothing breaks, and both are right."""
    training = Tiny()
    reference, captured = Tiny(), training
    reference.model.load_state_dict(training.model.state_dict())
    reference.x = training.x
    for number in range(200):  # events are in use by now
        reference.recorded(number)
    graph, losses = torch.cuda.CUDAGraph(), []
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            captured.model(captured.x).square().mean().backward()
            captured.optimizer.zero_grad(set_to_none=True)
    torch.cuda.current_stream().wait_stream(side)
    for _ in range(200):
        graph = torch.cuda.CUDAGraph()
        with llmtop.step(), llmtop.phase("capture"), torch.cuda.graph(graph), llmtop.phase("inside"):
            loss = captured.model(captured.x).square().mean()
            llmtop.log(captured_loss=loss)
    first = get().next_index
    # Events may take a thousandth of the time: of steps of some 10 µs one in ten thousand is timed.
    begun = time.monotonic()
    while time.monotonic() - begun < 4:
        for _ in range(100):
            with llmtop.step(), llmtop.phase("replay"):
                graph.replay()
        synchronise()
    expected = captured.model(captured.x).square().mean()
    losses = [float(loss), float(expected)]
    times = gpu_times(first)
    return {
        "losses": losses,
        "timed_replays": len(times),
        "host_steps": len(host_steps(first)),
        "ok": losses[0] == losses[1] and len(times) > 0,
    }


def compiled() -> Verdict:
    """Phases inside and around compiled functions: whole graphs, no recompilation, right phases."""
    import torch._dynamo as dynamo

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(256, 256)

        def forward(self, x: Tensor) -> Tensor:
            with llmtop.phase("inside"):
                x = self.layer(x)
            llmtop.log(mean=x.mean())
            return x.relu()

    verdict: Verdict = {}
    x = torch.randn(64, 256, device=DEVICE)
    for mode in ("default", "reduce-overhead"):
        dynamo.reset()
        model = Inside().to(DEVICE)
        run = torch.compile(model, mode=mode, fullgraph=True, backend="eager" if CPU else "inductor")
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        first = get().next_index
        for _ in range(400):
            with llmtop.step():
                with llmtop.phase("forward"):
                    loss = run(x).square().mean()
                with llmtop.phase("backward"):
                    loss.backward()
                with llmtop.phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
        synchronise()
        counters = dynamo.utils.counters
        names = {phase.name for step in host_steps(first) for phase in step.phases}
        verdict[mode] = {
            "graphs": counters["stats"]["unique_graphs"],
            "breaks": dict(counters["graph_break"]),
            "phases": sorted(names),
            "timed": len(gpu_times(first)),
        }
        counters.clear()
    verdict["ok"] = all(
        found["graphs"] == 1 and not found["breaks"] and found["phases"] == ["backward", "forward", "optimizer"]
        for found in verdict.values()
    )
    return verdict


def allocator_and_metrics() -> Verdict:
    """A loss on the GPU is shown without waiting; the allocator is read as torch does; the peak stays."""
    training = Tiny()
    begun, slowest = time.monotonic(), 0.0
    number = 0
    values = []
    while time.monotonic() - begun < 3:
        loss = training.recorded(number)
        before = time.perf_counter()
        llmtop.log(loss=loss, steps=number)
        slowest = max(slowest, time.perf_counter() - before) if number > 1000 else 0.0
        values.append(loss.detach())
        number += 1
    peak_before = torch.cuda.max_memory_allocated()
    time.sleep(0.3)
    for _ in range(2000):
        training.recorded(number)
    recorder = get()
    shown = recorder.metrics.get("loss")
    seen = torch.stack(values).cpu().tolist()
    memory = recorder.memory
    return {
        "loss_shown": shown,
        "slowest_log_us": 1e6 * slowest,
        "memory": None if memory is None else memory._asdict(),
        "gpu_uuid": recorder.facts.gpu_uuid,
        "uuids": subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.split(
            "\n"
        ),
        "ok": shown in seen
        and memory is not None
        and memory.peak_bytes == torch.cuda.max_memory_allocated() >= peak_before
        and 0 < memory.allocated_bytes <= memory.reserved_bytes
        and recorder.facts.gpu_uuid is not None,
    }


CASES: dict[str, Callable[[], Verdict]] = {
    case.__name__: case
    for case in (
        gpt_overhead,
        launch_bound_overhead,
        healthy_clocks,
        starved_30,
        starved_60,
        launch_bound_clocks,
        cuda_graph,
        compiled,
        allocator_and_metrics,
    )
}


def main() -> int:
    """Run the cases named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--cpu", action="store_true", help="only show that the script runs")
    parser.add_argument("--inside", choices=list(CASES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps({"case": arguments.inside, **CASES[arguments.inside]()}, default=str), flush=True)
        return 0
    bad = 0
    for name in arguments.cases or CASES:
        with tempfile.TemporaryDirectory(prefix="lt-") as directory:
            extra = {"LLMTOP_DIR": directory, "LLMTOP_DEBUG": "1"}
            if arguments.cpu:
                extra["CHECK_GPU_CLOCK_CPU"] = "1"
            done = subprocess.run(
                [sys.executable, "-m", "tests.gpu.check_gpu_clock", "--inside", name],
                env=environment(**extra),
                stdout=subprocess.PIPE,
                text=True,
                check=False,
                cwd=REPOSITORY,
            )
        print(done.stdout.strip() or json.dumps({"case": name, "ok": False, "exit": done.returncode}), flush=True)
        bad += done.returncode != 0 or not json.loads(done.stdout.splitlines()[-1])["ok"]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
