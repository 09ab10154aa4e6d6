"""Gradient norm, loss scale and checkpoints of a training on a GPU, and what taking them costs; prints JSON.

    python -m tests.gpu.check_health [--seconds 20]

A training in half precision under `llmtop run` uses GradScaler, clip_grad_norm_ and torch.save. The monitor must
have its gradient norm, its loss scale and its checkpoint without a call of the script, within rounding of what
the script itself read at its end. The times of a step without and with llmtop are printed and not judged: two
processes of one training differ by more than llmtop costs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.processes import environment

TRAINING = """
import json, sys, time
import torch
from torch import nn
seconds, path = float(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.GELU())]
model = nn.Sequential(*layers, nn.Linear(1024, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(200_000, 1024)), batch_size=64)
end, step, times, norms = time.monotonic() + seconds, 0, [], []
while time.monotonic() < end:
    for (batch,) in data:
        begun = time.perf_counter()
        with torch.autocast("cuda", torch.float16):
            loss = model(batch.cuda(non_blocking=True)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        times.append(time.perf_counter() - begun)
        if step % 500 == 0:
            torch.save(model.state_dict(), path)
        if time.monotonic() > end:
            break
torch.cuda.synchronize()
times.sort()
print(json.dumps({"steps": step, "p50_us": 1e6 * times[len(times) // 2],
                  "norms": [float(one) for one in norms], "scale": float(scaler.get_scale())}))
"""


def _trained(folder: Path, seconds: float, *, watched: bool) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Run the training, with or without llmtop; returns what it printed, and the snapshots beside it."""
    script = folder / "train.py"
    script.write_text(TRAINING)
    variables = environment(LLMTOP_DIR=str(folder / "sockets"))
    command = [sys.executable, str(script), str(seconds), str(folder / "model.pt")]
    if watched:
        command = [sys.executable, "-m", "llmtop", "run", "-q", "--", *command]
    training = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
    seen = folder / "snapshots.jsonl"
    with seen.open("w") as file:  # a pipe that nobody reads would stop the monitor
        live = [sys.executable, "-m", "llmtop", "--json", "-i", "1"]
        monitor = subprocess.Popen(live, env=variables, stdout=file) if watched else None
        printed = json.loads(training.communicate(timeout=seconds + 200)[0].splitlines()[-1])
        if monitor is not None:
            monitor.terminate()
            monitor.wait(60)
    return printed, [json.loads(line) for line in seen.read_text().splitlines()]


def main() -> int:
    """Run it in turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    seconds = parser.parse_args().seconds
    p50: dict[bool, list[float]] = {False: [], True: []}
    checks: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(prefix="lt-") as name:
        for watched in (False, True, False, True):
            printed, snapshots = _trained(Path(name), seconds, watched=watched)
            p50[watched].append(float(str(printed["p50_us"])))
            if not watched:
                continue
            ranks = [rank for one in snapshots for rank in one["ranks"]]  # type: ignore[attr-defined]
            metrics: dict[str, float] = {}
            for rank in ranks:
                metrics |= {key: value for key, value in rank["metrics"].items() if value is not None}
            norms = printed["norms"]
            assert isinstance(norms, list)
            norm, scale = metrics.get("grad_norm"), metrics.get("loss_scale")
            checks["grad_norm"] = norm is not None and any(abs(norm - one) <= 1e-3 * abs(one) for one in norms)
            # It doubles each 2000 steps, also between the last snapshot and the end.
            checks["loss_scale"] = scale is not None and printed["scale"] in (scale, 2 * scale)
            checks["checkpoint"] = any(rank.get("checkpoint") for rank in ranks)
            print(json.dumps({"metrics": metrics, "scale": printed["scale"], "snapshots": len(snapshots)}))
    print(json.dumps({"plain_us": p50[False], "llmtop_run_us": p50[True]}))
    for check, ok in checks.items():
        print(json.dumps({"check": check, "ok": ok}))
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
