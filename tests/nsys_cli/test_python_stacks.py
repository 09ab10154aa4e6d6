"""Python stacks of a real nsys: whose they are and what they say, by programs whose threads do one known thing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from llmtop.nsys_cli.export import export_into
from llmtop.nsys_cli.python_stacks import read_python_stacks
from llmtop.trace import model
from llmtop.trace.nsys.load import load
from tests.support.nsys import NO_NSYS, find_nsys

_PROGRAM = """
import threading, time
def spin():
    while time.thread_time() < 1.5: pass
def sleeper():
    while spinning: time.sleep(0.1)
spinning = True
other = threading.Thread(target=sleeper)
other.start()
spin()
spinning = False
other.join()
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What nsys wrote of a program with two threads of Python."""
    nsys = find_nsys()
    if nsys is None:
        pytest.skip(NO_NSYS)
    folder = tmp_path_factory.mktemp("stacks")
    (folder / "two.py").write_text(_PROGRAM)
    options = ("--trace=nvtx", "--sample=none", "--cpuctxsw=none", "--python-sampling=true")
    command = [nsys, "profile", "-o", str(folder / "two"), *options, sys.executable, str(folder / "two.py")]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    return folder / "two.nsys-rep"


@pytest.mark.slow("a real nsys; test_a_report_is_exported_and_read has one")
@pytest.mark.nsys
def test_stacks_are_of_the_thread_and_the_line_that_ran(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMTOP_NSYS", find_nsys() or "")
    trace = load(export_into(report, tmp_path), "two")
    samples = trace.samples
    assert not trace.notes
    assert (samples.kind == model.PYTHON_SAMPLE).all()
    pid = int(samples.process[0])
    for thread, function, line in ((pid, "spin", 4), (None, "sleeper", 6)):
        mine = samples.thread == thread if thread else samples.thread < 0
        names = [trace.names[number] for number in samples.name[mine][np.argsort(samples.start[mine])].tolist()]
        wanted = f"{report.with_name('two.py')}({line}): {function}"
        assert names.count(wanted) > 20, names
        # Python's own start and end are sampled too, and take long beside other work.
        during = names[names.index(wanted) : len(names) - names[::-1].index(wanted)]
        assert during.count(wanted) > 0.9 * len(during), during
    assert not list(tmp_path.glob("*.json")), "the export to JSON is removed"


@pytest.mark.nsys
def test_an_export_without_them_says_where_they_are(report: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.sqlite"
    arguments = ("--type=sqlite", "--quiet=true", f"--output={bare}", str(report))
    subprocess.run([find_nsys() or "", "export", *arguments], check=True, capture_output=True, timeout=240)
    trace = load(bare, "bare")
    assert not len(trace.samples)
    assert [note for note in trace.notes if "Python stacks were recorded" in note and ".nsys-rep" in note]


def test_what_is_no_stack_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    mark = '{"NvtxEvent":{"Type":34,"DomainId":"1","Timestamp":"1","GlobalTid":"2","Payload":%s}}'
    lines = [
        '{"data":["a"]}',
        '{"NvtxEvent":{"Type":75,"DomainId":"1","Text":"Python Backtrace"}}',
        *(mark % payload for payload in ("{}", '{"BinaryData":[{"Data":"AAAA"}]}', '{"BinaryData":[{"Data":1}]}')),
        mark % '{"BinaryData":[{"Data":"AQAAAAEAAAABAAAAAAAAAAkAAAAAAAAACQAAAAAAAAABAAAAAAAAAA=="}]}',
        mark % '{"BinaryData":[{"Data":"AQAAAAEAAAABAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAD/////AAAAAA=="}]}',
        '{"NvtxEvent":{"Type":34,"DomainId":"1"',
    ]
    path.write_text("\n".join(lines))
    assert [one.frames for one in read_python_stacks(path)] == [[("a", 0, "a")]]
