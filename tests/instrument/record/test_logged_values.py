"""Logged values with their steps, as a process keeps them for a monitor that comes later."""

from __future__ import annotations

from llmtop.instrument.record.logged_values import KEPT, MOST_READ, LoggedValues


def test_values_are_read_once_and_in_order() -> None:
    logged = LoggedValues()
    assert logged.watch("loss")
    assert not logged.watch("accuracy")
    for step in range(5):
        logged.add("loss", 1.0 - step, step)
    cursor, read = logged.read(0)
    assert read == [(step, "loss", 1.0 - step) for step in range(5)]
    assert not logged.has_new(cursor)
    logged.add("loss", 7.0, 5)
    assert logged.has_new(cursor)
    assert logged.read(cursor)[1] == [(5, "loss", 7.0)]


def test_a_late_reader_has_the_last_values_in_messages_of_bounded_size() -> None:
    logged, found, cursor = LoggedValues(), [], 0
    for step in range(2 * KEPT):
        logged.add("loss", float(step), step)
    while logged.has_new(cursor):
        cursor, read = logged.read(cursor)
        assert len(read) <= MOST_READ
        found += [step for step, _, _ in read]
    assert found == list(range(KEPT, 2 * KEPT))
