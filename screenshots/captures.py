"""Moments of a capture for pictures: the dialog, one under way, its result from a recorded H200, and stacks."""

from __future__ import annotations

import gzip
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from llmtop.capture.base import folder
from llmtop.capture.base.folder import Info, StepTimes
from llmtop.capture.base.job import Plan, Progress, Target
from llmtop.capture.capabilities import Ability
from llmtop.capture.engines import ENGINES
from llmtop.capture.py_spy.stacks import Frame, ThreadStack
from llmtop.capture.take import Result
from llmtop.model.snapshot import Snapshot
from llmtop.nsys_cli import tool as nsys
from llmtop.protocol.wire import Hello
from screenshots.scenes import START, scene
from tui.capture import session
from tui.capture.form import CapturableProcess

_RECORDED = Path(__file__).parents[1] / "tests" / "data" / "h200" / "nsys" / "launch_bound.sqlite.gz"
_COMMAND = "python train_gpt.py --batch 8 --sequence 2048"
_FOLDER = Path("/data/runs/gpt/llmtop-captures/20260528-142233-nsys")


def training() -> list[Snapshot]:
    """The machine beside it."""
    return scene(gpus=2, ranks=2)


def _targets() -> tuple[Target, ...]:
    ranks = [rank for rank in training()[-1].ranks if rank.rank is not None]
    return tuple(
        Target(rank.pid, rank.rank, Hello(command=_COMMAND, engines=["torch.profiler", "memory"], torch="2.11"))
        for rank in ranks
    )


def _prospects() -> tuple[CapturableProcess, ...]:
    refused = {"kineto": ("the process was not started for Kineto captures", f"llmtop run --kineto -- {_COMMAND}")}
    abilities = tuple(
        Ability(
            name,
            name not in refused,
            *refused.get(name, (engine.description, "")),
            warning=nsys.PAUSE_COST if name == "nsys" else "",
            pauses=name == "nsys",
        )
        for name, engine in ENGINES.items()
    )
    return tuple(CapturableProcess(target, abilities) for target in _targets())


def dialog(app: Any) -> None:
    """Let the dialog find the ranks of the scene."""
    import tui.screens.capture as screen

    screen.capturable_processes = _prospects  # type: ignore[attr-defined]
    folder.PARENT = str(_FOLDER.parent)
    folder.check_disk = lambda _parent: 73 << 30  # the disk of this machine is none of the picture's
    del app


def under_way(app: Any) -> None:
    """An nsys capture that records."""
    now = session.capture_of(app, lambda: None)
    now.state, now.plan = "running", Plan("nsys", _targets(), _FOLDER.parent, steps=5)
    now.stages = {"prepare": 0.0, "start": 0.15, "record": 0.31}
    now.progress = Progress("record", "", 3, 5, 0.52)


def finished(app: Any) -> None:
    """The same, done, with the report of a recorded capture."""
    from llmtop.analysis.analyze import analyze

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "trace.sqlite"
        copy.write_bytes(gzip.decompress(_RECORDED.read_bytes()))
        report = replace(analyze(copy, steps=5), source=str(_FOLDER / "trace.sqlite"))
    now = session.capture_of(app, lambda: None)
    info = Info(
        engine="nsys",
        state="done",
        started_at=START,
        steps=6,
        paused_seconds=[0.168, 0.503],
        step_seconds=StepTimes(before_p50=0.0571, slowest_during=0.6277, after_p50=0.0570),
    )
    os.environ["USER"], socket.gethostname = "mira", lambda: "gpu-node-07"  # not those of this machine
    now.result = Result(_FOLDER, info, 5_130_000, _FOLDER / "trace.sqlite", report)
    now.state = "done"
    if now.watching is not None:
        now.watching()


def stacks(app: Any) -> None:
    """What py-spy says of a rank that waits for its loader."""
    import tui.screens.stacks as screen

    main = (
        ("Condition.wait", "/usr/lib/python3.12/threading.py", 359),
        ("Queue.get", "/usr/lib/python3.12/queue.py", 180),
        (
            "_MultiProcessingDataLoaderIter._get_data",
            "/opt/venv/site-packages/torch/utils/data/dataloader.py",
            1299,
        ),
        (
            "_MultiProcessingDataLoaderIter._next_data",
            "/opt/venv/site-packages/torch/utils/data/dataloader.py",
            1462,
        ),
        ("_BaseDataLoaderIter.__next__", "/opt/venv/site-packages/torch/utils/data/dataloader.py", 741),
        ("train", "/home/ada/gpt/train_gpt.py", 118),
        ("main", "/home/ada/gpt/train_gpt.py", 164),
        ("<module>", "/home/ada/gpt/train_gpt.py", 171),
    )
    threads = (
        ThreadStack("MainThread", 41200, False, False, tuple(Frame(*frame) for frame in main)),
        ThreadStack("llmtop-server", 41231, False, False, ()),
        ThreadStack("pin memory", 41244, False, False, ()),
    )
    screen.py_spy = type("Canned", (), {"dump": staticmethod(lambda pid: threads)})  # type: ignore[attr-defined]
    del app
