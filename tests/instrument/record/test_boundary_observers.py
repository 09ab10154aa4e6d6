"""Observers of boundaries: who is notified of what, in which order, and ranges of NVTX."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from llmtop.instrument.record.boundary_observers import Nvtx, Watch, tool_listens
from llmtop.instrument.steps.phase_tree import HIDDEN, STEP, PhaseNode

ROOT = PhaseNode("", None, "", HIDDEN)
FORWARD = PhaseNode("forward", ROOT, "forward", 2)
INNER = PhaseNode("attention", FORWARD, "forward/attention", 4)
AGAIN = PhaseNode("forward", FORWARD, "forward", HIDDEN)
UNNAMED = PhaseNode("", ROOT, "", HIDDEN)


class Observer:
    """Notes each call of any method, with the name of a node."""

    def __init__(self, name: str, calls: list[tuple[Any, ...]]) -> None:
        self._name, self._calls = name, calls

    def __getattr__(self, method: str) -> Any:
        def called(*given: Any) -> str:
            shown = [one.name if isinstance(one, PhaseNode) else one for one in given]
            self._calls.append((self._name, method, *shown))
            return f"range of {self._name}"

        return called


class Rig:
    """A watch with observers that note what they are notified of."""

    def __init__(self, *names: str) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.watch = Watch()
        for name in names:
            if name == "annotate":
                self.watch.annotate = self._annotate
            else:
                setattr(self.watch, name, Observer(name, self.calls))

    @contextmanager
    def _annotate(self, name: str) -> Any:
        self.calls.append(("annotate", "enter", name))
        yield
        self.calls.append(("annotate", "exit", name))


ALL = ("nvtx", "clock", "annotate", "arrival", "waits", "memory")


@pytest.mark.parametrize("name", ALL)
def test_any_observer_makes_the_watch_needed_and_none_does_not(name: str) -> None:
    assert Watch().is_needed is False
    assert Rig(name).watch.is_needed is True


def test_an_annotation_that_is_open_keeps_the_watch_until_it_is_closed() -> None:
    rig = Rig("annotate")
    rig.watch.begin(FORWARD)
    rig.watch.annotate = None
    assert rig.watch.is_needed is True
    rig.watch.end(FORWARD)
    assert rig.watch.is_needed is False
    assert rig.calls == [("annotate", "enter", "forward"), ("annotate", "exit", "forward")]


def test_all_observers_are_notified_of_a_phase_and_the_waits_have_nothing_of_the_others_in_it() -> None:
    rig = Rig(*ALL)
    rig.watch.begin(FORWARD)
    assert rig.calls == [
        ("nvtx", "push", "forward"),
        ("annotate", "enter", "forward"),
        ("clock", "mark", 2, True),
        ("arrival", "begins", "forward"),
        ("memory", "begins", "forward"),
        ("waits", "begins", "forward"),
    ]
    rig.calls.clear()
    rig.watch.end(FORWARD)
    assert rig.calls == [
        ("waits", "ends", "forward"),
        ("clock", "mark", 2, False),
        ("arrival", "ends", "forward"),
        ("memory", "ends", "forward"),
        ("annotate", "exit", "forward"),
        ("nvtx", "pop", "forward"),
    ]


def test_a_phase_that_is_given_up_is_taken_back() -> None:
    rig = Rig(*ALL)
    rig.watch.begin(FORWARD)
    rig.calls.clear()
    rig.watch.give_up(FORWARD)
    assert rig.calls == [
        ("clock", "unmark", 2),
        ("waits", "give_up"),
        ("memory", "give_up"),
        ("annotate", "exit", "forward"),
        ("nvtx", "pop", "forward"),
    ]


@pytest.mark.parametrize("name", ALL)
def test_one_observer_alone_is_notified(name: str) -> None:
    rig = Rig(name)
    rig.watch.begin_step()
    rig.watch.begin(FORWARD)
    rig.watch.end(FORWARD)
    rig.watch.begin(INNER)
    rig.watch.give_up(INNER)
    rig.watch.move(2, 4)
    rig.watch.end_step()
    assert {call[0] for call in rig.calls} == {name}


def test_a_move_goes_to_the_gpu_clock() -> None:
    rig = Rig(*ALL)
    rig.watch.move(6, 4)
    assert rig.calls == [("clock", "move", 6, 4)]


def test_a_phase_without_a_name_is_passed_over_and_a_recursion_is_a_range() -> None:
    rig = Rig("nvtx", "clock")
    rig.watch.begin(UNNAMED)
    assert rig.calls == []
    rig.watch.begin(AGAIN)
    rig.watch.end(AGAIN)
    assert [call for call in rig.calls if call[0] == "nvtx"] == [
        ("nvtx", "push", "forward"),
        ("nvtx", "pop", "forward"),
    ]
    rig.calls.clear()
    rig.watch.end(UNNAMED)
    assert rig.calls == [("clock", "mark", HIDDEN, False)]


def test_only_the_innermost_annotation_is_closed() -> None:
    rig = Rig("annotate")
    rig.watch.begin(FORWARD)
    rig.watch.begin(INNER)
    rig.calls.clear()
    rig.watch.end(FORWARD)
    assert rig.calls == []
    rig.watch.end(INNER)
    rig.watch.end(FORWARD)
    assert rig.calls == [("annotate", "exit", "attention"), ("annotate", "exit", "forward")]


def test_a_step_is_a_range_on_the_stack_and_no_annotation() -> None:
    rig = Rig(*ALL)
    rig.watch.begin_step()
    rig.watch.end_step()
    assert rig.calls == [
        ("nvtx", "push", "step"),
        ("clock", "mark", STEP, True),
        ("arrival", "begins", "step"),
        ("memory", "begins", "step"),
        ("waits", "begins", "step"),
        ("waits", "ends", "step"),
        ("clock", "mark", STEP, False),
        ("arrival", "ends", "step"),
        ("memory", "ends", "step"),
        ("nvtx", "pop", "step"),
    ]


def test_a_step_of_hooks_is_a_range_on_no_stack() -> None:
    rig = Rig("nvtx", "clock", "waits")
    rig.watch.step_is_hooked = True
    for _ in range(2):
        rig.calls.clear()
        rig.watch.begin_step()
        rig.watch.end_step()
        assert rig.calls == [
            ("nvtx", "start", "step"),
            ("clock", "mark", STEP, True),
            ("waits", "ends", "step"),
            ("clock", "mark", STEP, False),
            ("nvtx", "end", "range of nvtx"),
        ]


def test_a_step_of_hooks_without_ranges_is_as_any_other() -> None:
    rig = Rig("clock")
    rig.watch.step_is_hooked = True
    rig.watch.begin_step()
    rig.watch.end_step()
    assert rig.calls == [("clock", "mark", STEP, True), ("clock", "mark", STEP, False)]
    bare = Rig("nvtx")
    bare.watch.step_is_hooked = True
    bare.watch.begin_step()
    bare.watch.end_step()
    assert bare.calls == [("nvtx", "start", "step"), ("nvtx", "end", "range of nvtx")]


@pytest.mark.parametrize(
    ("variables", "listens"),
    [
        ({}, False),
        ({"LLMTOP_NVTX": "1"}, True),
        ({"LLMTOP_NVTX": ""}, False),
        ({"NVTX_INJECTION64_PATH": "/a.so"}, True),
        ({"NVTX_INJECTION32_PATH": "/a.so"}, True),
        ({"CUDA_INJECTION64_PATH": "/a.so"}, True),
        ({"LD_PRELOAD": "/opt/libToolsInjection64.so"}, True),
        ({"LD_PRELOAD": "/opt/libNVTX.so"}, True),
        ({"LD_PRELOAD": "/opt/libjemalloc.so"}, False),
    ],
)
def test_a_tool_is_known_by_the_environment(
    variables: dict[str, str], listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LLMTOP_NVTX", "NVTX_INJECTION64_PATH", "NVTX_INJECTION32_PATH", "CUDA_INJECTION64_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name in ("NSYS_PROFILING_SESSION_ID", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tool_listens() is listens


class Package(ModuleType):
    """Stands for the package nvtx."""

    def __init__(self) -> None:
        super().__init__("nvtx")
        self.calls: list[tuple[Any, ...]] = []

    def annotate(self, name: str) -> Any:
        self.calls.append(("annotate", name))
        return self._opened(name)

    class _Range:
        def __init__(self, package: Package, name: str) -> None:
            self._package, self._name = package, name

        def __enter__(self) -> None:
            self._package.calls.append(("enter", self._name))

        def __exit__(self, *_: object) -> None:
            self._package.calls.append(("exit", self._name))

    def _opened(self, name: str) -> Any:
        return self._Range(self, name)

    def start_range(self, name: str) -> int:
        self.calls.append(("start", name))
        return 0

    def end_range(self, handle: int) -> None:
        self.calls.append(("end", handle))


def test_a_range_is_made_once_for_each_name_and_entered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    package = Package()
    monkeypatch.setitem(sys.modules, "nvtx", package)
    ranges = Nvtx()
    for _ in range(2):
        ranges.push("forward")
        ranges.pop("forward")
    ranges.pop("never opened")
    ranges.end(ranges.start("step"))
    ranges.end(None)
    entered = [("enter", "forward"), ("exit", "forward")]
    assert package.calls == [("annotate", "forward"), *entered, *entered, ("start", "step"), ("end", 0)]


def test_without_the_package_there_are_no_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    ranges = Nvtx()
    ranges.push("forward")
    ranges.pop("forward")
    assert ranges.start("step") is None
    ranges.end(None)
