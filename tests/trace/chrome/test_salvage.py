"""One damaged place in a Chrome trace costs the event that it lies in, and a sentence; nothing around it."""

from __future__ import annotations

import gzip
import io
import random
import re

import pytest

from llmtop.trace import model
from llmtop.trace.files import chrome_json
from tests.support.data import KINETO


@pytest.fixture(scope="module")
def whole() -> bytes:
    return gzip.decompress(KINETO.read_bytes())


def _read(data: bytes) -> model.Trace:
    return chrome_json.load(io.BytesIO(data), "trace.json")


def _rows(trace: model.Trace) -> int:
    return sum(map(len, (trace.ops, trace.calls, trace.ranges, trace.host, trace.overhead)))


def _damage(trace: model.Trace) -> list[str]:
    return [note for note in trace.notes if "damaged" in note or "cut" in note]


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95, 0.999])
def test_one_unescaped_quote_costs_one_event(whole: bytes, share: float) -> None:
    at = whole.index(b'"name": "', int(len(whole) * share)) + 11
    trace, intact = _read(whole[:at] + b'"' + whole[at:]), _read(whole)
    assert _rows(intact) - 1 <= _rows(trace) <= _rows(intact)
    (said,) = _damage(trace)
    place = re.search(r"a place of the file is damaged, byte ([\d,]+): 1 event \(([\d,]+) bytes\)", said)
    assert place, said
    began, length = (int(number.replace(",", "")) for number in place.groups())
    assert began <= at <= began + length


@pytest.mark.parametrize("seed", range(12))
def test_one_flipped_bit_costs_one_event_at_most(whole: bytes, seed: int) -> None:
    chance = random.Random(seed)
    raw = bytearray(whole)
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    # One event, or the two halves that a pair of begin and end makes.
    assert _rows(_read(bytes(raw))) >= _rows(_read(whole)) - 1


def test_a_hundred_damaged_places_cost_no_more_than_their_events(whole: bytes) -> None:
    chance = random.Random(3)
    raw = bytearray(whole)
    for _ in range(100):
        raw[chance.randrange(len(raw))] = ord('"')
    trace = _read(bytes(raw))
    assert _rows(trace) >= _rows(_read(whole)) - 100
    (said,) = _damage(trace)
    assert "places of the file are damaged, the first at byte" in said


_EVENT = '{"ph": "X", "cat": "cpu_op", "name": "op%d", "ts": %d, "dur": 1, "pid": 1, "tid": 1, "args": {"a": 1}}'


def _made(*events: str) -> bytes:
    return ('{"traceEvents": [\n' + ",\n".join(events) + '\n], "baseTimeNanoseconds": 5}').encode()


def _names(data: bytes) -> tuple[set[str], list[str]]:
    trace = _read(data)
    return {trace.names[name] for name in trace.host.name.tolist()}, _damage(trace)


GOOD = [_EVENT % (number, number) for number in range(6)]


@pytest.mark.parametrize(
    "bad",
    [
        '{"ph": "X", "cat": "cpu_op", "name": "a"b", "ts": 1}',
        '{"ph": "X", "cat": "cpu_op", "name": "a, "ts": 1}',
        '{"ph": "X", "cat": "cpu_op", "name": "a", "args": {"x": 1, "ts": 1}',
        '{"ph": "X", "cat": "cpu_op", "name": "a", "args": "x": 1}}}}, "ts": 1}',
        '{"ph": "X", "args": ' + '{"args": ' * 5000 + "1" + "}" * 5000 + "}",
        '{"ph": "X", "ts": ' + "9" * 6000 + ', "x": [}',
        '"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1}',
        "}{][",
        "\x00" * 3000,
    ],
)
def test_what_stands_around_a_damaged_event_is_all_kept(bad: str) -> None:
    for place in (0, 3, 6):
        names, said = _names(_made(*GOOD[:place], bad, *GOOD[place:]))
        assert names >= {f"op{number}" for number in range(6)}, (place, said)
        assert said, "and it is told"


def test_a_lost_comma_costs_nothing() -> None:
    names, _ = _names(_made(*GOOD[:2], GOOD[2] + GOOD[3], *GOOD[4:]))
    assert names == {f"op{number}" for number in range(6)}


def test_names_that_look_like_the_border_of_events_are_no_damage() -> None:
    odd = _EVENT.replace("op%d", r"}, {\"ph\": \"X\"}, {%d") % (77, 3)
    names, said = _names(_made(*GOOD[:3], odd, *GOOD[3:]))
    assert len(names) == 7
    assert not said


def test_without_its_beginning_the_events_are_still_found() -> None:
    names, said = _names(_made(*GOOD).replace(b"traceEvents", b"tracdEvents"))
    assert names == {f"op{number}" for number in range(6)}
    assert said


@pytest.mark.slow("random or many inputs; a neighbour has one case of each kind")
def test_pieces_that_end_anywhere_give_the_same(whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    intact = _read(whole)
    at = whole.index(b'"name": "', len(whole) // 3) + 11
    broken = whole[:at] + b'"' + whole[at:]
    expected = _read(broken)
    for size in (3000, 7777, 100_001):
        monkeypatch.setattr(chrome_json, "PIECE_BYTES", size)
        assert _rows(_read(whole)) == _rows(intact)
        assert not _damage(_read(whole))
        assert _rows(_read(broken)) == _rows(expected)
        assert _damage(_read(broken)) == _damage(expected)
