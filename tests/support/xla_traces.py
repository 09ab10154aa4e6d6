"""Traces as XLA's profiler writes them: recorded ones unpacked, and made-up ones of GPUs and TPUs.

The made-up ones follow what XLA's source writes (its CUPTI collector and its converter to trace events): a plane a
process, a stream a thread, all arguments as text, and lines that are made up from what ran beside the streams.
"""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data" / "jax"
HOST, GPU = 701, 1


def unpacked(name: str, folder: Path) -> Path:
    """A recorded trace of tests/data/jax as jax.profiler left it, in that folder."""
    path = folder / f"{name}.trace.json.gz"
    path.write_bytes(gzip.compress(lzma.decompress((DATA / f"{name}.trace.json.xz").read_bytes())))
    return path


def meta(pid: int, name: str, tid: int | None = None) -> dict[str, Any]:
    """The event that names a plane, or a line of it."""
    named = {"ph": "M", "pid": pid, "name": "process_name" if tid is None else "thread_name"}
    return {**named, **({} if tid is None else {"tid": tid}), "args": {"name": name}}


def timed(place: tuple[int, int], name: str, start: float, dur: float, /, **args: object) -> dict[str, Any]:
    """A timed event: on which plane and line, from when in µs, for how long; its arguments become text."""
    told = {key: str(value) for key, value in args.items()}
    event = {"ph": "X", "pid": place[0], "tid": place[1], "ts": start, "dur": dur, "name": name}
    return {**event, "args": told} if told else event


def written(path: Path, events: list[dict[str, Any]], **properties: object) -> Path:
    """The file that XLA would write of these events: gzipped if its name says so."""
    whole = {**properties, "displayTimeUnit": "ns", "metadata": {"highres-ticks": True}}
    text = json.dumps({**whole, "traceEvents": [*events, {}]}, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def on_gpu(steps: int = 6, wait_us: float = 1000.0, lag_us: float = 300.0) -> list[dict[str, Any]]:
    """A training on one GPU whose host waits for input in each step; a step takes `wait_us` + 1100 µs.

    Of a step the GPU computes 700 µs (a product of 500, a fusion of 150, an all-reduce of 50) and copies 100 µs
    of input; kernels begin `lag_us` after the host launched them.
    """
    thread, compute, copies = (HOST, 77), (GPU, 18), (GPU, 14)
    events = [meta(HOST, "/host:CPU"), meta(HOST, "python", 77), meta(GPU, "/device:GPU:0")]
    events += [meta(GPU, "Stream #18(Compute)", 18), meta(GPU, "Stream #14(MemcpyH2D)", 14)]
    events += [meta(GPU, "XLA Modules", 900), meta(GPU, "XLA Ops", 901), meta(GPU, "Steps", 902)]
    events.append(meta(GPU, "CUPTI overhead", 903))
    call = 100
    for step in range(steps):
        at = 50.0 + step * (wait_us + 1100.0)
        events.append(timed(thread, "llmtop.step", at, wait_us + 1050, step_num=step))
        events.append(timed(thread, "dataload", at + 5, wait_us, llmtop_phase=1))
        begun = at + wait_us + 20
        events.append(timed(thread, "PjitFunction(train_step)", begun, 900))
        events.append(timed(thread, "Handle inputs", begun + 1, 5))
        module = {"hlo_module": "jit_train_step", "program_id": 7}
        path = "jit(train_step)/jit(main)"
        work: list[tuple[tuple[int, int], str, float, str, dict[str, object]]] = [
            (copies, "MemcpyH2D", 100, "cuMemcpyHtoDAsync_v2",
             {"memcpy_details": "kind_src:pinned kind_dst:device size:4194304 dest:0 async:1"}),
            (compute, "void cutlass::Kernel2<cutlass_80_tensorop_bf16>(Params)", 500, "cuLaunchKernelEx",
             {**module, "hlo_op": "gemm_fusion_dot.3", "tf_op": f"{path}/jvp(mlp)/dot_general"}),
            (compute, "loop_multiply_fusion_2", 150, "cuLaunchKernel",
             {**module, "hlo_op": "loop_multiply_fusion.2", "tf_op": f"{path}/transpose(jvp(mlp))/mul"}),
            (compute, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 50,
             "cuLaunchKernelEx", {**module, "hlo_op": "all-reduce-start.1", "name": f"{path}/psum"}),
        ]  # fmt: skip
        runs = begun + lag_us
        for number, (line, name, took, called, args) in enumerate(work):
            call += 1
            shared = {"correlation_id": call, "context_id": "$$1"}
            events.append(timed(thread, called, begun + 10 + 20 * number, 8, device_id=0, **shared))
            events.append(timed(line, name, runs, took, **shared, **args))
            runs += took
        events.append(timed((GPU, 900), "jit_train_step(7)", begun, runs - begun))
        events.append(timed((GPU, 901), "gemm_fusion_dot.3", begun, 700))
        events.append(timed((GPU, 902), str(step), at, wait_us + 1050))
    events.append(timed((GPU, 903), "Overhead", 10.0, 30.0))
    named = {"llmtop_devices": "0=NVIDIA H100 80GB HBM3"}
    events.append(timed(thread, "llmtop.devices_done", 50.0 + steps * (wait_us + 1100.0), 1.0, **named))
    return events
