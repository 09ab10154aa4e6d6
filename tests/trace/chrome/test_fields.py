"""Single fields of an event of any type: what fits is kept, what does not is dropped."""

from __future__ import annotations

import json

import pytest

from llmtop.trace.chrome.fields import Args, Event, lenient_event


def test_lists_are_kept_as_text_and_numbers_as_they_are() -> None:
    raw = {
        "ph": "X",
        "name": "aten::mm",
        "ts": 12.5,
        "args": {"Input type": ["float", ""], "Input Dims": [[2, 3], []], "stream": 7, "Sequence number": "4"},
    }
    event = lenient_event(raw)
    assert (event.ph, event.name, event.ts, event.dur) == ("X", "aten::mm", 12.5, None)
    assert event.args is not None
    assert json.loads(bytes(event.args.types)) == ["float", ""]
    assert json.loads(bytes(event.args.dims)) == [[2, 3], []]
    assert (event.args.stream, event.args.sequence) == (7, "4")


@pytest.mark.parametrize(
    "raw",
    [
        {"ph": 5, "ts": "soon", "dur": [], "pid": None, "args": 3},
        {"args": {"Input type": "float", "Input Dims": 7, "stream": [7], "bytes": {}, "Group size": None}},
        ["no", "event"],
        None,
    ],
)
def test_what_does_not_fit_is_as_if_it_were_absent(raw: object) -> None:
    event = lenient_event(raw)
    empty = Event(args=Args()) if isinstance(raw, dict) and isinstance(raw.get("args"), dict) else Event()
    assert event == empty
