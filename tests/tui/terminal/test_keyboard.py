"""Whatever bytes come from a terminal, the program lives and its keys work."""

from __future__ import annotations

import random
import socket
import sys
import time
from collections.abc import Collection

import pytest
from textual import events
from textual.message import Message

from tests.support.processes import wait_for
from tests.support.terminal import Terminal
from tests.tui.terminal.test_session import SCREEN, assert_given_back
from tui.terminal import driver
from tui.terminal.keyboard import Keyboard
from tui.terminal.pasting import BURST_SECONDS, PASTE_CHARACTERS, PASTE_END, PASTE_SECONDS, PASTE_START

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
TWO = ("no UTF-8", "a window of 10 billion cells")


def pressed(keyboard: Keyboard, data: bytes) -> list[str]:
    return [message.key for message in keyboard.feed(data) if isinstance(message, events.Key)]


@pytest.mark.slow("two kinds stand for all; each takes seconds", kept=("two kinds",))
@pytest.mark.parametrize(
    "names", [TWO, [name for name in ODD if name not in TWO]], ids=["two kinds", "the others"]
)
def test_odd_bytes_end_nothing_and_the_next_key_works(names: Collection[str]) -> None:
    with Terminal([*SCREEN, "--interval", "2"]) as terminal:  # it waits for seconds, and keys draw at once
        terminal.shows("tokens/s")
        for name in names:
            terminal.type_bytes(ODD[name])
            seen = len(terminal.raw)

            def drawn(
                seen: int = seen,
            ) -> bool:  # the first may still belong to what was cut, or to the lost paste
                for _ in range(
                    3
                ):  # Textual's parser types a sequence that is too long: it may have opened a screen
                    terminal.keys("\x1b")
                    time.sleep(0.2)
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


@pytest.mark.slow("random or many inputs; a neighbour has one case of each kind")
def test_the_decoder_takes_ten_thousand_odd_sequences() -> None:
    keyboard = Keyboard()
    for seed in range(5):
        data = fuzz(seed, 2000)
        for start in range(0, len(data), 777):
            keyboard.feed(data[start : start + 777])
            keyboard.tick()
    keyboard.feed(b"\x1b[201~")
    assert pressed(keyboard, b"?")[-1:] == ["question_mark"]


@pytest.mark.slow("test_odd_bytes_end_nothing_and_the_next_key_works finds the same fault")
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
    typist = Typist()
    typist.types(b"a\x1b[99999999999999999;5ub", seconds=0.1)
    assert typist.keys == ["a", "b"]
    typist.types(b"a\xffb", seconds=0.1)
    before, _replacement, after = typist.keys[2:]
    assert (before, after) == ("a", "b")


@pytest.mark.parametrize("cut", [0, 1, 2, 5])
@pytest.mark.parametrize(
    "reply",
    [
        b"\x1b]11;rgb:ffff/ffff/ffff\x07",
        b"\x1b]10;rgb:qq/qq\x1b\\",
        b"\x1bP1+r5463=3d\x1b\\",
        b"\x1b_q\x1b\\",
        b"\x1b]q",
    ],
)
def test_the_reply_to_a_query_is_no_keys_and_the_next_key_is_one(reply: bytes, cut: int) -> None:
    now = [100.0]
    keyboard = Keyboard(lambda: now[0])
    found = [message for part in (reply[:cut], reply[cut:]) if part for message in keyboard.feed(part)]
    now[0] += 0.05
    found += keyboard.tick()
    assert [message.key for message in found if isinstance(message, events.Key)] == []
    now[0] += 0.5
    assert pressed(keyboard, b"q") == ["q"]


def test_a_bracket_after_the_escape_key_is_a_key() -> None:
    keyboard = Keyboard()
    found = keyboard.feed(b"\x1b")
    wait_for(lambda: found.extend(keyboard.tick()) or found, 5, "the escape key")
    time.sleep(0.15)
    found += keyboard.feed(b"]")
    assert [message.key for message in found if isinstance(message, events.Key)] == [
        "escape",
        "right_square_bracket",
    ]


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


START, END = PASTE_START.encode(), PASTE_END.encode()
TEXT = b"quit c\r e k q 1 2 3 \x1b[A \xc3\xa9\r\n"
"""Text full of keys that the main screen knows."""


class Typist:
    """A keyboard on a clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.keyboard = Keyboard(lambda: self.now)
        self.keys: list[str] = []
        self.pastes: list[str] = []

    def types(self, data: bytes, *, read: int = 4096, seconds: float = 0.0) -> None:
        """Bytes that come in reads of so many, so long after each other."""
        for start in range(0, len(data), read):
            self._hear(self.keyboard.feed(data[start : start + read]))
            self.waits(seconds)

    def waits(self, seconds: float) -> None:
        """Time in which nothing comes."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.1)
            self._hear(self.keyboard.tick())
        self._hear(self.keyboard.tick())

    def _hear(self, messages: list[Message]) -> None:
        self.keys += [message.key for message in messages if isinstance(message, events.Key)]
        self.pastes += [message.text for message in messages if isinstance(message, events.Paste)]


@pytest.mark.parametrize("seconds", [0.0, 0.03, 1.5], ids=["fast", "slow", "stalling"])
@pytest.mark.parametrize("size", [10_000, 100_000, 1_000_000, 10_000_000])
def test_no_key_of_a_paste_acts_before_its_end_mark(size: int, seconds: float) -> None:
    typist = Typist()
    typist.types(START)
    typist.types((TEXT * (size // len(TEXT) + 1))[:size], seconds=seconds)
    assert not typist.keys
    typist.types(END + b"q")
    (pasted,) = typist.pastes
    assert pasted == (TEXT * (size // len(TEXT) + 1))[:size].decode(errors="replace")[:PASTE_CHARACTERS]
    assert typist.keys == ["q"]


@pytest.mark.parametrize("cut", range(1, 6))
def test_the_marks_of_a_paste_may_come_in_two_reads(cut: int) -> None:
    for pause in (0.0, 1.0):
        typist = Typist()
        for part in (START[:cut], START[cut:] + b"text", b"more" + END[:cut], END[cut:] + b"q"):
            typist.types(part, seconds=pause)
        assert typist.pastes == ["textmore"]
        assert typist.keys[-1:] == ["q"]
        assert "q" not in typist.keys[:-1]
        assert pause or typist.keys == ["q"]


def test_a_paste_that_was_cut_off_is_over_when_nothing_came_for_a_while() -> None:
    for size in (10, 3_000_000):
        typist = Typist()
        typist.types(START + b"c\r" * (size // 2))
        typist.waits(PASTE_SECONDS * 0.9)
        typist.types(b"c")
        assert not typist.keys, "the paste may only be slow"
        typist.waits(PASTE_SECONDS * 1.1)
        typist.types(b"q")
        assert (typist.keys, typist.pastes) == (["q"], [])


def test_who_presses_key_after_key_at_a_paste_without_end_is_heard() -> None:
    typist = Typist()
    typist.types(START + b"c\r" * 3000)
    for _ in range(20):
        typist.types(b"q", seconds=0.3)
    assert "q" in typist.keys


def test_two_characters_at_a_time_are_a_slow_paste_and_no_keys() -> None:
    typist = Typist()
    typist.types(START)
    typist.types(b"c\r" * 20, read=2, seconds=0.5)
    assert not typist.keys


@pytest.mark.parametrize("read", [4096, 700, 11])
def test_a_paste_without_marks_is_no_keys(read: int) -> None:
    typist = Typist()
    typist.types(TEXT * 20_000, read=read, seconds=0.0)
    typist.waits(BURST_SECONDS * 1.1)
    assert not typist.keys
    (pasted,) = typist.pastes
    assert pasted.startswith(TEXT.decode())
    typist.types(b"q")
    assert typist.keys == ["q"]


@pytest.mark.parametrize("first", [1, 2, 3, 7])
def test_no_key_acts_of_a_fast_stream_that_begins_with_a_short_read(first: int) -> None:
    text = b"qce?kabcdefghijklmnop" * 500
    typist = Typist()
    typist.types(text[:first], seconds=0.001)
    typist.types(text[first:], read=3, seconds=0.001)
    typist.waits(BURST_SECONDS * 1.1)
    assert typist.keys == (["q"] if first == 1 else []), "the driver joins a single character with what follows it"
    typist.types(b"x")
    assert typist.keys[-1] == "x"


def test_a_read_is_joined_with_what_follows_it_at_once() -> None:
    there, here = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # one read gives one message
    with there, here:
        for character in (b"q", b"c"):
            there.send(character)
        assert driver.read_burst(here.fileno()) == b"qc"
        there.send(b"x")
        assert driver.read_burst(here.fileno()) == b"x"


def test_a_key_that_comes_alone_acts_at_once_and_a_held_one_is_not_held_back() -> None:
    typist = Typist()
    typist.types(b"g")
    assert typist.keys == ["g"]
    typist.types(b"j" * 20, read=1, seconds=0.005)  # within the time of one that came before it
    assert len(typist.keys) > 15


def test_a_marked_paste_ends_one_without_marks() -> None:
    typist = Typist()
    typist.types(TEXT * 100 + START + b"c\r" + END + b"q")
    assert len(typist.pastes) == 2
    assert (typist.pastes[1], typist.keys) == ("c\r", ["q"])


def test_typing_and_held_keys_are_keys_however_late_they_are_read() -> None:
    typist = Typist()
    typist.types(b"j" * 600 + b"k" * 60)  # held for ten seconds, while the program stood
    typist.waits(0.1)
    assert len(typist.keys) == 660
    typist = Typist()
    typist.types(b"\x1b[B" * 900)
    assert typist.keys == ["down"] * 900
    typist = Typist()
    typist.types(b"\x1b[<35;10;20M" * 2000, read=4096)  # a mouse that moves, cut anywhere
    typist.types(b"the quick brown fox jumps over the lazy dog", read=1, seconds=0.05)
    assert len(typist.keys) == 43
    typist = Typist()
    typist.types(b"/straggler of rank 12\r")  # tmux send-keys
    typist.waits(0.1)
    assert len(typist.keys) == 22


@pytest.mark.slow(
    "a paste with marks stands for both; test_a_paste_without_marks_is_no_keys has one without", kept=("marked",)
)
@pytest.mark.parametrize("marked", [True, False], ids=["marked", "unmarked"])
def test_the_screen_hears_no_key_of_a_large_paste_and_q_after_it(marked: bool) -> None:
    # A key that acted would open a screen, and `q` would only close that.
    with Terminal([sys.executable, "-m", "llmtop", "demo"]) as terminal:
        terminal.shows("REPLAY")
        text = "c?e k\u00e9\u4e2d\u6587\U0001f600".encode() * 60_000
        terminal.type_bytes(START + text + END if marked else text)
        seen = len(terminal.raw)

        def left() -> bool:
            terminal.keys("q")
            time.sleep(0.3)
            return terminal.process.poll() is not None

        wait_for(left, 20, "the end")
        assert b"Keys on the main screen" not in terminal.raw[seen:]
        assert terminal.ends() == 0
        assert_given_back(terminal)
