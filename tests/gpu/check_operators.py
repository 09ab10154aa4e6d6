"""The operator table beside torch's own key_averages(), on the same run; needs one GPU. Prints JSON.

    python -m tests.gpu.check_operators
    nsys profile -t cuda,nvtx -o marked python -m tests.gpu.check_operators --nvtx && llmtop report marked.nsys-rep

The first exits 1 if the self device time of an operator differs by more than half a percent. The second marks the
operators as NVTX ranges: the report of it has the same operators, and the sizes of the products.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmtop.analysis.analyze import analyze

_STEPS = 5
_MOST_PCT = 0.5
_LEAST_SHARE = 1e-4
"""Of all device time; of less neither clock tells half a percent."""
_NO_OPERATORS = ("Activity Buffer Request",)
"""Kineto's note that CUPTI asked it for memory: in the trace of the category "overhead", and it launches nothing.
key_averages() lists it among the operators all the same."""


def _training() -> Callable[[], None]:
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = torch.randn(16, 512, 1024, device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    return step


def _marked(step: Callable[[], None]) -> None:
    import torch

    with torch.autograd.profiler.emit_nvtx(record_shapes=True):
        for _ in range(_STEPS):
            step()
    torch.cuda.synchronize()


def _compared(step: Callable[[], None]) -> dict[str, Any]:
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=kinds, record_shapes=True, with_stack=True) as recorded:
        for _ in range(_STEPS):
            step()
        torch.cuda.synchronize()
    theirs = {
        row.key: row.self_device_time_total
        for row in recorded.key_averages()
        if row.device_type == DeviceType.CPU and row.self_device_time_total > 0 and row.key not in _NO_OPERATORS
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        report = analyze(path)
    ours = {
        row.name: row.seconds * 1e6
        for row in report.operators
        if row.is_operator and row.name not in _NO_OPERATORS
    }
    least = _LEAST_SHARE * sum(theirs.values())
    apart = {
        name: {"key_averages_us": theirs.get(name, 0.0), "llmtop_us": ours.get(name, 0.0)}
        for name in theirs.keys() | ours.keys()
        if abs(theirs.get(name, 0.0) - ours.get(name, 0.0)) > max(_MOST_PCT / 100 * theirs.get(name, 0.0), least)
    }
    return {
        "gpu": torch.cuda.get_device_name(),
        "operators": len(theirs),
        "apart": apart,
        "modules": {row.name: row.module for row in report.operators[:8]},
        "products": [
            {
                "size": [row.m, row.n, row.k],
                "type": row.dtype,
                "tflops_per_s": row.tflops_per_s,
                "of_roof": row.roof_pct,
            }
            for row in report.gemms[:8]
        ],
    }


def main() -> int:
    """Run one of both; returns the exit code."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nvtx", action="store_true", help="mark the operators for nsys, and compare nothing")
    step = _training()
    if options.parse_args().nvtx:
        _marked(step)
        return 0
    found = _compared(step)
    print(json.dumps(found, indent=1))
    return 1 if found["apart"] or not found["operators"] else 0


if __name__ == "__main__":
    sys.exit(main())
