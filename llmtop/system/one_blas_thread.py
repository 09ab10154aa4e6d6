"""numpy without threads: the OpenBLAS in it starts one a core, and they turn round and round waiting for work.

Nothing here multiplies matrices. On a machine with 32 cores `import numpy` alone took 4.1 s of processor time
beside a training, and the report of a capture 6.7 s of which 2.8 were its own. OpenBLAS takes their number from
the environment when it is loaded, so a variable is set for just as long: programs that llmtop starts never see it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader  # takes 3 ms to load

_THREADS = "OPENBLAS_NUM_THREADS"
_OTHERS = ("OMP_NUM_THREADS", "GOTO_NUM_THREADS")
"""OpenBLAS heeds these as well: who set one of them is left alone."""


def prepare() -> None:
    """Make numpy load with one BLAS thread, whenever that is; for processes of llmtop's own, never in a
    training."""
    if "numpy" not in sys.modules and not any(name in os.environ for name in (_THREADS, *_OTHERS)):
        sys.meta_path.insert(0, _NumpyFinder())


class _NumpyFinder:
    """Finds numpy as usual, once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "numpy":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _SingleThreadedLoader(spec.loader))
        return spec


class _SingleThreadedLoader:
    """Loads a module as its own loader does, with the variable set meanwhile."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader  # so that later readers of the module find no other one
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        os.environ[_THREADS] = "1"
        try:
            self._loader.exec_module(module)
        finally:
            os.environ.pop(_THREADS, None)
