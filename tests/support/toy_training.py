"""A training without a model: real steps with real phases, published by the real library. Run it as a program."""

from __future__ import annotations

import argparse
import os
import sys
import time

import llmtop

AGAIN = ("--step-ms", "20", "--steps", "10", "--then", "sleep")
"""Options of the training that `--then reattach` begins in the same process."""


def main() -> None:
    """Step until killed or until --steps are done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--until", default="", help="a file whose appearance ends the steps before --steps")
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--gap-ms", type=float, default=0.0, help="between steps, in no phase")
    parser.add_argument("--start-after", type=float, default=0.0, help="seconds between attach and the first step")
    parser.add_argument("--tokens", type=float)
    parser.add_argument("--total", type=int)
    parser.add_argument("--warmup", type=int, default=0)
    parser.add_argument("--kind", choices=["step", "request"], default="step")
    parser.add_argument("--flops-per-token", type=float)
    parser.add_argument("--then", choices=["exit", "sleep", "exec", "reattach"], default="exit")
    args = parser.parse_args()
    llmtop.attach(total_steps=args.total, warmup_steps=args.warmup, flops_per_token=args.flops_per_token)
    print("attached", flush=True)
    time.sleep(args.start_after)
    for i in range(args.steps):
        if args.until and os.path.exists(args.until):
            break
        with llmtop.step(tokens=args.tokens, kind=args.kind):
            with llmtop.phase("forward"):
                _wait(args.step_ms * 0.4)
            with llmtop.phase("backward"):
                _wait(args.step_ms * 0.6)
        llmtop.log(loss=1 / (i + 1))
        _wait(args.gap_ms)
    print("done", flush=True)
    if args.then == "sleep":
        time.sleep(1000)
    elif args.then == "exec":
        os.execv("/bin/sleep", ["sleep", "1000"])
    elif args.then == "reattach":
        os.execv(sys.executable, [sys.executable, "-m", "tests.support.toy_training", *AGAIN])


def _wait(ms: float) -> None:
    if ms > 0:
        time.sleep(ms / 1000)


if __name__ == "__main__":
    main()
