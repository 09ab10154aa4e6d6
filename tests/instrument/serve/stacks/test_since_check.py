"""Code of C that keeps Python's lock: the lines between two checks of the interpreter, in threads that run it."""

from __future__ import annotations

import contextlib
import dis
import queue
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest

from llmtop.instrument.serve.stacks.since_check import MAX_LINES, Lines, Place, SinceCheck
from llmtop.instrument.serve.stacks.stack_words import LoopCalls, StackDescriber

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 checks elsewhere: nothing is found"
)

LOOPS = """
BIG = dict.fromkeys(range(200_000))
LONG = list(range(2_000_000))
def short():
    return 1
def merged():
    step = 0
    while not ended:
        short()
        one = {3: 4}
        both = BIG | one                # merged
        short()
        step += 1
class Holder:
    def take(self):
        self.kept = BIG | {1: 2}        # within
        return len(self.kept)
def called():
    holder = Holder()
    step = 0
    while not ended:
        short()
        holder.take()                   # called
        step += 1
def sliced():
    while not ended:
        short()
        part = LONG[:1_500_000]         # sliced
        short()
def searched():
    while not ended:
        short()
        if -1 in LONG:                  # searched
            short()
def summed():
    while not ended:
        sum(number for number in LONG)  # summed
def sorts():
    while not ended:
        sorted(LONG, key=lambda number: -number)  # sorts
def wide():
    while not ended:
        a = BIG | {1: 2}
        b = BIG | {1: 2}
        c = BIG | {1: 2}
        d = BIG | {1: 2}
        e = BIG | {1: 2}
        f = BIG | {1: 2}
"""
ENOUGH = 12


class Looping:
    """A thread that runs one of these loops."""

    def __init__(self, folder: Path, name: str) -> None:
        self.script = folder / "loops.py"
        self.script.write_text(LOOPS)
        self.space: dict[str, object] = {"__name__": "loops", "ended": False}
        exec(compile(LOOPS, str(self.script), "exec"), self.space)
        run = self.space[name]
        assert callable(run)
        self.thread = threading.Thread(target=run, daemon=True)

    def __enter__(self) -> Looping:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.space["ended"] = True
        self.thread.join(60)

    def frame(self) -> FrameType:
        """The thread's frame once this thread, which does not have Python's lock meanwhile, gets it back."""
        time.sleep(0.0123)
        return sys._current_frames()[self.thread.ident or 0]


def line_of(name: str) -> int:
    return next(number for number, line in enumerate(LOOPS.splitlines(), 1) if line.endswith(f"# {name}"))


@pytest.mark.slow("one of six loops; each is looked at for seconds", kept=("called",))
@pytest.mark.parametrize("name", ["merged", "called", "sliced", "searched", "summed", "sorts"])
def test_the_line_lies_in_what_ran_since_the_check_before(name: str, tmp_path: Path) -> None:
    found: Counter[tuple[int, int]] = Counter()
    since_check = SinceCheck()
    with Looping(tmp_path, name) as looping:
        for _ in range(3 * ENOUGH):
            frame: FrameType | None = looping.frame()
            places: list[Place] = []
            while frame is not None:
                places.append(Place(frame.f_code, frame.f_lasti))
                frame = frame.f_back
            lines = since_check.lines(places)
            if lines is not None and places[lines.depth].code.co_filename == str(looping.script):
                found[lines.first, lines.last] += 1
    assert sum(found.values()) >= ENOUGH, found
    (first, last), times = found.most_common(1)[0]
    assert times > sum(found.values()) / 2
    assert first <= line_of(name) <= last < first + MAX_LINES


PROPERTY = """
class Holder:
    @property
    def table(self):
        return {"a": 1}
def short():
    return 1
def loop(steps):
    holder, step = Holder(), 0
    while step < steps:
        short()
        one = holder.table["a"]         # property
        step += 1
"""


def test_the_line_that_reads_a_property_belongs_to_what_ran() -> None:
    space: dict[str, Any] = {}
    exec(PROPERTY, space)
    for _ in range(20):  # until Python has specialized the instructions
        space["loop"](50)
    code = space["loop"].__code__
    backward = [one.offset for one in dis.get_instructions(code) if "JUMP_BACKWARD" in one.opname]
    lines = SinceCheck().lines([Place(code, backward[-1])])
    place = next(at for at, line in enumerate(PROPERTY.splitlines(), 1) if line.endswith("# property"))
    assert lines is not None
    assert lines.first <= place <= lines.last < lines.first + MAX_LINES


def test_a_wide_range_is_not_reported(tmp_path: Path) -> None:
    describer = StackDescriber()
    with Looping(tmp_path, "wide") as looping:
        said = set()
        for _ in range(ENOUGH):
            looping.frame()
            seen = describer.describe(looping.thread.ident or 0, 0, held_lock=True)
            assert seen is not None
            said.add(seen.words)
    assert said == {""}


def test_the_words_have_the_range_or_the_call(tmp_path: Path) -> None:
    describer = StackDescriber()
    said: Counter[str] = Counter()
    with Looping(tmp_path, "sliced") as looping:
        for _ in range(ENOUGH):
            looping.frame()
            seen = describer.describe(looping.thread.ident or 0, 0, held_lock=True)
            unknown = describer.describe(looping.thread.ident or 0, 0, held_lock=None)
            assert seen is not None
            assert unknown is not None
            assert unknown.words == "", "nothing is said where it is not known whether it had the lock"
            said[seen.words] += 1
    found = re.match(r"loops.py:(\d+)-(\d+) short\(\) … short\(\)", said.most_common(1)[0][0])
    assert found, said
    assert int(found[1]) <= line_of("sliced") <= int(found[2])


def test_the_loop_is_in_the_calls_that_all_samples_have() -> None:
    def codes(*names: str) -> list[object]:
        return [known.setdefault(name, compile(name, name, "exec")) for name in reversed(names)]

    known: dict[str, object] = {}
    loop = LoopCalls()
    for step in range(20):
        loop.add(codes("module", "train", "resize"), step)  # type: ignore[arg-type]
        loop.add(codes("module", "train", "forward"), step)  # type: ignore[arg-type]
    assert loop.count() == 2, "the module and the function that trains; the other calls come and go"


BETWEEN = """
rows = load()
while True:
    scores = left(rows)
    loss = criterion(scores)
    optimizer.step()
    heap = make(3)
    gain = hardest(
        heap,
    )
"""


@pytest.mark.parametrize(
    ("start", "end", "is_end_included", "expected"),
    [
        ("optimizer.step", "left", False, (7, 8)),
        ("make", "left", False, (7, 8)),
        ("make", "left", True, (7, 8, 4, 4)),
        ("load", "left", False, (2, 2)),
    ],
)
def test_lines_between_two_calls_are_those_on_the_way(
    start: str, end: str, is_end_included: bool, expected: tuple[int, ...]
) -> None:
    """Lines read off the source: neither what ran before the loop nor what runs after the second call."""
    found = between(BETWEEN, start, end, is_end_included)
    assert found is not None
    assert (found.first, found.last, *(found.again if found.again[1] else ())) == expected


ANEW = """
step = 0
while True:
    page = normalize(pages[step % 3])
    target = full(page)
    hidden = model(target)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step == 4:
        print("go")
"""


def test_lines_around_the_beginning_of_a_loop_are_two_ranges() -> None:
    """Read off the source: 8 to 11 end an iteration and 4 to 5 begin the next; 9 and 10 only count."""
    found = between(ANEW, "optimizer.step", "model", False, steps=200)
    assert found is not None
    assert (found.first, found.last, found.again) == (8, 11, (4, 5))
    assert found.are_few
    long = ANEW.replace("    target", "    audio = full(page)\n    image = full(page)\n    target")
    found = between(long, "optimizer.step", "model", False, steps=200)
    assert found is not None
    assert not found.are_few, "six calls in six lines"


COUNTED = """
step = 0
while True:
    normalize(0)
    begin = step * 640 % 6400
    name = label % step
    hidden = model(begin)
    optimizer.step()
    step += 1
    half = step // 2
    third = step * 3 // 2 + 0.5
"""


def test_arithmetic_with_constant_numbers_takes_no_time() -> None:
    """Read off the source: a name that is formatted, and a division of what nothing shows to be a number."""
    found = between(COUNTED, "optimizer.step", "model", False, steps=200)
    assert found is not None
    assert (found.first, found.last, found.again, found.suspects) == (10, 10, (4, 6), 3)


GIVEN_UP = """
while True:
    optimizer.step()
    scaler.update()
    noise = randn(64)
    if noise:
        extra = randn(8)
    rows = sort(table)
    batch = stack(rows)
    out = model(batch)
"""


@pytest.mark.parametrize(
    ("releases", "expected"),
    [
        ((), (4, 9)),
        (("noise = randn",), (5, 9)),
        (("noise = randn", "stack"), (9, 9)),
        (("extra = randn",), (4, 9)),
        (("optimizer.step", "model"), (4, 9)),
    ],
)
def test_a_call_that_gives_up_the_lock_ends_what_came_before(
    releases: tuple[str, ...], expected: tuple[int, int]
) -> None:
    """A sampler that waited would have got the lock there; of a call in a branch that is not certain."""
    found = between(GIVEN_UP, "optimizer.step", "model", False, releases=releases)
    assert found is not None
    assert (found.first, found.last) == expected


def test_a_call_that_gives_up_the_lock_counts_where_the_loop_begins_anew() -> None:
    at_end = between(ANEW, "optimizer.step", "model", False, steps=200, releases=("optimizer.zero_grad",))
    at_begin = between(ANEW, "optimizer.step", "model", False, steps=200, releases=("= normalize",))
    assert at_end is not None
    assert at_begin is not None
    assert (at_end.first, at_end.last, at_end.again) == (8, 11, (4, 5))
    assert (at_begin.first, at_begin.last, at_begin.again) == (4, 5, (0, 0))


def between(
    source: str, start: str, end: str, is_end_included: bool, steps: int = 0, releases: Sequence[str] = ()
) -> Lines | None:
    """The lines between the calls of two functions, after so many steps: Python knows then what adds numbers."""
    code = compile(source, "train.py", "exec")
    lines = source.splitlines()
    names = {"optimizer": mock.Mock(), "full": str, "model": bool, "pages": ["A", "B", "C"], "label": "%d"}
    if steps:
        batches = iter(range(steps))
        with contextlib.suppress(StopIteration):
            exec(code, {**names, "print": len, "normalize": lambda page: f"{page}{next(batches)}"})

    def offset(called: str) -> int:
        line = next(number for number, text in enumerate(lines, 1) if f"{called}(" in text)
        return max(
            one.offset
            for one in dis.get_instructions(code)
            if one.opname.startswith("CALL") and one.positions is not None and one.positions.lineno == line
        )

    return SinceCheck().lines_between(
        code,
        offset(start),
        offset(end),
        is_end_included=is_end_included,
        releases=[offset(one) for one in releases],
    )


def test_code_before_the_lock_was_given_up_lies_after_the_phase_before() -> None:
    optimizer, forward = threading.Event(), queue.Queue[int]()

    def loop() -> None:
        while True:
            optimizer.wait(100)
            optimizer.clear()
            heap = sorted(range(9))  # first
            heap.append(sum(heap))
            if forward.get(timeout=240):
                return

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    describer, ident = StackDescriber(), thread.ident or 0

    def stands_in(name: str) -> bool:
        frame, names = sys._current_frames().get(ident), set()
        while frame is not None and frame.f_code.co_name != "loop":
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        return name in names and ("get" in names) is (name == "get")

    def until(name: str) -> None:
        deadline = time.monotonic() + 60
        while not stands_in(name):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    try:
        for step in range(24):  # twelve samples in each phase: more than a round
            until("get" if step % 2 else "wait")
            describer.note_calls(ident, step, "forward" if step % 2 else "optimizer")
            if step % 2:
                forward.put(0)
            else:
                optimizer.set()
        until("wait")
        optimizer.set()
        until("get")
        seen = describer.describe(ident, 24, None, is_given_up=True, passed=("optimizer", "backward"))
        other = describer.describe(ident, 24, None, is_given_up=True, passed=("backward",))
        forward.put(0)
        until("wait")
        around = ("scheduler", "optimizer"), "forward"  # the loop is elsewhere by now
        late = describer.describe(ident, 25, None, is_given_up=True, passed=around[0], before=around[1])
    finally:
        optimizer.set()
        forward.put(1)
        thread.join(100)
    lines = Path(__file__).read_text().splitlines()
    first = next(number for number, line in enumerate(lines, 1) if line.endswith("# first"))
    assert seen is not None
    assert other is not None
    assert re.match(rf"test_since_check\.py:{first - 1}-{first + 1} ", seen.words), seen.words
    assert other.words == "", "a phase that was never seen"
    assert late is not None
    assert late.words == seen.words
