"""Monitors that flood, nest, ask without end or never read: they are dropped, and their neighbours are served."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from llmtop.errors import UnusableInput
from llmtop.instrument.serve import limits
from llmtop.protocol import wire
from llmtop.protocol.client import Connection
from tests.support import attackers
from tests.support.processes import environment, wait_for
from tests.support.trainings import STEPPING, Heard, Training, connect, socket_of

STORY = """
import os, sys, time
import llmtop
from llmtop.protocol import wire
from llmtop.instrument.record import recorder
with llmtop.step(): pass
for number in range({answers}):
    if number % 20 == 0: sys.stdin.readline()
    recorder.get().server.send_state(wire.CaptureState(id=str(number), state="writing", detail="x" * 10_000))
    time.sleep(0.02)
while True:
    with llmtop.step(): time.sleep(0.002)
"""
"""Sends all its monitors the same long story, in parts of 200 KB: so much may lie unread if the reader is late."""


class Attacker:
    """One of `tests.support.attackers`, at work until the ``with`` is left."""

    def __init__(self, name: str, path: Path) -> None:
        command = [sys.executable, "-m", "tests.support.attackers", name, str(path)]
        self._process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "attacking\n"

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=240)


def raw(path: Path) -> socket.socket:
    """A bare connection, past the Hello."""
    channel = attackers.connect(str(path))
    channel.settimeout(60)
    (length,) = struct.unpack("<I", channel.recv(4, socket.MSG_WAITALL))
    assert isinstance(wire.decode_from_training(channel.recv(length, socket.MSG_WAITALL)), wire.Hello)
    return channel


def last_words(channel: socket.socket) -> list[wire.FromTraining]:
    """What the training still says before it hangs up."""
    framer, messages = wire.Framer(), list[wire.FromTraining]()
    try:
        while data := channel.recv(1 << 16):
            messages += [wire.decode_from_training(body) for body in framer.feed(data)]
    except ConnectionResetError:
        pass  # it hung up with bytes of ours unread
    return messages


def hears_more(heard: Heard, steps: int = 100) -> None:
    here = len(heard.steps)
    heard.until(lambda: len(heard.steps) > here + steps, 240)


@pytest.mark.slow(
    "two kinds of attack; each lasts seconds",
    kept=(
        "nested_frames",
        "pauses",
    ),
)
@pytest.mark.parametrize("name", list(attackers.ATTACKS))
def test_during_an_attack_its_neighbours_are_served_and_after_it_who_is_new(runtime_dir: Path, name: str) -> None:
    with Training(STEPPING) as training:
        neighbour = Heard(connect(runtime_dir, training))
        hears_more(neighbour)
        path = socket_of(runtime_dir, training.pid)
        with Attacker(name, path):
            for _ in range(5):
                hears_more(neighbour)
        late = Heard(wait_for(lambda: _open(path), 30))
        hears_more(late)
        hears_more(neighbour)
        training.kill()
        assert training.communicate(timeout=240)[1] == ""


def _open(path: Path) -> Connection | None:
    try:
        return Connection.open(path, timeout_s=60)
    except (UnusableInput, ConnectionError):
        return None  # there is no room yet


@pytest.mark.slow(
    "two limits stand for all; each starts a server",
    kept=(
        "sent0-more than 200 messages",
        "sent4-nested too deeply",
    ),
)
@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (attackers.frame(attackers.UNKNOWN) * 300, "more than 200 messages"),
        (attackers.frame(b"") * 300, "not a message"),
        (attackers.frame(msgspec.msgpack.encode({"type": "wave", "x": b"x" * 10_000})) * 150, "1 MiB"),
        (attackers.frame(msgspec.msgpack.encode({"type": "wave", "x": b"x" * 100_000})), "limit of 16,384"),
        (attackers.frame(b"\x82\xa4type\xa4wave\xa1x" + b"\x91" * 15_000 + b"\xc0"), "nested too deeply"),
        (attackers.frame(b"\x91" * 15_000), "not a message"),
        (attackers.frame(b"\x81\xa4type\xa3\xff\xfe\xfd"), "not UTF-8"),
        (attackers.frame(b"\x81\xa4type\xdd\xff\xff\xff\xff"), "not a message"),
        (wire.encode(wire.CaptureCancel(id="x" * 10_000)), "longer than any can be"),
        (wire.encode(wire.Pause(id="x" * 129)), "longer than any can be"),
        (wire.encode(wire.CaptureRequest(id="a", engine="e", path="/" + "x" * 5000)), "longer than any can be"),
        (wire.encode(wire.CaptureCancel(id="x" * ((1 << 20) - 100))), "limit of 16,384"),
    ],
)
def test_what_goes_too_far_is_told_why_and_hung_up_on(runtime_dir: Path, sent: bytes, reason: str) -> None:
    with Training(STEPPING) as training:
        neighbour = Heard(connect(runtime_dir, training))
        with raw(socket_of(runtime_dir, training.pid)) as channel:
            with suppress(BrokenPipeError, ConnectionResetError):  # it did not wait for all of it
                channel.sendall(sent)
            words = last_words(channel)
        # None where bytes of the attack were still unread: the hang-up may then take the words with it.
        assert [reason in word.reason for word in words if isinstance(word, wire.Refused)] in ([True], [])
        hears_more(neighbour)
        hears_more(Heard(connect(runtime_dir, training)))
        training.kill()
        assert training.communicate(timeout=240)[1] == ""


def test_no_frame_overflows_the_stack_of_a_script_that_raised_the_recursion_limit(runtime_dir: Path) -> None:
    with Training("import sys\nsys.setrecursionlimit(10**9)\n" + STEPPING) as training:
        neighbour = Heard(connect(runtime_dir, training))
        path = socket_of(runtime_dir, training.pid)
        for depth in (limits.MAX_REQUEST - 100, wire.MAX_FRAME - 100):
            with raw(path) as channel:
                with suppress(BrokenPipeError, ConnectionResetError):
                    channel.sendall(attackers.frame(b"\x82\xa4type\xa4wave\xa1x" + b"\x91" * depth + b"\xc0"))
                with suppress(OSError):
                    channel.shutdown(socket.SHUT_WR)
                last_words(channel)
        hears_more(neighbour)


@pytest.mark.slow(
    "asks for seconds; test_captures_that_are_asked_for_too_often_are_refused_with_a_word has the other side"
)
def test_a_monitor_that_asks_ten_times_a_second_stays(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        heard = Heard(connect(runtime_dir, training))
        for number in range(40):
            heard.connection.send(wire.Pause(id=str(number), finished=1 << 40))
            heard.connection.send(wire.Resume(id=str(number)))
            heard.until(
                lambda wanted=str(number): any(  # type: ignore[misc]
                    one.id == wanted and one.state == "resumed"
                    for one in heard.messages
                    if isinstance(one, wire.PauseState)
                )
            )
            time.sleep(0.05)
        hears_more(heard)


@pytest.mark.slow(
    "attacks for seconds; test_during_an_attack_its_neighbours_are_served_and_after_it_who_is_new has others"
)
def test_who_leaves_its_answers_unread_is_dropped_and_who_reads_hears_them_all(runtime_dir: Path) -> None:
    with Training(STORY.format(answers=200)) as training:
        reader = Heard(connect(runtime_dir, training))
        deaf = raw(socket_of(runtime_dir, training.pid))
        deaf.sendall(attackers.SUBSCRIBE)
        reader.until(lambda: reader.steps)  # from here on it is told
        told = lambda: [one for one in reader.messages if isinstance(one, wire.CaptureState)]  # noqa: E731
        for count in range(20, 201, 20):
            training.go()
            reader.until(lambda count=count: len(told()) == count)  # type: ignore[misc]
        hears_more(reader)
        # What it still finds is what its socket held and no more than was kept for it: not the whole story.
        assert len([one for one in _until_hung_up(deaf) if isinstance(one, wire.CaptureState)]) < 100


def _until_hung_up(channel: socket.socket) -> list[wire.FromTraining]:
    framer, messages = wire.Framer(), list[wire.FromTraining]()
    while data := channel.recv(1 << 16):
        messages += [wire.decode_from_training(body) for body in framer.feed(data)]
    return messages


@pytest.mark.slow("test_more_monitors_than_there_is_room_for_are_told finds the same fault")
def test_silent_connections_make_room_for_a_monitor_that_speaks(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        neighbour = Heard(connect(runtime_dir, training))
        path = socket_of(runtime_dir, training.pid)
        silent = [raw(path) for _ in range(31)]
        hears_more(Heard(wait_for(lambda: _open(path))))
        hears_more(neighbour)
        for channel in silent:
            channel.close()


def test_captures_that_are_asked_for_too_often_are_refused_with_a_word(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        heard, other = Heard(connect(runtime_dir, training)), Heard(connect(runtime_dir, training))
        for number in range(20):
            heard.connection.send(wire.CaptureRequest(id=str(number), engine="torch.profiler", path="/x"))

        def states(one: Heard) -> list[wire.CaptureState]:
            return [message for message in one.messages if isinstance(message, wire.CaptureState)]

        heard.until(lambda: len(states(heard)) == 20)
        often = [one for one in states(heard) if "too often" in one.detail]
        assert 0 < len(often) <= 20 - limits.CAPTURES_AT_ONCE
        assert {one.state for one in states(heard)} == {"failed"}
        hears_more(other)
        assert not any("too often" in one.detail for one in states(other)), "only who asked is told"


@pytest.mark.slow(
    "attacks for seconds; test_during_an_attack_its_neighbours_are_served_and_after_it_who_is_new has others"
)
def test_pauses_without_end_are_refused_with_a_word_and_the_training_goes_on(runtime_dir: Path) -> None:
    def pause(heard: Heard, name: str) -> wire.PauseState:
        heard.connection.send(wire.Pause(id=name, seconds=0.0))

        def ended() -> list[wire.PauseState]:
            found = [one for one in heard.messages if isinstance(one, wire.PauseState) and one.id == name]
            return [one for one in found if one.state in ("failed", "resumed", "late")]

        heard.until(ended)
        return ended()[0]

    with Training(STEPPING) as training:
        heard = Heard(connect(runtime_dir, training))
        ends = [pause(heard, str(number)) for number in range(30)]
        refused = [one for one in ends if one.state == "failed"]
        assert ends[0].state == "resumed"
        assert refused
        assert "2 % of its time, which is as long as it may be: ask again in " in refused[-1].detail
        hears_more(heard)
    with Training(STEPPING, LLMTOP_PAUSE_PCT="100") as training:
        heard = Heard(connect(runtime_dir, training))
        assert {pause(heard, str(number)).state for number in range(30)} >= {"resumed"}


class Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_who_was_paused_for_a_start_is_paused_for_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Time()
    budget = limits.PauseBudget(clock)
    for _ in range(2):
        assert budget.refusal() == ""
        budget.spend(30.0)
    assert "ask again in 2001 s" in budget.refusal()
    clock.now += 1990
    assert budget.refusal()
    clock.now += 20
    assert budget.refusal() == ""
    budget.spend(30.0)
    assert budget.refusal() == "", "it belongs to the pause before"
    budget.spend(0.5)
    assert budget.refusal()
    clock.now += 1e6
    assert budget.refusal() == ""
    budget.spend(30.0)
    clock.now += limits.PAIR_WITHIN_S + 1
    assert budget.refusal() == ""  # what has been earned meanwhile
    budget.spend(25.0)
    monkeypatch.setenv("LLMTOP_PAUSE_PCT", "0")
    none = limits.PauseBudget(clock)
    for _ in range(2):
        assert none.refusal() == ""
        none.spend(100.0)
    assert "LLMTOP_PAUSE_PCT is 0" in none.refusal()


def test_an_allowance_is_used_up_and_earned_again() -> None:
    clock = Time()
    allowance = limits.Allowance(per_s=2.0, at_once=4.0, clock=clock)
    assert [allowance.take() for _ in range(5)] == [True] * 4 + [False]
    clock.now += 1.0
    assert [allowance.take() for _ in range(3)] == [True, True, False]
    clock.now += 1000.0
    assert not allowance.take(5.0)
    assert allowance.take(4.0)


@pytest.mark.slow(
    "attacks for seconds; test_during_an_attack_its_neighbours_are_served_and_after_it_who_is_new has others"
)
def test_requests_that_cost_much_are_looked_at_less_often() -> None:
    clock = Time()
    pace = limits.Pace(clock)
    assert pace.rest() == 0.0
    pace.begin()
    pace.end()
    assert pace.rest() == pytest.approx(limits.LOOK_EVERY_S)
    clock.now += 1.0
    assert pace.rest() == 0.0
    pace.begin()
    began = time.thread_time()
    while time.thread_time() - began < 0.2:
        pass
    pace.end()
    assert pace.rest() == pytest.approx(1.0), "as long as it may be"
