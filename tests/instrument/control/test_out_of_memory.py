"""The snapshot at an out-of-memory error: kept only if the process ends by it, and never in the error's way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmtop.memory.analyze import analyze_memory
from tests.support.installed import needs
from tests.support.steps import Zygote

needs("torch")

SCRIPT = Path(__file__).parents[2] / "support" / "oom_training.py"
ROOT = SCRIPT.parents[2]


def _run(zygote: Zygote, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script below `llmtop run`, in a fork of a process that has imported torch."""
    program = folder.with_name("program.py")
    zygote.start(
        program,
        f"import os, runpy, sys\nos.environ['LLMTOP_DIR'] = {str(folder)!r}\n"
        f"sys.argv = {[str(SCRIPT), *arguments]!r}\nrunpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n",
    )
    return subprocess.CompletedProcess(arguments, *zygote.outcome(program))


def _run_alone(folder: Path, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own: with options, and where what is said at its end counts."""
    environment = {**os.environ, "LLMTOP_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "llmtop", "run", *options, "--", sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


def _snapshots(folder: Path) -> list[str]:
    return [path.name.partition("-")[2] for path in folder.iterdir() if "oom" in path.name]


@pytest.mark.parametrize(
    "way", [pytest.param("dies", marks=pytest.mark.slow("a wrapped error is the harder case")), "wraps"]
)
def test_an_error_that_ends_the_process_leaves_a_snapshot_and_a_line(folder: Path, way: str) -> None:
    done = _run_alone(folder, way)
    assert done.returncode == 1
    assert "CUDA out of memory" in done.stderr
    (path,) = folder.glob("*-oom.memory.pickle")
    assert f"llmtop report {path}" in done.stderr
    report = analyze_memory([path])
    (error,) = report.devices[0].out_of_memory
    assert (error.wanted_bytes, error.device_free_bytes) == (90 << 20, 12345)
    assert error.line.startswith("oom_training.py:")
    assert report.findings[0].id == "out_of_memory"
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.slow("one answer stands for all; each trains", kept=("catches-0",))
@pytest.mark.parametrize(("way", "code"), [("catches", 0), ("exits", 1), ("other", 1)])
def test_an_error_that_was_answered_leaves_nothing(zygote: Zygote, folder: Path, way: str, code: int) -> None:
    done = _run(zygote, folder, way)
    assert done.returncode == code, done.stderr
    assert "history False" in done.stdout, "nobody has asked for it"
    assert _snapshots(folder) == []
    assert "llmtop report" not in done.stderr


@pytest.mark.parametrize(
    ("answered", "kept"),
    [
        pytest.param(
            0,
            True,
            marks=pytest.mark.slow(
                "test_an_error_that_ends_the_process_leaves_a_snapshot_and_a_line has the other answer"
            ),
        ),
        (5, False),
    ],
)
def test_what_is_kept_is_of_the_error_that_ended_the_process(
    zygote: Zygote, folder: Path, answered: int, kept: bool
) -> None:
    done = _run(zygote, folder, "again", str(answered))
    assert done.returncode == 1
    found = [analyze_memory([path]).devices[0].out_of_memory for path in folder.glob("*-oom.memory.pickle")]
    assert [[error.wanted_bytes for error in errors] for errors in found] == ([[70 << 20]] if kept else [])
    assert _snapshots(folder) == (["oom.memory.pickle"] if kept else [])


@pytest.mark.slow("an end beside a profiler; test_a_captured_training_ends_as_it_would_without has one")
def test_memory_history_is_recorded_only_when_asked_for(folder: Path) -> None:
    done = _run_alone(folder, "dies", options=("--memory-history",))
    assert "history True" in done.stdout
    (path,) = folder.glob("*-oom.memory.pickle")
    device = analyze_memory([path]).devices[0]
    assert device.events > 0
    assert device.lines[0].name == "train.py:44 step"


@pytest.mark.slow("an end beside a profiler; test_a_captured_training_ends_as_it_would_without has one")
def test_of_a_history_of_the_script_s_own_only_the_segments_are_kept(folder: Path) -> None:
    done = _run_alone(folder, "dies", "history", options=("--memory-history",))
    (path,) = folder.glob("*-oom.memory.pickle")
    device = analyze_memory([path]).devices[0]
    assert "CUDA out of memory" in done.stderr
    assert (device.events, len(device.out_of_memory)) == (0, 1)


@pytest.mark.slow("test_an_error_that_ends_the_process_leaves_a_snapshot_and_a_line finds the same fault")
def test_where_it_cannot_be_written_the_error_is_as_ever(tmp_path: Path) -> None:
    place = tmp_path / "a file"
    place.write_text("")
    done = _run_alone(place, "dies")
    assert done.returncode == 1
    assert done.stderr.rstrip().splitlines()[-1].endswith("CUDA out of memory")


WITHOUT_TORCH = """
import sys
from types import SimpleNamespace
from llmtop.instrument.control import out_of_memory

class Error(RuntimeError):
    pass

observers = []
sys.modules["torch"] = SimpleNamespace(
    _C=SimpleNamespace(_cuda_attach_out_of_memory_observer=observers.append, _cuda_isHistoryEnabled=lambda: False),
    cuda=SimpleNamespace(
        OutOfMemoryError=Error,
        _lazy_call=lambda call: call(),
        memory=SimpleNamespace(_snapshot=lambda: {"segments": [str(number) for number in range(10_000)]}),
    ),
)
out_of_memory.MOST_BYTES = int(sys.argv[1])
out_of_memory.watch()
observers[0](0, 1, 1, 1)
raise Error("CUDA out of memory")
"""
"""A script that runs out of memory, with as much of torch as is asked for then: to import it takes seconds."""


def _run_without_torch(folder: Path, most_bytes: int) -> None:
    environment = {**os.environ, "LLMTOP_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WITHOUT_TORCH, str(most_bytes)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert done.stderr.endswith("Error: CUDA out of memory\n")


@pytest.mark.parametrize(("most_bytes", "kept"), [(1000, []), (1 << 20, ["oom.memory.pickle"])])
def test_a_file_that_becomes_too_large_is_not_kept(folder: Path, most_bytes: int, kept: list[str]) -> None:
    _run_without_torch(folder, most_bytes)
    assert _snapshots(folder) == kept


def test_old_snapshots_make_room(folder: Path) -> None:
    old = [f"{number}-oom.memory.pickle" for number in range(12)]
    for number, name in enumerate(old):
        (folder / name).write_text("")
        os.utime(folder / name, (number, number))
    of_living, of_dead = (f"{pid}-oom.memory.pickle.part" for pid in (os.getpid(), 999_999_999))
    others = {of_living, "other.txt"}
    for name in (of_dead, *others):
        (folder / name).write_text("")
    _run_without_torch(folder, 1 << 20)
    left = {path.name for path in folder.iterdir()}
    (taken,) = left - {*old, of_dead, *others}
    assert taken.endswith("-oom.memory.pickle")
    assert left - {taken} == {*old[5:], *others}
