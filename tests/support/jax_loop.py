"""A training in JAX that steps until it is told to stop: python -m tests.support.jax_loop FOLDER [options]

It stops once FOLDER/stop is there, or after --steps, and prints the loss and how many steps it made. FOLDER/trace
has it begin a trace of jax.profiler of its own, into FOLDER/own, and FOLDER/traced ends that.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import llmtop


@partial(jax.jit, donate_argnums=0)
def train_step(weights: Any, batch: Any) -> Any:
    """One step of gradient descent on a small MLP: the next weights, and the loss."""

    def loss(weights: Any) -> Any:
        hidden = jnp.tanh(batch @ weights["in"])
        return jnp.mean((hidden @ weights["out"] - 1.0) ** 2)

    value, gradient = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradient), value


def main() -> None:
    """Train, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--by", choices=["jax", "plain", "none"], default="jax", help="whose step context")
    parser.add_argument("--input-ms", type=float, default=5.0)
    parser.add_argument("--width", type=int, default=256)
    given = parser.parse_args()
    step: Any = llmtop.step if given.by == "plain" else nullcontext
    if given.by == "jax":
        from llmtop.integrations.jax import step
    key = jax.random.key(0)
    width = given.width
    weights = {"in": jax.random.normal(key, (width, 2 * width)), "out": jax.random.normal(key, (2 * width, width))}
    batch = jax.random.normal(key, (64, width))
    made, value, tracing = 0, None, False
    while made < given.steps and not (given.folder / "stop").exists():
        if not tracing and (given.folder / "trace").exists():
            jax.profiler.start_trace(given.folder / "own")
            tracing = True
        with step():
            with llmtop.phase("dataload"):
                time.sleep(given.input_ms / 1000)
            with jax.profiler.TraceAnnotation("update of the weights"):
                weights, value = train_step(weights, batch)
            if made % 4 == 0:
                jax.block_until_ready(value)
        made += 1
        if tracing and (given.folder / "traced").exists():
            jax.profiler.stop_trace()
            (given.folder / "traced").unlink()
            (given.folder / "trace").unlink()
            tracing = False
            print("traced", flush=True)
        if made == 3:
            (given.folder / "steps").touch()
    print(f"loss {float(value)!r} after {made} steps", flush=True)  # type: ignore[arg-type]
    from jax._src import profiler

    print("lock", type(profiler._profile_state.lock).__name__, profiler._profile_state.profile_session, flush=True)


if __name__ == "__main__":
    main()
