"""Each condition of `make flaky` is real: a planted test fails in it alone; and slices continue each other."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import flaky
from tests.support.flaky import CONDITIONS, Ground, State, Unit, table, units
from tests.support.processes import REPOSITORY

PLANTED = """
import os, time
from pathlib import Path
import pytest

def test_wants_quiet():
    assert sum(b"sum(range(100_000))" in one.read_bytes() for one in Path("/proc").glob("[0-9]*/cmdline")) < 8

def test_wants_cores():
    assert len(os.sched_getaffinity(0)) > 1

def test_wants_priority():
    assert os.getpriority(os.PRIO_PROCESS, 0) < 19

def test_wants_root():
    assert os.getuid() == 0

def test_wants_a_clock_near_greenwich():
    assert abs(time.localtime(0).tm_gmtoff) < 10 * 3600

def test_wants_readable_files(tmp_path):
    (tmp_path / "file").touch()
    assert (tmp_path / "file").stat().st_mode & 0o044

def test_wants_a_home():
    (Path.home() / ".planted").touch()
    (Path.home() / ".planted").unlink()

def test_wants_to_write_into_the_checkout():
    Path(".planted").touch()
    Path(".planted").unlink()

def test_skips_where_it_is_not_named():
    if os.getuid():
        pytest.skip("it rains")

def test_skips_where_it_is_named():
    if os.getuid():
        pytest.skip("needs root")

def test_waits():
    time.sleep(0.3)
"""
FAILS = {
    "quiet": set(),
    "eight busy loops": {"test_wants_quiet"},
    "one core": {"test_wants_cores"},
    "nice 19": {"test_wants_priority"},
    "ordinary user": {"test_wants_root", "test_skips_where_it_is_not_named"},
    "LANG=C, Pacific/Apia": {"test_wants_a_clock_near_greenwich"},
    "umask 077": {"test_wants_readable_files"},
    "unwritable home": {"test_wants_a_home"},
    "read-only checkout": {"test_wants_to_write_into_the_checkout"},
}
PASSED: dict[str, Any] = {"outcome": "passed", "text": "", "seconds": 1.0, "waited": 0.0}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can read, unlike tmp_path."""
    folder = Path(tempfile.mkdtemp(prefix="lt-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
@pytest.mark.slow("each condition starts a pytest; CI alone finds a condition that is none")
@pytest.mark.parametrize("name", FAILS)
def test_a_planted_test_fails_in_its_condition_alone(name: str, open_folder: Path) -> None:
    (open_folder / "test_planted.py").write_text(PLANTED)
    condition = next(one for one in CONDITIONS if one.name == name)
    unit = Unit(condition, 1, (str(open_folder / "test_planted.py"),))
    state = State(open_folder / "state")
    (open_folder / "ground").mkdir()
    outcomes = flaky.run(unit, Ground(open_folder / "ground"), 1, 300.0)
    assert outcomes is not None
    assert len(outcomes) == PLANTED.count("def test_")
    done = state.add(unit, "abc", outcomes)
    failed = {test.rpartition("::")[2] for test in done.failures}
    if name != "eight busy loops":  # others may keep this machine busy
        failed.discard("test_wants_quiet")
    assert failed == FAILS[name]
    assert done.skipped == (name == "ordinary user")
    assert any(test.endswith("test_waits") and seconds >= 0.25 for test, seconds in done.waited.items())


def test_every_condition_is_tried_with_a_plant_and_two_repeat_what_waited() -> None:
    assert [one.name for one in CONDITIONS if not one.is_repeated] == list(FAILS)
    repeated = [one for one in CONDITIONS if one.is_repeated]
    assert [(one.runs, one.busy, "taskset" in one.prefix) for one in repeated] == [(20, 8, False), (20, 0, True)]
    assert CONDITIONS[0].runs == 3


def _unit(name: str, run: int = 1) -> Unit:
    return Unit(next(one for one in CONDITIONS if one.name == name), run, ("tests/test_a.py",))


def test_what_passed_stays_done_and_what_failed_runs_again_at_another_commit(tmp_path: Path) -> None:
    state = State(tmp_path)
    failed = PASSED | {"outcome": "failed", "text": "assert 1 == 2"}
    state.add(_unit("quiet"), "one", {"tests/test_a.py::test_a": PASSED})
    state.add(_unit("nice 19"), "one", {"tests/test_a.py::test_a": failed})
    state = State(tmp_path)
    assert [state.is_done(_unit(name), "one") for name in ("quiet", "nice 19", "one core")] == [True, True, False]
    assert [state.is_done(_unit(name), "two") for name in ("quiet", "nice 19")] == [True, False]
    (output,) = state.done[_unit("nice 19").key].failures.values()
    assert (tmp_path / output).read_text() == "assert 1 == 2"
    assert "tests/test_a.py::test_a: nice 19 1" in table(list(CONDITIONS), state)


@pytest.mark.parametrize(
    ("condition", "reason", "is_failure"),
    [
        ("quiet", "no tmux", False),
        ("quiet", "could not import 'gevent': No module named 'gevent'", False),
        ("quiet", "this machine cannot run it: no memory cgroup", False),
        ("quiet", "only root can become a second user", True),
        ("ordinary user", "only root can become a second user", False),
        ("one core", "one CPU cannot be narrowed", False),
        ("eight busy loops", "one CPU cannot be narrowed", True),
        ("eight busy loops", "other processes were always faster", True),
        ("read-only checkout", "no history of git here", True),
    ],
)
def test_a_skip_is_a_failure_unless_it_is_named(
    condition: str, reason: str, is_failure: bool, tmp_path: Path
) -> None:
    skipped = PASSED | {"outcome": "skipped", "text": reason}
    done = State(tmp_path).add(_unit(condition), "one", {"tests/test_a.py::test_a": skipped})
    assert (len(done.failures), done.skipped) == ((1, 0) if is_failure else (0, 1))


def test_the_tests_that_wait_longest_on_a_quiet_machine_are_repeated(tmp_path: Path) -> None:
    state = State(tmp_path)
    for number, seconds in enumerate((3.0, 2.0, 30.0), 1):
        waits = {f"tests/test_a.py::test_{name}": PASSED | {"waited": seconds + name} for name in range(300)}
        state.add(_unit("quiet", number), "one", waits)
    repeated = next(one for one in CONDITIONS if one.is_repeated)
    (first, *others) = units([repeated], ["tests"], state)
    assert len(others) == flaky.REPEATS - 1
    assert first.tests == tuple(f"tests/test_a.py::test_{name}" for name in range(299, 99, -1))
    assert "291 tests wait over 10 s" in table(list(CONDITIONS), state)


def test_a_slice_without_time_runs_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["flaky", "--minutes", "0", "--only", "quiet", "--tests", "tests/rules", "--state", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    monkeypatch.setattr(flaky, "commit", lambda: "0" * 40)  # the ordinary user's copy is no repository
    monkeypatch.chdir(REPOSITORY)
    assert flaky.main() == flaky.NOT_DONE
    assert not (tmp_path / "state.json").exists() or json.loads((tmp_path / "state.json").read_text()) == {}
