"""Finds the lines that a thread ran since Python last checked whether another thread waits for its lock.

A thread gives the lock up to a waiting thread at such a check only, so a sampler that had to wait finds it at the
first check after long code of C that kept the lock: `merged = a | b` has none, the next call does. The time was
spent between the check before and that one. Checks are at the beginning of a function, at a jump backward and at
the end of a call of C (CPython 3.11 to 3.14; 3.10 has others, so nothing is found there). How Python has
specialized the instructions tells calls of C from calls of Python, and arithmetic on numbers from longer work.
"""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Final, NamedTuple

MAX_LINES: Final = 5
"""A wider range is not reported."""
_MAX_BYTES: Final = 16_384
"""Limit for code that is decoded: some 3,000 instructions, about 2 ms."""
_MAX_CODES: Final = 64
_IS_KNOWN_PYTHON: Final = (3, 11) <= sys.version_info[:2] <= (3, 14)
_NAMES: Final[Sequence[str]] = getattr(dis, "_all_opname", dis.opname)
"""Names of instructions, also of specialized ones."""
_JUMPS: Final = frozenset(dis.hasjrel)
_CACHE: Final = 0
"""Opcode of the space after an instruction that holds what it has learned."""

_CHECKS: Final = re.compile(r"(?:INSTRUMENTED_)?(?:POP_)?JUMP_BACKWARD(?!_NO_INTERRUPT).*")
_CALLS: Final = re.compile(r"(?:INSTRUMENTED_)?(?:PRECALL|CALL(?!_INTRINSIC))(?:_.*)?|.*_WITH_CALL")
_CALLS_PYTHON: Final = re.compile(r".*(?:_PY|PYFUNC|BOUND_METHOD|INIT)(?:_.*)?")
_CALLS_C: Final = re.compile(
    r"(?:PRE)?CALL_(?:NO_KW_)?(?:BUILTIN|METHOD_DESCRIPTOR|STR_1|TUPLE_1|NON_PY|KW_NON_PY).*"
)
_CALLS_CHEAP: Final = re.compile(r"(?:PRE)?CALL_(?:NO_KW_)?(?:LEN|ISINSTANCE|LIST_APPEND|TYPE_1)")
_NO_CHECK_BEFORE: Final = re.compile(r"PUSH_EXC_INFO|SEND.*|YIELD_VALUE|CLEANUP_THROW|END_ASYNC_FOR|RERAISE")
"""Instructions before these do not run in the order in which they are stored."""
_ENDS: Final = re.compile(r"RETURN_.*|RAISE_VARARGS|RERAISE|JUMP_FORWARD|(?:INSTRUMENTED_)?JUMP_BACKWARD.*")
"""Instructions that the next one does not follow."""
_NUMBERS: Final = re.compile(
    r"BINARY_OP_(?:ADD|SUBTRACT)_INT|BINARY_OP_\w+_FLOAT|COMPARE_OP_(?:INT|FLOAT|STR)(?:_JUMP)?|IS_OP|UNARY_NOT|"
    r"BINARY_(?:SUBSCR|OP_SUBSCR)_(?:LIST_INT|TUPLE_INT|DICT)"
)
_CHEAP: Final = re.compile(
    r"LOAD_.*|PUSH_NULL|COPY.*|SWAP|NOP|CACHE|EXTENDED_ARG.*|KW_NAMES|RESUME.*|MAKE_.*|NOT_TAKEN|TO_BOOL.*|"
    r"(?:POP_)?JUMP.*|BUILD_(?:TUPLE|LIST|MAP|SET|SLICE|CONST_KEY_MAP)|(?:LIST|MAP|SET)_(?:APPEND|ADD)|"
    r"FOR_ITER_(?:LIST|TUPLE|RANGE)|UNPACK_SEQUENCE_.*|RETURN_.*|YIELD_VALUE|GET_(?:ITER|LEN)|END_FOR|POP_ITER|"
    r"INSTRUMENTED_(?:LINE|INSTRUCTION|RESUME|RETURN_.*|POP_JUMP.*)|" + _NUMBERS.pattern
)
"""Instructions that take no time worth a line, whatever their operands are."""
_ATTRIBUTES: Final = re.compile(r"LOAD_ATTR(?:_ADAPTIVE|_PROPERTY|_GETATTRIBUTE_OVERRIDDEN)?")
"""Loads of an attribute that may run code of its class: a property, `__getattr__`. Known kinds do not."""
_STORES: Final = re.compile(r"STORE_(?:FAST|NAME|GLOBAL|DEREF).*")
"""These free what they replace; a number in the place of a number costs nothing."""


class Place(NamedTuple):
    """Where a frame is: its code and the offset of its instruction in bytes."""

    code: CodeType
    instruction: int


class Lines(NamedTuple):
    """Lines of one frame between two checks."""

    depth: int
    """Index of the frame, 0 for the innermost one."""
    first: int
    last: int
    instruction: int
    """The only one that can have taken the time, as an offset in bytes; -1 for several."""
    again: tuple[int, int] = (0, 0)
    """First and last line of a second range, which runs after them: the loop had begun anew. (0, 0) for none."""
    suspects: int = 0
    """Number of the lines that can have taken the time; 0 where they were not counted."""

    @property
    def are_few(self) -> bool:
        """Return True if they help the reader who looks at them."""
        wide = max(self.last - self.first, self.again[1] - self.again[0])
        return wide < MAX_LINES and self.suspects <= MAX_LINES


class SinceCheck:
    """Finds these lines, and remembers the instructions of the code that it has seen."""

    def __init__(self) -> None:
        self._flows: dict[CodeType, _Flow] = {}

    def lines(self, places: Sequence[Place], *, is_short: bool = False) -> Lines | None:
        """Return the lines that a thread ran since the check before the present one.

        Args:
            places: its frames, the innermost first.
            is_short: whether little time may have passed since then: any of these lines may have taken it.

        Returns:
            None where they are not known.
        """
        if not _IS_KNOWN_PYTHON:
            return None
        for depth, place in enumerate(places):
            flow = self._flow(place.code)
            at = None if flow is None else flow.index(place.instruction)
            if flow is None or at is None:
                return None
            flow.learn(place.code)
            name = flow.name(at)
            if depth == 0 and name.startswith(("RESUME", "INSTRUMENTED_RESUME")):
                if flow.arguments[at] > 1:
                    return None  # an awaited function that goes on: what ran before it is in no order
                continue  # a function begins or a generator goes on: the time was spent in what called it
            if depth and name.startswith("FOR_ITER"):
                return None  # a check comes right before it
            # A callback's caller is the call of C that runs it; a function of Python has no time before its start.
            starts_here = depth == 0 or not flow.calls_python(at)
            found = flow.since_check(at, starts_here, is_short)
            return None if found is None else Lines(depth, *found)
        return None

    def lines_between(
        self, code: CodeType, start: int, end: int, *, is_end_included: bool, releases: Iterable[int] = ()
    ) -> Lines | None:
        """Return the lines that may run between two instructions of one function; None where they are not known.

        Args:
            code: of the function.
            start: offset of an instruction after which they run.
            end: offset of one before which they run.
            is_end_included: whether that instruction may have run too.
            releases: offsets of calls that give up Python's lock. What a sampler waited for came after the last of
                them, or was the rest of that call: it would have got the lock there.
        """
        flow = self._flow(code) if _IS_KNOWN_PYTHON else None
        first, last = (None, None) if flow is None else (flow.index(start), flow.index(end))
        if flow is None or first is None or last is None or first == last:
            return None
        flow.learn(code)
        given_up = [at for one in releases if (at := flow.index(one)) is not None]
        return flow.lines_between(first, last, is_end_included, given_up)

    def _flow(self, code: CodeType) -> _Flow | None:
        known = self._flows.get(code)
        if known is None:
            raw = code.co_code
            if len(raw) > _MAX_BYTES:
                return None
            if len(self._flows) >= _MAX_CODES:
                self._flows.clear()
            known = self._flows[code] = _Flow(code, raw)
        return known


class _Flow:
    """The instructions of one code object, and which may run before which."""

    def __init__(self, code: CodeType, raw: bytes) -> None:
        """Decode the instructions.

        Args:
            code: of one function.
            raw: its instructions, as they were before Python specialized any.
        """
        self._raw = self._learned = raw
        self._consts = code.co_consts
        self._offsets: list[int] = []
        self.arguments: list[int] = []
        self._lines = _lines_of_units(code, len(raw) // 2)
        self._decode()
        self._before = self._predecessors()
        self._after: list[list[int]] = [[] for _ in self._before]
        for index, ones in enumerate(self._before):
            for one in ones:
                self._after[one].append(index)
        self._usual = self._without_exceptions()

    def learn(self, code: CodeType) -> None:
        """Take over what Python has specialized by now: that changes as the code runs."""
        learned = getattr(code, "_co_code_adaptive", self._raw)
        self._learned = learned if len(learned) == len(self._raw) else self._raw

    def name(self, at: int) -> str:
        """Return the name of an instruction, as specialized."""
        opcode = self._learned[self._offsets[at]]
        return _NAMES[opcode] if opcode < len(_NAMES) else dis.opname[self._raw[self._offsets[at]]]

    def index(self, instruction: int) -> int | None:
        """Return the index of the instruction that an offset is in; None where there is none."""
        if instruction < 0 or not self._offsets or instruction >= 2 * len(self._lines):
            return None
        return _last_up_to(self._offsets, instruction)

    def calls_python(self, at: int) -> bool:
        """Return whether the instruction is a call that is known to enter a function written in Python."""
        name = self.name(at)
        return bool(_CALLS.fullmatch(name) and _CALLS_PYTHON.fullmatch(name))

    def since_check(self, at: int, starts_here: bool, is_short: bool) -> tuple[int, int, int] | None:
        """Return first and last line since the check before an instruction, and the only suspect's offset or -1.

        Args:
            at: index of the instruction at which the thread is.
            starts_here: whether that instruction has run itself.
            is_short: whether cheap instructions are suspects too.
        """
        likely: set[int] = set()
        passed: set[int] = {at}
        rest = [at] if starts_here else [one for one in self._before[at] if one in self._usual]
        seen = {at}
        while rest:
            here = rest.pop()
            seen.add(here)
            name, is_start = self.name(here), here == at
            if _NO_CHECK_BEFORE.fullmatch(name):
                return None
            stops = False
            if not is_start and (_CHECKS.fullmatch(name) or name.startswith(("RESUME", "INSTRUMENTED_RESUME"))):
                continue
            if name.startswith("PRECALL") and not is_start:
                pass  # of the call after it, which has been looked at
            elif _CALLS.fullmatch(name):
                kind = self._kind_of_call(here)
                if is_start or kind == "unknown":
                    likely.add(here)
                stops = kind != "cheap" and not is_start
                if kind == "c" and not is_start:
                    continue
            elif _ATTRIBUTES.fullmatch(name) or not (_CHEAP.fullmatch(name) or self._is_arithmetic(here)):
                likely.add(here)
            passed.add(here)
            if not stops:
                rest += [
                    one
                    for one in self._before[here]
                    if one not in seen and (one in self._usual or here not in self._usual)
                ]
        return self._range(passed if is_short else likely or passed)

    def lines_between(
        self, start: int, end: int, is_end_included: bool, releases: Sequence[int] = ()
    ) -> Lines | None:
        """Return the lines that may run between two instructions, in two ranges where a loop begins anew.

        Args:
            start: index of an instruction that had ended.
            end: index of the one that runs now.
            is_end_included: whether that one is a suspect too.
            releases: indices of the calls that give up the lock.
        """
        passed = self._instructions_between(start, end)
        shorter = [(self._instructions_between(one, end), one) for one in releases if one in passed]
        shorter = [(rest, one) for rest, one in shorter if self._is_on_each_way(one, start, end)]
        also: set[int] = set()
        if shorter:
            passed, start = min(shorter, key=lambda one: len(one[0]))
            also = {start}
        if any(_NO_CHECK_BEFORE.fullmatch(self.name(one)) for one in passed):
            return None
        # What drops the result of the call that has ended is no code after it.
        dropped = {start + 1} if self.name(start + 1) == "POP_TOP" else set()
        likely = {one for one in passed - dropped if self._takes_time(one)}
        likely |= also | ({end} if is_end_included else set())
        below = {one for one in likely if one >= start} if end < start else likely
        ranges = [found for part in (below, likely - below) if (found := self._range(part)) is not None]
        if not ranges:
            return None
        first, last, instruction = ranges[0]
        again = ranges[1][:2] if len(ranges) > 1 else (0, 0)
        lines = {self._lines[self._offsets[one] // 2] for one in likely} - {0}
        return Lines(0, first, last, instruction if len(ranges) == 1 else -1, again, len(lines))

    def _instructions_between(self, start: int, end: int) -> set[int]:
        """Return the instructions on ways from one to another, without both."""
        return self._reachable(start, end, self._after) & self._reachable(end, start, self._before)

    def _is_on_each_way(self, one: int, start: int, end: int) -> bool:
        """Return True if no way leads from an instruction to another without this one."""
        seen, rest = {one, start}, [start]
        while rest:
            for following in self._after[rest.pop()]:
                if following == end:
                    return False
                if following not in seen and following in self._usual:
                    seen.add(following)
                    rest.append(following)
        return True

    def _reachable(self, start: int, stop: int, edges: list[list[int]]) -> set[int]:
        """Return the instructions on ways from one to another, without both, where nothing is raised."""
        found: set[int] = set()
        rest = [start]
        while rest:
            new = [
                one
                for one in edges[rest.pop()]
                if one not in found and one not in {start, stop} and one in self._usual
            ]
            found.update(new)
            rest += new
        return found

    def _takes_time(self, at: int) -> bool:
        name = self.name(at)
        if _CALLS.fullmatch(name):
            return not name.startswith("PRECALL") and self._kind_of_call(at) != "cheap"
        return bool(_ATTRIBUTES.fullmatch(name)) or not (_CHEAP.fullmatch(name) or self._is_arithmetic(at))

    def _range(self, indices: set[int]) -> tuple[int, int, int] | None:
        lines = [line for line in (self._lines[self._offsets[index] // 2] for index in indices) if line]
        if not lines:
            return None
        return min(lines), max(lines), self._offsets[min(indices)] if len(indices) == 1 else -1

    def _kind_of_call(self, at: int) -> str:
        """Return "c", "cheap" (no check either) or "unknown": after a function of Python ran what it did last."""
        names = [self.name(at)]
        if at and self.name(at - 1).startswith("PRECALL"):  # 3.11: one call is two instructions
            names.append(self.name(at - 1))
        if any(_CALLS_CHEAP.fullmatch(name) for name in names):
            return "cheap"
        return "c" if any(_CALLS_C.fullmatch(name) for name in names) else "unknown"

    def _is_arithmetic(self, at: int) -> bool:
        return self._computes_number(at) or self._stores_a_number(at)

    def _stores_a_number(self, at: int) -> bool:
        """Return whether a local is replaced by a number just computed: it replaces one then."""
        return bool(at and _STORES.fullmatch(self.name(at)) and self._computes_number(at - 1))

    def _computes_number(self, at: int) -> bool:
        """Return whether an instruction computes with numbers: known kinds do, and any with a constant number and
        such a result (`step * 64 % 640`)."""
        name = self.name(at)
        if _NUMBERS.fullmatch(name):
            return True
        if not name.startswith("BINARY_OP") or at < 2 or not self._is_constant_number(at - 1):
            return False
        return name == "BINARY_OP_MULTIPLY_INT" or self._computes_number(at - 2)

    def _is_constant_number(self, at: int) -> bool:
        name = self.name(at)
        if name == "LOAD_SMALL_INT":
            return True
        return name.startswith("LOAD_CONST") and type(self._consts[self.arguments[at]]) in {int, float}

    def _decode(self) -> None:
        longer = 0
        for offset in range(0, len(self._raw), 2):
            opcode, argument = self._raw[offset], self._raw[offset + 1] | longer
            if opcode == _CACHE:
                continue
            longer = argument << 8 if opcode == dis.EXTENDED_ARG else 0
            self._offsets.append(offset)
            self.arguments.append(argument)

    def _predecessors(self) -> list[list[int]]:
        before: list[list[int]] = [[] for _ in self._offsets]
        indices = {offset: index for index, offset in enumerate(self._offsets)}
        for index, (offset, after) in enumerate(
            zip(self._offsets, [*self._offsets[1:], len(self._raw)], strict=True)
        ):
            opcode = self._raw[offset]
            if opcode in _JUMPS:
                distance = 2 * self.arguments[index]
                target = indices.get(after - distance if "BACKWARD" in dis.opname[opcode] else after + distance)
                if target is not None:
                    before[target].append(index)
            if not _ENDS.fullmatch(dis.opname[opcode]) and index + 1 < len(self._offsets):
                before[index + 1].append(index)
        return before

    def _without_exceptions(self) -> set[int]:
        """Return the instructions that run where nothing is raised: the end of a `with` is reached both ways."""
        found, rest = {0}, [0]
        while rest:
            new = [one for one in self._after[rest.pop()] if one not in found]
            found.update(new)
            rest += new
        return found


def _lines_of_units(code: CodeType, count: int) -> list[int]:
    """Return the line of each two bytes of code; 0 where it has none."""
    lines = [0] * count
    for start, end, line in code.co_lines():
        for unit in range(start // 2, min(end // 2, count)):
            lines[unit] = line or 0
    return lines


def _last_up_to(offsets: list[int], offset: int) -> int:
    """Return the index of the last of sorted offsets that is not above a given one."""
    low, high = 0, len(offsets)
    while low < high:
        middle = (low + high) // 2
        if offsets[middle] <= offset:
            low = middle + 1
        else:
            high = middle
    return max(low - 1, 0)
