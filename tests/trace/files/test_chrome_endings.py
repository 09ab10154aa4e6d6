"""How a Chrome trace may begin and end, and what is noted of one that is cut or damaged."""

from __future__ import annotations

import io
import json

import pytest

from llmtop.errors import UnusableInput
from llmtop.trace import model
from llmtop.trace.files import chrome_json

EVENT = json.dumps({"ph": "X", "cat": "kernel", "name": "k", "ts": 10, "dur": 2, "pid": 0, "tid": 7})
PART = '{"ph": "X", "cat": "ker'
CUT = "the file is cut after its last event"


def _load(text: str) -> model.Trace:
    return chrome_json.load(io.BytesIO(text.encode()), "trace.json")


@pytest.mark.parametrize(
    ("text", "events", "notes"),
    [
        ("[E, E]", 2, []),
        ("  [E, E]\n", 2, []),
        ("[E, E", 2, []),  # the format allows it
        ("[E, E,", 2, []),
        ('{"traceEvents": [E, E]}', 2, []),
        ('{"a": 1, "traceEvents": [E, E], "b": 2}', 2, []),
        ('{"traceEvents": [E, E', 2, [CUT]),
        ('{"traceEvents": [E, E,', 2, [CUT]),
        ('{"traceEvents": [E, E]', 2, [CUT]),
        ('{"traceEvents": [E, E], "b": 2', 2, [CUT]),
        ("[E, P", 1, [f"the file is cut: its last {len(PART)} bytes are no whole event and are left out"]),
        (
            '{"traceEvents": [E, P',
            1,
            [f"the file is cut: its last {len(PART)} bytes are no whole event and are left out"],
        ),
    ],
)
@pytest.mark.parametrize("piece", [None, 150])
def test_a_file_that_is_cut_says_so(
    text: str, events: int, notes: list[str], piece: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if piece is not None:
        monkeypatch.setattr(chrome_json, "PIECE_BYTES", piece)
    trace = _load(text.replace("E", EVENT).replace("P", PART) if "traceE" not in text else _filled(text))
    assert len(trace.ops) == events
    assert trace.notes == notes


def _filled(text: str) -> str:
    head, _, rest = text.partition("[")
    return f"{head}[{rest.replace('E', EVENT).replace('P', PART)}"


@pytest.mark.parametrize(
    ("damaged", "places"), [(1, "a place of the file is damaged, byte"), (2, "2 places of the file")]
)
def test_a_damaged_place_costs_the_event_that_it_lies_in(damaged: int, places: str) -> None:
    broken = EVENT.replace('"ts": 10', '"ts": 10 20')
    events = [EVENT, broken, EVENT, *([broken] if damaged == 2 else []), EVENT]
    trace = _load(f'{{"traceEvents": [{", ".join(events)}]}}')
    assert len(trace.ops) == 3
    (note,) = trace.notes
    assert note.startswith(places)
    assert f"{len(EVENT) + len(', ') + len('{') + len('traceEvents') + 5}" in note
    bytes_ = damaged * len(broken)
    what = "1 event" if damaged == 1 else "2 events"
    are = "is" if damaged == 1 else "are"
    assert note.endswith(f": {what} ({bytes_:,} bytes) could not be read and {are} left out")


@pytest.mark.parametrize("text", ["[]", '{"traceEvents": []}'])
def test_a_file_with_an_empty_list_holds_no_events(text: str) -> None:
    with pytest.raises(UnusableInput, match="holds no trace events"):
        _load(text)


def test_a_file_without_events_is_no_trace() -> None:
    with pytest.raises(UnusableInput, match='has no "traceEvents"'):
        _load('{"a": 1}')


def test_fields_before_and_after_the_events_are_the_file_s() -> None:
    trace = _load(f'{{"baseTimeNanoseconds": 7, "traceEvents": [{EVENT}], "deviceProperties": [{{"id": 1}}]}}')
    assert trace.origin_unix_ns == 7
    assert set(trace.gpus) == {1}
