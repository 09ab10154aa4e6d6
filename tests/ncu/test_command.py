"""llmtop kernel: what it prints, what it runs only when asked, and every reason for which it does not.

ncu is a stand-in that takes its options, runs the program and writes a recorded report; the driver is the stand-in
for NVML.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmtop.ncu import tool
from llmtop.ncu.command import LaunchFilter, launches_of
from llmtop.ncu.profile import KernelProfile
from llmtop.ncu.run import select_launch
from llmtop.report.model import KernelTime, LaunchOrder
from llmtop.report.per_step import PerStep
from llmtop.system import procfs
from tests.ncu.conftest import Llmtop
from tests.support import nvml_stub
from tests.support.ncu_reports import GEMM, StandInNcu
from tests.support.nvml_stub import GIB, Scenario
from tests.support.processes import environment, wait_for

SAYS_WHO = [sys.executable, "-c", "import os; print('pid', os.getpid())"]


def test_the_command_is_printed_and_nothing_is_run(capture: Path, llmtop: Llmtop, ncu: StandInNcu) -> None:
    done = llmtop("kernel", capture)
    assert done.returncode == 0, done.stderr
    assert (
        "ncu --set full --clock-control none --target-processes all --kernel-name-base function "
        f"--kernel-name 'regex:^{GEMM}$' --launch-skip 6 --launch-count 2 --kill yes -f -o ncu-{GEMM} "
        "true --steps 9"
    ) in done.stdout, "every second launch of that name is the long one"
    assert "launches 7 to 8 of" in done.stdout
    assert not ncu.was_run


def test_the_printed_facts_as_json(capture: Path, llmtop: Llmtop) -> None:
    found = json.loads(llmtop("kernel", capture, "--json", "--", "python", "a b.py").stdout)
    (kernel,) = found["kernels"]
    assert kernel["kernel"] == GEMM
    assert kernel["skips_warm_up"] is True
    assert kernel["command"].endswith("python 'a b.py'")


def test_a_run_says_what_it_does_and_reads_what_was_written(
    capture: Path, llmtop: Llmtop, ncu: StandInNcu
) -> None:
    done = llmtop("kernel", capture, "--run", "--yes", "--", *SAYS_WHO)
    assert done.returncode == 0, done.stderr
    before, _, after = done.stderr.partition("written: ")
    assert "runs the command once more, from its beginning" in before
    assert "It writes what it always writes" in before
    assert str(capture) in before
    assert f"ncu-{GEMM}.ncu-rep" in after
    assert f"{GEMM}: measured launch 1 of the 1 in the file, 91.8 µs under ncu" in " ".join(done.stdout.split())
    assert "Limited by compute (tensor)" in done.stdout
    options, words = ncu.called_with
    assert options["--clock-control"] == "none"
    assert options["--target-processes"] == "all"
    assert words == SAYS_WHO
    assert "pid " in (capture / f"ncu-{GEMM}.log").read_text(), "what the command said is kept"
    assert f"measured before: llmtop kernel {capture}" in llmtop("kernel", capture).stdout


@pytest.mark.slow(
    "looks for used GPUs for seconds; test_the_command_is_printed_and_nothing_is_run has no run either"
)
def test_without_a_yes_nothing_is_run(capture: Path, llmtop: Llmtop, ncu: StandInNcu) -> None:
    done = llmtop("kernel", capture, "--run")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert not ncu.was_run


@pytest.mark.slow("a run of its own; test_a_run_says_what_it_does_and_reads_what_was_written has one")
@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("permission", ["ERR_NVGPUCTRPERM", "sudo", "NVreg_RestrictProfilingToAdminUsers=0", "SYS_ADMIN"]),
        ("nothing", ["found nothing to profile for launches 7 to 8", "as many steps as were captured"]),
        ("refuse", ["code 1", "Failed to prepare kernel", ".log"]),
    ],
)
def test_each_failure_of_ncu_is_a_sentence(
    capture: Path, llmtop: Llmtop, ncu: StandInNcu, way: str, words: list[str]
) -> None:
    ncu.fails(way)
    done = llmtop("kernel", capture, "--run", "--yes")
    assert done.returncode == 3
    last = done.stderr.strip().splitlines()[-1]
    assert all(word in last for word in words), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow("test_a_run_says_what_it_does_and_reads_what_was_written finds the same fault")
def test_a_report_of_before_is_not_taken_for_one_of_now(capture: Path, llmtop: Llmtop, ncu: StandInNcu) -> None:
    assert llmtop("kernel", capture, "--run", "--yes").returncode == 0
    ncu.fails("nothing")
    assert llmtop("kernel", capture, "--run", "--yes").returncode == 3


def _session_of(report: Path) -> int | None:
    try:
        return int(report.read_text())
    except (OSError, ValueError):
        return None


@pytest.mark.slow("a run of its own; test_a_run_says_what_it_does_and_reads_what_was_written has one")
def test_a_run_that_takes_too_long_is_ended_with_all_that_it_started(
    capture: Path, llmtop: Llmtop, tmp_path: Path
) -> None:
    told = tmp_path / "pid"
    stubborn = (
        "import os, signal, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        f"open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    pid = None
    for seconds in (5, 60):  # a busy machine may not start the command within the first
        command = ("--run", "--yes", "--timeout", seconds, "--", sys.executable, "-c", stubborn)
        done = llmtop("kernel", capture, *command)
        assert done.returncode == 3
        assert f"no report after {seconds} s, so llmtop ended ncu" in done.stderr
        pid = _session_of(told)
        if pid is not None:
            break
    assert pid is not None
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or _zombie(pid), what="the command's end")


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.slow(
    "looks for used GPUs for seconds; test_a_run_says_what_it_does_and_reads_what_was_written has a free one"
)
def test_a_gpu_in_use_is_refused(capture: Path, llmtop: Llmtop, scenario: Scenario, ncu: StandInNcu) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        scenario.process(0, stranger.pid, GIB)
        done = llmtop("kernel", capture, "--run", "--yes")
    finally:
        stranger.kill()
        stranger.wait(100)
    assert done.returncode == 3
    assert f"GPU 0 is in use by process {stranger.pid}" in done.stderr
    assert "CUDA_VISIBLE_DEVICES" in done.stderr
    assert not ncu.was_run


@pytest.mark.slow(
    "looks for used GPUs for seconds; test_a_run_says_what_it_does_and_reads_what_was_written has a free one"
)
def test_memory_that_no_process_here_has_is_somebodys(
    capture: Path, llmtop: Llmtop, scenario: Scenario, ncu: StandInNcu
) -> None:
    scenario.set(mem_used_bytes=30 * GIB)
    done = llmtop("kernel", capture, "--run", "--yes")
    assert done.returncode == 3
    assert "cannot be seen from here" in done.stderr
    assert not ncu.was_run


@pytest.mark.slow("a run of its own; test_a_run_says_what_it_does_and_reads_what_was_written has one")
def test_a_used_gpu_that_the_command_does_not_see_is_no_hindrance(
    capture: Path, llmtop: Llmtop, scenario: Scenario
) -> None:
    scenario.count = 2
    scenario.set(gpu=0, mem_used_bytes=30 * GIB)
    assert llmtop("kernel", capture, "--run", "--yes", CUDA_VISIBLE_DEVICES="1").returncode == 0


@pytest.mark.slow("a run of its own; test_a_run_says_what_it_does_and_reads_what_was_written has one")
def test_ctrl_c_ends_the_run(capture: Path, ncu: StandInNcu, scenario: Scenario, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    endless = f"import os, time; open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    env = nvml_stub.environment(
        nvml_stub.build(), scenario.write(tmp_path / "scenario"), **environment(LLMTOP_NCU=str(ncu.path))
    )
    words = ["kernel", str(capture), "--run", "--yes", "--", sys.executable, "-c", endless]
    process = subprocess.Popen([sys.executable, "-m", "llmtop", *words], env=env, stderr=subprocess.PIPE)
    try:
        pid = wait_for(lambda: _session_of(told), 60, "the command's start")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=240)
        assert process.returncode != 0
        wait_for(lambda: not Path(f"/proc/{pid}").exists() or _zombie(pid), what="the command's end")
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("kernel", "{capture}/capture.json"), 2, "no report"),
        (("kernel", "/none"), 2, "/none"),
        (("kernel", "{capture}", "--top", "0"), 2, "--top"),
        (("kernel", "{capture}/x.ncu-rep", "--run"), 2, "need a capture"),
    ],
)
def test_wrong_usage_is_told(
    capture: Path, llmtop: Llmtop, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = llmtop(*(word.format(capture=capture) for word in arguments))
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow("two whole doctors")
def test_doctor_says_what_is_there(llmtop: Llmtop, ncu: StandInNcu, tmp_path: Path) -> None:
    checks = {check["name"]: check for check in json.loads(llmtop("doctor", "--json").stdout)["checks"]}
    assert checks["ncu"]["ok"] is True
    assert "2025.3.1.0" in checks["ncu"]["says"]
    assert checks["ncu-report"]["ok"] is True
    ncu.path.unlink()
    checks = {check["name"]: check for check in json.loads(llmtop("doctor", "--json").stdout)["checks"]}
    assert checks["ncu"]["ok"] is False
    assert "LLMTOP_NCU" in checks["ncu"]["command"]


@pytest.mark.parametrize(
    ("parameters", "capabilities", "refused"),
    [
        ("RmProfilingAdminOnly: 1\n", "0000000000000000", True),
        ("RmProfilingAdminOnly: 1\n", "0000000000200000", False),
        ("RmProfilingAdminOnly: 1\n", "0000004000000000", False),
        ("RmProfilingAdminOnly: 0\n", "0000000000000000", False),
    ],
)
def test_whether_counters_are_permitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parameters: str, capabilities: str, refused: bool
) -> None:
    monkeypatch.setattr(procfs, "ROOT", str(tmp_path))
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    own = tmp_path / str(os.getpid())
    own.mkdir()
    (tmp_path / "driver/nvidia/params").write_text(parameters)
    (own / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    assert ("ERR_NVGPUCTRPERM" in tool.counters_refused()) is refused
    monkeypatch.setattr(procfs, "ROOT", str(tmp_path / "none"))
    assert tool.counters_refused() == ""


def _row(functor: str = "", order: LaunchOrder | None = None) -> KernelTime:
    name = f"vectorized_elementwise_kernel{f': {functor}' if functor else ''}"
    return KernelTime(
        name=name, short_name="vectorized_elementwise_kernel", functor=functor, kind="elementwise", count=60,
        seconds=1.0, share_pct=10.0, mean_us=10.0, min_us=1.0, max_us=20.0, launches=order,
    )  # fmt: skip


def test_a_template_with_too_many_launches_is_searched_by_a_word_that_both_spell_alike() -> None:
    row = _row("bfloat16_copy_kernel_cuda<float>", LaunchOrder(per_step=900, in_a_row=400, own_in_a_row=2))
    found = launches_of(replace(row, per_step=(PerStep(0, 30.0, 1.0, 0.0),)))
    assert found == LaunchFilter("vectorized_elementwise_kernel", 90, 2, "bfloat16_copy_kernel_cuda")
    pattern = found.options[3].removeprefix("regex:")
    by_ncu = (
        "void at::native::vectorized_elementwise_kernel<(int)8, at::native::bfloat16_copy_kernel_cuda("
        "at::TensorIteratorBase &)::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int)"
    )
    assert re.search(pattern, by_ncu)
    assert re.fullmatch(pattern, by_ncu), "whichever of the two ncu's search is"
    assert not re.search(pattern, by_ncu.replace("bfloat16_copy", "float16_copy"))


def test_a_report_from_before_the_order_was_told_gives_a_bound() -> None:
    mine = replace(_row("lerp_scalar_kernel<float>"), per_step=(PerStep(0, 10.0, 1.0, 0.0),))
    other = replace(_row("sqrt_kernel_cuda<float>"), per_step=(PerStep(0, 30.0, 1.0, 0.0),))
    assert launches_of(mine, (mine, other)) == LaunchFilter("vectorized_elementwise_kernel", 120, 8)
    assert launches_of(mine, (mine,)) == LaunchFilter("vectorized_elementwise_kernel", 30, 1)
    assert launches_of(_row()) == LaunchFilter("vectorized_elementwise_kernel", None, 5), "no steps, no warm-up"


def test_of_what_was_measured_the_wanted_kernel_is_told_by_its_functor() -> None:
    def measured(functor: str, took: float) -> KernelProfile:
        spelled = (
            f"void at::native::vectorized_elementwise_kernel<(int)8, at::native::{functor}("
            "at::TensorIteratorBase &)::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int)"
        )
        numbers = {"gpu__time_duration.sum": took}
        return KernelProfile(name="vectorized_elementwise_kernel", demangled=spelled, numbers=numbers)

    there = [measured("sqrt_kernel_cuda", 9e4), measured("bfloat16_copy_kernel_cuda", 1e4)]
    there.append(measured("bfloat16_copy_kernel_cuda", 3e4))
    assert select_launch(_row("bfloat16_copy_kernel_cuda<float>"), there) is there[2], (
        "the longest of its launches"
    )
    assert select_launch(_row("lerp_scalar_kernel<float>"), there) is None


@pytest.mark.slow("a run of its own; test_a_run_says_what_it_does_and_reads_what_was_written has one")
def test_another_kernel_than_the_wanted_is_said_to_be_one(tmp_path: Path, capture: Path, llmtop: Llmtop) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = StandInNcu(folder, "conflicts")
    done = llmtop("kernel", capture, "--run", "--yes", LLMTOP_NCU=str(other.path))
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert f"None of the 1 launch that ncu measured is {GEMM}" in said
    assert "planted_conflicts" in said


@pytest.mark.slow("two commands that are refused; test_the_command_is_printed_and_nothing_is_run needs no ncu")
def test_what_is_no_ncu_is_refused_with_where_to_get_one(llmtop: Llmtop, capture: Path) -> None:
    for path in (os.devnull, "/bin/true"):
        done = llmtop("kernel", capture, "--run", "--yes", LLMTOP_NCU=path)
        assert done.returncode == 3
        assert path in done.stderr
        assert "install Nsight Compute" in done.stderr


def test_the_reader_of_another_place_is_found_where_ncu_is_a_script_of_cuda(tmp_path: Path) -> None:
    cuda, nsight = tmp_path / "cuda" / "bin" / "ncu", tmp_path / "nsight-compute" / "2025.3.1" / "ncu"
    for program in (cuda, nsight):
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {nsight} "$@"\n')
        program.chmod(0o755)
    places = [str(tmp_path / "nsight-compute" / "*" / "ncu")]
    variables = {"PATH": str(cuda.parent)}
    assert tool.report_reader_folder(variables, places) is None, "none brings a reader"
    reader = nsight.parent / "extras" / "python"
    reader.mkdir(parents=True)
    (reader / "ncu_report.py").touch()
    assert tool.report_reader_folder(variables, places) == str(reader)
