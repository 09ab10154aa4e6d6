"""Reading memory snapshots: plain data only; damaged, foreign and hostile files get a sentence."""

from __future__ import annotations

import os
import pickle
import random
import resource
from pathlib import Path
from typing import Any

import pytest

from llmtop.errors import UnusableInput
from llmtop.memory.files import memory_files
from llmtop.memory.pickle_memo import check_memo
from llmtop.memory.snapshot import load
from llmtop.system.inputs import Limits
from llmtop.trace.files.file_kind import examine
from tests.support.memory_allocator import STEP, Allocator, Training


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    allocator = Allocator()
    Training(allocator).steps(2)
    return allocator.write(tmp_path / "whole.pickle")


class _Attack:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self._made = (call, arguments)

    def __reduce__(self) -> Any:
        return self._made


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("place", ["whole", "frames"])
def test_a_snapshot_is_data_and_never_code(tmp_path: Path, whole: Path, protocol: int, place: str) -> None:
    mark = tmp_path / "mark"
    attack: Any = _Attack(os.mkdir, str(mark))
    data = pickle.loads(whole.read_bytes())
    if place == "frames":
        data["segments"][0]["blocks"][0]["frames"] = [attack]
    else:
        data = attack
    path = tmp_path / "attack.pickle"
    path.write_bytes(pickle.dumps(data, protocol=protocol))
    with pytest.raises(UnusableInput, match=r"asks for (posix|os)\.mkdir"):
        load(path)
    assert not mark.exists()
    assert load(whole).devices


def test_events_with_the_same_frames_have_one_stack_whatever_lists_and_dicts_these_are(whole: Path) -> None:
    shared = load(whole)
    data = pickle.loads(whole.read_bytes())
    for number, event in enumerate(data["device_traces"][0]):
        frames = event["frames"]
        event["frames"] = [dict(frame) for frame in frames] if number % 2 else list(frames)
    whole.write_bytes(pickle.dumps(data))
    own = load(whole)
    assert own.stacks == shared.stacks
    assert len(own.stacks) > 3
    assert own.devices[0].events.stack.tolist() == shared.devices[0].events.stack.tolist()


@pytest.mark.parametrize("number", [2**28, 2**32 - 1])
def test_a_few_bytes_do_not_fill_the_memory(tmp_path: Path, whole: Path, number: int) -> None:
    path = tmp_path / "memo.pickle"
    path.write_bytes(b"\x80\x04]r" + number.to_bytes(4, "little") + b".")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnusableInput, match="announces more objects than it has bytes"):
        load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB; it were 4 GB and 64 GB
    assert load(whole).devices


def test_any_bytes_come_to_an_end() -> None:
    chance, ended = random.Random(3), 0
    for _ in range(3000):
        data = bytes(chance.choice(b"crUTX\n\x8a\x8c.]h}\x00\x01\xff") for _ in range(chance.randrange(60)))
        try:
            check_memo(b"\x80\x04" + data)
        except pickle.UnpicklingError:
            ended += 1
    assert 0 < ended <= 3000


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_is_read(tmp_path: Path, whole: Path, protocol: int) -> None:
    path = tmp_path / "other.pickle"
    data = pickle.loads(whole.read_bytes())
    data["odd"] = [1.5, True, None, -1, 300, 70_000, 1 << 300, "ä" * 300, (), (1,), {}]
    path.write_bytes(pickle.dumps(data, protocol=protocol))
    assert len(load(path).devices[0].events) == len(load(whole).devices[0].events)


def test_stacks_are_kept_once(whole: Path) -> None:
    snapshot = load(whole)
    (device,) = snapshot.devices
    assert snapshot.stacks[0] == ()
    assert len(snapshot.stacks) == 7  # none, model, forward, loss, state, short, zero_grad
    assert len(device.events) > 100
    assert int(device.blocks.bytes.sum()) == int(device.segment_bytes.sum())


@pytest.mark.parametrize(
    "change",
    [
        lambda data: [data],
        lambda data: {},
        lambda data: {"segments": 5},
        lambda data: {"segments": [5]},
        lambda data: data | {"device_traces": [["alloc"]]},
        lambda data: data | {"device_traces": [[{"action": ["alloc"]}]]},
        lambda data: data | {"device_traces": [[{"action": "alloc", "addr": 1, "size": "12"}]]},
        lambda data: data | {"device_traces": [[{"action": "alloc", "addr": 1, "size": -1}]]},
        lambda data: data | {"device_traces": [[{"action": "alloc", "addr": 1 << 70, "size": 1}]]},
        lambda data: data | {"segments": [data["segments"][0] | {"total_size": 1 << 60}]},
        lambda data: data | {"external_annotations": [{"name": 5}]},
        lambda data: data | {"llmtop": {"steps_us": ["now"]}},
        lambda data: data | {"llmtop": {"owners": {"parameters": [None]}}},
    ],
)
def test_what_is_no_snapshot_is_refused_in_a_sentence(tmp_path: Path, whole: Path, change: Any) -> None:
    path = tmp_path / "odd.pickle"
    path.write_bytes(pickle.dumps(change(pickle.loads(whole.read_bytes()))))
    with pytest.raises(UnusableInput, match="no snapshot"):
        load(path)
    assert load(whole).devices


def test_damaged_bytes_give_a_sentence_or_a_snapshot(tmp_path: Path, whole: Path) -> None:
    data, chance = whole.read_bytes(), random.Random(7)
    path = tmp_path / "damaged.pickle"
    said = []
    for _ in range(150):
        damaged = bytearray(data[: chance.randrange(2, len(data))] if chance.random() < 0.5 else data)
        for _ in range(chance.randrange(4)):
            damaged[chance.randrange(2, len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            load(path)
        except UnusableInput as error:
            said.append(str(error))
    assert len(said) > 50
    assert all(str(path) in sentence for sentence in said)


def test_a_file_larger_than_any_snapshot_is_read_only_when_asked(whole: Path) -> None:
    small = Limits(snapshot_bytes=100)
    with pytest.raises(UnusableInput, match="--no-limits"):
        load(whole, small)
    assert load(whole, Limits(snapshot_bytes=100, lifted=True)).devices


def test_a_folder_has_one_a_rank_and_kinds_are_not_mixed(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "capture"
    folder.mkdir()
    for rank in range(2):
        (folder / f"rank{rank}.memory.pickle").write_bytes(whole.read_bytes())
    (folder / "capture.json").write_text("{}")
    assert memory_files([folder]) == [folder / f"rank{rank}.memory.pickle" for rank in range(2)]
    assert memory_files([folder / "capture.json"]) is None
    with pytest.raises(UnusableInput, match="read each kind separately"):
        memory_files([whole, folder / "capture.json"])
    assert examine(whole).kind == "memory-snapshot"


def test_a_snapshot_of_an_older_pytorch(tmp_path: Path) -> None:
    """Before 2.1: stacks in a list called history, no times, no addresses of blocks."""
    block = {"size": 512, "state": "active_allocated", "history": [{"real_size": 100, "frames": STEP}]}
    segment = {
        "device": 0,
        "address": 4096,
        "total_size": 1024,
        "blocks": [block, {"size": 512, "state": "inactive"}],
    }
    path = tmp_path / "old.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment]}))
    (device,) = load(path).devices
    assert device.blocks.address.tolist() == [4096, 4608]
    assert device.blocks.stack.tolist() == [1, 0]
