"""Which pids a driver lists inside a pid namespace: python -m tests.gpu.check_pid_namespace [> facts.json]

Needs root (for unshare), one GPU and torch. A process multiplies matrices inside a pid namespace of its own, as in
a container; its pid is looked for in what NVML lists inside that namespace and outside of it. "inside" then is

    "own"    the driver gives the pids of the namespace of whoever asks
    "host"   it gives the host's
    "none"   it lists no process there (or hides it), "both" if the two pids happen to be the same

and "rows" are what llmtop makes of it there. Takes half a minute and changes nothing.
Exits 1 when the check could not be made; "failed" then says why.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pynvml

from collectors.base.source import GpuUse
from collectors.machine.containers import has_host_pids
from collectors.machine.processes import ProcessSource
from tests.gpu.check_collectors import WORK

_INSIDE = "--inside"
_MANY = 300
"""Processes are started and ended first, so that pids inside are not those outside by chance."""


def main(arguments: list[str]) -> int:
    """Compare and print."""
    if arguments == [_INSIDE]:
        return inside()
    facts: dict[str, Any] = {"failed": []}
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", __spec__.name, _INSIDE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as namespace:
        assert namespace.stdout is not None
        line = namespace.stdout.readline()
        if line:
            facts.update(json.loads(line))
            facts.update(outside(namespace.pid, facts))
        else:
            facts["failed"].append("no pid namespace here, or no torch with CUDA")
        for child in psutil.Process(namespace.pid).children(recursive=True):
            child.kill()
    print(json.dumps(facts, indent=1))
    return 1 if facts["failed"] else 0


def inside() -> int:
    """Print what the driver lists in here while a process of here works, and let the other side look, too."""
    for _ in range(_MANY):
        subprocess.run(["true"], check=True, timeout=3600)
    with subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        if child.stdout.readline().strip() != "running":
            return 1
        time.sleep(2)
        listed = listed_pids()
        uses = tuple(GpuUse(pid=pid, gpu_uuid="GPU") for pid in listed)
        source = ProcessSource(lambda: uses)
        source.read_once()
        rows = msgspec.to_builtins(source.latest())
        found = {"pid_inside": child.pid, "listed_inside": listed, "rows": rows}
        found["namespace_is_the_hosts"] = has_host_pids()
        print(json.dumps(found), flush=True)
        time.sleep(20)
        child.kill()
    return 0


def outside(namespace: int, facts: dict[str, Any]) -> dict[str, Any]:
    """The same process from out here, and the verdict."""
    pids = {inner_pid(child.pid): child.pid for child in psutil.Process(namespace).children(recursive=True)}
    outer, inner, listed = pids.get(facts["pid_inside"]), facts["pid_inside"], facts["listed_inside"]
    own, host = inner in listed, outer in listed
    verdict = "both" if own and host else "own" if own else "host" if host else "none"
    return {"pid_outside": outer, "listed_outside": listed_pids(), "inside": verdict}


def listed_pids() -> list[int]:
    """Every pid that the driver lists on GPU 0."""
    pynvml.nvmlInit()
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    pynvml.nvmlShutdown()
    return [process.pid for process in listed]


def inner_pid(pid: int) -> int:
    """The pid in the process's innermost namespace."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
