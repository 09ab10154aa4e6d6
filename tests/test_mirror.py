"""Tests lie as the product does: tests/ROOM is of llmtop/ROOM, tests/tui and tests/collectors are of these two."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.shape

PACKAGES = ("tui/", "collectors/")
MOST_FILES = 24
WITHOUT_ROOM = {
    "amd_stub": "AMD's library in C, for collectors/amd",
    "capture/py_spy/starved": "trainings that wait for their data, for test_starved.py",
    "clock_stub": "a clock in C that a test sets",
    "cupti_stub": "what waits in PyTorch's profiler on a GPU, in C",
    "data": "recorded files",
    "docs": "README and docs: commands that are run, and words",
    "foreign": "scripts of others that run under llmtop run, and the test that runs them",
    "fuzz": "damaged input of every reader",
    "gpu": "programs for a machine with GPUs, and a test of what they judge by",
    "hosts": "SLURM, sshd and pid namespaces: the whole product on a host",
    "nvml_stub": "NVIDIA's library in C, for collectors/nvml",
    "quota_stub": "a disk quota in C, for kernels without one",
    "starved_nsys": "an nsys in C that gets no CPU",
    "support": "what several rooms of tests use",
}
"""Folders below tests/ that no room of the product stands for."""
CROWDED = {
    "foreign/scripts": "a script a case; each is a program of its own",
    "gpu": "`python -m tests.gpu.NAME` is how people call them (CONTRIBUTING.md)",
    "support": "flat, so that every test imports from one place",
}
"""Folders with more than `MOST_FILES` files, and why."""


def folders(tests: Path) -> list[str]:
    """All folders below `tests` that have files of their own, but for data."""
    files = (path for path in tests.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    found = {path.parent.relative_to(tests).as_posix() for path in files}
    return sorted(one for one in found - {"."} if not f"{one}/".startswith("data/"))


def without_room(tests: Path, repository: Path) -> list[str]:
    """The folders below `tests` for which there is no folder of the product and no exception."""
    asked = (one for one in folders(tests) if not any(f"{one}/".startswith(f"{name}/") for name in WITHOUT_ROOM))
    return [one for one in asked if not _room(one, repository).is_dir()]


def _room(folder: str, repository: Path) -> Path:
    return (repository if f"{folder}/".startswith(PACKAGES) else repository / "llmtop") / folder


def crowded(tests: Path) -> list[str]:
    """The folders below `tests` with too many files, but for exceptions."""
    counts = {one: sum(path.is_file() for path in (tests / one).iterdir()) for one in (".", *folders(tests))}
    return [one for one, count in counts.items() if count > MOST_FILES and one not in CROWDED]


def test_each_folder_of_tests_has_its_room() -> None:
    assert not without_room(REPOSITORY / "tests", REPOSITORY)


def test_no_folder_of_tests_is_crowded() -> None:
    assert not crowded(REPOSITORY / "tests")


def test_no_exception_is_stale() -> None:
    stale = [name for name in (*WITHOUT_ROOM, *CROWDED) if not (REPOSITORY / "tests" / name).is_dir()]
    assert not stale


def test_a_folder_without_a_room_and_a_crowded_one_are_found(tmp_path: Path) -> None:
    (tmp_path / "llmtop" / "rules").mkdir(parents=True)
    (tmp_path / "tui" / "panes").mkdir(parents=True)
    for name in ("rules/test_a.py", "tui/panes/test_b.py", "panes/test_c.py", "support/d.py", "data/x/e.json"):
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True)
        path.touch()
    assert without_room(tmp_path / "tests", tmp_path) == ["panes"]
    for number in range(MOST_FILES):
        (tmp_path / "tests" / "rules" / f"test_{number}.py").touch()
    assert crowded(tmp_path / "tests") == ["rules"]
