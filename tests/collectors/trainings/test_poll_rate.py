"""Who reads the sockets: the round leaves them to `latest()` only while that is called often."""

from __future__ import annotations

from collectors.trainings.poll_rate import OFTEN_SECONDS, CallRate


def test_what_is_done_every_second_goes_on() -> None:
    rhythm = CallRate()
    rhythm.record(100.0)
    assert not rhythm.is_frequent(100.0), "done once"
    rhythm.record(101.0)
    assert rhythm.is_frequent(101.9)


def test_what_is_done_seldom_or_no_more_does_not() -> None:
    rhythm = CallRate()
    rhythm.record(100.0)
    rhythm.record(100.0 + 2 * OFTEN_SECONDS)
    assert not rhythm.is_frequent(100.1 + 2 * OFTEN_SECONDS), "seldom"
    rhythm.record(101.0 + 2 * OFTEN_SECONDS)
    assert rhythm.is_frequent(101.1 + 2 * OFTEN_SECONDS)
    assert not rhythm.is_frequent(102.2 + 3 * OFTEN_SECONDS), "no more"
