"""Cases of tests.gpu.check_gpu_clock: CUDA graphs, compiled functions and the allocator beside GPU times."""

from __future__ import annotations

import subprocess
import time

import torch
from torch import Tensor, nn

import llmtop
from llmtop.instrument.record.recorder import get
from tests.gpu.gpu_clock_trainings import CPU, DEVICE, Tiny, Verdict, gpu_times, host_steps, synchronise


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
        "uuids": subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=3600
        ).stdout.split("\n"),
        "ok": shown in seen
        and memory is not None
        and memory.peak_bytes == torch.cuda.max_memory_allocated() >= peak_before
        and 0 < memory.allocated_bytes <= memory.reserved_bytes
        and recorder.facts.gpu_uuid is not None,
    }
