"""The wheel and the sdist: reproducible, accepted by twine, complete, and with man pages of today's commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from llmtop.__main__ import COMMANDS
from llmtop.version import __version__
from tests.support.package_files import SHARE, package_files
from tests.support.processes import REPOSITORY

BESIDE_THE_DEMO_BYTES = 2 << 20


def _built(folder: Path) -> dict[str, Path]:
    """Wheel and sdist of this checkout, by the real backend."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=240, env=env)
    return {path.suffix: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return _built(tmp_path_factory.mktemp("dist"))


@pytest.mark.slow("nothing else builds twice; the backend alone decides it")
def test_two_builds_are_equal_to_the_byte(built: dict[str, Path], tmp_path: Path) -> None:
    again = _built(tmp_path)
    assert {suffix: path.read_bytes() for suffix, path in again.items()} == {
        suffix: path.read_bytes() for suffix, path in built.items()
    }


@pytest.mark.slow("twine reads the metadata, which changes seldom")
def test_twine_accepts_both(built: dict[str, Path]) -> None:
    pytest.importorskip("twine", reason="make test installs twine")
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.values())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow("builds both; test_the_wheel_takes_no_name_but_its_own builds the wheel alone")
def test_the_wheel_holds_the_program_and_nothing_else(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built[".whl"]) as wheel:
        names = wheel.namelist()
        demo = sum(one.compress_size for one in wheel.infolist() if one.filename.startswith("llmtop/data/demo"))
    assert {name.partition("/")[0] for name in names} == {
        "llmtop", f"llmtop_monitor-{__version__}.data", f"llmtop_monitor-{__version__}.dist-info",
    }  # fmt: skip
    assert not [name for name in names if re.search(r"(^|/)(tests?|screenshots|__pycache__)(/|$)", name)]
    assert {"llmtop/_app/tui/app.py", "llmtop/_app/collectors/hub.py", "llmtop/py.typed"} <= set(names)
    assert built[".whl"].stat().st_size - demo <= BESIDE_THE_DEMO_BYTES
    share = f"llmtop_monitor-{__version__}.data/data/share/"
    assert {name.removeprefix(share) for name in names if name.startswith(share)} == {
        str(path.relative_to(SHARE)) for path in SHARE.rglob("*") if path.is_file()
    }


@pytest.mark.slow("builds both, and what the sdist holds changes seldom")
def test_the_sdist_keeps_the_tests_and_builds_the_same_wheel_names(built: dict[str, Path]) -> None:
    with tarfile.open(built[".gz"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"tests/conftest.py", "llmtop/version.py", "tui/app.py", "deploy/share/man/man1/llmtop.1"} <= names
    assert not [name for name in names if name.startswith((".ci/", ".git/", "screenshots/"))]


@pytest.mark.shape
def test_man_pages_and_completions_are_those_of_the_commands() -> None:
    pytest.importorskip("click_man", reason="make test installs click-man")
    made = {str(path): text for path, text in package_files()}
    kept = {str(path.relative_to(SHARE)): path.read_text() for path in SHARE.rglob("*") if path.is_file()}
    assert sorted(made) == sorted(kept)
    stale = [path for path, text in made.items() if kept[path] != text]
    assert not stale, "run python -m tests.support.package_files"


def test_man_can_show_each_page() -> None:
    man = shutil.which("man")
    if man is None:
        pytest.skip("man is not installed")
    for name in COMMANDS:
        page = SHARE / "man" / "man1" / f"llmtop-{name}.1"
        command = [man, "-l", "--warnings", "-E", "UTF-8", str(page)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"llmtop {name}" in done.stdout
