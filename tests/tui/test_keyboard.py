"""Whatever bytes come from a terminal, the program lives and its keys work."""

from __future__ import annotations

import random
import sys
import time

import pytest
from textual import events

from tests.support.processes import wait_for
from tests.support.terminal import Terminal
from tests.tui.test_terminal import SCREEN, assert_given_back
from tui.keyboard import PASTE_CHARACTERS, PASTE_SECONDS, Keyboard

ODD = {
    "no UTF-8": b"\xe9",
    "half a character": b"\xf0\x9f",
    "a key beyond Unicode": b"\x1b[99999999999999999;5u",
    "a text beyond Unicode": b"\x1b[97;5;99999999u",
    "a paste without an end": b"\x1b[200~lost",
    "a window of 10 billion cells": b"\x1b[48;99999;99999;0;0t",
    "the mouse in a window without pixels": b"\x1b[48;5;5;0;0t\x1b[<0;3;3M",
    "a sequence without an end": b"\x1b[" + b"1;" * 500,
    "an operating system command": b"\x1b]11;rgb:ffff/ffff/ffff\x07",
    "a mouse far away": b"\x1b[<0;99999999999999999999;99999999M\x1b[<0;99999999999999999999;99999999m",
    "NUL": b"\0" * 100,
}


def pressed(keyboard: Keyboard, data: bytes) -> list[str]:
    return [message.key for message in keyboard.feed(data) if isinstance(message, events.Key)]


def test_odd_bytes_end_nothing_and_the_next_key_works() -> None:
    with Terminal([*SCREEN, "--interval", "2"]) as terminal:  # it waits for seconds, and keys draw at once
        terminal.shows("tokens/s")
        for name, odd in ODD.items():
            terminal.type_bytes(odd)
            seen = len(terminal.raw)

            def drawn(
                seen: int = seen,
            ) -> bool:  # the first may still belong to what was cut, or to the lost paste
                terminal.keys("?")
                time.sleep(0.5)
                return b"Keys on the main screen" in terminal.raw[seen:]

            wait_for(drawn, 30, f"the help after {name}")
            terminal.keys("\x1b")
            time.sleep(0.3)
            terminal.keys("\x1b")
            time.sleep(0.3)

        def left() -> bool:
            terminal.keys("q")
            time.sleep(0.3)
            return terminal.process.poll() is not None

        wait_for(left, 30, "the end")
        assert terminal.ends() == 0
        assert_given_back(terminal)


def fuzz(seed: int, count: int) -> bytes:
    """Bytes and sequences of all kinds, but no key that quits (q, ctrl+c, ctrl+q), stops (ctrl+z) or chooses."""
    dice = random.Random(seed)
    forbidden = set(b"qQ\x03\x11\x1a\r\n")

    def numbers() -> bytes:
        pool = ("0", "1", "3", "200", "201", "48", "999", "55555555555", "-7", "", ":", "1:2")
        return ";".join(dice.choices(pool, k=dice.randrange(1, 6))).encode()

    def one() -> bytes:
        match dice.randrange(6):
            case 0:
                return bytes(dice.choices([b for b in range(256) if b not in forbidden], k=dice.randrange(1, 20)))
            case 1:
                return b"\x1b[" + numbers() + dice.choice([b"t", b"R", b"M", b"m", b"~", b"A", b"H", b"$y", b"c"])
            case 2:
                return b"\x1b[<" + numbers() + dice.choice([b"M", b"m"])
            case 3:
                return b"\x1b[?" + numbers() + b"$y"
            case 4:
                return b"\x1b" + bytes(
                    dice.choices(b"[]OPX^_\\<>?;0123456789abcdefghijklmnop", k=dice.randrange(1, 40))
                )
            case _:
                return b"\x1b[" + str(dice.choice((200, 2**31, 10**16, 0xD800, 0x110000, 65))).encode() + b";5u"

    return b"".join(one() for _ in range(count))


def test_the_decoder_takes_ten_thousand_odd_sequences() -> None:
    keyboard = Keyboard()
    for seed in range(5):
        data = fuzz(seed, 2000)
        for start in range(0, len(data), 777):
            keyboard.feed(data[start : start + 777])
            keyboard.tick()
    keyboard.feed(b"\x1b[201~")
    assert pressed(keyboard, b"?")[-1:] == ["question_mark"]


@pytest.mark.parametrize("seed", range(2))
def test_the_screen_lives_through_random_bytes_and_q_still_quits(seed: int) -> None:
    # A replay: no key of it captures, signals or reads a process.
    with Terminal([sys.executable, "-m", "llmtop", "demo"]) as terminal:
        terminal.shows("REPLAY")
        data = fuzz(1000 + seed, 60)
        for start in range(0, len(data), 300):
            terminal.type_bytes(data[start : start + 300])

        def left() -> bool:  # out of a paste, out of a field that takes letters, out of a screen, out
            for keys in ("\x1b[201~", "\x1b", "q"):
                terminal.keys(keys)
                time.sleep(0.3)
            return terminal.process.poll() is not None

        wait_for(left, 100, "the end")
        assert terminal.ends() == 0
        assert_given_back(terminal)


def test_only_the_bad_sequence_is_lost() -> None:
    assert pressed(Keyboard(), b"a\x1b[99999999999999999;5ub") == ["a", "b"]
    before, _replacement, after = pressed(Keyboard(), b"a\xffb")
    assert (before, after) == ("a", "b")


def test_a_character_cut_in_two_reads_is_whole() -> None:
    keyboard = Keyboard()
    assert not pressed(keyboard, "é".encode()[:1])
    (message,) = keyboard.feed("é".encode()[1:])
    assert isinstance(message, events.Key)
    assert message.character == "é"


def test_a_paste_comes_whole_and_one_that_lost_its_end_is_given_up() -> None:
    now = 0.0
    keyboard = Keyboard(lambda: now)
    keyboard.feed(b"\x1b[200~some te")
    now += PASTE_SECONDS / 2
    keyboard.tick()
    found = [*keyboard.feed(b"xt\x1b[201~"), *keyboard.feed(b"x")]
    assert [message.text for message in found if isinstance(message, events.Paste)] == ["some text"]
    keyboard.feed(b"\x1b[200~lost")
    assert not pressed(keyboard, b"q")
    now += PASTE_SECONDS * 1.1
    keyboard.tick()
    assert pressed(keyboard, b"q") == ["q"]


def test_an_endless_paste_is_not_kept() -> None:
    keyboard = Keyboard()
    keyboard.feed(b"\x1b[200~" + b"x" * (PASTE_CHARACTERS + 10))
    assert pressed(keyboard, b"q") == ["q"]
