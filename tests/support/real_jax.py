"""The real JAX, in an environment of its own, and what a module of tests needs that uses it."""

from __future__ import annotations

import pytest

from tests.support.processes import REPOSITORY

JAX = REPOSITORY / ".cache" / "jax" / "bin" / "python"
MARKS = [
    pytest.mark.jax,
    pytest.mark.slow("the real JAX, which `make test-all` alone fetches"),
    pytest.mark.skipif(not JAX.exists(), reason="no JAX: tests/fetch_jax.sh brings it to .cache/jax"),
    pytest.mark.usefixtures("runtime_dir"),
]
