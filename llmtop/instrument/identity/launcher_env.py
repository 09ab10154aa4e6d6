"""Rank, run and machine of this process, from its launcher's environment."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import NamedTuple

from llmtop.format import printable
from llmtop.naming import variable_names
from llmtop.system import procfs

_COMMAND_CHARACTERS = 200
_TEXT_CHARACTERS = 128
_DIGITS = 9
"""A longer number is no rank."""


class Identity(NamedTuple):
    """The rank of this process by its launcher; None where it does not set it."""

    rank: int | None
    local_rank: int | None
    world_size: int | None


class LauncherEnv(NamedTuple):
    """Start of this process (`wire.Launch`); "" where unknown."""

    program: str
    launcher: str
    run_id: str
    slurm_job_id: str
    slurm_step_id: str
    master: str


class Store(NamedTuple):
    """Where captures of several nodes are asked for (`wire.JobStore`)."""

    address: str
    prefix: str


# Launcher by launcher, the innermost first: torchrun and mpirun also run inside SLURM jobs, whose variables then
# describe the launcher. (rank, local rank, world size) each with the names that versions differ in.
_LAUNCHERS: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    # torchrun, accelerate, deepspeed, lightning: docs.pytorch.org/docs/stable/elastic/run.html
    ((variable_names.RANK,), ("LOCAL_RANK",), (variable_names.WORLD_SIZE,)),
    # Open MPI: docs.open-mpi.org, "Environment variables that Open MPI sets for processes"
    (("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    (("MV2_COMM_WORLD_RANK",), ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    # MPICH, Intel MPI and Cray's launchers
    (("PMI_RANK", "PMIX_RANK"), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("PMI_SIZE",)),
    # srun: a job step's own count before that of the whole job
    (("SLURM_PROCID",), ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")),
)


def from_environment(environment: Mapping[str, str] | None = None) -> Identity:
    """Return the ranks that the launcher put into the environment."""
    env = os.environ if environment is None else environment
    for rank_names, local_names, size_names in _LAUNCHERS:
        rank = _number(env, rank_names)
        if rank is not None:
            return Identity(rank, _number(env, local_names), _number(env, size_names))
    return Identity(None, None, None)


def local_world_size(environment: Mapping[str, str] | None = None) -> int | None:
    """Return how many ranks there are on this node; None where the launcher does not say."""
    env = os.environ if environment is None else environment
    names = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    return _number(env, names)


def node_names(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of this machine: from the system, and from Slurm where that differs."""
    env = os.environ if environment is None else environment
    return [name for name in dict.fromkeys((host(), _text(env, "SLURMD_NODENAME"))) if name]


def launch(environment: Mapping[str, str] | None = None) -> LauncherEnv:
    """Return how this process was launched, from its environment; "" where a variable is missing."""
    env = os.environ if environment is None else environment
    launcher, run_id = _launcher(env)
    step = _text(env, "SLURM_STEP_ID", "SLURM_STEPID")
    return LauncherEnv(
        program=program(),
        launcher=launcher,
        run_id=run_id,
        slurm_job_id=_slurm_job(env),
        slurm_step_id=step if launcher == "srun" else "",
        master=_master(env),
    )


def _launcher(env: Mapping[str, str]) -> tuple[str, str]:
    """Return the launcher of this rank and its name of the run; empty texts for a process that is no rank."""
    if _number(env, (variable_names.RANK,)) is not None:
        run_id = _text(env, variable_names.TORCHELASTIC_RUN)
        # "none" is what torchrun calls every run that was given no --rdzv-id.
        return ("torchrun" if run_id else "env"), "" if run_id.lower() == "none" else run_id
    for name, launcher in (("OMPI_COMM_WORLD_RANK", "mpirun"), ("MV2_COMM_WORLD_RANK", "mpirun")):
        if _number(env, (name,)) is not None:
            return launcher, _text(env, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
    # Batch scripts have SLURM_PROCID as well; only what srun started is a task of a step.
    if _number(env, ("SLURM_PROCID",)) is not None and _number(env, ("SLURM_STEP_ID", "SLURM_STEPID")) is not None:
        return "srun", ""
    if _number(env, ("PMI_RANK", "PMIX_RANK")) is not None:
        return "mpiexec", _text(env, "PMIX_NAMESPACE")
    return "", ""


def _slurm_job(env: Mapping[str, str]) -> str:
    """Return the job as squeue and scancel call it: "4711", and "4711_3" the task 3 of an array."""
    array, task = _text(env, "SLURM_ARRAY_JOB_ID"), _text(env, "SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else _text(env, "SLURM_JOB_ID", "SLURM_JOBID")


def _master(env: Mapping[str, str]) -> str:
    """Return where the ranks meet, "node:29500"."""
    address, port = _text(env, "MASTER_ADDR"), _text(env, variable_names.MASTER_PORT)
    return f"{address}:{port}" if address and port else ""


def program() -> str:
    """Return the script, without its folder: "train.py"; a package that is run is called by its own name.

    sys.argv has it in a process of multiprocessing too, whose command line is Python's own.
    """
    given = getattr(sys, "argv", None)
    first = given[0] if isinstance(given, list) and given else ""
    return program_name(first if type(first) is str else "")


def program_name(path: str) -> str:
    """Return the script's name without its folder; "python" where there is none."""
    folder, _, name = path.rpartition("/")
    if name == "__main__.py":
        name = folder.rpartition("/")[2]
    if name in ("", "-c", "-m", "-"):
        return "python"
    return printable(name)[:_TEXT_CHARACTERS]


def _text(env: Mapping[str, str], *names: str) -> str:
    """Return the first of these variables that is set, made printable and cut to a sensible length."""
    return next((printable(text)[:_TEXT_CHARACTERS] for name in names if (text := env.get(name, "").strip())), "")


def _number(env: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = env.get(name, "")
        if text.isascii() and text.isdecimal() and len(text) <= _DIGITS:
            return int(text)
    return None


def host() -> str:
    """This machine's name, made printable."""
    return printable(socket.gethostname())


def command() -> str:
    """Return the command line as the system knows it, cut to a sensible length."""
    words = procfs.text("self", "cmdline").rstrip("\0").split("\0")
    return " ".join(words)[:_COMMAND_CHARACTERS]
