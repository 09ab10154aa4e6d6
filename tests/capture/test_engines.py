"""Engines are asked, not compared: outside its own folder nobody looks at a name, and one more is one line."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from llmtop.capture import capabilities, targets
from llmtop.capture.base.engine import Refusal
from llmtop.capture.base.folder import Info
from llmtop.capture.base.job import Target
from llmtop.capture.engines import ENGINES, engine_named
from llmtop.capture.take import Result
from llmtop.cli.capture.command import capture
from llmtop.cli.doctor.command import doctor
from llmtop.cli.report.command import compare, report
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.instrument.control import self_capture
from llmtop.instrument.control.recording import Recording
from llmtop.instrument.control.recordings import RECORDINGS
from llmtop.instrument.record.capture_holds import CaptureHolds
from llmtop.protocol import wire
from tests.capture.conftest import Start
from tests.support.made_up_engine import MadeUpEngine
from tests.support.processes import REPOSITORY, environment, wait_for
from tui.capture.form import ENGINE, OPTIONS, CapturableProcess, Form

WORDS = {"memory", "perf"}
"""Names of engines that are words of other things too: these count where the line speaks of an engine."""


def comparisons(source: str) -> Iterator[int]:
    """The lines that compare something with an engine's name, or have a table or list of several engines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            names = {name for side in (node.left, *node.comparators) for name in _names(side)}
        elif isinstance(node, ast.match_case):
            names = {name for part in ast.walk(node.pattern) for name in _names(getattr(part, "value", None))}
        elif isinstance(node, ast.Dict | ast.Tuple | ast.List | ast.Set):
            names = _names(node)
            # One name beside a word that is also a program's is a list of programs.
            names = names if len(names - {"perf"}) > 1 else set()
        else:
            continue
        if names - WORDS or (names and "engine" in ast.unparse(node).lower()):
            yield getattr(node, "lineno", 0) or node.pattern.lineno  # type: ignore[union-attr]


def _names(node: ast.AST | None) -> set[str]:
    """The names of engines in a constant, or in a display of constants."""
    parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [node])
    return {part.value for part in parts if isinstance(part, ast.Constant) and part.value in ENGINES}


@pytest.mark.shape
def test_no_engine_s_name_is_looked_at_outside_its_own_folder() -> None:
    homes = {Path(inspect.getfile(type(engine))).parent for engine in ENGINES.values()}
    files = [path for top in ("llmtop", "collectors", "tui") for path in (REPOSITORY / top).rglob("*.py")]
    assert len(files) > 200
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}"
        for path in files
        if not homes & set(path.parents)
        for line in comparisons(path.read_text())
    ]
    assert found == []


@pytest.mark.shape
@pytest.mark.parametrize(
    "line",
    [
        'if plan.engine == "nsys": pass',
        'x = "kineto" != self.engine',
        'x = engine in ("torch.profiler", "memory")',
        'x = request.engine == "memory"',
        'x = {"nsys": check, "memory": check}',
        'REPORTING = ("nsys", "kineto")',
        'match name:\n    case "py-spy":\n        pass',
    ],
)
def test_a_comparison_is_found(line: str) -> None:
    assert list(comparisons(line))


@pytest.mark.shape
@pytest.mark.parametrize(
    "line", ['x = hero.key != "memory"', 'Check(name="nsys")', 'x = ("memory", "size")', 'named("nsys")']
)
def test_what_is_no_comparison_is_left_alone(line: str) -> None:
    assert not list(comparisons(line))


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUpEngine:
    """An engine, and the one line that registers it."""
    engine = MadeUpEngine()
    monkeypatch.setitem(ENGINES, engine.name, engine)
    return engine


def test_an_engine_more_is_offered_beside_the_others(made_up: MadeUpEngine) -> None:
    mine = Target(os.getpid())
    *others, last = capabilities.list_abilities(mine)
    assert [ability.engine for ability in others] == [name for name in ENGINES if name != made_up.name]
    assert (last.engine, last.is_supported, last.reason) == (made_up.name, True, made_up.description)
    assert last.warning == "nothing of it is true"
    made_up.refused = Refusal("it is tired", "sleep 10")
    with pytest.raises(NotPossibleHere, match=r"made-up cannot capture .*: it is tired; to change that: sleep 10"):
        capabilities.require(mine, made_up.name)


def test_it_is_known_by_its_name_only_once_it_is_registered() -> None:
    with pytest.raises(
        UnusableInput, match=r"no engine 'made-up'; there are: nsys, xla\.profiler, torch\.profiler, jax\.profiler"
    ):
        engine_named("made-up")


def test_the_command_line_takes_a_capture_with_it(
    made_up: MadeUpEngine, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = start()
    target = training.wait_attached()
    asked = ["--pid", str(target.pid), "--engine", made_up.name, "-o", "loudly", "--steps", "2", "--json"]
    done = CliRunner().invoke(capture, [*asked, "--out", str(tmp_path)], standalone_mode=False)
    assert done.exception is None, done.output
    facts = json.loads(done.stdout)
    assert facts["report"] == {"says": "HELLO"}
    assert facts["capture"]["engine"] == made_up.name
    assert facts["capture"]["steps"] >= 2
    assert (Path(facts["folder"]) / "hello.txt").read_text() == "HELLO"
    assert "made-up: nothing of it is true" in done.stderr
    assert "loudly: some ink" in done.stderr
    training.wait_for_steps(2)
    _is_read_again(facts["folder"])


def _is_read_again(folder: str) -> None:
    """Its report, in a form of its own, is shown as it is, and compared with nothing."""
    told = [CliRunner().invoke(report, [folder, *more], standalone_mode=False) for more in ([], ["--json"])]
    assert [one.exception for one in told] == [None, None]
    assert told[0].stdout == "# HELLO from 1\n"
    assert json.loads(told[1].stdout) == {"says": "HELLO"}
    for command, words in ((compare, [folder, folder]), (report, [folder, "--steps", "2"])):
        refused = CliRunner().invoke(command, words, standalone_mode=False)
        assert isinstance(refused.exception, UnusableInput)
        assert str(refused.exception).endswith(f"llmtop report {folder} shows it")


def test_the_doctor_asks_it_what_it_needs_and_what_it_left_behind(made_up: MadeUpEngine) -> None:
    facts = json.loads(CliRunner().invoke(doctor, ["--json"], standalone_mode=False).output)
    assert {"name": "ink", "ok": False, "says": "the pen is dry", "command": "buy ink"} in facts["checks"]
    assert "there is a stain on the desk" in facts["notes"]
    names = [check["name"] for check in facts["checks"]]
    assert names[-2:] == ["sockets", "disk"], "and of the others nothing is lost"
    assert {"driver", "nsys", "CPU sampling", "GPU metrics", "py-spy", "ptrace", "ink"} <= set(names)


def test_what_was_started_for_it_is_found_unattached_and_what_only_serves_a_training_is_not(
    made_up: MadeUpEngine, monkeypatch: pytest.MonkeyPatch, runtime_dir: Path
) -> None:
    mine, parent = os.getpid(), os.getppid()
    assert Target(mine) not in targets.list_unattached()
    made_up.started = {mine: True, parent: False, 4_000_000_000: True}
    assert Target(mine) in targets.list_unattached()
    found = {target.pid for target in targets.list_unattached()}
    assert not {parent, 4_000_000_000} & found
    assert mine not in {target.pid for target in targets.list_unattached(frozenset({mine}))}, "it is attached"
    another = MadeUpEngine()
    monkeypatch.setitem(ENGINES, "another", another)
    another.started = {mine: False, parent: True}
    assert not {mine, parent} & {target.pid for target in targets.list_unattached()}


def test_of_what_nsys_launched_python_is_found(start: Start, runtime_dir: Path) -> None:
    training = start("--plain", NSYS_PROFILING_SESSION_ID="4711")
    other = subprocess.Popen(["sleep", "60"], env=environment(NSYS_PROFILING_SESSION_ID="4711"))
    try:
        assert wait_for(lambda: Target(training.pid) in targets.list_unattached())
        assert ENGINES["nsys"].find_unattached([training.pid, other.pid, os.getpid()]) == {training.pid: True}
    finally:
        other.kill()
        other.wait(100)


def test_its_options_are_listed_and_it_stands_in_the_help(made_up: MadeUpEngine) -> None:
    options = CliRunner().invoke(capture, ["--option", "help"], standalone_mode=False).output
    assert "loudly  (-e made-up)\n    capital letters\n    cost: some ink" in options
    text = " ".join(CliRunner().invoke(capture, ["--help"]).output.split())
    assert "nsys, xla.profiler, torch.profiler, jax.profiler, kineto, py-spy, perf, memory or made-up." in text


def test_the_dialog_asks_it_like_any_other(made_up: MadeUpEngine) -> None:
    alone = CapturableProcess(Target(os.getpid()), capabilities.list_abilities(Target(os.getpid())))
    form = Form((alone,))
    assert form.engine == "py-spy"
    assert form.plan().steps is None, "a process that tells no steps"  # type: ignore[union-attr]
    form.at = form.fields().index((ENGINE, ""))
    while form.engine != made_up.name:
        form.change(1)
    assert (5, None) in form.lengths(), "it counts them itself"
    form.at = form.fields().index((OPTIONS, "loudly"))
    form.change(1)
    plan = form.plan()
    assert plan is not None
    assert (plan.engine, plan.options) == (made_up.name, {"loudly"})


class _OptionsRecording(Recording):
    """What a training records of itself for a made-up engine: the options that it was given."""

    engine = "made-up"
    refused = ""

    @classmethod
    def is_available(cls, torch: Any) -> bool:
        return hasattr(torch, "made_up")

    @classmethod
    def refusal(cls) -> str:
        return cls.refused

    def __init__(self, recorder: object, steps: int, options: dict[str, bool]) -> None:
        self._text = f"{steps} steps {options}"

    def start(self) -> None:
        """Nothing has to be begun."""

    def stop(self) -> None:
        """Nothing has to be ended."""

    def abandon(self) -> None:
        """Nothing has to be ended."""

    def write(self, path: str) -> None:
        Path(path).write_text(self._text)


def test_a_training_records_for_an_engine_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(RECORDINGS, _OptionsRecording.engine, _OptionsRecording)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(profiler=None))
    assert self_capture.engines() == ["torch.profiler"]
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(profiler=None, made_up=1))
    assert self_capture.engines() == ["torch.profiler", "made-up"]
    recorder, said = SimpleNamespace(boundary_hook=None, op_ranges=None, holds=CaptureHolds()), []
    ended = threading.Event()

    def tell(state: Any) -> None:
        said.append(state)
        if state.state in ("done", "failed"):
            ended.set()

    request = wire.CaptureRequest(
        id="a", engine="made-up", path=str(tmp_path / "it"), steps=2, options={"x": True}
    )
    monkeypatch.setattr(_OptionsRecording, "refused", "it is busy")
    self_capture.handle(request, recorder, tell)  # type: ignore[arg-type]
    assert [(state.state, state.detail) for state in said] == [("failed", "it is busy")]
    monkeypatch.setattr(_OptionsRecording, "refused", "")
    ended.clear()
    self_capture.handle(request, recorder, tell)  # type: ignore[arg-type]
    for step in range(3):
        recorder.boundary_hook(step)
    assert wait_for(lambda: ended.is_set() or None, what="the file")
    assert said[-1].state == "done", said[-1]
    assert (tmp_path / "it").read_text() == "2 steps {'x': True}"


@pytest.mark.parametrize(
    ("engine", "trace", "line"),
    [
        ("nsys", "trace.sqlite", "nsys-ui x-y/trace.nsys-rep"),
        ("kineto", "rank0.json", "open https://ui.perfetto.dev and drop x-y/rank0.json there"),
        ("memory", None, "open https://pytorch.org/memory_viz and drop /data/x-y there"),
    ],
)
def test_how_to_look_at_a_capture_is_the_engine_s_to_say(engine: str, trace: str | None, line: str) -> None:
    folder = Path("/data/x-y")
    result = Result(folder, Info(engine=engine, started_at=1.0), 1, folder / trace if trace else None)
    assert result.open_command == line


def test_asking_the_engines_loads_nothing_that_only_a_capture_needs() -> None:
    code = (
        "import os, sys; from llmtop.capture import capabilities; from llmtop.capture.base.job import Target; "
        "capabilities.list_abilities(Target(os.getpid())); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True, timeout=240
    )
    loaded = set(done.stdout.split())
    assert "llmtop.capture.nsys.engine" in loaded
    assert not {"numpy", "sqlite3", "torch", "llmtop.analysis", "llmtop.capture.nsys.window"} & loaded


def test_the_folder_of_a_memory_capture_has_a_report_beside_the_snapshots(tmp_path: Path) -> None:
    from llmtop.capture.in_process.memory import memory_report
    from llmtop.document.markdown import write_markdown
    from tests.support.memory_allocator import Allocator, Training

    for number in range(2):
        allocator = Allocator()
        Training(allocator).steps(3)
        allocator.write(tmp_path / f"rank{number}.memory.pickle")
    (tmp_path / "weights.pickle").write_bytes(b"")
    document, data = memory_report(tmp_path)
    assert "| model.py:31 forward |" in write_markdown(document)
    assert msgspec.json.decode(msgspec.json.encode(data))["devices"][1]["source"].endswith("rank1.memory.pickle")
