#: steps = none
"""A training without torch: a network of numpy's."""

import sys

import digest
import numpy as np

digest.seed()
drawn = np.random.default_rng(0)
first, second = drawn.normal(size=(4, 8)), drawn.normal(size=(8, 1))
losses = []
for _ in range(50):
    x = np.random.normal(size=(16, 4))
    hidden = np.maximum(x @ first, 0)
    error = hidden @ second - x.sum(1, keepdims=True)
    by_second, by_first = hidden.T @ error, x.T @ (error @ second.T * (hidden > 0))
    first -= 1e-3 * by_first
    second -= 1e-3 * by_second
    losses.append(float((error**2).mean()))
print([name for name in ("torch", "llmtop", "msgspec") if name in sys.modules])
digest.add("losses", losses)
digest.add("weights", [first, second])
digest.end()
