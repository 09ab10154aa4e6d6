"""What llmtop loads into a training, and how it keeps still where it cannot publish."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from llmtop.errors import NotPossibleHere
from llmtop.protocol.client import discover
from tests.support.trainings import PATIENT_SERVER, Training, socket_of, sockets

TRAIN = """
import llmtop, sys
for batch in llmtop.loader(range(3)):
    with llmtop.step(tokens=1):
        with llmtop.phase("forward"): pass
    llmtop.log(loss=0.5)
from llmtop.instrument.record.recorder import get
print("trained", get().ring.count)
"""


def test_importing_llmtop_loads_nothing_heavy() -> None:
    script = """
import sys
before = set(sys.modules)
import llmtop
llmtop.phase("forward"), llmtop.loader([]), llmtop.log(loss=1)
heavy = {"textual", "pynvml", "psutil", "torch", "numpy", "msgspec", "nvtx", "click", "asyncio", "inspect"}
print(sorted(heavy & {name.split(".")[0] for name in set(sys.modules) - before}))
"""
    with Training(script) as training:
        assert training.finish()[0] == "[]\n"


def test_a_step_loads_only_msgspec() -> None:
    script = """
import sys
import llmtop
with llmtop.step(), llmtop.phase("forward"): pass
heavy = {"textual", "pynvml", "psutil", "torch", "numpy", "msgspec", "nvtx", "click", "asyncio", "multiprocessing"}
print(sorted(heavy & {name.split(".")[0] for name in sys.modules}))
"""
    with Training(script) as training:
        assert training.finish()[0] == "['msgspec']\n"


def unusable(directory: Path, how: str) -> Path:
    """A runtime directory that must not be used."""
    path = directory / "run"
    if how == "world-writable":
        path.mkdir()
        path.chmod(0o777)
    elif how == "a symbolic link":
        (directory / "real").mkdir(mode=0o700)
        path.symlink_to(directory / "real")
    elif how == "a file":
        path.touch()
    elif how == "somebody else's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        path.mkdir(mode=0o700)
        os.chown(path, 65534, 65534)
    elif how == "not to be made":
        (directory / "in-the-way").touch()
        path = directory / "in-the-way" / "run"
    elif how == "too long a path":
        path = directory / ("d" * 120)
    return path


@pytest.mark.slow("one refusal stands for all; each starts a training", kept=("world-writable",))
@pytest.mark.parametrize(
    "how",
    ["world-writable", "a symbolic link", "a file", "somebody else's", "not to be made", "too long a path"],
)
def test_where_the_directory_cannot_be_used_the_training_says_so_once_and_runs(
    runtime_dir: Path, how: str
) -> None:
    path = unusable(runtime_dir, how)
    # A forked child attaches by itself, and does not say it again.
    script = (
        PATIENT_SERVER + TRAIN + "import os\nif os.fork() == 0:\n    with llmtop.step(): pass\nelse: os.wait()\n"
    )
    with Training(script, LLMTOP_DIR=str(path)) as training:
        out, err = training.finish()
    assert out.startswith("trained 3\n")
    assert err.startswith(f"llmtop: not publishing: {path}")
    assert err.count("\n") == 1
    assert not list(path.glob("*")) if path.is_dir() else True
    with Training(TRAIN, LLMTOP_DIR=str(path), RANK="3", LOCAL_RANK="3") as other_rank:
        assert other_rank.finish() == ("trained 3\n", ""), "one line is enough for all ranks of a machine"


@pytest.mark.parametrize("how", ["world-writable", "a symbolic link", "a file", "somebody else's"])
def test_a_monitor_refuses_such_a_directory_with_one_sentence(runtime_dir: Path, how: str) -> None:
    path = unusable(runtime_dir, how)
    with pytest.raises(NotPossibleHere, match=str(path)) as caught:
        discover(path)
    assert "\n" not in str(caught.value)


def test_the_directory_is_made_for_its_owner_alone(runtime_dir: Path) -> None:
    path = runtime_dir / "run"
    with Training("import os\nos.umask(0)\n" + TRAIN + "input()", LLMTOP_DIR=str(path)) as training:
        training.hear("trained 3")
        socket_of(path, training.pid)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert [file.pid for file in discover(path)] == [training.pid]


@pytest.mark.parametrize(
    "breaking",
    [
        "sys.modules['msgspec'] = None",
        "sys.modules['nvtx'] = None",
        "import threading; threading.Thread.start = lambda self: (_ for _ in ()).throw(RuntimeError('no thread'))",
        "import resource, nvtx; from llmtop.instrument.serve import server; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
        "import socket; del socket.socket",
        "import os; del os.eventfd",
    ],
)
def test_whatever_is_missing_the_training_runs_in_silence(runtime_dir: Path, breaking: str) -> None:
    with Training(f"import sys\n{breaking}\n{TRAIN}") as training:
        assert training.finish() == ("trained 3\n", "")
    assert sockets(runtime_dir) == []


def test_off_means_off(runtime_dir: Path) -> None:
    script = TRAIN + "print(sorted({'msgspec', 'nvtx'} & set(sys.modules)))"
    with Training(script, LLMTOP_OFF="1") as training:
        assert training.finish() == ("trained 0\n[]\n", "")
    assert sockets(runtime_dir) == []
