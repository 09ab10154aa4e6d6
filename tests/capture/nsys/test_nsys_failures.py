"""Each known way in which nsys fails, told in one sentence that says what was kept and what to do."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest

from llmtop.capture import capabilities
from llmtop.capture import take as run
from llmtop.capture.base.job import Cancelled, Plan, Progress, Target
from llmtop.capture.base.lock import running_captures
from llmtop.capture.engines import ENGINES
from llmtop.capture.nsys import collection, lost_records
from llmtop.errors import NotPossibleHere
from llmtop.nsys_cli import export
from llmtop.nsys_cli import tool as nsys
from llmtop.protocol.wire import Hello
from llmtop.system import procfs
from tests.capture.conftest import Start, Training
from tests.support.installed import needs
from tests.support.processes import wait_for

FAKE = Path(__file__).with_name("fake_nsys.py")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the nsys of this process the failing one; returns where it keeps its state."""
    folder = tmp_path / "fake"
    folder.mkdir()
    program = folder / "nsys"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("LLMTOP_NSYS", str(program))
    monkeypatch.setenv("FAKE_NSYS_DIR", str(folder))
    monkeypatch.setattr(collection, "START_SECONDS", 60.0)
    monkeypatch.setattr(collection, "STOP_SECONDS", 60.0)
    return folder


def fails(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Make that nsys fail so; one that hangs is given up soon, and goes on when there is a file "go on"."""
    monkeypatch.setenv("FAKE_NSYS", how)
    if how == "start hangs":
        monkeypatch.setattr(collection, "START_SECONDS", 1.5)
    elif how == "stop hangs":
        monkeypatch.setattr(collection, "STOP_SECONDS", 1.0)


@pytest.fixture
def training(start: Start, state: Path) -> Training:
    return start("--step-ms", "10", NSYS_PROFILING_SESSION_ID="4711")


def with_torch(start: Start) -> Training:
    """Only of PyTorch is it known when the GPU is idle."""
    needs("torch")
    return start("--torch", "--step-ms", "10", NSYS_PROFILING_SESSION_ID="4711")


def take(training: Training, captures: Path, **more: object) -> run.Result:
    plan = Plan("nsys", (Target(training.pid),), captures, seconds=0.1)
    return run.take(plan, **more)  # type: ignore[arg-type]


@pytest.mark.slow(
    "a capture by the stand-in; test_five_steps_are_captured_and_the_report_is_cut_to_five has a real nsys"
)
def test_nothing_fails(training: Training, captures: Path) -> None:
    assert take(training, captures).info.state == "done"


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("start crashes", r"nsys start failed with 139: .*; the training continues; to do it by hand: \S+ start"),
        ("start refuses", r"nsys start failed with 1: Configuring is not allowed in this state\.; the training"),
        pytest.param(
            "start hangs",
            r"nsys start has not replied for 2 s; the training continues",
            marks=pytest.mark.slow("waits until nsys has hung for its limit"),
        ),
        ("stop crashes", r"nsys stop ended with 139 and left no report: .*check with: \S+ sessions list"),
        ("stop hangs", r"nsys stop \(pid \d+\) has not finished for 1 s and continues alone.*stop --session=4711"),
        (
            "stop leaves raw data",
            r"Importer error: no importer.*kept at \S+/trace\.qdstrm; to make the report by hand.*QdstrmImporter",
        ),
    ],
)
def test_a_failure_is_one_sentence_and_the_training_runs_on(
    training: Training, captures: Path, state: Path, monkeypatch: pytest.MonkeyPatch, how: str, sentence: str
) -> None:
    fails(monkeypatch, how)
    with pytest.raises(NotPossibleHere, match=sentence) as refused:
        take(training, captures)
    (state / "go on").touch()
    assert "\n" not in str(refused.value)
    training.wait_for_steps(3)
    assert running_captures() == [], "the lock must be free again"


@pytest.mark.slow("what a real nsys does late; test_a_failure_is_one_sentence_and_the_training_runs_on has some")
@pytest.mark.parametrize("works_at", [1, 3, 4])
def test_raw_data_is_imported_again(
    training: Training, captures: Path, state: Path, monkeypatch: pytest.MonkeyPatch, works_at: int
) -> None:
    monkeypatch.setenv("FAKE_NSYS", "stop leaves raw data")
    monkeypatch.setattr(export, "IMPORT_PAUSES", (0.0, 0.1, 0.1))
    importer, tries = state / "host-linux-x64" / "QdstrmImporter", state / "tries"
    importer.parent.mkdir()
    importer.write_text(
        f'#!/bin/sh\necho report > "${{2%.qdstrm}}.nsys-rep"; echo try >> {tries}\n'
        f"[ $(wc -l < {tries}) -ge {works_at} ] || {{ echo 'the data is odd'; exit 3; }}\n"
    )
    importer.chmod(0o755)
    if works_at <= len(export.IMPORT_PAUSES):
        result = take(training, captures)
        assert result.info.state == "done"
        assert not list(result.folder.glob("*.qdstrm"))
    else:
        with pytest.raises(NotPossibleHere, match=r"no importer; once more: the data is odd\); the raw data"):
            take(training, captures)
        (folder,) = captures.iterdir()
        assert (folder / "trace.qdstrm").read_bytes() == b"raw"
        assert not (folder / "trace.nsys-rep").exists()
    training.wait_for_steps(3)


@pytest.mark.slow("waits until nsys has hung for its limit")
@pytest.mark.parametrize(
    "how",
    [
        pytest.param("start hangs", marks=pytest.mark.slow("waits until a start has hung for its limit")),
        "stop hangs",
    ],
)
def test_what_nsys_does_late_is_undone(
    training: Training, captures: Path, state: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    fails(monkeypatch, how)
    with pytest.raises(NotPossibleHere):
        take(training, captures)
    (state / "go on").touch()
    wait_for((state / "stopped").exists, what="the holder to stop the late collection")
    assert not (state / "collecting").exists()


@pytest.mark.slow(
    "one failure stands for all; each is a capture",
    kept=(r"export on a full disk-nsys export failed \\(database or disk is full\\); to do it by hand",),
)
@pytest.mark.parametrize(
    ("how", "note"),
    [
        (
            "export writes nothing",
            r"nsys export failed \(it wrote no file\); to do it by hand: \S+ export "
            "--type sqlite",
        ),
        ("export on a full disk", r"nsys export failed \(database or disk is full\); to do it by hand"),
        ("export is cut off", r"nsys export failed \((database disk image is malformed|its file .*)\)"),
        ("report is newer", r"nsys export failed \(The report was made by a newer version of Nsight Systems\.\)"),
    ],
)
def test_a_report_that_cannot_be_exported_is_kept_and_the_way_out_told(
    training: Training, captures: Path, monkeypatch: pytest.MonkeyPatch, how: str, note: str
) -> None:
    monkeypatch.setenv("FAKE_NSYS", how)
    result = take(training, captures)
    assert result.trace == result.folder / "trace.nsys-rep"
    assert result.trace.is_file()
    assert not (result.folder / "trace.sqlite").exists()
    assert [one for one in result.info.notes if re.search(note, one)], result.info.notes


@pytest.mark.slow("what a real nsys does late; test_a_failure_is_one_sentence_and_the_training_runs_on has some")
def test_after_a_capture_that_lost_kernels_nsys_is_not_let_near_the_training_again(
    training: Training, captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NSYS", "loses kernels")
    monkeypatch.setenv("FAKE_NSYS_PID", str(training.pid))
    result = take(training, captures)
    assert [note for note in result.info.notes if "did not record 50 of the 100 kernels" in note], (
        result.info.notes
    )
    monkeypatch.setenv("FAKE_NSYS", "")
    with pytest.raises(
        NotPossibleHere,
        match=r"lacked kernels, and another one could crash.*restart the "
        "training",
    ):
        take(training, captures)
    assert running_captures() == []
    assert len(list(captures.iterdir())) == 1
    (ability,) = [one for one in capabilities.list_abilities(Target(training.pid)) if one.engine == "nsys"]
    assert not ability.is_supported
    assert ability.reason == lost_records.REFUSAL
    assert ability.command.startswith("llmtop run --nsys -- ")
    training.wait_for_steps(3)


@pytest.mark.slow("what a real nsys does late; test_a_failure_is_one_sentence_and_the_training_runs_on has some")
@pytest.mark.parametrize(("version", "whose"), [("2024.5.1.1-1", "its own"), ("2025.3.1.90-1", "another's")])
def test_a_loss_by_another_version_or_of_another_training_bars_nothing(
    training: Training, captures: Path, monkeypatch: pytest.MonkeyPatch, version: str, whose: str
) -> None:
    monkeypatch.setenv("FAKE_NSYS", "loses kernels")
    monkeypatch.setenv("FAKE_NSYS_VERSION", version)
    monkeypatch.setenv("FAKE_NSYS_PID", str(training.pid if whose == "its own" else 99))
    assert any("did not record 50" in note for note in take(training, captures).info.notes)
    assert not lost_records.has_loss("4711")


@pytest.mark.slow("what a real nsys does late; test_a_failure_is_one_sentence_and_the_training_runs_on has some")
def test_a_loss_is_of_one_training_whatever_number_its_session_has(
    training: Training, start: Start, captures: Path
) -> None:
    lost_records.note_loss("4711", [training.pid])
    assert lost_records.has_loss("4711")
    training.end()
    assert not lost_records.has_loss("4711")
    again = start("--step-ms", "10", NSYS_PROFILING_SESSION_ID="4711")
    assert take(again, captures).info.state == "done"


@pytest.mark.slow("test_a_training_on_a_gpu_pauses_for_the_versions_that_harm_it finds the same fault")
@pytest.mark.parametrize(
    ("version", "gpu", "attached", "said"),
    [
        ("2025.3.1.90-1", True, True, nsys.PAUSE_COST),
        ("2026.1.1.1-1", True, True, nsys.PAUSE_COST),
        ("2025.3.1.90-1", True, False, "nsys 2025.3.1 has crashed trainings on GPUs"),
        ("2025.3.1.90-1", False, True, ""),
        ("2025.1.1.1-1", True, True, ""),
    ],
)
def test_what_a_version_does_to_trainings_is_said_before_the_key_is_pressed(
    start: Start,
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    gpu: bool,
    attached: bool,
    said: str,
) -> None:
    training = with_torch(start) if gpu and attached else start(NSYS_PROFILING_SESSION_ID="4711")
    monkeypatch.setenv("FAKE_NSYS_VERSION", version)
    monkeypatch.setattr(procfs, "uses_gpu", lambda pid: gpu)
    target = training.wait_attached() if attached else Target(training.pid)
    (ability,) = [one for one in capabilities.list_abilities(target) if one.engine == "nsys"]
    assert ability.is_supported
    assert ability.reason == ENGINES["nsys"].description
    assert ability.warning.startswith(said)
    assert bool(ability.warning) == bool(said)


@pytest.mark.slow("a version that harms; each is a capture", kept=("2025.3.1.90-1-True-options0-2",))
@pytest.mark.parametrize(
    ("version", "gpu", "options", "pauses"),
    [
        ("2025.3.1.90-1", True, set(), 2),
        ("2025.3.1.90-1", True, {"no-pause"}, 0),
        ("2025.3.1.90-1", False, set(), 0),
        ("2024.1.1.1-1", True, set(), 0),
        ("2024.1.1.1-1", False, {"pause"}, 2),
    ],
)
def test_a_training_on_a_gpu_pauses_for_the_versions_that_harm_it(
    start: Start,
    state: Path,
    captures: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    gpu: bool,
    options: set[str],
    pauses: int,
) -> None:
    training = with_torch(start) if gpu else start("--step-ms", "10", NSYS_PROFILING_SESSION_ID="4711")
    monkeypatch.setenv("FAKE_NSYS_VERSION", version)
    monkeypatch.setattr(procfs, "uses_gpu", lambda pid: gpu)
    target = training.wait_attached()
    result = run.take(Plan("nsys", (target,), captures, steps=3, options=frozenset(options)))
    assert len(result.info.paused_seconds) == pauses
    assert ("the training waited" in result.slowest_step_text) == bool(pauses)
    training.wait_for_steps(20)


def test_torch_s_profiler_is_not_offered_beside_nsys_on_a_gpu(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(training.pid, hello=Hello(engines=["torch.profiler"], torch="2.11"), socket=Path("/"))

    def offered() -> dict[str, capabilities.Ability]:
        return {one.engine: one for one in capabilities.list_abilities(target)}

    assert offered()["torch.profiler"].is_supported, "without a GPU there is no CUPTI to share"
    monkeypatch.setattr(procfs, "uses_gpu", lambda pid: True)
    refused = offered()["torch.profiler"]
    assert not refused.is_supported
    assert (
        refused.reason
        == "the process runs under nsys, and only one CUDA profiler can trace it at a time: capture with nsys"
    )
    assert refused.command.startswith("llmtop run -- ")


@pytest.mark.slow("what a real nsys does late; test_a_failure_is_one_sentence_and_the_training_runs_on has some")
def test_a_report_that_went_elsewhere_is_brought_home(
    training: Training, captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NSYS", "report elsewhere")
    assert (take(training, captures).folder / "trace.nsys-rep").read_bytes() == b"report"


@pytest.mark.slow("the longest stage; each is a capture", kept=("record",))
@pytest.mark.parametrize("stage", ["start", "record", "stop", "export"])
def test_a_cancel_at_any_stage_leaves_nothing(training: Training, captures: Path, state: Path, stage: str) -> None:
    cancelled = threading.Event()

    def cancel(progress: Progress) -> None:
        if progress.stage == stage:
            cancelled.set()

    with pytest.raises(Cancelled):
        take(training, captures, on_progress=cancel, cancelled=cancelled)
    assert list(captures.iterdir()) == []
    assert not (state / "collecting").exists()
    training.wait_for_steps(3)


def test_an_old_nsys_is_refused_with_the_version_that_is_needed(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NSYS_VERSION", "2022.4.2.1-df9881f")
    with pytest.raises(NotPossibleHere, match=r"nsys 2022\.4\.2 at \S+ is too old, 2023\.4 is needed"):
        nsys.find_nsys()


def test_a_missing_nsys_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLMTOP_NSYS", str(tmp_path / "none"))
    with pytest.raises(NotPossibleHere, match="LLMTOP_NSYS"):
        nsys.find_nsys()


def test_an_ended_session_says_how_to_start_again(start: Start, state: Path, captures: Path) -> None:
    training = start(NSYS_PROFILING_SESSION_ID="999")
    with pytest.raises(NotPossibleHere, match=r"session 999 of process \d+ has ended.*llmtop run --nsys"):
        take(training, captures)


def test_a_training_outside_nsys_says_how_to_start_again(start: Start, state: Path, captures: Path) -> None:
    with pytest.raises(NotPossibleHere, match="cannot attach; restart it with: llmtop run --nsys"):
        take(start(), captures)
