"""Which run this process belongs to, and who it is."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from llmtop.format import printable
from llmtop.instrument.identity import launcher_env
from llmtop.naming import variable_names
from llmtop.protocol import wire
from llmtop.redaction.secret_filter import words_without_secrets
from llmtop.runs.folder import RunKey
from llmtop.runs.records import Start
from llmtop.system import procfs
from llmtop.version import __version__

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State

_COMMAND_CHARACTERS = 2000
_ID_CHARACTERS = 128
_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


def run_key(recorder: State) -> RunKey:
    """Return what all processes of the run have in common, as far as their launchers give it."""
    launch = recorder.facts.launch
    given = printable(os.environ.get(variable_names.RUN_NAME, "").strip())[:_ID_CHARACTERS]
    program = launcher_env.program()
    if given:
        return RunKey("id", given, "")
    if launch is not None and launch.run_id:
        return RunKey(launch.launcher, launch.run_id, program, launch.slurm_job_id)
    if launch is not None and launch.slurm_job_id and recorder.facts.rank is not None:
        step = f".{launch.slurm_step_id}" if launch.slurm_step_id else ""
        return RunKey("slurm", launch.slurm_job_id + step, program)
    if recorder.facts.rank is not None:
        starter = os.getppid()
        return RunKey("launcher", str(starter), program, _birth(starter))
    return RunKey("process", str(os.getpid()), program, _birth(os.getpid()))


def start_record(recorder: State, key: RunKey, started_mono: float) -> Start:
    """Return the record of who this process is.

    Args:
        recorder: of this process.
        key: of its run.
        started_mono: CLOCK_MONOTONIC in seconds at which it attached.
    """
    facts = recorder.facts
    ticks = procfs.started_ticks(os.getpid())
    age = None
    if ticks is not None:
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        age -= time.monotonic() - started_mono
    return Start(
        version=__version__,
        source=key.source,
        run=key.name,
        program=launcher_env.program(),
        command=" ".join(words_without_secrets(procfs.words("self")))[:_COMMAND_CHARACTERS],
        folder=procfs.link("self", "cwd"),
        host=launcher_env.host(),
        boot=procfs.boot_id(),
        namespace=procfs.namespace("self", "pid"),
        pid=os.getpid(),
        ticks=ticks,
        rank=facts.rank,
        local_rank=facts.local_rank,
        world_size=facts.world_size,
        restart=_restart(),
        launch=wire.Launch() if facts.launch is None else wire.Launch(**facts.launch._asdict()),
        gpu_uuid=facts.gpu_uuid,
        gpu_model=facts.gpu_model,
        kind=facts.kind,
        auto=facts.auto,
        bench=bool(os.environ.get(variable_names.BENCH)),
        torch=str(getattr(sys.modules.get("torch"), "__version__", "")) or None,
        dtype=facts.dtype or facts.seen_dtype,
        flops_per_token=facts.flops_per_token or facts.seen_flops_per_token,
        total_steps=facts.steps_in_all(),
        warmup_steps=facts.warmup(),
        at=facts.started_at,
        mono=started_mono,
        process_seconds=None if age is None else max(0.0, age),
    )


def _birth(pid: int) -> str:
    return f"{procfs.boot_id()}.{procfs.started_ticks(pid)}"


def _restart() -> int | None:
    counts = [int(text) for name in _RESTARTS if (text := os.environ.get(name, "")).isdigit() and len(text) < 9]
    return sum(counts) if counts else None
