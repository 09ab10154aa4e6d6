"""Environment variables of a training for its processes."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from llmtop.errors import NotPossibleHere
from llmtop.launch.inject._llmtop_watch import ABI, OWN_PACKAGES, PATH, PID, QUIET, SAID, TOLD
from llmtop.protocol import wire
from llmtop.protocol.socket_dir import runtime_dir

INJECT = Path(__file__).resolve().parent / "inject"
"""The folder that goes first on PYTHONPATH; it holds a sitecustomize.py that steps aside for the user's own."""


def instrumented_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with what has every Python (but one started with -I, -E or -S) wait for torch.

    Calling it twice (`llmtop run` below `llmtop run`) adds nothing the second time.
    """
    changed = dict(environment)
    # An empty entry means the current folder (`PYTHONPATH=$PYTHONPATH:/x`), so each stays and none may come about
    # here; but a variable that is empty altogether means nothing.
    before = changed["PYTHONPATH"].split(os.pathsep) if changed.get("PYTHONPATH") else []
    changed["PYTHONPATH"] = os.pathsep.join([str(INJECT), *(entry for entry in before if entry != str(INJECT))])
    changed[PATH] = os.pathsep.join(dict.fromkeys(_home(name) for name in OWN_PACKAGES))
    changed[ABI] = sys.implementation.cache_tag or ""
    for name in (SAID, PID, TOLD):  # of an outer `llmtop run`
        changed.pop(name, None)
    return changed


def announcing_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which one process of the command prints that it has attached, or the command at
    its end why none has.

    Args:
        environment: of `instrumented_environment`.
    """
    try:
        told = runtime_dir() / wire.message_printed_name(os.getpid())
    except NotPossibleHere:
        return dict(environment)  # a process that trains will say that, and why
    return {**environment, PID: str(os.getpid()), TOLD: str(told)}


def quiet_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which nothing is printed."""
    return {**environment, QUIET: "1"}


def _home(package: str) -> str:
    """Return the folder in which this interpreter finds a package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise NotPossibleHere(
            f"{package}, which llmtop needs, is not installed in {sys.prefix}; run: "
            f"{sys.executable} -m pip install {package}"
        )
    return str(Path(spec.origin).absolute().parent.parent)
