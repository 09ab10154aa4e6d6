"""What `llmtop run` says on stderr: one line, that it has attached or why it cannot, for all its processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.conftest import LLMTOP
from tests.support.launched import torchrun
from tests.support.ports import free_port
from tests.support.processes import environment
from tests.support.trainings import PATIENT_SERVER

TRAINS = f"""{PATIENT_SERVER}
import torch
from tests.support.light_optimizer import LightSGD
net = torch.nn.Linear(4, 1)
optimizer = LightSGD(net.parameters(), lr=0.1)
for _ in range(3):
    net(torch.randn(2, 4)).sum().backward()
    optimizer.step()
"""
LOADS = """
import warnings
from torch.utils.data import DataLoader, Dataset
warnings.filterwarnings("ignore", "This DataLoader will create")  # on one core
class Data(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.randn(4)
for _ in DataLoader(Data(), num_workers=2):
    pass
"""
STARTS = "import subprocess, sys; subprocess.run([sys.executable, sys.argv[1]], check=True)\n"
TWICE = f"{TRAINS}\n{STARTS}"


def stderr_of(*command: str, options: tuple[str, ...] = (), code: int = 0, **variables: str) -> str:
    done = subprocess.run(
        [*LLMTOP, *options, "--", *command],
        env=environment(OMP_NUM_THREADS="1", **variables),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stderr


def written(tmp_path: Path, name: str, source: str) -> str:
    (tmp_path / name).write_text(source)
    return str(tmp_path / name)


def attached(directory: Path) -> str:
    return f"llmtop: attached; watch with: LLMTOP_DIR={directory} llmtop\n"


@pytest.mark.slow("each starts several trainings; workers are the hardest case", kept=("workers",))
@pytest.mark.torch
@pytest.mark.parametrize("source", [TRAINS + LOADS, STARTS, TWICE], ids=["workers", "a child", "two trainings"])
def test_it_has_attached_is_said_once(runtime_dir: Path, tmp_path: Path, source: str) -> None:
    child = written(tmp_path, "child.py", TRAINS)
    assert stderr_of(sys.executable, written(tmp_path, "train.py", source), child) == attached(runtime_dir)
    assert list(runtime_dir.iterdir()) == [], "nothing is left behind"


@pytest.mark.slow("test_it_has_attached_is_said_once finds the same fault")
@pytest.mark.torch
def test_ranks_say_it_once_for_all(runtime_dir: Path, tmp_path: Path) -> None:
    command = torchrun(Path(written(tmp_path, "train.py", TRAINS)), 2, f"--master-port={free_port()}")
    said = [line for line in stderr_of(*command).splitlines(keepends=True) if line.startswith("llmtop: ")]
    assert said == [attached(runtime_dir)]


@pytest.mark.slow("test_it_has_attached_is_said_once finds the same fault")
@pytest.mark.torch
def test_a_shell_s_trainings_say_it_once_and_the_next_run_tidies_up(runtime_dir: Path, tmp_path: Path) -> None:
    path = written(tmp_path, "train.py", TRAINS)
    both = f"{sys.executable} {path}; {sys.executable} {path}"
    assert stderr_of("sh", "-c", both) == attached(runtime_dir)
    assert [file.suffix for file in runtime_dir.iterdir()] == [".told"], "a shell cannot remove it"
    assert stderr_of(sys.executable, path) == attached(runtime_dir)
    assert list(runtime_dir.iterdir()) == []


@pytest.mark.slow("test_it_has_attached_is_said_once finds the same fault")
@pytest.mark.torch
def test_the_script_s_own_stderr_has_nothing_of_it(runtime_dir: Path, tmp_path: Path) -> None:
    keeps = "import io, sys\nours, sys.stderr = sys.stderr, io.StringIO()\n"
    checks = "print(repr(sys.stderr.getvalue()))\nsys.stderr = ours\n"
    path = written(tmp_path, "train.py", keeps + TRAINS + checks)
    done = subprocess.run(
        [*LLMTOP, "--", sys.executable, path],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("''\n", attached(runtime_dir))
    closes = (
        f"import os\nos.close(2)\nfile = open({os.fspath(tmp_path / 'data')!r}, 'wb')\nassert file.fileno() == 2\n"
    )
    assert stderr_of(sys.executable, written(tmp_path, "other.py", closes + TRAINS)) == ""
    assert (tmp_path / "data").read_bytes() == b"", "a file that has got the number of stderr is the script's"


CANNOT = [
    pytest.param("print(1)", {}, "train.py ended without having imported torch", id="no torch"),
    pytest.param(
        "import torch", {}, "train.py ended without a backward pass or an optimizer's step", id="no step"
    ),
    pytest.param(TRAINS, {"LLMTOP_OFF": "1"}, "LLMTOP_OFF is set", id="off"),
]


@pytest.mark.slow("one reason stands for all; the others import torch", kept=("no torch",))
@pytest.mark.torch
@pytest.mark.parametrize(("source", "variables", "why"), CANNOT)
def test_that_it_cannot_is_said_once_with_the_reason(
    runtime_dir: Path, tmp_path: Path, source: str, variables: dict[str, str], why: str
) -> None:
    said = stderr_of(sys.executable, written(tmp_path, "train.py", source), **variables)
    assert said.startswith(f"llmtop: not attached: {why}")
    assert said.count("\n") == 1
    assert list(runtime_dir.iterdir()) == []


@pytest.mark.slow("test_that_it_cannot_is_said_once_with_the_reason finds the same fault")
@pytest.mark.torch
def test_a_directory_that_cannot_be_used_is_the_one_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = written(tmp_path, "train.py", TRAINS)
    said = stderr_of(sys.executable, path, LLMTOP_DIR=str(tmp_path / "file"))
    assert said.startswith("llmtop: not publishing: ")
    assert said.count("\n") == 1


def test_a_program_that_is_no_python_says_so_and_shells_do_not(runtime_dir: Path) -> None:
    assert (
        stderr_of("true")
        == "llmtop: not attached: true is no Python program; only a Python that it starts can attach\n"
    )
    assert stderr_of("sh", "-c", "true") == ""
    assert stderr_of("env", "true") == ""


def test_one_that_hands_no_environment_on_is_named(runtime_dir: Path, tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o755)
    assert "docker does not hand its environment on" in stderr_of(str(docker))


def test_an_exception_is_its_own_reason(runtime_dir: Path, tmp_path: Path) -> None:
    said = stderr_of(sys.executable, written(tmp_path, "train.py", "1/0"), code=1)
    assert said.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "llmtop" not in said.replace(str(tmp_path), "")


@pytest.mark.slow(
    "one combination stands for all; each starts a process", kept=("not attached-options0-variables0",)
)
@pytest.mark.torch
@pytest.mark.parametrize(("options", "variables"), [(("-q",), {}), ((), {"LLMTOP_QUIET": "1"})])
@pytest.mark.parametrize("source", [TRAINS, "print(1)"], ids=["attached", "not attached"])
def test_a_quiet_run_says_nothing(
    runtime_dir: Path, tmp_path: Path, options: tuple[str, ...], variables: dict[str, str], source: str
) -> None:
    path = written(tmp_path, "train.py", source)
    assert stderr_of(sys.executable, path, options=options, **variables) == ""
    off = {**variables, "LLMTOP_OFF": "1"}
    assert stderr_of(sys.executable, path, options=options, **off) == ""


@pytest.mark.torch
def test_without_llmtop_run_nothing_is_said(runtime_dir: Path, tmp_path: Path) -> None:
    path = written(
        tmp_path, "train.py", "import llmtop\nfor _ in range(3):\n    with llmtop.step():\n        pass\n"
    )
    done = subprocess.run([sys.executable, path], env=environment(), capture_output=True, timeout=240, check=True)
    assert done.stderr == b""
