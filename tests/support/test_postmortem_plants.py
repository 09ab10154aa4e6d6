"""Planted faults of `llmtop postmortem`: cases, truths, the judge, hostile files. tests/postmortem/test_plants.py
records five of the faults again."""

from __future__ import annotations

import json
import os
import pickle
import re
from pathlib import Path

import pytest

from tests.support.postmortem_cases import EVIDENCE, case_ids
from tests.support.postmortem_faults import FAULTS
from tests.support.postmortem_hostile import MARKER, hostile_files
from tests.support.postmortem_plants import judge, truths, unpack
from tests.support.postmortem_recording import RANKS
from tests.support.processes import REPOSITORY

CLASSES = frozenset({
    "exception", "out of memory", "killed", "stopped", "GPU fault", "different collective", "shape or dtype",
    "GIL or CPU stall", "storage", "network", "data",
})  # fmt: skip
"""The classes of issue 38."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folder of each case by id."""
    return dict(unpack(tmp_path_factory.mktemp("cases")))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _dumps(folder: Path) -> dict[int, Path]:
    """Pickled dumps of a case by rank: a dump of gloo has no rank but in its name."""
    return {int(path.name[-1]): path for path in _files(folder) if path.read_bytes()[:1] == b"\x80"}


def test_each_fault_has_four_cases_with_a_truth(cases: dict[str, Path]) -> None:
    recorded = {case: truth for case, truth in truths().items() if "is_by_hand" not in truth}
    pairs = {(truth["fault"], truth["evidence"]) for truth in recorded.values()}
    assert pairs == {(fault, evidence) for fault in FAULTS for evidence in EVIDENCE}
    assert len(recorded) == 56
    assert set(cases) == set(truths())
    assert {case: (one["fault"], one["evidence"]) for case, one in recorded.items()} == {
        case: pair for pair, case in case_ids().items()
    }
    for case, truth in truths().items():
        assert _files(cases[case]), case
        assert truth["why"], case
        assert CLASSES & set(truth["classes"]), case
    assert all(truth["ranks"] == [FAULTS[truth["fault"]].rank] for truth in recorded.values())


def test_the_culprit_is_each_rank_in_some_fault() -> None:
    assert {fault.rank for fault in FAULTS.values()} == set(range(RANKS))


def test_no_name_is_a_hint_and_no_file_names_this_machine(cases: dict[str, Path]) -> None:
    words = re.compile(rf"{'|'.join(FAULTS)}|culprit|fault|plant|hang|dead", re.IGNORECASE)
    places = (os.fsencode(REPOSITORY), os.fsencode(Path.home()) + b"/", b"/tmp/")
    for case, folder in cases.items():
        assert case.isdigit()
        for path in _files(folder):
            assert not words.search(path.relative_to(folder).as_posix()), path
            content = path.read_bytes()
            assert not [place for place in places if place in content], path
            assert path.stat().st_mtime == 0


def test_evidence_is_of_its_kind(cases: dict[str, Path]) -> None:
    for case, truth in truths().items():
        if "is_by_hand" in truth:
            continue
        culprit, dumps = truth["ranks"][0], _dumps(cases[case])
        others = {path for path in _files(cases[case]) if path.suffix != ".json" and path not in dumps.values()}
        if truth["evidence"] == "dumps":
            assert not others, case
        elif truth["evidence"] == "logs":
            assert not dumps, case
            assert others, case
        elif truth["evidence"] == "without_culprit":
            assert culprit not in dumps, case
            assert not [path for path in others if b"[rank%d]:" % culprit in path.read_bytes()], case
        for path in dumps.values():
            dump = pickle.loads(path.read_bytes())
            assert dump["entries"], case
            assert {one["name"] for entry in dump["entries"] for one in entry["frames"]}, case


def test_ranks_that_cannot_write_have_no_dump(cases: dict[str, Path]) -> None:
    ranks = {
        truth["fault"]: set(_dumps(cases[case]))
        for case, truth in truths().items()
        if truth["evidence"] == "dumps"
    }
    for fault in ("exception", "exit", "killed", "stopped", "memory", "gil", "segfault"):
        assert FAULTS[fault].rank not in ranks[fault]
    for fault in ("loader", "order", "subgroup", "lock", "fuse"):
        assert ranks[fault] == set(range(RANKS))


@pytest.mark.parametrize(
    ("culprits", "code", "rank", "innocents"),
    [
        ([{"rank": 2, "class": "data"}], 0, "right", ()),
        ([{"rank": 2, "class": "data"}, {"rank": 0, "class": "data"}], 1, "right", (0,)),
        ([{"rank": 1, "class": "data"}, {"rank": 2, "class": "data"}], 0, "wrong", (1,)),
        ([], 0, "unknown", ()),
        ([{"rank": 2, "class": "data"}], 3, "unknown", ()),
    ],
)
def test_the_judge(culprits: list[dict[str, object]], code: int, rank: str, innocents: tuple[int, ...]) -> None:
    verdict = judge(json.dumps({"culprits": culprits}), code, {"ranks": [2], "classes": ["data"]})
    assert (verdict.rank, verdict.innocents) == (rank, innocents)


def test_the_judge_takes_no_output_for_an_answer() -> None:
    truth = {"ranks": [2], "classes": ["shape or dtype"]}
    assert judge("", 2, truth).rank == "failed"
    assert judge("", 3, truth).rank == "unknown"
    assert judge('{"culprits": [{"rank": 2, "class": "shape_or_dtype"}]}', 0, truth).is_class_right


def test_hostile_files_harm_a_reader_that_unpickles_them(tmp_path: Path) -> None:
    (tmp_path / "cases").mkdir()
    written = hostile_files(tmp_path / "cases")
    for title, write in written.items():
        path = tmp_path / "dump"
        write(path)
        if "gigabyte" in title:
            assert path.stat().st_size == 1 << 30
            assert path.stat().st_blocks * 512 < 1 << 24
        path.unlink()
    path = tmp_path / "dump"
    written["a call"](path)
    pickle.loads(path.read_bytes())
    assert (tmp_path / MARKER).exists()
    written["memo bomb in entries"](path)
    entries = pickle.loads(path.read_bytes())["entries"]
    for _ in range(60):
        assert len({id(one) for one in entries}) == 1
        assert len(entries) == 10
        entries = entries[0]
    written["truncated to 70%"](path)
    with pytest.raises((EOFError, pickle.UnpicklingError)):
        pickle.loads(path.read_bytes())
