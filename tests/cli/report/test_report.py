"""`llmtop report` and `llmtop compare` as programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import preloaded
from tests.support.data import HEALTHY, KINETO, LAUNCH_BOUND
from tests.support.processes import environment
from tests.support.traces import Capture, steady, write_chrome, write_sqlite


def _run(*arguments: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return preloaded.llmtop(*arguments, env=environment(**extra))


def test_report_prints_text() -> None:
    command = [sys.executable, "-m", "llmtop", "report", str(HEALTHY)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment())
    assert done.returncode == 0
    assert "gpu-bound: the GPU is the limit." in done.stdout
    assert done.stderr == ""
    assert "\x1b" not in done.stdout, "no colour into a pipe"


def test_json_is_alone_on_stdout(tmp_path: Path) -> None:
    done = _run("report", LAUNCH_BOUND, "--json", "--html", tmp_path / "page.html")
    assert done.returncode == 0
    assert json.loads(done.stdout)["verdict"] == "launch_bound"
    assert json.loads(done.stdout)["whole_timeline"] is None, "the page's alone"
    assert "page.html" in done.stderr
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_a_written_report_is_read_again(tmp_path: Path) -> None:
    written = tmp_path / "report.json"
    written.write_text(_run("report", KINETO, "--json").stdout)
    again = _run("report", written, "--json")
    assert json.loads(again.stdout) == json.loads(written.read_text())
    assert "# gpu" in _run("report", written, "--markdown").stdout


def test_a_capture_that_recorded_less_than_asked_begins_with_that_sentence(tmp_path: Path) -> None:
    sentence = "recorded 1.2 s of the 10.0 s asked for: the training ended"
    write_chrome(tmp_path / "trace.json", steady(6))
    (tmp_path / "capture.json").write_text(json.dumps({"stopped_early": sentence}))
    for option in ((), ("--full",), ("--markdown",)):
        assert sentence in _run("report", tmp_path, *option).stdout.splitlines()[0]
    found = _run("report", tmp_path, "--json", "--html", tmp_path / "page.html").stdout
    assert json.loads(found)["stopped_early"] == sentence
    page = (tmp_path / "page.html").read_text()
    assert page.index(sentence) < page.index("<h1>")
    (tmp_path / "report.json").write_text(found)
    (tmp_path / "capture.json").unlink()
    assert sentence in _run("report", tmp_path / "report.json").stdout.splitlines()[0]


def test_stacks_that_recorded_less_than_asked_begin_with_that_sentence(tmp_path: Path) -> None:
    sentence = "recorded 1.2 s of the 10.0 s asked for: the training ended"
    (tmp_path / "rank0.folded").write_text("thread (7): MainThread;f (/w/a.py:1) 3\n")
    (tmp_path / "capture.json").write_text(json.dumps({"stopped_early": sentence}))
    for option in ((), ("--full",), ("--markdown",)):
        assert sentence in _run("report", tmp_path, *option).stdout.splitlines()[0]
    assert json.loads(_run("report", tmp_path, "--json").stdout)["stopped_early"] == sentence


def test_captures_of_several_ranks_are_read_as_one(tmp_path: Path) -> None:
    for rank in range(2):
        capture = steady(6, capture=Capture(pid=100 + rank, device=rank))
        write_chrome(tmp_path / f"rank{rank}.json", capture, distributedInfo={"rank": rank, "world_size": 2})
    done = _run("report", tmp_path / "rank0.json", tmp_path / "rank1.json", "--json")
    report = json.loads(done.stdout)
    assert [(device["device"], device["rank"]) for device in report["devices"]] == [(0, 0), (1, 1)]
    (tmp_path / "report.json").write_text(done.stdout)
    mixed = _run("report", tmp_path / "rank0.json", tmp_path / "report.json")
    assert mixed.returncode == 2
    assert "is no capture" in mixed.stderr


def test_steps_can_be_chosen(tmp_path: Path) -> None:
    path = write_sqlite(tmp_path / "made.sqlite", [steady(12)])
    assert json.loads(_run("report", path, "--json", "--steps", "3").stdout)["steps"]["count"] == 3
    assert json.loads(_run("report", path, "--json", "--steps", "2:8").stdout)["steps"]["count"] == 6


@pytest.mark.parametrize("steps", ["0", "5:5", "a", "-1", "3:2", "1:2:3"])
def test_steps_that_make_no_sense_are_refused(tmp_path: Path, steps: str) -> None:
    path = write_sqlite(tmp_path / "made.sqlite", [steady(3)])
    done = _run("report", path, "--steps", steps)
    assert done.returncode == 2
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("report", "gone.sqlite"), 2, "No such file"),
        (("report",), 2, "Missing argument"),
        (("report", "x.json", "--json", "--markdown"), 2, "exclude each other"),
        (("report", "new.nsys-rep"), 3, "nsys export --type sqlite"),
        (("compare", "gone.json", "gone.json"), 2, "No such file"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    (tmp_path / "new.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report 1\n")
    given = [arguments[0], *(tmp_path / a if "." in a else a for a in arguments[1:])]
    done = _run(*given, LLMTOP_NSYS=str(tmp_path / "no-nsys"))
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_comparison_has_every_form(tmp_path: Path) -> None:
    done = _run("compare", HEALTHY, HEALTHY, "--markdown", "--html", tmp_path / "page.html")
    assert done.stdout.startswith("# Comparison\n")
    assert "<h1>Comparison</h1>" in (tmp_path / "page.html").read_text()


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    done = _run("report", HEALTHY, "--html", tmp_path / "no" / "page.html")
    assert done.returncode == 3
    assert "cannot be written" in done.stderr


def test_compare_fails_only_over_the_limit(tmp_path: Path) -> None:
    slow = write_sqlite(tmp_path / "slow.sqlite", [steady(12, period=13_000, busy=12_900)])
    fast = write_sqlite(tmp_path / "fast.sqlite", [steady(12)])
    worse = _run("compare", fast, slow, "--fail-over", "5", "--json")
    assert worse.returncode == 1
    assert json.loads(worse.stdout)["step"]["change_pct"] == pytest.approx(30, abs=0.5)
    assert _run("compare", fast, slow, "--fail-over", "40").returncode == 0
    assert _run("compare", slow, fast, "--fail-over", "0").returncode == 0
    assert "slower" in _run("compare", fast, slow).stdout


def test_fail_over_needs_steps_on_both_sides(tmp_path: Path) -> None:
    bare = steady(5)
    bare.ranges = []
    one = write_sqlite(tmp_path / "bare.sqlite", [bare])
    two = write_sqlite(tmp_path / "steps.sqlite", [steady(5)])
    done = _run("compare", one, two, "--fail-over", "5")
    assert done.returncode == 2
    assert "no whole step" in done.stderr


def test_a_reader_that_goes_away_costs_no_traceback() -> None:
    command = f"{sys.executable} -m llmtop report {LAUNCH_BOUND} --json | head -c 10"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=240, env=environment())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("code", ["import llmtop", "import llmtop.__main__", "import llmtop.cli.report.command"])
def test_numpy_is_loaded_by_a_report_alone(code: str) -> None:
    check = f"{code}; import sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], env=environment(), timeout=240).returncode == 0
