"""Which engine can, why not the others, and the one command that would change it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmtop.capture import capabilities, targets
from llmtop.capture.base.job import Target
from llmtop.capture.capabilities import Ability
from llmtop.capture.engines import ENGINES, check_options, engine_named
from llmtop.capture.nsys import permissions
from llmtop.capture.perf import program
from llmtop.capture.py_spy import ptrace_permission
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.nsys_cli import tool as nsys
from llmtop.protocol.wire import Hello
from llmtop.system import procfs
from tests.capture.conftest import Start


def by_engine(target: Target) -> dict[str, Ability]:
    return {ability.engine: ability for ability in capabilities.list_abilities(target)}


def test_each_no_has_a_reason_and_the_command_that_would_change_it(start: Start) -> None:
    target = start("--plain").pid
    found = by_engine(Target(target))
    in_process = ["xla.profiler", "torch.profiler", "jax.profiler"]
    assert list(found) == ["nsys", *in_process, "kineto", "py-spy", "perf", "memory"]
    for engine, flags in (("nsys", ""), ("torch.profiler", ""), ("kineto", "")):
        assert not found[engine].is_supported
        assert found[engine].reason
        assert found[engine].command.startswith("llmtop run ") or engine == "nsys", flags
    assert found["py-spy"].is_supported


def test_the_best_engine_is_the_first_that_can() -> None:
    can = {"nsys": False, "torch.profiler": True, "kineto": True, "py-spy": True, "memory": True}
    found = tuple(Ability(engine, yes, "") for engine, yes in can.items())
    assert capabilities.best_engine(found) == "torch.profiler"
    assert (
        capabilities.best_engine(tuple(Ability(one.engine, one.engine == "memory", "") for one in found)) is None
    )


def test_an_attached_training_without_torch_says_so(start: Start) -> None:
    found = by_engine(start().wait_attached())
    assert found["torch.profiler"].reason == "it has not imported torch"
    assert not found["torch.profiler"].is_supported


def test_asking_for_an_engine_that_cannot_is_refused_with_the_way_out(start: Start) -> None:
    target = start().wait_attached()
    with pytest.raises(
        NotPossibleHere, match=r"kineto cannot capture pid \d+: .*; to change that: llmtop run --kineto -- "
    ):
        capabilities.require(target, "kineto")
    assert capabilities.best_common_engine((target,)) == "py-spy"


def test_a_gone_process_can_be_captured_by_nothing() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait(100)
    assert {ability.reason for ability in capabilities.list_abilities(Target(gone.pid))} == {
        "the process has ended"
    }
    with pytest.raises(NotPossibleHere, match="no engine can capture"):
        capabilities.best_common_engine((Target(gone.pid),))


def test_capturable_is_the_names_of_those_that_can_and_is_remembered(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = start().wait_attached()
    can = ("py-spy",) if program.refusal() is not None else ("py-spy", "perf")
    assert capabilities.capturable_engines(target.pid, target.hello) == can

    def never(_target: Target) -> tuple[Ability, ...]:
        raise AssertionError("it must not be asked again so soon")

    monkeypatch.setattr(capabilities, "list_abilities", never)
    assert capabilities.capturable_engines(target.pid, target.hello) == can
    with pytest.raises(AssertionError):
        capabilities.capturable_engines(target.pid, Hello(engines=["torch.profiler"]))


@pytest.mark.parametrize(
    ("scope", "uid", "because", "command"),
    [
        (1, 0, "yama ptrace_scope is 1", "sudo sysctl kernel.yama.ptrace_scope=0"),
        (2, 0, "yama ptrace_scope is 2", "sudo llmtop"),
        (3, 0, "until the next boot", "reboot"),
        (None, 1234, "belongs to uid 1234", "sudo llmtop"),
    ],
)
def test_why_a_process_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, scope: int | None, uid: int, because: str, command: str
) -> None:
    monkeypatch.setattr(ptrace_permission.os, "geteuid", lambda: 0)
    monkeypatch.setattr(ptrace_permission, "yama_scope", lambda: scope)
    monkeypatch.setattr(procfs, "status", lambda pid: {"Uid": f"{uid} {uid} {uid} {uid}"})

    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ptrace_permission.os, "open", refused)
    refusal = ptrace_permission.refusal(1)
    assert refusal is not None
    assert because in refusal[0]
    assert command in refusal[1]


def test_in_a_container_the_capability_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptrace_permission, "yama_scope", lambda: None)
    monkeypatch.setattr(ptrace_permission, "is_in_container", lambda: True)
    monkeypatch.setattr(procfs, "status", lambda pid: {})

    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(ptrace_permission.os, "open", refused)
    assert ptrace_permission.refusal(1) == (
        "this container may not read other processes",
        "docker run --cap-add=SYS_PTRACE …",
    )


def test_what_belongs_to_root_is_refused_to_others_with_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_named("nsys")
    monkeypatch.setattr(permissions.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(procfs, "are_gpu_counters_restricted", lambda: True)
    monkeypatch.setattr(procfs, "perf_event_paranoid", lambda: 4)
    metrics, sampling = engine.option_refusal("gpu-metrics"), engine.option_refusal("cpu-sampling")
    assert metrics is not None
    assert "NVreg_RestrictProfilingToAdminUsers=0" in metrics[1]
    assert sampling is not None
    assert "perf_event_paranoid" in sampling[1]
    with pytest.raises(NotPossibleHere, match=r"cpu-sampling: .*; to change that: sudo sysctl"):
        check_options(engine, ["cpu-sampling"])
    monkeypatch.setattr(procfs, "are_gpu_counters_restricted", lambda: False)
    assert engine.option_refusal("gpu-metrics") is None


def test_every_option_says_what_it_costs() -> None:
    for option in [option for engine in ENGINES.values() for option in engine.options]:
        assert option.summary
        assert option.cost


@pytest.mark.parametrize(
    ("engine", "name", "sentence"),
    [
        ("nsys", "no-such", "llmtop capture --option help"),
        ("nsys", "osrt", "llmtop run --nsys --with osrt"),
        ("nsys", "stacks", "is an option of torch.profiler, not of nsys"),
        ("py-spy", "gpu-metrics", "is an option of nsys"),
    ],
)
def test_an_option_in_the_wrong_place_is_refused(engine: str, name: str, sentence: str) -> None:
    with pytest.raises(UnusableInput, match=sentence):
        check_options(engine_named(engine), [name])


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UnusableInput, match="exclude each other"):
        check_options(engine_named("nsys"), ["pause", "no-pause"])
    check_options(engine_named("nsys"), ["pause"])


def test_the_launch_line_has_what_was_asked_for() -> None:
    tool = nsys.Nsys(Path("/x/nsys"), (2023, 4, 4))
    line = nsys.launch_command("s-1", ["osrt", "cuda-graphs-whole"], tool)
    assert line[:3] == ["/x/nsys", "launch", "--session-new=s-1"]
    assert "--trace=cuda,nvtx,osrt" in line
    assert "--cuda-graph-trace=graph" in line
    assert "--cuda-graph-trace=node" in nsys.launch_command("s-1", [], tool)


@pytest.mark.parametrize(
    ("model", "knows", "trace"),
    [
        ("NVIDIA B200", True, "cuda-sw"),
        ("NVIDIA GB200", True, "cuda-sw"),
        ("NVIDIA GeForce RTX 5090", True, "cuda-sw"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", True, "cuda-sw"),
        ("NVIDIA B200", False, "cuda"),
        ("NVIDIA H200", True, "cuda"),
        ("NVIDIA A100-SXM4-80GB", True, "cuda"),
    ],
)
def test_blackwell_is_traced_in_software_where_nsys_can(
    monkeypatch: pytest.MonkeyPatch, model: str, knows: bool, trace: str
) -> None:
    monkeypatch.setattr(procfs, "gpu_models", lambda: (model,))
    monkeypatch.setattr(nsys.Nsys, "supports", lambda self, command, word: knows)
    assert f"--trace={trace},nvtx" in nsys.launch_command("s", [], nsys.Nsys(Path("/x/nsys"), (2025, 3, 1)))


def test_a_training_is_chosen_by_pid_by_rank_or_by_being_the_only_one(start: Start) -> None:
    zero = start(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0")
    assert [target.pid for target in targets.choose_targets()] == [zero.pid]
    one = start(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1")
    assert [target.pid for target in targets.choose_targets()] == [zero.pid, one.pid], (
        "ranks of one parent are one training"
    )
    assert [target.pid for target in targets.choose_targets(ranks=[1])] == [one.pid]
    assert [target.rank for target in targets.choose_targets(pids=[zero.pid])] == [0]
    with pytest.raises(UnusableInput, match="no attached process is rank 7; the attached ranks are: 0, 1"):
        targets.choose_targets(ranks=[7])
    other = start()
    with pytest.raises(UnusableInput, match=rf"several trainings run here: .*{other.pid}.*--pid or --rank"):
        targets.choose_targets()


def test_a_pid_that_is_not_there_is_refused() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(100)
    with pytest.raises(UnusableInput, match=f"there is no process {gone.pid}"):
        targets.choose_targets(pids=[gone.pid])


def test_a_descriptor_that_goes_while_they_are_looked_at_hides_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def listdir(folder: str) -> list[str]:
        return ["gone", "7"]

    def readlink(path: str) -> str:
        if path.endswith("gone"):
            raise FileNotFoundError(path)
        return "/dev/nvidia3"

    monkeypatch.setattr(os, "listdir", listdir)
    monkeypatch.setattr(os, "readlink", readlink)
    assert procfs.uses_gpu(1)
