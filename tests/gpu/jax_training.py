"""Trainings in JAX, plain or with llmtop's step context: an MLP and a small transformer, with a planted wait.

python tests/gpu/jax_training.py transformer --steps 50 [--wait-ms 20] [--trace DIR] [--annotate | --llmtop]
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp


def mlp(key: Any, width: int = 4096, layers: int = 6) -> Any:
    keys = jax.random.split(key, layers)
    return [jax.random.normal(one, (width, width), jnp.bfloat16) * width**-0.5 for one in keys]


def mlp_loss(params: Any, batch: Any) -> Any:
    for weight in params:
        batch = jax.nn.gelu(batch @ weight)
    return jnp.mean(jnp.square(batch.astype(jnp.float32)))


def transformer(key: Any, width: int = 1024, layers: int = 8) -> Any:
    def layer(one: Any) -> Any:
        wide = 4 * width
        shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, wide), "down": (wide, width)}
        keys = jax.random.split(one, len(shapes))
        return {
            name: jax.random.normal(k, shape, jnp.bfloat16) * shape[0] ** -0.5
            for k, (name, shape) in zip(keys, shapes.items(), strict=True)
        }

    return [layer(one) for one in jax.random.split(key, layers)]


def transformer_loss(params: Any, batch: Any) -> Any:
    for layer in params:
        batch = batch + _attention(layer, _norm(batch))
        batch = batch + jax.nn.gelu(_norm(batch) @ layer["up"]) @ layer["down"]
    return jnp.mean(jnp.square(_norm(batch).astype(jnp.float32)))


def _norm(x: Any) -> Any:
    x = x.astype(jnp.float32)
    return (x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)).astype(jnp.bfloat16)


def _attention(layer: Any, x: Any, heads: int = 16) -> Any:
    rows, length, width = x.shape
    q, k, v = (one.reshape(rows, length, heads, -1) for one in jnp.split(x @ layer["qkv"], 3, -1))
    return jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(rows, length, width) @ layer["out"]


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def train_step(loss: Any, state: Any, batch: Any) -> Any:
    """A state and a batch in; the next state and the loss out."""
    value, gradients = jax.value_and_grad(loss)(state["params"], batch)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g.astype(m.dtype), state["moments"], gradients)
    params = jax.tree.map(lambda p, m: p - 1e-3 * m, state["params"], moments)
    return {"params": params, "moments": moments}, value


def _context(given: argparse.Namespace, index: int) -> Any:
    if given.llmtop:
        from llmtop.integrations.jax import step

        return step()
    return jax.profiler.StepTraceAnnotation("train", step_num=index) if given.annotate else nullcontext()


def main() -> None:
    """Train, and print the loss and the mean step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=["mlp", "transformer"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--wait-ms", type=float, default=0.0)
    parser.add_argument("--width", type=int, default=None)
    parser.add_argument("--trace", default=None, help="record the second half of the steps there")
    parser.add_argument("--annotate", action="store_true", help="mark steps as jax.profiler's own documents do")
    parser.add_argument("--llmtop", action="store_true", help="step with llmtop.integrations.jax")
    given = parser.parse_args()
    make, loss = (mlp, mlp_loss) if given.model == "mlp" else (transformer, transformer_loss)
    more = {} if given.width is None else {"width": given.width}
    params = make(jax.random.key(0), **more)
    state = {"params": params, "moments": jax.tree.map(jnp.zeros_like, params)}
    width = given.width or (4096 if given.model == "mlp" else 1024)
    shape = (4096, width) if given.model == "mlp" else (8, 512, width)
    batch = jax.random.normal(jax.random.key(1), shape, jnp.bfloat16)
    value, begun = None, time.monotonic()
    for index in range(given.steps):
        if index == given.steps // 2:
            jax.block_until_ready(state)
            begun = time.monotonic()
            if given.trace:
                jax.profiler.start_trace(given.trace)
        with _context(given, index):
            time.sleep(given.wait_ms / 1000)
            state, value = train_step(loss, state, batch)
            if given.wait_ms:
                jax.block_until_ready(value)
    jax.block_until_ready(state)
    seconds = (time.monotonic() - begun) / (given.steps - given.steps // 2)
    if given.trace:
        jax.profiler.stop_trace()
    print(f"loss {float(value)!r}, {1000 * seconds:.3f} ms a step on {jax.devices()[0].device_kind}", flush=True)


if __name__ == "__main__":
    main()
