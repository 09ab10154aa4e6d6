"""Sampled Python stacks: read, folded into trees, told in text."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from llmtop.analysis.load_report import load_report
from llmtop.analysis.load_stacks import load_stacks
from llmtop.cli.report.command import report as report_command
from llmtop.document.model import BRIEF_LINES
from llmtop.errors import UnusableInput
from llmtop.stacks import document as stacks_document
from llmtop.stacks.fold import CpuTime, fold, hottest, tree, waits_for_work
from llmtop.stacks.model import StackNode, StackReport, from_json, to_json
from llmtop.stacks.samples import Frame, Stack, folded, read_folded, speedscope
from tests.support import written

RUNS = 'process 7:"python train.py";'
TRAIN = f"{RUNS}thread (7): MainThread;<module> (/w/train.py:9)"
WORKER = (
    'process 7:"python train.py";process {0}:"python train.py";thread ({0}): MainThread;<module> (/w/train.py:9)'
)
LIB = "/usr/lib/python3.11"
GET = f"Queue.get ({LIB}/multiprocessing/queues.py:113);wait ({LIB}/multiprocessing/connection.py:947)"
FOLDED = "\n".join(
    [
        f"{TRAIN};step (/w/train.py:4) 30",
        f"{TRAIN};load (/w/train.py:5);{GET} 60",
        f"{TRAIN} 10",
        f"{RUNS}thread (8): pin memory;run ({LIB}/threading.py:9);wait ({LIB}/threading.py:327) 100",
        'process 7:"python train.py";thread (9): ;Thread._run (/v/llmtop/instrument/guest/threads.py:60);'
        "Server._turn (/v/llmtop/instrument/serve/server.py:190) 100",
        f"{WORKER.format(20)};decode (/w/data.py:3) 100",
        f"{WORKER.format(21)};decode (/w/data.py:3) 60",
        f"{WORKER.format(21)};{GET} 40",
        f"{WORKER.format(22)};{GET} 100",
    ]
)


def report_of(text: str, cpu: dict[int, CpuTime] | None = None) -> StackReport:
    return StackReport(source="x", processes=fold(read_folded(text), {7: 3}, cpu or {}))


def test_threads_that_wait_for_work_and_llmtops_own_are_apart_from_those_that_work() -> None:
    found = report_of(FOLDED)
    kinds = {
        (process.pid, thread.thread): thread.kind for process in found.processes for thread in process.threads
    }
    assert kinds == {
        (7, "MainThread"): "working",  # although it waits most of the time: that is what is to be seen
        (7, "pin memory"): "waiting",
        (7, "thread 9"): "llmtop",
        (20, "MainThread"): "working",
        (21, "MainThread"): "working",
        (22, "MainThread"): "waiting",
    }
    assert [(process.pid, process.started_by, process.rank) for process in found.processes] == [
        (7, None, 3), (20, 7, None), (21, 7, None), (22, 7, None),
    ]  # fmt: skip


def test_a_thread_that_is_on_a_cpu_works_wherever_it_stands() -> None:
    found = report_of(FOLDED, {8: CpuTime(40.0, 1.0, "python"), 9: CpuTime(0.4, 0.0, "llmtop-server")})
    threads = {thread.thread: thread for thread in found.processes[0].threads}
    assert threads["pin memory"].kind == "working"
    assert threads["pin memory"].cpu_pct == 40.0
    assert threads["llmtop-server"].kind == "llmtop"
    assert threads["MainThread"].cpu_pct is None


def test_shares_are_of_a_threads_samples_and_the_deepest_frames_are_told() -> None:
    main = report_of(FOLDED).processes[0].threads[0]
    assert main.tree is not None
    (module,) = main.tree.children
    assert (main.tree.samples, module.samples, module.self_samples) == (100, 100, 10)
    assert [(child.name, child.line, child.samples, child.own) for child in module.children] == [
        ("load", 5, 60, True), ("step", 4, 30, True),
    ]  # fmt: skip
    assert [(hot.frame, hot.self_samples, hot.total_samples) for hot in main.hottest] == [
        ("wait (connection.py:947)", 60, 60),
        ("step (train.py:4)", 30, 30),
        ("<module> (train.py:9)", 10, 100),
    ]


def test_the_text_shows_workers_together_and_who_waits() -> None:
    text = written.short_stacks(report_of(FOLDED), 120)
    assert "Python stacks of rank 3 (pid 7) and 3 processes that it started" in text
    assert "2 of 3 workers of rank 3 (pid 7), MainThread: 200 samples" in text
    assert " 80.0% ▸   decode (data.py:3)" in text
    assert "60.0% ▸   load (train.py:5)" in text
    waiting = "pin memory in wait (threading.py:327), a worker's MainThread in wait (connection.py:947)"
    assert waiting in " ".join(text.split())
    assert "1 thread of llmtop" in text
    assert len(text.splitlines()) <= BRIEF_LINES
    for whole in (written.stacks(report_of(FOLDED)), written.short_stacks(report_of(FOLDED))):
        assert "decode (data.py:3)" in whole


def test_the_brief_text_fits_sixty_lines_whatever_there_is() -> None:
    lines = [
        f"{TRAIN.replace('(7)', f'({thread})').replace('MainThread', f't{thread}')};"
        + ";".join(f"f{depth}_{kind} (/w/a.py:{depth})" for depth in range(40))
        + f" {10 + kind}"
        for thread in range(50)
        for kind in range(9)
    ]
    text = written.short_stacks(report_of("\n".join(lines)), 100)
    assert len(text.splitlines()) <= BRIEF_LINES
    assert "more" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_a_run_of_library_frames_is_cut_short_and_own_code_never() -> None:
    deep = ";".join(f"g{depth} (/usr/lib/python3.11/x.py:{depth})" for depth in range(1, 9))
    root = tree("t", read_folded(f"main (/w/a.py:1);{deep};leaf (/w/a.py:2) 5"))
    shown = list(stacks_document.tree_lines(root, whole=False))
    assert [line.partition("%")[2].strip() for line in shown] == [
        "▸ main (a.py:1)",
        "▸   … 8 calls … leaf (a.py:2)",
    ]
    assert len(list(stacks_document.tree_lines(root))) == 10


def test_the_command_of_a_process_has_no_secrets() -> None:
    text = 'process 7:"python train.py --api-key hunter2secret";thread (7): MainThread;f (/w/a.py:1) 3\n'
    (process,) = {stack.process for stack in read_folded(text) if stack.process is not None}
    assert process.command == "python train.py --api-key ***"


def test_a_command_with_ends_of_lines_and_semicolons_is_one_stack() -> None:
    text = (
        'process 7:"python -c import x; y = "a"\nprint(3) 4\nz = 5";thread (7): MainThread;f (/w/a.py:1) 3\n'
        'process 7:"python -c import x; y = "a"\nprint(3) 4\nz = 5";thread (7): MainThread;g (/w/a.py:2) 2\n'
    )
    stacks = read_folded(text)
    assert [(stack.frames[0].name, stack.samples) for stack in stacks] == [("f", 3), ("g", 2)]
    assert {stack.process.pid for stack in stacks if stack.process} == {7}


def test_what_is_written_folded_is_read_the_same() -> None:
    def told(stacks: list[Stack]) -> list[object]:
        return [
            (s.process and (s.process.pid, s.process.started_by), s.thread, s.frames, s.samples) for s in stacks
        ]

    stacks = read_folded(FOLDED)
    assert told(read_folded(folded(stacks).decode())) == told(stacks)


def test_a_speedscope_file_has_a_profile_a_thread_in_seconds() -> None:
    profile = json.loads(speedscope(read_folded(FOLDED), "rank 3", 100))
    assert [one["name"] for one in profile["profiles"]] == [
        "MainThread", "pin memory", "thread 9", "worker 20, MainThread", "worker 21, MainThread",
        "worker 22, MainThread",
    ]  # fmt: skip
    assert all(sum(one["weights"]) == pytest.approx(1.0) for one in profile["profiles"])


def test_own_code_is_no_librarys_and_no_shared_librarys() -> None:
    own = {"/w/train.py", "/home/u/bin/train"}
    others = {
        "/usr/lib/x86_64-linux-gnu/libc.so.6", "/v/site-packages/torch/a.py", "<string>", "",
        "/usr/bin/python3.12", "/tmp/build/Modules/_pickle.c", "/opt/conda/lib/python3.10/queue.py",
    }  # fmt: skip
    assert {file for file in own | others if Frame("f", file, 1).own} == own


def test_waiting_is_told_by_the_innermost_python_frame() -> None:
    wait, native = Frame("Condition.wait", f"{LIB}/threading.py", 327), Frame("futex", "/lib/libc.so.6", None)
    assert waits_for_work((Frame("load", "/w/a.py", 1), wait, native))
    assert not waits_for_work((wait, Frame("read", f"{LIB}/gzip.py", 301)))
    assert not waits_for_work((Frame("wait", "/w/threading.py", 1),)), "a file of the user's"


def test_it_is_written_as_json_and_read_again() -> None:
    found = report_of(FOLDED)
    assert from_json(to_json(found)) == found


class TestCommand:
    """`llmtop report` on stacks."""

    def test_folded_stacks_of_any_program(self, tmp_path: Path) -> None:
        (tmp_path / "a.folded").write_text("main (a.py:1);inner (a.py:2) 30\nmain (a.py:1);other 10\n")
        done = CliRunner().invoke(report_command, [str(tmp_path / "a.folded")])
        assert done.exit_code == 0, done.output
        assert " 75.0% ▸   inner (a.py:2)" in done.output
        done = CliRunner().invoke(report_command, [str(tmp_path / "a.folded"), "--json"])
        root = json.loads(done.output)["processes"][0]["threads"][0]["tree"]
        assert root["samples"] == 40
        assert root["children"][0]["children"][1]["name"] == "other"

    def test_a_folder_whose_report_is_damaged_is_read_from_its_stacks(self, tmp_path: Path) -> None:
        (tmp_path / "rank3.folded").write_text(FOLDED)
        (tmp_path / "report.json").write_bytes(b"{")
        found = load_stacks([tmp_path])
        assert found is not None
        assert [process.rank for process in found.processes] == [3, None, None, None]

    def test_what_has_no_steps_is_compared_with_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "a.folded").write_text(FOLDED)
        for path in (tmp_path, tmp_path / "a.folded"):
            with pytest.raises(UnusableInput, match="Python stacks"):
                load_report(path) if path.suffix else load_report(_with_report(path))
        done = CliRunner().invoke(report_command, [str(tmp_path / "a.folded"), "--steps", "2"])
        assert isinstance(done.exception, UnusableInput)
        assert "which have no steps" in str(done.exception)

    def test_a_page_has_every_tree(self, tmp_path: Path) -> None:
        (tmp_path / "a.folded").write_text(FOLDED)
        done = CliRunner().invoke(report_command, [str(tmp_path / "a.folded"), "--html", str(tmp_path / "x.html")])
        assert done.exit_code == 0
        assert "decode (data.py:3)" in (tmp_path / "x.html").read_text()

    @pytest.mark.parametrize(
        ("name", "data", "said"),
        [
            (
                "a.speedscope.json",
                speedscope(read_folded(FOLDED), "x", 100)[:-30],
                "is not a complete speedscope file",
            ),
            ("rank0.memory.pickle", b"\x80\x04\x95\x00\x00", "memory snapshot"),
            (
                "a.folded",
                b"main (a.py:1);x 3\nnot a stack\n",
                "line 2 of .*a.folded is .not a stack.: a stack ends with its number",
            ),
            ("a.txt", b"some words\n", "neither a capture"),
        ],
    )
    def test_what_cannot_be_read_is_one_sentence_and_its_neighbour_is_served(
        self, tmp_path: Path, name: str, data: bytes, said: str
    ) -> None:
        (tmp_path / name).write_bytes(data)
        (tmp_path / "good.folded").write_text(FOLDED)
        with pytest.raises(UnusableInput, match=said):
            _ = load_stacks([tmp_path / name]) or load_report(tmp_path / name)
        assert load_stacks([tmp_path / "good.folded"]) is not None

    def test_the_folder_of_a_memory_capture_is_one_sentence(self, tmp_path: Path) -> None:
        (tmp_path / "rank0.memory.pickle").write_bytes(b"\x80\x04")
        (tmp_path / "capture.json").write_text("{}")
        assert load_stacks([tmp_path]) is None
        with pytest.raises(UnusableInput, match=r"rank0\.memory\.pickle is a memory snapshot"):
            load_report(tmp_path)


def _with_report(folder: Path) -> Path:
    (folder / "report.json").write_bytes(to_json(report_of(FOLDED)))
    return folder


def test_control_characters_of_names_do_not_reach_a_terminal() -> None:
    text = 'process 7:"\x1b]0;x\x07";thread (7): \x1b]0;owned\x07;f\x1b[2J (/w/a.py:1) 1'
    shown = written.stacks(report_of(text))
    assert "\x1b" not in shown
    assert "\x07" not in shown


@given(st.text(max_size=200))
def test_what_is_no_stack_is_refused_or_read_never_a_crash(text: str) -> None:
    with suppress(UnusableInput):
        stacks = read_folded(text)
        speedscope(stacks, "x", 100)
        read_folded(folded(stacks).decode())
        written.stacks(StackReport(processes=fold(stacks, {}, {})))


@given(
    st.lists(st.tuples(st.lists(st.sampled_from("abcd"), min_size=1, max_size=6), st.integers(1, 50)), max_size=20)
)
def test_a_tree_neither_loses_nor_invents_samples(recorded: list[tuple[list[str], int]]) -> None:
    raw = "\n".join(";".join(f"{name} (x.py:1)" for name in names) + f" {count}" for names, count in recorded)
    stacks = read_folded(raw)
    root = tree("t", stacks)
    assert root.samples == sum(count for _, count in recorded)
    assert sum(one.self_samples for one in hottest(stacks)) == root.samples

    def check(node: StackNode) -> None:
        assert node.samples == node.self_samples + sum(child.samples for child in node.children)
        for child in node.children:
            check(child)

    check(root)
    both = stacks_document.merge_trees([root, root])
    assert both.samples == 2 * root.samples
    check(both)


def test_stacks_deeper_than_any_tree_are_folded_into_the_last_level() -> None:
    deep = ";".join(f"f{depth} (/w/a.py:1)" for depth in range(3000))
    found = report_of(f"{deep} 7")
    assert from_json(to_json(found)) == found
    assert "100.0%" in written.stacks(found)
