"""Which rank this process is, as its launcher says, and on which machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import NamedTuple

from llmtop.format import printable

_COMMAND_CHARACTERS = 200
_DIGITS = 9
"""What has more is no rank."""


class Identity(NamedTuple):
    """The rank of this process as a launcher says it; None for what it does not say."""

    rank: int | None
    local_rank: int | None
    world_size: int | None


# Launcher by launcher, the innermost first: torchrun and mpirun also run inside SLURM jobs, whose variables then
# describe the launcher. (rank, local rank, world size) each with the names that versions differ in.
_LAUNCHERS: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    # torchrun, accelerate, deepspeed, lightning: docs.pytorch.org/docs/stable/elastic/run.html
    (("RANK",), ("LOCAL_RANK",), ("WORLD_SIZE",)),
    # Open MPI: docs.open-mpi.org, "Environment variables that Open MPI sets for processes"
    (("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    (("MV2_COMM_WORLD_RANK",), ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    # MPICH, Intel MPI and Cray's launchers
    (("PMI_RANK", "PMIX_RANK"), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("PMI_SIZE",)),
    # srun: a job step's own count before that of the whole job
    (("SLURM_PROCID",), ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")),
)


def from_environment(environment: Mapping[str, str] | None = None) -> Identity:
    """The ranks that the launcher put into the environment."""
    env = os.environ if environment is None else environment
    for rank_names, local_names, size_names in _LAUNCHERS:
        rank = _number(env, rank_names)
        if rank is not None:
            return Identity(rank, _number(env, local_names), _number(env, size_names))
    return Identity(None, None, None)


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
    """The command line as the system knows it, cut to a sensible length."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            raw = file.read(4 * _COMMAND_CHARACTERS)
    except OSError:
        return ""
    return raw.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")[:_COMMAND_CHARACTERS]
