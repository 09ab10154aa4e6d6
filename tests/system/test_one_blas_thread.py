"""numpy is loaded with one thread, and nothing of that is left for others to see."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.processes import environment

LOOK = """
import json, os, sys
from llmtop.system import one_blas_thread
one_blas_thread.prepare()
before = len(os.listdir("/proc/self/task"))
import numpy, numpy.linalg
print(json.dumps({
    "threads": len(os.listdir("/proc/self/task")) - before,
    "variable": os.environ.get("OPENBLAS_NUM_THREADS"),
    "loader": type(numpy.__loader__).__name__,
    "in spec": type(numpy.__spec__.loader).__name__,
    "finders": [type(one).__name__ for one in sys.meta_path],
    "works": float(numpy.linalg.norm(numpy.ones(4))),
}))
"""


@pytest.mark.parametrize(("given", "seen"), [({}, None), ({"OPENBLAS_NUM_THREADS": "2"}, "2")])
def test_numpy_starts_no_threads_and_the_environment_is_as_it_was(given: dict[str, str], seen: str | None) -> None:
    variables = environment(**given)
    for name in {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "GOTO_NUM_THREADS"} - set(given):
        variables.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env=variables, capture_output=True, text=True, check=True, timeout=240
    )
    found = json.loads(done.stdout)
    assert found["threads"] == (min(2, len(os.sched_getaffinity(0))) - 1 if given else 0)
    assert found["variable"] == seen
    assert found["loader"] == found["in spec"] == "SourceFileLoader"
    assert "_Finder" not in found["finders"]
    assert found["works"] == 2.0
