"""What `llmtop run` does to the Pythons below it: nothing until they import torch, and little then."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from llmtop.launch.environment import INJECT, instrumented_environment
from tests.launch.conftest import LLMTOP
from tests.support.processes import REPOSITORY, environment
from tests.support.steps import read

pytestmark = pytest.mark.usefixtures("runtime_dir")


def python(*arguments: str, under: bool = True, program: str = sys.executable, **variables: str) -> str:
    """The output of a Python below `llmtop run`."""
    command = [*(LLMTOP if under else []), *(["--quiet", "--"] if under else []), program, *arguments]
    variables.setdefault("PYTHONPATH", str(REPOSITORY))
    done = subprocess.run(
        command,
        env=environment(**variables),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr
    return done.stdout


def test_a_python_without_torch_loads_next_to_nothing_more() -> None:
    show = "import json, sys; print(json.dumps([sorted(sys.modules), sys.path]))"
    modules, path = json.loads(python("-c", show, under=False))
    modules_under, path_under = json.loads(python("-c", show))
    assert set(modules_under) - set(modules) <= {"_llmtop_watch", "sitecustomize", "__future__", "atexit"}
    assert path_under == path


def test_the_users_own_sitecustomize_runs_as_without(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.of_the_user = __file__\n")
    show = "import sys, sitecustomize; print(sys.of_the_user, sitecustomize.__file__)"
    both = str(tmp_path / "sitecustomize.py")
    assert python("-c", show, PYTHONPATH=f"{tmp_path}:{REPOSITORY}").split() == [both, both]


def test_a_sitecustomize_that_fails_says_so_as_without(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import no_such_module\n")
    said = [
        subprocess.run(
            [*under, sys.executable, "-c", "print(1)"],
            env=environment(PYTHONPATH=f"{tmp_path}:{REPOSITORY}"),
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        ).stderr.splitlines()
        for under in ([], [*LLMTOP, "--"])
    ]
    assert [line for line in said[1] if not line.startswith("llmtop: ")] == 2 * said[0], (
        "once from the launcher, itself a Python, and once from the command"
    )
    assert "no_such_module" in said[0][-1]


@pytest.mark.parametrize("flags", ["-I", "-E", "-S"])
def test_an_isolated_python_is_not_touched(flags: str) -> None:
    show = "import sys; print('_llmtop_watch' in sys.modules)"
    command = shlex.join([sys.executable, flags, "-c", show])
    assert python("-c", command, program="sh") == "False\n"


@pytest.mark.parametrize("entries", [":{0}", "{0}:", "{0}::/nowhere", ":"])
def test_an_empty_entry_of_the_path_stays_the_current_folder(entries: str, tmp_path: Path) -> None:
    show = "import json, sys; print(json.dumps(sys.path))"
    path = entries.format(tmp_path)
    said = [
        subprocess.run(
            [*under, sys.executable, "-P", "-c", show],
            env={**os.environ, "PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        ).stdout
        for under in ([], [*LLMTOP, "--"])
    ]
    assert said[1] == said[0]
    assert str(tmp_path) in json.loads(said[0])


@pytest.mark.slow("installs a wheel or an environment")
def test_a_path_file_that_imports_torch_first_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "early.pth").write_text("import torch\n")
    source = "import site, sys; site.addsitedir(sys.argv[1]); import torch; print('torch' in sys.modules)"
    assert python("-c", source, str(tmp_path)) == "True\n"
    ask = "import sys; print('llmtop.instrument.auto' in sys.modules)"
    first = (
        f"import sys, runpy, torch; sys.path.insert(0, {str(INJECT)!r}); import _llmtop_watch as w; w.watch()\n"
    )
    assert python("-c", first + ask, under=False, LLMTOP_RUN_PATH=str(REPOSITORY), LLMTOP_RUN_ABI="") == "True\n"


@pytest.mark.slow("installs a wheel or an environment")
def test_looking_for_torch_is_not_importing_it() -> None:
    source = """
import importlib.util, sys
spec = importlib.util.find_spec("torch")
assert spec is not None and "torch" not in sys.modules
assert type(sys.meta_path[0]).__name__ == "TorchWatcher"
assert sys.meta_path[0].find_spec("torch.no_such") is None and "torch" not in sys.modules
import torch
assert "exec_module" not in vars(torch.__spec__.loader)
assert not [finder for finder in sys.meta_path if type(finder).__name__ == "TorchWatcher"]
assert "llmtop.instrument.auto" in sys.modules and "msgspec" not in sys.modules and "nvtx" not in sys.modules
print("fine")
"""
    assert python("-c", source) == "fine\n"


def test_a_missing_torch_is_missing_as_without() -> None:
    source = "import sys\ntry:\n    import torch\nexcept ModuleNotFoundError as error:\n    print(error)"
    bare = [name for name in sys.path if "site-packages" in name]
    assert bare
    hide = f"import sys; sys.path[:] = [p for p in sys.path if p not in {bare!r}]\n"
    assert python("-c", hide + source) == "No module named 'torch'\n"


@pytest.mark.slow("test_it_does_not_notice finds the same fault")
def test_workers_and_spawned_processes_are_not_taken_for_trainings(tmp_path: Path, runtime_dir: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("""
import glob, os, time
import torch
from torch import multiprocessing
from torch.utils.data import DataLoader, Dataset
from llmtop.instrument.serve import server
server.LISTEN_WAIT_S = 60.0  # each training has its socket once it is attached

class Data(Dataset):
    model = torch.nn.Linear(4, 4)
    def __len__(self):
        return 8
    def __getitem__(self, index):
        self.model(torch.randn(4)).sum().backward()  # odd, but not a training's step
        return torch.randn(4)

def train(rank, folder):
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        net(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    assert len(glob.glob(f"{folder}/{os.getpid()}-*.sock")) == 1
    from llmtop.instrument.record import recorder
    assert recorder.get().ring.count == 2

if __name__ == "__main__":
    folder = os.environ["LLMTOP_DIR"]
    for start in ("fork", "spawn"):
        for batch in DataLoader(Data(), batch_size=2, num_workers=1, multiprocessing_context=start):
            assert not glob.glob(folder + "/*.sock")
    multiprocessing.spawn(train, args=(folder,), nprocs=1)
    fork = multiprocessing.get_context("fork").Process(target=train, args=(0, folder))
    fork.start()
    fork.join()
    assert fork.exitcode == 0
    train(0, folder)
    print("fine")
""")
    assert python(str(path), OMP_NUM_THREADS="1").endswith("fine\n")


def needed_by_torch(folder: Path) -> Path:
    """A folder with torch and what it imports, but with nothing that llmtop needs."""
    for name in ("torch", "torchgen", "functorch", "typing_extensions", "sympy", "mpmath", "networkx", "jinja2",
                 "markupsafe", "filelock", "fsspec", "numpy", "numpy.libs"):  # fmt: skip
        spec = None if "." in name else importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            origin = Path(spec.origin)
            place = origin.parent if origin.name == "__init__.py" else origin
            (folder / place.name).symlink_to(place)
            libraries = place.parent / f"{name}.libs"
            if libraries.is_dir():
                (folder / libraries.name).symlink_to(libraries)
    return folder


TRAINING = """
import sys
assert not any("llmtop" in entry for entry in sys.path), sys.path
import torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    net(torch.randn(2, 4)).sum().backward()
    optimizer.step()
print("trained")
"""


@pytest.mark.slow("installs a wheel or an environment")
@pytest.mark.torch
def test_a_training_in_another_environment_borrows_what_llmtop_needs(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    (tmp_path / "packages").mkdir()
    packages = needed_by_torch(tmp_path / "packages")
    script = tmp_path / "train.py"
    support = f"sys.path.append({str(REPOSITORY)!r}); from tests.support.steps import show; show()\n"
    script.write_text(TRAINING.replace("assert not any", "assert not any", 1) + support)
    command = [
        *LLMTOP,
        "--",
        "env",
        f"PYTHONPATH={INJECT}:{packages}",
        str(tmp_path / "venv/bin/python"),
        str(script),
    ]
    done = subprocess.run(
        command, env=environment(OMP_NUM_THREADS="1"), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("llmtop: attached; watch with: ")
    assert done.stderr.count("\n") == 1
    assert len(read(done.stdout)["steps"]) == 3


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("LLMTOP_RUN_ABI", "cpython-999", "are for another Python (cpython-999); run: "),
        ("LLMTOP_RUN_PATH", "/nowhere", "ModuleNotFoundError: No module named 'llmtop'"),
    ],
)
def test_what_cannot_be_instrumented_says_so_once_and_runs(
    tmp_path: Path, variable: str, value: str, reason: str
) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "torch.py").touch()  # which torch it is does not matter here: it is not got to
    script = tmp_path / "train.py"
    script.write_text(f"""
import subprocess, sys, torch
print("trained", flush=True)
if "child" not in sys.argv:
    subprocess.run([sys.executable, {str(script)!r}, "child"], check=True)
""")
    variables = {**instrumented_environment(os.environ), "PYTHONPATH": f"{INJECT}:{packages}", variable: value}
    done = subprocess.run(
        [str(tmp_path / "venv/bin/python"), str(script)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\ntrained\n"
    assert done.stderr.startswith("llmtop: not instrumented: ")
    assert reason in done.stderr
    assert done.stderr.count("llmtop:") == 1


def test_a_run_within_a_run_adds_nothing() -> None:
    once = instrumented_environment({"PYTHONPATH": "/somewhere", "HOME": "/"})
    assert once["PYTHONPATH"] == f"{INJECT}{os.pathsep}/somewhere"
    assert instrumented_environment(once) == once
    assert instrumented_environment({})["PYTHONPATH"] == str(INJECT), (
        "no empty entry: it would mean the current folder"
    )
