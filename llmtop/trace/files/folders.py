"""Which files of a folder are the captures to read: in it, or some levels down, where TensorBoard and launchers
put them.

Of one run with a folder a rank all are read together. Of several runs the newest is read; a sentence names the
others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from llmtop.errors import UnusableInput
from llmtop.naming import file_names
from llmtop.trace.files.file_kind import TRACES, Examined, examine
from llmtop.trace.files.runs import run_sentence
from llmtop.trace.xla.viewer import ENDING

_NOT_TRACES = (file_names.CAPTURE_INFO, file_names.REPORT, "perfetto_trace.json.gz")
"""JAX writes the last one on request, from the trace that lies beside it."""
_RUNS = Path("plugins", "profile")
"""Where jax.profiler and TensorBoard put a folder for each trace, by its time, within the one that is given."""
_OF_A_RANK = re.compile(
    r"(?:^|[_.-])(?:(?:local_)?rank|worker|proc(?:ess)?|gpu|node|host|dp)[_=-]?\d+$|^\d{1,4}$", re.IGNORECASE
)
"""Folders that a launcher or a script makes one of for each process."""
_DEEPEST = 6
_MOST_FOLDERS = 2_000
"""Folders that are looked into: a home directory is no log folder."""


def traces_in(folder: Path) -> tuple[list[Examined], str]:
    """Return the captures in a folder, of one kind (exports before reports before Chrome traces), and which run
    they are of, where there are several.

    Args:
        folder: where captures lie, or some levels above them.

    Raises:
        UnusableInput: there are none.
    """
    found = _directly_in(folder)
    if found:
        return found, ""
    if runs := _runs_in(folder):
        return _newest([(runs[place], _directly_in(runs[place])) for place in range(len(runs))], folder)
    below = _capture_folders(folder)
    if below:
        return _of_one_run(below, folder)
    snapshot = next((path for path in _files(folder) if path.name.endswith(".pickle")), None)
    if snapshot is not None:
        raise UnusableInput(f"{snapshot} is a memory snapshot, which has no steps: llmtop report {snapshot}")
    raise UnusableInput(
        f"{folder} holds no capture: no .sqlite, .nsys-rep or trace .json is in it or in the folders below it"
    )


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise UnusableInput(f"{folder} cannot be read: {error.strerror}; check its permissions") from None


def _directly_in(folder: Path) -> list[Examined]:
    """Return the captures that lie in a folder itself, or in its folder of PyTorch's traces; none if there are
    none."""
    files = _files(folder)
    for endings in ((".sqlite", ".sqlite.gz"), (".nsys-rep",)):
        found = [path for path in files if path.name.endswith(endings)]
        if found:
            return [examine(path) for path in found]
    named = [path for path in files if path.name.endswith((".json", ".json.gz")) and path.name not in _NOT_TRACES]
    traces = [one for one in map(_examine_or_none, named) if one is not None and one.kind == "chrome-json"]
    if traces:
        return traces
    spaces = [path for path in files if path.name.endswith(ENDING)]
    if spaces:
        return [examine(path) for path in spaces]
    return _directly_in(folder / TRACES) if (folder / TRACES).is_dir() else []


def _examine_or_none(path: Path) -> Examined | None:
    """Return the kind; None for an unusable file."""
    try:
        return examine(path)
    except UnusableInput:
        return None


def _runs_in(folder: Path) -> list[Path]:
    """Return the folders of the traces that jax.profiler or TensorBoard have put there, oldest first."""
    return [run for run in _folders_in(folder / _RUNS) if _holds_trace(run)]


def _holds_trace(run: Path) -> bool:
    return any(any(run.glob(f"*{ending}")) for ending in (".json.gz", ".json", ENDING))


def _folders_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def _capture_folders(folder: Path) -> list[tuple[Path, list[Examined]]]:
    """Return the folders below with captures in them, each with these; nothing is looked for below such a
    folder."""
    found: list[tuple[Path, list[Examined]]] = []
    level, seen = _folders_in(folder), 0
    for _ in range(_DEEPEST):
        below: list[Path] = []
        for one in level:
            seen += 1
            if seen > _MOST_FOLDERS:
                return found
            own = _captures_or_none(one)
            if own:
                found.append((one, own))
            else:
                below += _folders_in(one)
        level = below
    return found


def _captures_or_none(folder: Path) -> list[Examined]:
    try:
        return _directly_in(folder)
    except UnusableInput:
        return []


def _of_one_run(below: list[tuple[Path, list[Examined]]], top: Path) -> tuple[list[Examined], str]:
    """Return the captures of the newest run: folders beside each other that are named after ranks are of one
    run."""
    runs: dict[Path, list[tuple[Path, list[Examined]]]] = {}
    for folder, files in below:
        around = [path for path in (folder, *folder.parents) if path.is_relative_to(top) and path != top]
        of_ranks = [path for path in around if _OF_A_RANK.search(path.name)]
        runs.setdefault(of_ranks[-1].parent if of_ranks else folder, []).append((folder, files))
    return _newest([(run, _of_ranks(run, own)) for run, own in runs.items()], top)


def _of_ranks(run: Path, own: list[tuple[Path, list[Examined]]]) -> list[Examined]:
    """Return the newest capture of each rank's folder: one rank may have several windows."""
    newest: dict[tuple[str, ...], list[Examined]] = {}
    for folder, files in sorted(own, key=lambda one: (_last_change(one[1]), one[0].name)):
        rank = tuple(part for part in folder.relative_to(run).parts if _OF_A_RANK.search(part))
        newest[rank] = files
    return [file for _, files in sorted(newest.items()) for file in files]


def _last_change(files: Iterable[Examined]) -> float:
    """Return when the last of some files was changed; seconds since 1970."""
    return max((file.path.stat().st_mtime for file in files), default=0.0)


def _newest(runs: list[tuple[Path, list[Examined]]], top: Path) -> tuple[list[Examined], str]:
    """Return the captures of the newest of several runs, and a sentence that names the others.

    Runs in one folder are named by their time, and copies lose the time of a file: there the last name is newest.
    """
    alike = len({run.parent for run, _ in runs}) == 1
    runs = [run for run in runs if run[1]]
    if not runs:
        raise UnusableInput(f"{top} holds no capture that can be read")
    chosen = max(runs, key=(lambda run: (run[0].name, 0.0)) if alike else (lambda run: ("", _last_change(run[1]))))
    others = [str(run.relative_to(top)) for run, _ in runs if run != chosen[0]]
    return chosen[1], run_sentence(top, str(chosen[0].relative_to(top)), others) if others else ""
