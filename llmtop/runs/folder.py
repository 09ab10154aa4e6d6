"""Where runs are kept, and what their folders and files are called. Loaded in a training."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from llmtop.errors import NotPossibleHere
from llmtop.naming import variable_names
from llmtop.system import procfs

RUN = ".run"
LAST = (".last0", ".last1")
NODE = ".node"
EXIT = ".exit"
"""The exit code of a rank, written by its launcher's process."""
_ODD = re.compile(r"[^A-Za-z0-9_.=-]+")
_PART_CHARACTERS = 40
_NO_RANK = "x"
_FILE = re.compile(
    r"^(?P<rank>\d{1,9}|x)\.(?P<started_ms>\d{1,15})\.(?P<pid>\d{1,10})\.(?P<token>[0-9a-f]{8})(?P<ending>\.[a-z0-9]+)$"
)
_LOCAL_KINDS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "tmpfs", "ramfs"} | {
    "overlay",
    "overlayfs",
    "aufs",
    "rootfs",
}
"""File systems whose data is on this node. What is not known is treated as a network's."""


class RunsFolder(NamedTuple):
    """The folder of all runs."""

    path: Path
    is_named: bool
    """True if `LLMTOP_RUNS` names it."""
    is_local: bool
    """True if it is on a file system of this node, whose writes end soon."""


class RunKey(NamedTuple):
    """Identity of a run, shared by all its processes."""

    source: str
    """"id" (`LLMTOP_RUN_NAME`), "torchrun", "slurm", "mpirun", "launcher": one process started all ranks, or
    "process"."""
    name: str
    """Name of the run: torchrun's id, SLURM's job; else the pid of the launcher or of the process."""
    program: str
    """The script: "train.py"."""
    secret: str = ""
    """Rest of the identity: the boot and the start of the process that `name` is the pid of."""

    @property
    def folder_name(self) -> str:
        """Name of the run's folder; ends in the eight digits by which commands call the run."""
        import hashlib  # loads OpenSSL, 0.7 MiB; a monitor reads runs and names none

        digest = hashlib.blake2b("\0".join(self).encode(errors="replace"), digest_size=4).hexdigest()
        return "-".join((_safe(self.program) or "python", _safe(self.name) or self.source, digest))


class FileName(NamedTuple):
    """Name of a file of a run, without its ending."""

    rank: int | None
    started_ms: int
    """Unix ms at which the process began to write."""
    pid: int
    token: str
    """Eight random hexadecimal digits."""

    @property
    def text(self) -> str:
        """The name as it stands in the folder, without its ending."""
        rank = _NO_RANK if self.rank is None else str(self.rank)
        return f"{rank}.{self.started_ms}.{self.pid}.{self.token}"


def new_name(rank: int | None, started: float) -> FileName:
    """Return a name that no other process has; `started` is unix time in seconds."""
    return FileName(rank, int(started * 1000), os.getpid(), os.urandom(4).hex())


def parsed_name(name: str) -> tuple[FileName, str] | None:
    """Return the parts of a file's name and its ending; None for a file that is not of a run."""
    found = _FILE.match(name)
    if found is None:
        return None
    rank = None if found["rank"] == _NO_RANK else int(found["rank"])
    return FileName(rank, int(found["started_ms"]), int(found["pid"]), found["token"]), found["ending"]


def runs_folder(environment: Mapping[str, str] | None = None) -> RunsFolder:
    """Return where runs are kept; nothing is created, and no disk is asked.

    Args:
        environment: that of this process by default.
    """
    env = os.environ if environment is None else environment
    named = env.get(variable_names.RUNS)
    if named:
        path = Path(os.path.abspath(os.path.expanduser(named)))
        return RunsFolder(path, True, is_local(path))
    state = env.get("XDG_STATE_HOME") or ""
    if not os.path.isabs(state):
        state = os.path.expanduser("~/.local/state")
    if os.path.isabs(state) and is_local(Path(state)):
        return RunsFolder(Path(state) / "llmtop" / "runs", False, True)
    path = Path(env.get("TMPDIR") or tempfile.gettempdir()) / f"llmtop-runs-{os.geteuid()}"
    return RunsFolder(path, False, is_local(path))


def is_local(path: Path) -> bool:
    """Return True if a path lies on a file system of this node, by its mount; the disk itself is not asked."""
    kinds = procfs.mounts()
    for folder in (path, *path.parents):
        kind = kinds.get(str(folder))
        if kind is not None:
            return kind in _LOCAL_KINDS
    return False


def make_folder(path: Path) -> None:
    """Create a folder with mode 0700, and those above it, then check that it is this user's own.

    Raises:
        NotPossibleHere: it cannot be created, is no folder, or others own it or may write to it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = os.lstat(path)
    except OSError as error:
        raise NotPossibleHere(f"{path} cannot be created: {error.strerror or error}") from None
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise NotPossibleHere(
            f"{path} must be a folder of yours that no other user can write to: set LLMTOP_RUNS to one"
        )


def _safe(text: str) -> str:
    return _ODD.sub("_", text).strip("._-")[:_PART_CHARACTERS]
