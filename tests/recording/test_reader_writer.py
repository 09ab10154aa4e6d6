"""Recordings: what is written comes back, whole or as far as it is whole."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.model.snapshot import SCHEMA, Snapshot, from_json, to_json
from llmtop.recording.header import Header
from llmtop.recording.members import HEAD_BYTES, RecordingMember, pack
from llmtop.recording.reader_writer import MEMBER_SNAPSHOTS, Reader, Writer
from llmtop.trace.files.file_kind import examine
from tests.support.examples import EXAMPLES
from tests.support.processes import REPOSITORY, environment
from tests.support.snapshots import gpu, rank, snapshot


def write(path: Path, snapshots: list[Snapshot]) -> Path:
    writer = Writer(path, host="node", overwrite=True)
    for one in snapshots:
        writer.write(one)
    writer.close()
    return path


def series(count: int, step: float = 1.0, start: float = 1000.0) -> list[Snapshot]:
    return [snapshot(start + i * step, gpus=(gpu(util_pct=float(i)),)) for i in range(count)]


def played(reader: Reader, start: float = 0.0) -> list[Snapshot]:
    return [one for _, one in reader.snapshots(start)]


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    snapshots = series(37, 0.5)
    reader = Reader(write(tmp_path / "r", snapshots))
    assert played(reader) == snapshots
    assert reader.count == 37
    assert reader.length == pytest.approx(18.0)
    assert reader.damage is None
    assert reader.header.host == "node"


@pytest.mark.parametrize("start", [0.0, 0.3, 17.0, 17.9, 18.0])
def test_seeking_gives_the_first_snapshot_at_or_after_the_position(tmp_path: Path, start: float) -> None:
    reader = Reader(write(tmp_path / "r", series(37, 0.5)))
    position, first = next(reader.snapshots(start))
    assert position >= start
    assert position - start < 0.5
    assert first.time == pytest.approx(1000 + position)


def test_a_loss_that_is_no_number_any_more_can_be_recorded(tmp_path: Path) -> None:
    diverged = snapshot(1000.0, ranks=(rank(1, metrics={"loss": float("nan"), "lr": 0.1}),))
    (back,) = played(Reader(write(tmp_path / "r", [diverged])))
    assert back.ranks[0].metrics == {"loss": None, "lr": 0.1}


def test_seeking_unpacks_only_what_it_needs(tmp_path: Path) -> None:
    path = write(tmp_path / "r", series(1000))
    reader = Reader(path)
    early = reader.members[5]
    data = bytearray(path.read_bytes())
    data[early.offset + 50] ^= 0xFF  # damage before the position sought
    path.write_bytes(data)
    assert [one.time for one in played(reader, 990.0)] == [1990.0 + i for i in range(10)]
    assert reader.damage is None


def test_it_is_plain_gzip_of_json_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "r", series(12))
    lines = gzip.decompress(path.read_bytes()).splitlines()
    assert json.loads(lines[0])["magic"] == "llmtop-recording"
    assert [from_json(line) for line in lines[1:]] == series(12)


@settings(max_examples=EXAMPLES, deadline=None)
@given(cut=st.floats(0.0, 1.0))
@example(0.0)
@example(0.0005)  # not even what says that it is gzip
@example(0.028715734048035742)  # a byte before the end of what says that it is a recording, or the byte after
def test_a_file_cut_anywhere_plays_what_is_whole_or_says_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, cut: float
) -> None:
    path = tmp_path_factory.mktemp("cut") / "r"
    snapshots = series(45)
    whole = write(path, snapshots).read_bytes()
    head = Reader(path).members[0].offset  # of this one: the time in it does not always take the same room
    size = int(len(whole) * cut)
    path.write_bytes(whole[:size])
    if size < head:
        why = "is empty" if size == 0 else f"is cut off after {size} bytes, within the head of a recording"
        with pytest.raises(UnusableInput, match=f"^{path} {why}"):
            Reader(path)
        return
    reader = Reader(path)
    got = played(reader)
    assert got == snapshots[: len(got)]
    if 0 < len(got) < len(snapshots) and reader.damage is None:
        end = reader.members[-1]
        assert end.offset < size  # cut exactly between two members: nothing to see


def test_a_file_cut_within_its_head_is_told_from_a_foreign_and_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "r"
    whole = write(path, series(2)).read_bytes()
    head = Reader(path).members[0].offset
    for size in range(1, head):
        path.write_bytes(whole[:size])
        with pytest.raises(UnusableInput, match=f"is cut off after {size} bytes"):
            Reader(path)
    for foreign in (
        b"\x1f",
        whole[:16] + whole[16:20] + b"\xff" * 400,
        gzip.compress(b"x")[:9],
        b"\x1f\x8b\x08\x04PK",
    ):
        path.write_bytes(foreign)
        with pytest.raises(UnusableInput, match="is cut off" if foreign == b"\x1f" else "is not a recording"):
            Reader(path)


def test_a_recorder_killed_without_warning_loses_at_most_one_member(tmp_path: Path) -> None:
    path = tmp_path / "r"
    program = (
        "import os, sys\n"
        "from llmtop.recording.reader_writer import Writer\n"
        "from tests.support.snapshots import snapshot\n"
        "writer = Writer(sys.argv[1], host='node')\n"
        "for i in range(57): writer.write(snapshot(1000 + i / 10))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], env=environment(), check=False, timeout=240)
    assert done.returncode == -9
    got = played(Reader(path))
    assert 57 - MEMBER_SNAPSHOTS <= len(got) <= 57


def test_a_damaged_member_is_left_out_and_said(tmp_path: Path) -> None:
    path = write(tmp_path / "r", series(50))
    reader = Reader(path)
    middle = reader.members[3]
    data = bytearray(path.read_bytes())
    data[middle.offset + 60] ^= 0xFF
    path.write_bytes(data)
    reader = Reader(path)
    assert len(played(reader)) == 50 - middle.number
    assert reader.damage is not None
    assert "damaged" in reader.damage


REAL = 4
"""Snapshots, in two parts."""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first snapshots of the shipped demo, written anew, with an environment."""
    path = tmp_path_factory.mktemp("real") / "real.llmtop.gz"
    reader = Reader(REPOSITORY / "llmtop" / "data" / "demo.llmtop.gz")
    environment = {"variables": {f"NCCL_{number}": f"value {number * 7919}" for number in range(40)}}
    writer = Writer(path, host="node7", environment=environment)
    for one in islice(played_from(reader), REAL):
        writer.write(one)
    writer.close()
    reader.close()
    return path


def played_from(reader: Reader) -> Iterator[Snapshot]:
    return (one for _, one in reader.snapshots())


@pytest.mark.slow("every 61st bit; the others flip the rest", kept=("61",))
@pytest.mark.parametrize(
    "bits",
    [range(0, 8 * 2048, 61), *(range(bit, 8 * 2048, 8) for bit in range(8))],
    ids=["61", *map(str, range(8))],
)
def test_a_flipped_bit_costs_one_part_at_most(real: Path, tmp_path: Path, bits: range) -> None:
    """Of the first 2 kB: the header, and the head and data of the first snapshots."""
    intact = Reader(real)
    whole, members, original = list(intact.snapshots()), intact.members, real.read_bytes()
    intact.close()
    assert 400 < members[0].offset < 1000, "the header and some snapshots are in the first 2 kB"
    host = whole[0][1].host.name
    path = tmp_path / "flipped.llmtop.gz"
    path.write_bytes(original)
    for bit in bits:
        with path.open("r+b") as file:  # some file systems flush one that is written anew, which takes 20 ms
            for place in {bits.start // 8, max(bits.start, bit - bits.step) // 8}:
                file.seek(place)
                file.write(original[place : place + 1])
            file.seek(bit // 8)
            file.write(bytes([original[bit // 8] ^ 1 << bit % 8]))
        assert examine(path).kind == "recording", f"bit {bit}"
        reader = Reader(path)
        got = list(reader.snapshots())
        hit = [member for member in members if member.offset <= bit // 8 < member.end]
        kept = [pair for pair in whole if not any(_is_within(pair[0], member) for member in hit)]
        assert got in (whole, kept), f"bit {bit}"
        if got != whole or reader.header != intact.header:
            assert reader.damage is not None, f"bit {bit}"
        if reader.damage is None:
            # Deflate can write the same in two ways: nothing is damaged then.
            assert gzip.decompress(path.read_bytes()) == gzip.decompress(original), f"bit {bit}"
            assert bit // 8 >= HEAD_BYTES, f"bit {bit}"
        assert reader.header.host in ("node7", host), f"bit {bit}"
        reader.close()


def _is_within(position: float, member: RecordingMember) -> bool:
    return member.position <= position <= member.position + member.seconds


def test_what_a_lost_header_said_is_taken_from_the_snapshots(real: Path, tmp_path: Path) -> None:
    raw = bytearray(real.read_bytes())
    raw[HEAD_BYTES + 20] ^= 0x10
    path = tmp_path / "r"
    path.write_bytes(raw)
    reader = Reader(path)
    first = played(reader)[0]
    assert (reader.header.host, reader.header.created) == (first.host.name, first.time)
    assert reader.header.environment is None
    assert reader.damage == (
        f"the first {reader.members[0].offset} bytes of {path} are damaged and were left out: the environment of "
        "the recording is unknown"
    )
    path.write_bytes(bytes(300) + raw[300:])
    assert len(played(Reader(path))) == REAL, "a block of zeros, as a crash of a file system leaves it"
    newer = replace(first, schema=SCHEMA + 1)
    path.write_bytes(raw[: reader.members[0].offset] + pack(to_json(newer) + b"\n", 1.0, 1.0, 1))
    with pytest.raises(UnusableInput, match=r"newer llmtop.*upgrade"):
        Reader(path)


def test_a_head_without_a_checksum_whose_length_is_wrong_costs_no_neighbour(tmp_path: Path) -> None:
    """As tests/data/many_gpus has them."""
    path = write(tmp_path / "r", series(37, 0.5))
    intact, raw = Reader(path), path.read_bytes()
    whole = list(intact.snapshots())
    places = [0, *(member.offset for member in intact.members), len(raw)]
    members = [_without_checksum(raw[begin:end]) for begin, end in pairwise(places)]
    path.write_bytes(b"".join(members))
    old = Reader(path)
    assert (list(old.snapshots()), old.damage) == (whole, None)
    for number in range(len(members)):
        longer = bytearray(members[number])
        longer[17] ^= 1  # of its length, 256
        path.write_bytes(b"".join([*members[:number], bytes(longer), *members[number + 1 :]]))
        reader = Reader(path)
        assert list(reader.snapshots()) == whole
        assert reader.damage == f"the heads of 1 parts of {path} are damaged; their data was read"


def _without_checksum(member: bytes) -> bytes:
    return member[:10] + (28).to_bytes(2, "little") + member[12:40] + member[HEAD_BYTES:]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_an_archive_with_a_recording_in_it_is_none(real: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"r.{kind}"
    if kind == "tar":
        with tarfile.open(path, "w") as archive:
            archive.add(real, "real.llmtop.gz")
    else:
        with zipfile.ZipFile(path, "w") as packed:
            packed.write(real, "real.llmtop.gz")
    with pytest.raises(UnusableInput, match="is not a recording"):
        Reader(path)


def test_an_empty_a_foreign_and_a_missing_file_are_refused_in_one_sentence(tmp_path: Path) -> None:
    empty, foreign, packed = tmp_path / "empty", tmp_path / "foreign", tmp_path / "packed"
    empty.write_bytes(b"")
    foreign.write_bytes(b"PK\x03\x04" + bytes(200))
    packed.write_bytes(gzip.compress(b'{"some": "json"}\n' * 100))
    for path, word in ((empty, "empty"), (foreign, "not a recording"), (packed, "not a recording")):
        with pytest.raises(UnusableInput, match=word):
            Reader(path)
    with pytest.raises(UnusableInput, match="cannot be opened"):
        Reader(tmp_path / "none")
    with pytest.raises(UnusableInput, match="cannot be opened"):
        Reader(tmp_path)


def test_a_newer_schema_is_refused_with_the_version_that_wrote_it(tmp_path: Path) -> None:
    header = Header(created=1.0, schema=SCHEMA + 1, version="9.9")
    path = tmp_path / "r"
    path.write_bytes(pack(msgspec.json.encode(header), 1.0, 1.0, 0))
    with pytest.raises(UnusableInput, match=r"newer llmtop '9\.9'.*upgrade"):
        Reader(path)


@pytest.mark.parametrize("command", ["replay --json", "report"])
def test_an_older_form_is_refused_in_one_sentence(tmp_path: Path, command: str) -> None:
    lines = to_json(snapshot(1000.0)) + b"\n"
    header = msgspec.json.encode(Header(created=1000.0, schema=SCHEMA - 1, version="0.0.9")) + b"\n"
    path = tmp_path / "old.llmtop.gz"
    path.write_bytes(pack(header, 1000.0, 1000.0, 0) + pack(lines, 1000.0, 1000.0, 1))
    done = subprocess.run(
        [sys.executable, "-m", "llmtop", *command.split(), str(path)],
        env=environment(), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    said = r"older llmtop '0\.0\.9', in a form that this one \(\S+\) does not read; record it again"
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"llmtop: .*{said}[^\n]*\n", done.stderr), done.stderr


def test_a_recording_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r", host="node")
    snapshots = series(40)
    for one in snapshots[:15]:
        writer.write(one)
    reader = Reader(tmp_path / "r")
    before = played(reader)
    assert before == snapshots[: len(before)]
    for one in snapshots[15:]:
        writer.write(one)
    writer.close()
    known = len(reader.members)
    assert reader.refresh()
    after = [one for _, one in reader.snapshots(first_member=known)]
    assert before + after == snapshots
    assert not reader.refresh()


def test_an_existing_file_is_not_written_over_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_text("my only copy")
    with pytest.raises(UnusableInput, match="--force"):
        Writer(path, host="node")
    assert path.read_text() == "my only copy"
    with pytest.raises(NotPossibleHere, match="cannot be written"):
        Writer(tmp_path / "no" / "folder", host="node")


def test_a_full_disk_is_one_sentence_and_leaves_whole_members(tmp_path: Path) -> None:
    path = tmp_path / "r"
    program = (
        "import resource, signal, sys\n"
        "from llmtop.errors import NotPossibleHere\n"
        "from llmtop.recording.reader_writer import Writer\n"
        "from tests.support.snapshots import gpu, rank, snapshot\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "writer = Writer(sys.argv[1], host='node')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        "try:\n"
        "    for i in range(1000): writer.write(snapshot(1000.0 + i, gpus=(gpu(util_pct=i * 0.1234567),)))\n"
        "except NotPossibleHere as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env=environment(),
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "File too large" in done.stdout
    assert done.stdout.count("\n") == 1
    reader = Reader(path)
    assert reader.count > 0
    assert reader.damage is None


def test_a_clock_that_goes_back_does_not_take_the_position_back(tmp_path: Path) -> None:
    reader = Reader(write(tmp_path / "r", [*series(20, start=5000.0), *series(20, start=1000.0)]))
    positions = [position for position, _ in reader.snapshots()]
    assert positions == sorted(positions)
    assert len(positions) == 40
    assert reader.length == pytest.approx(positions[-1])


def test_reading_holds_an_index_and_not_the_snapshots(tmp_path: Path) -> None:
    cores = tuple(float(core) for core in range(256))
    snapshots = [replace(one, host=replace(one.host, cpu_per_core_pct=cores)) for one in series(20)]
    path = tmp_path / "r"
    writer = Writer(path, host="node")
    for i in range(200):
        for one in snapshots:
            writer.write(replace(one, time=1000.0 + i * 20 + one.time))
    writer.close()
    tracemalloc.start()
    reader = Reader(path)
    total = sum(1 for _ in reader.snapshots())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == 4000
    assert peak < 4000 * 256 * 8 / 4  # a quarter of what the core figures alone would take


def test_a_member_that_unpacks_to_more_than_any_of_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "r", series(30))
    monkeypatch.setattr("llmtop.recording.members.MAX_MEMBER_BYTES", 300)
    reader = Reader(path)
    assert played(reader) == []
    assert reader.damage is not None


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_device_that_is_full_from_the_start_is_said_at_once() -> None:
    with pytest.raises(NotPossibleHere, match="No space left"):
        Writer("/dev/full", host="node", overwrite=True)


@pytest.mark.parametrize("kind", ["fifo", "/dev/null"])
def test_what_keeps_nothing_is_refused_at_the_start(tmp_path: Path, kind: str) -> None:
    path = kind
    if kind == "fifo":
        path = str(tmp_path / "fifo")
        os.mkfifo(path)
    with pytest.raises(UnusableInput, match="no regular file"):
        Writer(path, host="node", overwrite=True)
    Writer(tmp_path / "file", host="node").close()


def test_the_last_snapshot_before_a_position_is_found_past_damage(tmp_path: Path) -> None:
    path = write(tmp_path / "r", series(30))
    reader = Reader(path)
    assert reader.position_before(12.4) == pytest.approx(12.0)
    assert reader.position_before(-1.0) is None
    data = bytearray(path.read_bytes())
    data[reader.members[2].offset + 60] ^= 0xFF
    path.write_bytes(data)
    damaged = Reader(path)
    last = damaged.members[1]
    assert damaged.position_before(damaged.members[2].position + 1) == pytest.approx(last.last - 1000)
