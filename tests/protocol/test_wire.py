"""Messages of other versions, byte by byte as msgpack's specification has them: absent fields, unknown types."""

from __future__ import annotations

import errno
import itertools
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmtop.errors import UnusableInput
from llmtop.protocol import job_store, wire
from llmtop.protocol.client import Connection, NoReply
from llmtop.system import procfs

HELLO = b"\x82\xa4type\xa5hello\xa8protocol\x01"
STEPS = b"\x82\xa4type\xa5steps\xa5steps\x90"
NEWER = b"\x82\xa4type\xa4wave\xa1x\x07"
DAMAGED = b"\x82\xa4type\xa5steps\xa5steps\x07"
DEFAULTS = {
    ("Hello", "protocol"): 1,
    ("PhaseTime", "count"): 1,
    ("SampledStack", "looks"): 1,
    ("Subscribe", "protocol"): 1,
    ("Subscribe", "history"): 512,
    ("CaptureRequest", "steps"): 5,
    ("Pause", "seconds"): 5.0,
    ("Pause", "drain_seconds"): 3.0,
    ("OpRanges", "seconds"): 60.0,
    ("SampleStacks", "rate_hz"): 20.0,
}
"""What an absent number means where it is not nothing: versions that are in use leave it out and mean this."""


def _defaults() -> Iterator[tuple[str, str, Any]]:
    for module in (wire, job_store):
        for name, one in vars(module).items():
            if isinstance(one, type) and issubclass(one, msgspec.Struct) and not name.startswith("_"):
                for field in msgspec.structs.fields(one):
                    if isinstance(field.default, int | float):
                        yield name, field.name, field.default


def test_an_absent_number_means_nothing_but_where_it_is_listed() -> None:
    found = {(name, field): default for name, field, default in _defaults() if default}
    assert found == DEFAULTS


WHOLE = {
    "Hello", "GpuTimes", "Checkpoints", "Alive", "Collectives", "Arrivals", "Overhead", "Outside", "StalledAt",
    "Subscribe", "CaptureCancel", "Resume", "StopSampling", "Refused",
}  # fmt: skip
"""Messages that have all fields in them; of the others, which came later or are long, only what is not usual."""


def test_what_is_usual_is_left_out_of_messages() -> None:
    tagged = {one for one in vars(wire).values() if isinstance(one, type) and issubclass(one, msgspec.Struct)}
    whole = {
        one.__name__ for one in tagged if one.__struct_config__.tag and not one.__struct_config__.omit_defaults
    }
    assert whole == WHOLE
    assert msgspec.msgpack.encode(wire.OpRanges(id="a")) == b"\x82\xa4type\xa9op_ranges\xa2id\xa1a"


BY_PLACE = {
    "Arrival", "ArrivalStamp", "CollectiveCount", "GpuTime", "LoggedValue", "PhaseTime", "SampledFrame",
    "SampledStack", "SampledStep", "SampledThread", "SavedCheckpoint", "StepDone",
}  # fmt: skip
"""Parts of messages that come by the hundred: their fields go by place and not by name, so no place may change."""


def test_parts_that_come_by_the_hundred_have_no_names_of_fields() -> None:
    kinds = [one for one in vars(wire).values() if isinstance(one, type) and issubclass(one, msgspec.Struct)]
    assert {one.__name__ for one in kinds if one.__struct_config__.array_like} == BY_PLACE
    assert msgspec.msgpack.encode(wire.PhaseTime(name="a", host_ns=5)) == b"\x93\xa1a\x05\x01"
    read = wire.decode_from_training(
        b"\x82\xa4type\xa5steps\xa5steps\x91\x98\x07\x01\x02\x03\x04\x05\x91\x93\xa1a\x05\x02\x06"
    )
    assert isinstance(read, wire.Steps)
    (step,) = read.steps
    assert (step.index, step.started_unix_ns, step.host_ns, step.interval_ns) == (7, 1, 2, 3)
    assert (step.tokens, step.samples, step.tokens_in) == (4.0, 5.0, 6.0)
    assert [(phase.name, phase.host_ns, phase.count) for phase in step.phases] == [("a", 5, 2)]


def test_the_shortest_messages_are_read() -> None:
    hello, steps = wire.decode_from_training(HELLO), wire.decode_from_training(STEPS)
    assert isinstance(hello, wire.Hello)
    assert (hello.protocol, hello.pid, hello.rank, hello.started_at) == (1, 0, None, 0.0)
    assert isinstance(steps, wire.Steps)
    assert (steps.steps, steps.lost, steps.history, steps.first_ordinal) == ([], 0, False, 0)


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(10)
    connection = Connection(ours, Path("1-00000000.sock"), 1)
    yield connection, theirs
    connection.close()
    theirs.close()


def test_a_message_of_a_newer_version_is_passed_over(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    theirs.sendall(_frame(NEWER) + _frame(STEPS))
    assert [type(message) for message in connection.receive(5.0)] == [wire.Steps]


def test_a_known_message_with_a_wrong_field_is_an_error(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    theirs.sendall(_frame(DAMAGED))
    with pytest.raises(UnusableInput, match="another program may listen"):
        connection.receive(5.0)


def test_an_error_of_a_silent_process_is_its_sentence_and_has_its_pid() -> None:
    error = NoReply("process 7 does not answer", 7)
    assert (str(error), error.host_pid) == ("process 7 does not answer", 7)


def test_a_channel_to_what_is_no_training_is_closed_though_its_error_is_kept(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        path = tmp_path / "1-00000000.sock"
        listening.bind(str(path))
        listening.listen(1)
        before = procfs.open_descriptors()
        with pytest.raises(NoReply) as raised:  # which holds the frames that hold the channel
            Connection.open(path, timeout_s=0.2)
        assert procfs.open_descriptors() == before
        assert raised.value


def _fill_queue(path: Path, others: ExitStack) -> int:
    """Connect as often as can be while nobody accepts, and return how often."""
    for number in itertools.count():
        other = others.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        other.setblocking(False)
        if other.connect_ex(str(path)) == errno.EAGAIN:
            return number
    raise AssertionError("it takes any number")


def test_a_full_queue_of_connections_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "1-00000000.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening, ExitStack() as others:
        listening.bind(str(path))
        listening.listen(0)
        waiting = _fill_queue(path, others)

        def accept() -> None:
            time.sleep(0.2)
            for _ in range(waiting):
                others.enter_context(listening.accept()[0])
            ours = others.enter_context(listening.accept()[0])
            ours.sendall(_frame(HELLO))

        with ThreadPoolExecutor(1) as pool:
            accepted = pool.submit(accept)
            with Connection.open(path, timeout_s=20.0) as connection:
                assert connection.hello.protocol == 1
            accepted.result(20)


@pytest.mark.parametrize(("length", "is_read"), [(8, True), (9, False)])
def test_a_frame_of_the_largest_size_is_read_and_a_larger_one_refused(length: int, is_read: bool) -> None:
    framer = wire.Framer(largest=8)
    frame = _frame(b"x" * length)
    if is_read:
        assert framer.feed(frame[:5]) == []
        assert framer.feed(frame[5:] + frame) == [b"x" * length] * 2
    else:
        with pytest.raises(UnusableInput, match="a message of 9 bytes was announced, over the limit of 8"):
            framer.feed(frame)


@pytest.mark.parametrize(
    ("whole", "begun", "is_read"), [(2, b"", True), (2, b"\1\0\0", True), (2, b"\1\0\0\0", False), (3, b"", False)]
)
def test_no_more_frames_than_the_limit_may_come_at_once(whole: int, begun: bytes, is_read: bool) -> None:
    framer = wire.Framer(most=2)
    data = _frame(b"x") * whole + begun
    if is_read:
        assert framer.feed(data) == [b"x"] * whole
        assert framer.feed(_frame(b"x")[len(begun) :] + _frame(b"y")) == [b"x", b"y"]
    else:
        with pytest.raises(UnusableInput, match="sent more than 2 messages at once"):
            framer.feed(data)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_frames_are_the_same_in_pieces_of_any_size(size: int) -> None:
    bodies = [b"", b"a", b"bc" * 9, b"", b"d" * 300]
    stream = b"".join(map(_frame, bodies))
    framer = wire.Framer(most=1000)
    found = [body for at in range(0, len(stream), size) for body in framer.feed(stream[at : at + size])]
    assert found == bodies


MIB = 1024 * 1024
"""The largest frame of version 1."""


def test_the_largest_body_of_a_frame_is_one_mebibyte() -> None:
    assert wire.add_length(b"x" * MIB) == b"\x00\x00\x10\x00" + b"x" * MIB
    with pytest.raises(UnusableInput, match="a message has 1,048,577 bytes, over the limit of 1,048,576"):
        wire.add_length(b"x" * (MIB + 1))
    assert wire.Framer().feed(_frame(b"x" * MIB)) == [b"x" * MIB]
    with pytest.raises(UnusableInput, match="a message of 1,048,577 bytes was announced"):
        wire.Framer().feed((MIB + 1).to_bytes(4, "little"))


def test_a_message_is_a_frame_of_msgpack() -> None:
    assert wire.encode(wire.CaptureCancel(id="a")) == b"\x1a\0\0\0\x82\xa4type\xaecapture_cancel\xa2id\xa1a"


def test_the_name_of_a_printed_message_has_eight_hexadecimal_digits_that_differ() -> None:
    names = {wire.message_printed_name(4711) for _ in range(20)}
    assert len(names) == 20
    for name in names:
        pid, _, rest = name.partition("-")
        token, _, ending = rest.partition(".")
        assert (pid, len(token), set(token) <= set("0123456789abcdef"), ending) == ("4711", 8, True, "told")
        match = wire.MESSAGE_PRINTED_NAME.match(name)
        assert match is not None
        assert match["pid"] == "4711"


@pytest.mark.parametrize(
    ("body", "opening"),
    [
        (HELLO, ("hello", 1, "")),
        (b"\x81\xa4type\xa1x", ("x", 0, "")),
        (b"\x83\xa4type\xa4wave\xa8protocol\x07\xa7version\xa39.1", ("wave", 7, "9.1")),
    ],
)
def test_the_opening_of_any_message_is_read(body: bytes, opening: tuple[str, int, str]) -> None:
    assert wire.message_opening(body) == opening
    assert wire.message_opening(memoryview(body)) == opening


@pytest.mark.parametrize(
    ("kind", "is_known"), [("hello", True), ("refused", True), ("enough_stacks", True), ("wave", False)]
)
def test_types_of_both_directions_are_known(kind: str, is_known: bool) -> None:
    assert wire.is_known(kind) is is_known


@pytest.mark.parametrize(
    ("body", "is_newer"),
    [(NEWER, True), (DAMAGED, False), (b"\xc1", False), (b"", False), (b"\x80", False), (b"\x07", False)],
)
def test_only_a_whole_message_of_an_unknown_type_is_newer(body: bytes, is_newer: bool) -> None:
    assert wire.is_newer_type(body) is is_newer


@pytest.mark.parametrize("body", [b"", b"\xc1", NEWER, DAMAGED, HELLO[:-1]])
def test_what_is_no_message_raises_an_error_of_decoding(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        wire.decode_from_training(body)
    with pytest.raises(msgspec.DecodeError):
        wire.decode_from_monitor(body)


def test_each_side_reads_the_messages_of_the_other_only() -> None:
    asked = wire.decode_from_monitor(b"\x81\xa4type\xa9subscribe")
    assert isinstance(asked, wire.Subscribe)
    assert (asked.protocol, asked.version, asked.history, asked.every_ms) == (1, "", 512, 0)
    with pytest.raises(msgspec.DecodeError):
        wire.decode_from_monitor(HELLO)
    with pytest.raises(msgspec.DecodeError):
        wire.decode_from_training(b"\x81\xa4type\xa9subscribe")
