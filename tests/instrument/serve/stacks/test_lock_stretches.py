"""Lines before a thread gave up Python's lock by itself, from samples that waited for the switch interval."""

from __future__ import annotations

from types import CodeType

import pytest

from llmtop.instrument.serve.stacks.lock_stretches import LockStretches

LOOP: CodeType = compile("pass", "train.py", "exec")
OTHER: CodeType = compile("pass", "other.py", "exec")


def stretches(kept: dict[tuple[int, int], int], free: dict[int, int]) -> LockStretches:
    found = LockStretches()
    for (first, last), times in kept.items():
        for _ in range(times):
            found.add_kept(LOOP, first, last)
    for line, times in free.items():
        for _ in range(times):
            found.add_free(LOOP, line)
    return found


@pytest.mark.parametrize(
    ("kept", "free", "expected"),
    [
        ({(81, 81): 9}, {80: 3, 82: 5, 84: 4}, (81, 81)),
        ({(81, 81): 6, (81, 82): 3}, {82: 5}, (81, 82)),
        ({(81, 81): 40, (82, 82): 1}, {82: 5}, (81, 81)),
        ({(81, 81): 3}, {82: 5}, None),
        ({(70, 70): 5, (81, 81): 5}, {82: 5}, None),
        ({(70, 70): 5, (81, 81): 5}, {75: 2, 82: 5}, (81, 81)),
        ({(81, 81): 9}, {81: 9, 82: 5}, None),
        ({(84, 84): 9}, {82: 5}, (84, 84)),
        ({(83, 83): 9, (85, 85): 9}, {82: 5, 84: 5}, (85, 85)),
        ({(84, 84): 9}, {80: 5, 82: 5}, None),
        ({}, {82: 5}, None),
    ],
    ids=[
        *("one line", "with the line itself", "a rare line", "too few samples", "too wide"),
        *("a release between", "a release at the line", "the iteration before", "after its last release"),
        *("later lines", "nothing kept"),
    ],
)
def test_the_lines_are_those_kept_since_the_release_before(
    kept: dict[tuple[int, int], int], free: dict[int, int], expected: tuple[int, int] | None
) -> None:
    assert stretches(kept, free).lines_before(LOOP, 82) == expected


def test_another_loop_begins_anew() -> None:
    found = stretches({(81, 81): 9}, {82: 5})
    assert found.lines_before(OTHER, 82) is None
    found.add_free(OTHER, 82)
    assert found.lines_before(LOOP, 82) is None


def test_what_the_loop_did_earlier_fades() -> None:
    found = stretches({(60, 60): 300, (81, 81): 0}, {82: 5})
    for _ in range(1200):
        found.add_kept(LOOP, 81, 81)
    assert found.lines_before(LOOP, 82) == (81, 81)
