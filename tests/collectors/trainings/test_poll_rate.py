"""Who reads the sockets: the round leaves them to `latest()` only while that is called often."""

from __future__ import annotations

from collectors.trainings.poll_rate import OFTEN_SECONDS, Rhythm


def test_what_is_done_every_second_goes_on() -> None:
    rhythm = Rhythm()
    rhythm.beat(100.0)
    assert not rhythm.goes_on(100.0), "done once"
    rhythm.beat(101.0)
    assert rhythm.goes_on(101.9)


def test_what_is_done_seldom_or_no_more_does_not() -> None:
    rhythm = Rhythm()
    rhythm.beat(100.0)
    rhythm.beat(100.0 + 2 * OFTEN_SECONDS)
    assert not rhythm.goes_on(100.1 + 2 * OFTEN_SECONDS), "seldom"
    rhythm.beat(101.0 + 2 * OFTEN_SECONDS)
    assert rhythm.goes_on(101.1 + 2 * OFTEN_SECONDS)
    assert not rhythm.goes_on(102.2 + 3 * OFTEN_SECONDS), "no more"
