"""The index of runs: what it says is what the files say, and a damaged or old one is made again."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from llmtop.runs import index, run_file, store
from llmtop.runs.report import RunReport, report_of
from tests.runs.test_run_files import finish, start
from tests.support.made_runs import write_run
from tests.support.processes import environment


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for number, name in enumerate("abc"):
        write_run(tmp_path, name, [0.25 + number / 10] * 400, started=1.7e9 + 1000 * number, world_size=1)
    return tmp_path


def _reports(runs: Path) -> list[RunReport]:
    return [report_of(run) for run in store.list_runs(runs)]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files of runs that are read from now on."""
    found: list[Path] = []
    whole = run_file.RunFile.__init__

    def read(self: run_file.RunFile, path: Path, *, ends_only: bool = False) -> None:
        found.append(path)
        whole(self, path, ends_only=ends_only)

    monkeypatch.setattr(run_file.RunFile, "__init__", read)
    return found


def test_runs_that_have_ended_are_read_once(runs: Path, opened: list[Path]) -> None:
    first = _reports(runs)
    assert opened
    assert stat.S_IMODE((runs / index.NAME).stat().st_mode) == 0o600
    opened.clear()
    assert _reports(runs) == first
    assert opened == []


def test_a_file_that_has_changed_is_read_again(runs: Path, opened: list[Path]) -> None:
    _reports(runs)
    opened.clear()
    (changed,) = next(folder for folder in runs.iterdir() if "-b-" in folder.name).glob("*.run")
    changed.write_bytes(changed.read_bytes()[:-20])
    (one,) = (report for report in _reports(runs) if report.bytes_damaged)
    assert one.name == "b"
    assert {path.parent for path in opened} == {changed.parent}


def test_what_is_deleted_leaves_the_index(runs: Path) -> None:
    _reports(runs)
    gone = next(folder for folder in runs.iterdir() if "-b-" in folder.name)
    for path in gone.iterdir():
        path.unlink()
    gone.rmdir()
    assert [report.name for report in _reports(runs)] == ["a", "c"]
    assert {key.folder for key in index.load(runs)} == {path.name for path in runs.iterdir() if path.is_dir()}


def _damage(path: Path) -> None:
    path.write_bytes(b"no database at all" * 500)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _age(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 0")
        database.execute("ALTER TABLE processes DROP COLUMN facts")


def _spoil_facts(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE processes SET facts = x'c1'")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [_damage, _cut, _age, _spoil_facts, _empty, Path.unlink])
def test_an_unusable_index_is_made_again_without_a_word(
    runs: Path, damage: object, opened: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first = _reports(runs)
    damage(runs / index.NAME)  # type: ignore[operator]
    assert _reports(runs) == first
    opened.clear()
    assert _reports(runs) == first
    assert opened == []
    assert capsys.readouterr() == ("", "")


def test_an_index_that_cannot_be_written_costs_only_time(runs: Path) -> None:
    (runs / index.NAME).mkdir()
    assert len(_reports(runs)) == 3


def test_an_index_that_another_reader_holds_costs_only_time(runs: Path) -> None:
    first = _reports(runs)
    with sqlite3.connect(runs / index.NAME) as database:
        database.execute("BEGIN EXCLUSIVE")
        assert _reports(runs) == first


def test_a_running_training_is_read_from_its_files_and_loads_no_index(tmp_path: Path) -> None:
    script = (
        "import sys, time, llmtop\n"
        "for _ in range(40):\n"
        "    with llmtop.step():\n"
        "        time.sleep(0.05)\n"
        "print(sorted(name for name in sys.modules if 'sqlite' in name or name == 'llmtop.runs.index'))\n"
    )
    process = start(tmp_path, 0, 0, script)
    seen = 0
    while process.poll() is None:
        for run in store.list_runs(tmp_path):
            if run.how == store.RUNNING:
                seen += 1
                assert index.load(tmp_path) == {}
    out, _ = finish(process)
    assert out == "[]\n"
    assert seen
    (report,) = _reports(tmp_path)
    assert report.steps == 40
    assert len(index.load(tmp_path)) == 1


def test_two_commands_at_once_find_the_same(runs: Path) -> None:
    env = environment(LLMTOP_RUNS=str(runs), XDG_CONFIG_HOME=str(runs / "none"))
    (runs / "none" / "llmtop").mkdir(parents=True)
    (runs / "none" / "llmtop" / "config.toml").write_text("[runs]\ndays = 36500\n")
    command = [sys.executable, "-m", "llmtop", "runs", "--json"]
    both = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    found = [one.communicate(timeout=240) for one in both]
    assert [one.returncode for one in both] == [0, 0], found
    assert found[0][0] == found[1][0]
    assert os.path.isfile(runs / index.NAME)
