"""A capture is a folder: ``llmtop-captures/<time>-<engine>/`` with the trace, capture.json and the report."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import time
from pathlib import Path

import msgspec

from llmtop.environment.programs import run_for_text
from llmtop.environment.repository import git_command
from llmtop.errors import LlmtopError, NotPossibleHere, UnusableInput
from llmtop.format import encode_json, printable, size
from llmtop.model.snapshot import Gpu
from llmtop.naming import file_names
from llmtop.system import procfs
from llmtop.system.inputs import file_bytes, read_input
from llmtop.version import __version__

PARENT = file_names.CAPTURES
INFO = file_names.CAPTURE_INFO
SCHEMA = 1
_GIT_SECONDS = 5.0
MIN_FREE_BYTES = 256 << 20
"""Below that no capture is begun: a window takes 1 to 20 MB, its SQLite as much, and a training needs the rest."""


class Git(msgspec.Struct, kw_only=True):
    """The repository that the training was started in."""

    commit: str
    dirty: bool | None = None
    """True if tracked files differ from the commit; None when git did not say in time."""
    root: str = ""


class File(msgspec.Struct, kw_only=True):
    """One file of the folder."""

    name: str
    bytes: int


class StepTimes(msgspec.Struct, kw_only=True):
    """Seconds per step by the host's clock, as the training reported them."""

    before_p50: float | None = None
    slowest_during: float | None = None
    """Slowest of the steps that overlap start, window or stop."""
    after_p50: float | None = None
    profiler_stays: bool = False
    """True if the tool stays in the process until that ends, and may leave its steps longer."""


class Info(msgspec.Struct, kw_only=True):
    """Content of capture.json: target, engine, window, and outcome."""

    schema: int = SCHEMA
    llmtop: str = __version__
    engine: str
    state: str = "running"
    """"running", "done", "failed" or "cancelled"; "running" without a live llmtop means cut short."""
    error: str | None = None
    reason: str | None = None
    """Trigger of an armed capture."""
    host: str = msgspec.field(default_factory=socket.gethostname)
    started_at: float
    """Unix time."""
    finished_at: float | None = None
    command: str | None = None
    pids: list[int] = []
    ranks: list[int | None] = []
    hosts: list[str] | None = None
    """Host of each of `pids`, where they are on several nodes."""
    at_step: int | None = None
    """The step at which it was asked to begin, by the script's own count."""
    steps_wanted: int | None = None
    seconds_wanted: float | None = None
    steps: int | None = None
    """Whole steps in the window, of the rank that did fewest; None when the process reports none."""
    first_step: int | None = None
    last_step: int | None = None
    window_seconds: float | None = None
    seconds_recorded: float | None = None
    """How long was recorded, of the rank that recorded least; `window_seconds` may hold the writing too."""
    stopped_early: str | None = None
    """Where less was recorded than was asked for: how much, and why, in one sentence."""
    options: list[str] = []
    tool: dict[str, str] = {}
    driver: str | None = None
    cuda: str | None = None
    torch: str | None = None
    git: Git | None = None
    gpus_before: list[Gpu] | None = None
    gpus_after: list[Gpu] | None = None
    paused_seconds: list[float] = []
    """How long the training was paused for the tool, each time; part of the steps in `step_seconds`."""
    step_seconds: StepTimes = msgspec.field(default_factory=StepTimes)
    stage_seconds: dict[str, float] = {}
    files: list[File] = []
    notes: list[str] = []


_decoder = msgspec.json.Decoder(Info)


def check_disk(parent: Path, minimum: int = MIN_FREE_BYTES) -> int:
    """Return the free bytes where captures are to be written.

    Raises:
        NotPossibleHere: fewer than `minimum`, or unknown.
    """
    place = parent
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise NotPossibleHere(
            f"{place} cannot be read: {error.strerror}; choose another folder with --out"
        ) from None
    if free < minimum:
        raise NotPossibleHere(
            f"only {size(free)} are free at {place}, a capture needs {size(minimum)}: choose another folder with "
            "--out, or remove old ones: llmtop captures --remove"
        )
    return free


def make_folder(parent: Path, engine: str) -> Path:
    """Make a new folder for one capture; its name is the local time and the engine.

    Raises:
        NotPossibleHere: it cannot be made there.
    """
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{engine}"
    for attempt in range(1, 1000):
        path = parent.absolute() / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            path.mkdir(parents=True, mode=0o755)
            return path
        except FileExistsError:
            if parent.exists() and not parent.is_dir():
                raise NotPossibleHere(f"{parent} is a file: choose another folder with --out") from None
        except OSError as error:
            raise _unwritable(parent, error) from None
    raise NotPossibleHere(
        f"{parent} already has a thousand captures of this second: choose another folder with --out"
    )


def _unwritable(place: Path, error: OSError) -> NotPossibleHere:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NotPossibleHere(f"the disk of {place} is full: free some space, or choose another with --out")
    return NotPossibleHere(f"{place} cannot be written: {error.strerror}; choose another folder with --out")


def write(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file whole or not at all.

    Args:
        path: of the file.
        data: its content.
        private: whether only its owner may read it (mode 0600).

    Raises:
        NotPossibleHere: the disk is full or the folder unwritable.
    """
    partial = path.with_name(f".{path.name}{file_names.PARTIAL}")
    try:
        if private:
            partial.unlink(missing_ok=True)
        with open(partial, "xb" if private else "wb", opener=_private_opener if private else None) as file:
            file.write(data)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise _unwritable(path.parent, error) from None


def _private_opener(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def write_info(folder: Path, info: Info) -> None:
    """Write capture.json.

    Raises:
        NotPossibleHere: as `write`.
    """
    info.files = [
        File(name=p.relative_to(folder).as_posix(), bytes=p.stat().st_size)
        for p in list_files(folder)
        if p.name != INFO
    ]
    write(folder / INFO, msgspec.json.format(encode_json(info), indent=2) + b"\n")


def read_info(folder: Path) -> Info:
    """Read capture.json.

    Raises:
        UnusableInput: missing or damaged.
    """
    try:
        return _decoder.decode(read_input(folder / INFO))
    except UnusableInput as error:
        raise UnusableInput(f"{folder} is not a capture: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableInput(
            f"{folder / INFO} is damaged ({printable(str(error), 160)}): delete {folder}, or restore the file"
        ) from None
    except RecursionError:
        raise UnusableInput(
            f"{folder / INFO} is damaged (JSON nested too deeply): delete {folder}, or restore the file"
        ) from None


def total_bytes(folder: Path) -> int:
    """Size of a folder's files in bytes."""
    return sum(map(file_bytes, list_files(folder)))


def list_files(folder: Path) -> list[Path]:
    """Return all files below a folder; none where that is not there."""
    found = []
    for place, _, names in os.walk(folder):  # what may not be read, or went a moment ago, is passed over
        paths = (Path(place) / name for name in names)
        found += [path for path in paths if _is_file(path)]
    return sorted(found)


def _is_file(path: Path) -> bool:
    """Return True if it is a file itself: no link, no pipe."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def list_infos(parent: Path) -> list[tuple[Path, Info]]:
    """Return the captures in a folder, oldest first; what is damaged or foreign is left out."""
    return list_infos_and_errors(parent)[0]


def list_infos_and_errors(parent: Path) -> tuple[list[tuple[Path, Info]], list[str]]:
    """Return the captures in a folder, oldest first, and a sentence for each that cannot be read."""
    found, refused = [], []
    for path in _capture_folders(parent):
        info = _read_or_error(path)
        if isinstance(info, Info):
            found.append((path, info))
        else:
            refused.append(info)
    return sorted(found, key=lambda pair: pair[1].started_at), refused


class _Verdict(msgspec.Struct):
    verdict: str = ""


def verdict_of(folder: Path) -> str:
    """Return the verdict of a capture's report; "" where it has none, or cannot be read."""
    try:
        return msgspec.json.decode(read_input(folder / file_names.REPORT), type=_Verdict).verdict
    except (LlmtopError, OSError, msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _read_or_error(folder: Path) -> Info | str:
    try:
        return read_info(folder)
    except UnusableInput as error:
        return str(error)


def _capture_folders(parent: Path) -> list[Path]:
    """Return the folders that claim to be captures."""
    try:
        names = sorted(os.listdir(parent))
    except OSError:
        return []
    return [parent / name for name in names if os.path.lexists(parent / name / INFO)]


def remove(folder: Path) -> int:
    """Remove a capture; returns the bytes freed.

    Raises:
        UnusableInput: it is no capture (nothing else is ever removed), or is reached through a link.
        NotPossibleHere: not permitted.
    """
    if folder.is_symlink():
        raise UnusableInput(f"{folder} is a symbolic link: pass the folder of the capture itself")
    read_info(folder)
    freed = total_bytes(folder)
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise NotPossibleHere(f"{folder} cannot be removed: {error.strerror}; check its permissions") from None
    return freed


def discard(folder: Path) -> None:
    """Remove the folder of a capture that was cancelled, whatever is in it; what cannot go stays."""
    shutil.rmtree(folder, ignore_errors=True)


def git_state(pid: int) -> Git | None:
    """Return the commit of the folder that a process works in; None outside a repository or without git."""
    try:
        folder = procfs.folder(pid)
    except OSError:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    root = _git(folder, "rev-parse", "--show-toplevel") or folder
    return Git(commit=commit, dirty=None if changed is None else bool(changed), root=root)


def _git(folder: str, *words: str) -> str | None:
    """Return the output of git; None if git fails."""
    printed = run_for_text(git_command(Path(folder), *words), seconds=_GIT_SECONDS)
    return None if printed is None else printed.strip()


def driver_version() -> str | None:
    """NVIDIA's kernel driver; None without one."""
    return procfs.driver_version()
