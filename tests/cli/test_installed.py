"""llmtop starts its own tui and collectors, however it is installed and whatever else has these names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pexpect
import pytest

from tests.support.processes import REPOSITORY


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built by its real backend."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=240)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, installed apart from this checkout; its libraries come from this interpreter."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True, timeout=240)
    return target


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A project with packages of our names, as a user may stand in."""
    for name in ("tui", "collectors"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a foreign package was imported')\n")
    return tmp_path


def environment(runtime_dir: Path, *path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "LLMTOP_DIR": str(runtime_dir),
        "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8",
    }


def check(command: list[str], cwd: Path, env: dict[str, str]) -> None:
    """The stream works (collectors), and the screen paints (tui)."""
    done = subprocess.run(
        [*command, "--once", "--json"], cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["schema"] == 2
    screen = pexpect.spawn(command[0], command[1:], cwd=str(cwd), env=env, dimensions=(40, 120), timeout=240)
    screen.expect_exact("quit")
    screen.send("q")
    screen.expect(pexpect.EOF)
    screen.close()
    assert screen.exitstatus == 0


def test_from_a_checkout_with_foreign_packages_in_the_folder_and_on_pythonpath(
    foreign: Path, runtime_dir: Path
) -> None:
    check([sys.executable, "-m", "llmtop"], foreign, environment(runtime_dir, foreign, REPOSITORY))


@pytest.mark.slow(
    "test_from_a_checkout_with_foreign_packages_in_the_folder_and_on_pythonpath finds the same fault"
)
def test_installed_with_foreign_packages_in_the_folder_and_on_pythonpath(
    installed: Path, foreign: Path, runtime_dir: Path
) -> None:
    env = environment(runtime_dir, foreign, installed)
    check([sys.executable, "-m", "llmtop"], foreign, env)
    check([str(installed / "bin" / "llmtop")], foreign, env)


@pytest.mark.slow("installs a wheel or an environment")
def test_the_demo_plays_from_the_wheel_and_passes_through_its_alert(
    installed: Path, tmp_path: Path, runtime_dir: Path
) -> None:
    done = subprocess.run(
        [str(installed / "bin" / "llmtop"), "demo", "--json"],
        cwd=tmp_path,
        env=environment(runtime_dir, installed),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    snapshots = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["source"] for one in snapshots} == {"replay"}
    assert {gpu["name"] for one in snapshots for gpu in one["gpus"]} == {"NVIDIA H200"}
    assert all(one["ranks"] for one in snapshots[-10:])
    assert "low_power_full_util" in {alert["id"] for one in snapshots for alert in one["alerts"]}


def test_the_wheel_takes_no_name_but_its_own(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    own = next(top for top in tops if top.endswith(".dist-info")).removesuffix(".dist-info")
    assert tops == {"llmtop", f"{own}.dist-info", f"{own}.data"}
    beside = {name.removeprefix(f"{own}.data/data/share/").split("/")[0] for name in names if ".data/" in name}
    assert beside <= {"man", "bash-completion", "zsh", "fish"}
    assert "llmtop/_app/tui/app.py" in names
    assert "llmtop/_app/collectors/hub.py" in names
    assert "llmtop/data/demo.llmtop.gz" in names
    assert "llmtop/data/prometheus-rules.yml" in names
    assert any(name.startswith("llmtop/_app/tui/") and name.endswith(".tcss") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


@pytest.mark.slow("installs a wheel or an environment")
def test_a_program_that_imports_llmtop_finds_its_own_packages_of_these_names(
    installed: Path, tmp_path: Path, runtime_dir: Path
) -> None:
    """Only the monitor puts its folder first: a training's imports stay as they were."""
    (tmp_path / "collectors").mkdir()
    (tmp_path / "collectors" / "__init__.py").write_text("mine = True\n")
    program = "import llmtop; llmtop.attach(); import collectors; print(collectors.mine)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(runtime_dir, installed),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert done.stdout == "True\n"
