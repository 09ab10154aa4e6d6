"""The host's threads in a trace of XLA's profiler: steps, phases, CUDA calls, what JAX and Python did."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from llmtop.format import printable
from llmtop.naming import profiler_marks
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.chrome.fields import Event, Number
from llmtop.trace.chrome.learn import int_or
from llmtop.trace.chrome.rows import Rows
from llmtop.trace.groups import is_among
from llmtop.trace.xla.fields import XlaArgs

STEP_MARK = "StepMarker"
"""Name of torch_xla's mark of a step: torch_xla.sync(), xm.mark_step(), the end of torch_xla.step()."""
_SYNCS = re.compile(r"^Sync(?:Live)?TensorsGraph")
"""How torch_xla calls the compiling and running of what was noted since the last mark."""
_OF_XLA = re.compile(
    r"::|^(?:Pjit|Jit|CompiledFunction|xla_)\w*|^end: |^\$|^ParseArguments$|DevicePut|^Handle input|^Wait for "
    r"|^(?:Sync(?:Live)?TensorsGraph\w*|ScheduleSyncTensorsGraph|CollectSyncTensors|TensorCollectionBarrier)$"
    r"|^(?:ExtractIRAndPrepareXlaData_|RunPostOrder|SetTensorData|DeviceBarrier|ReshardData)$"
    r"|^(?:ExecuteComputationWithBarrier\w*|_get_xla_sharding_specs|update_placeholder|Transpose)$"
)
"""How what JAX, torch_xla and XLA note of themselves is called; the rest are annotations of the script."""
_DISPATCH = re.compile(r"^(?:Pjit|Jit|CompiledF)unction\(|^PjitFunction|::Execute")
EXECUTES = re.compile(r"::ExecuteHelper(?:OnSingleDevice)?$")
"""The call that hands one compiled function to a device."""
_WAITS = re.compile(r"PjRt\w*::(?:Await|BlockHostUntilReady)$|^block_until_ready$")
_FRAME = re.compile(r"^\$(.*?):(\d+) (.*)$")
_NVTX = "NVTX:"
_MOST_DEVICES, _DIGITS = 1024, 7


class _Operation(NamedTuple):
    start: int
    end: int
    line: Number
    text: str
    args: XlaArgs


class HostLines:
    """Takes the timed events of the host's planes."""

    def __init__(self, names: model.Names) -> None:
        self._names = names
        self._calls = Rows(5)
        """start, end, thread, name, correlation."""
        self._executes = Rows(4)
        self._ranges = Rows(4)
        self._maybe = Rows(4)
        """Annotations that may be the script's: the same columns as of ranges."""
        self._dispatches = Rows(3)
        self._spans = Rows(4)
        self._operations: list[_Operation] = []
        self._steps_on: set[int] = set()
        self._step_names: set[int] = set()
        self._threads: dict[Number, int] = {}
        self.devices: dict[int, model.TracedGpu] = {}
        """Devices by number, where the file has them."""
        self.of_torch_xla = False
        """True if the program is torch_xla's."""
        self._drained_at = -1
        """Until when the host waited for a device."""
        self._runs: dict[tuple[int, int], int] | None = None

    @property
    def runs_known(self) -> bool:
        """Return True if it is known which hand-over each run of a function is of; once `operations` has been
        asked."""
        return bool(self._runs)

    @property
    def has_operations(self) -> bool:
        """Return True if XLA ran operations on threads of the host."""
        return bool(self._operations)

    def take(self, event: Event, args: XlaArgs, start: int, end: int) -> None:
        """Sort one event into ranges, calls, launches or spans.

        Args:
            event: on a thread of the host.
            args: `event`'s, decoded; which of them are set decides what kind of event it is.
            start: ns since instant 0 of the trace.
            end: ns since instant 0 of the trace.
        """
        text = event.name or ""
        thread, number = self._thread(event.tid), self._names.number
        if args.step is not None:
            # The number as torch's ProfilerStep#7 has it: "train", and xprof's "train 7", become "train step#7".
            plain = text.removesuffix(f" {args.step}")
            before = "" if plain == profiler_marks.STEP else f"{printable(plain, 200)} "
            name = number(printable(f"{before}step#{args.step}", 300))
            self._ranges.extend((start, end, thread, name))
            self._steps_on.add(thread)
            self._step_names.add(name)
        elif args.phase is not None or text.startswith(_NVTX):
            named = printable(text.removeprefix(_NVTX), model.LONGEST_NAME)
            self._ranges.extend((start, end, thread, number(named)))
        elif args.correlation is not None:
            called = number(printable(text, 200))
            self._calls.extend((start, end, thread, called, int_or(args.correlation, -1)))
        elif args.hlo_op is not None:
            self._operations.append(_Operation(start, end, event.tid, text, args))
        else:
            self._other(text, args, (start, end), thread)

    def _other(self, text: str, args: XlaArgs, span: tuple[int, int], thread: int) -> None:
        start, end = span
        number = self._names.number
        if text == profiler_marks.DEVICES_DONE:
            self._drained_at = max(self._drained_at, end)
            self._learn_devices(str(args.devices or ""))
            return
        if _WAITS.search(text):
            self._drained_at = max(self._drained_at, end)
            self._calls.extend((start, end, thread, number(printable(text, 200)), -1))
            return
        if text == STEP_MARK:
            self._ranges.extend((start, end, thread, number(text)))
            self._steps_on.add(thread)
        if _SYNCS.match(text):
            self.of_torch_xla = True
        if EXECUTES.search(text):
            self._executes.extend((start, end, thread, number(printable(text, 200))))
        if _DISPATCH.search(text):
            self._dispatches.extend((start, end, thread))
        if not _OF_XLA.search(text) and text != STEP_MARK:
            self._maybe.extend((start, end, thread, number(printable(text, model.LONGEST_NAME))))
            return
        frame = _FRAME.match(text)
        shown = f"{frame[1]}({frame[2]}): {frame[3]}" if frame is not None else text
        self._spans.extend((start, end, thread, number(printable(shown, 400))))

    def _learn_devices(self, text: str) -> None:
        """Read the devices from the form of llmtop's captures: "0=NVIDIA H100 80GB HBM3|1=…"."""
        for one in text.split("|")[:_MOST_DEVICES]:
            number, _, kind = one.partition("=")
            if number.isascii() and number.isdigit() and len(number) < _DIGITS and kind:
                self.devices[int(number)] = model.TracedGpu(int(number), name=printable(kind, 100))

    def _thread(self, tid: Number) -> int:
        known = self._threads.get(tid)
        if known is None:
            known = self._threads[tid] = int_or(tid, -2 - len(self._threads))
        return known

    def calls(self, process: int, with_runs: bool) -> model.ApiCalls:
        """CUDA calls and waits; with the hand-over of each function where that is all there is."""
        columns = {name: self._calls.pop_column(place) for place, name in enumerate(_CALL)}
        if with_runs and self._runs:
            more = {name: self._executes.pop_column(place) for place, name in enumerate(_CALL[:-1])}
            more["correlation"] = np.argsort(np.argsort(more["start"], kind="stable"), kind="stable")
            columns = {name: np.concatenate([columns[name], more[name]]) for name in _CALL}
        return model.build(model.ApiCalls, _select_process(process, columns))

    def ranges(self, process: int, with_steps: bool) -> model.Ranges:
        """Phases, what the script annotated itself and, if wanted, steps."""
        sure = {name: self._ranges.pop_column(place) for place, name in enumerate(_RANGE)}
        maybe = {name: self._maybe.pop_column(place) for place, name in enumerate(_RANGE)}
        inside = {name: self._dispatches.pop_column(place) for place, name in enumerate(_RANGE[:3])}
        threads = self._steps_on or set(inside["thread"].tolist())
        kept = is_among(maybe["thread"], list(threads))
        for thread in threads:
            own = inside["thread"] == thread
            spans = iv.union(inside["start"][own], inside["end"][own])
            # What JAX notes within a call of a compiled function is its own, whatever it is called.
            kept &= ~((maybe["thread"] == thread) & iv.contains(spans, maybe["start"]))
        wanted = with_steps | ~is_among(sure["name"], list(self._step_names))
        columns = {name: np.concatenate([sure[name][wanted], maybe[name][kept]]) for name in _RANGE}
        rows = len(columns["start"])
        columns["style"] = np.full(rows, model.PUSH_POP, dtype=np.int64)
        return model.build(model.Ranges, _select_process(process, columns))

    def spans(self, process: int) -> model.HostSpans:
        """Return the host's spans of a process that JAX, XLA and Python annotated, kind PYTHON, in ns."""
        columns = {name: self._spans.pop_column(place) for place, name in enumerate(_RANGE)}
        columns["kind"] = np.full(len(columns["start"]), model.PYTHON, dtype=np.int64)
        return model.build(model.HostSpans, _select_process(process, columns))

    def operations(self) -> Iterator[tuple[int, int, Number, str, XlaArgs, int]]:
        """Yield XLA's operations on the host's threads: start, end, thread, name, arguments, and the run, or -1.

        An operation that only holds others (a loop, a call) is left out for them.
        """
        self._runs = self._find_runs()
        by_line: dict[Number, list[_Operation]] = {}
        for one in self._operations:
            by_line.setdefault(one.line, []).append(one)
        self._operations = []
        for line, ops in by_line.items():
            ops.sort(key=lambda one: (one.start, -one.end))
            for one, following in zip(ops, [*ops[1:], None], strict=True):
                if following is not None and following.start < one.end and following.end <= one.end:
                    continue
                yield one.start, one.end, line, one.text, one.args, self._runs.get(_run_key(one), -1)

    def _find_runs(self) -> dict[tuple[int, int], int]:
        """Return which hand-over of a function each of its runs is of: empty where that is uncertain.

        XLA numbers runs in their order. The last runs are those of the hand-overs in the file if the host waited
        for all of them at the end; none may have begun before its own.
        """
        began: dict[tuple[int, int], int] = {}
        for one in self._operations:
            key = _run_key(one)
            began[key] = min(began.get(key, one.start), one.start)
        handed = np.sort(self._executes.column(0)).tolist()
        order = sorted(began, key=lambda key: (key[1], key[0]))
        last = max(one.end for one in self._operations)
        if not handed or len(order) < len(handed) or (0, _NO_RUN) in began or last > self._drained_at:
            return {}
        order = order[-len(handed) :]
        if any(began[key] < at for key, at in zip(order, handed, strict=True)):
            return {}
        return {key: place for place, key in enumerate(order)}


def _run_key(one: _Operation) -> tuple[int, int]:
    return int_or(one.args.device, 0), int_or(one.args.run, _NO_RUN)


_NO_RUN = 1 << 60
"""XLA's numbers of runs have 32 bits with a sign."""
_CALL = ("start", "end", "thread", "name", "correlation")
_RANGE = ("start", "end", "thread", "name")


def _select_process(process: int, columns: dict[str, Any]) -> dict[str, Any]:
    return columns | {"process": np.full(len(columns["start"]), process, dtype=np.int64)}
