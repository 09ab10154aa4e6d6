"""environment.json, as data."""

from __future__ import annotations

import msgspec

from llmtop.version import __version__

SCHEMA = 1


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """The git repository of the current folder."""

    commit: str
    branch: str | None = None
    remote: str | None = None
    dirty: bool | None = None
    """True if tracked files differ from the commit; None when git did not say in time."""
    untracked: int | None = None
    """How many files are there that git neither tracks nor ignores."""
    diff_sha256: str | None = None
    """SHA-256 of the difference between the commit and the tracked files, as `git diff HEAD` prints it: equal
    in two runs of the same code. None with --no-diff, or if git failed or took too long."""
    diff_stat: str | None = None
    """Output of `git diff HEAD --stat`: the changed files and the number of changed lines, without secrets."""
    diff: str | None = None
    """Text of the difference without secrets; None unless --keep-diff is given."""
    diff_cut_after: int | None = None
    """Characters of the diff that are kept, where it is longer."""


class PythonFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The Python that the command starts."""

    executable: str
    version: str | None = None
    torch: str | None = None
    cuda: str | None = None
    """CUDA version that torch was built for."""
    packages: list[str] = []
    """Packages as pip freeze lists them."""
    torch_collect_env: str | None = None
    """Output of python -m torch.utils.collect_env."""
    note: str | None = None
    """Why something is missing."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine: what does not change from one run to the next."""

    host: str
    system: str | None = None
    kernel: str | None = None
    cpu: str | None = None
    cpus: int | None = None
    cpus_allowed: int | None = None
    """How many of them this process may run on."""
    cpu_governor: dict[str, int] = {}
    """How many CPUs have which."""
    numa_nodes: dict[str, str] = {}
    """The CPUs of each node: {"node0": "0-31"}."""
    memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    """The newest that the driver can do."""
    gpus: list[dict[str, str]] = []
    """GPUs by the names of `nvidia-smi --query-gpu`."""
    gpu_topology: str | None = None
    """Output of nvidia-smi topo -m: PCIe, NVLink and NUMA between the GPUs."""
    nvlink: str | None = None
    """Output of nvidia-smi nvlink --status."""
    container: dict[str, str] = {}
    """Container facts: kind, image, digest, as far as known inside."""
    notes: list[str] = []


class CommandEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    schema: int = SCHEMA
    llmtop: str = __version__
    collected_at: float
    """Unix time."""
    command: list[str] = []
    folder: str = ""
    machine: Machine
    python: PythonFacts | None = None
    git: Repository | None = None
    variables: dict[str, str] = {}
    """Variables that are known to matter and to hold no secret (`llmtop/environment/variables.py`)."""
    variables_left_out: list[str] = []
    """Names of others of NCCL, torch and CUDA that are set; their values are not kept."""

    def main_facts(self) -> dict[str, str]:
        """Main facts by which two benches are compared; unknown facts are left out."""
        machine, python, git = self.machine, self.python, self.git
        names = [gpu.get("name", "?") for gpu in machine.gpus]
        found = {
            "GPUs": ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)),
            "driver": machine.driver,
            "CUDA": (python.cuda if python else None) or machine.cuda,
            "torch": python.torch if python else None,
            "Python": python.version if python else None,
            "CPU": machine.cpu,
            "governor": ", ".join(sorted(machine.cpu_governor)),
            "commit": None if git is None else git.commit[:12] + (" and changes" if git.dirty else ""),
            "changes": git.diff_sha256[:12] if git is not None and git.dirty and git.diff_sha256 else None,
            "image": machine.container.get("digest") or machine.container.get("image"),
            "host": machine.host,
        }
        return {name: value for name, value in found.items() if value}
