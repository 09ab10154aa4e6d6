"""The table of checks on GPUs: which are due, in which slices, and what is written of them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.gpu import day
from tests.gpu.day import BY_HAND, CHECKS, Check, Row, due, judged, read_rows, slices, write_rows

TEXT = (
    "# Measured\n\n## Checks on GPUs\n\nWords.\n\n"
    "| date | hardware | commit | check | result |\n|---|---|---|---|---|\n"
)
ROW = Row("2026-01-02", "1 x H200, driver 580", "abc", "monitor", "3 of 3 as planted")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_each_check_is_a_program_and_judges_code_that_is_there(check: Check) -> None:
    assert callable(importlib.import_module(f"tests.gpu.check_{check.name}").main)
    assert [path for path in check.judges if not (day.REPOSITORY / path).exists()] == []
    assert check.seconds <= day.SLICE_MINUTES * 60


def test_every_program_of_the_folder_is_a_check_once() -> None:
    there = {path.stem.removeprefix("check_") for path in (day.REPOSITORY / "tests" / "gpu").glob("check_*.py")}
    assert sorted(there - BY_HAND) == sorted(one.name for one in CHECKS)


def test_a_row_replaces_that_of_its_check_and_what_follows_stays() -> None:
    text = write_rows(TEXT + "\n## Next\n\nMore.\n", [ROW])
    again = write_rows(text, [Row("2026-02-03", "2 x H100", "def", "collectors", "as expected"), ROW])
    assert [row.check for row in read_rows(again)] == ["collectors", "monitor"]
    assert read_rows(again)[1] == ROW
    assert again.endswith("\n\n## Next\n\nMore.\n")
    assert again.count("Words.") == 1
    assert write_rows(again, []) == again


def test_a_document_without_the_heading_gets_it() -> None:
    assert read_rows(write_rows("# Measured\n", [ROW])) == [ROW]


def test_what_has_no_row_orhas_changed_since_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day, "has_changed", lambda paths, commit: commit == "old")
    rows = [Row("", "", "new", one.name, "as expected") for one in CHECKS[1:]]
    assert due(rows) == [CHECKS[0]]
    assert due([Row("", "", "old", CHECKS[0].name, ""), *rows]) == [CHECKS[0]]
    assert due([Row("", "", "new", CHECKS[0].name, ""), *rows]) == []


def test_a_commit_that_is_not_known_here_makes_a_check_due() -> None:
    rows = [Row("", "", "0" * 40, one.name, "") for one in CHECKS]
    assert due(rows) == list(CHECKS)


def test_slices_keep_the_order_and_their_length() -> None:
    made = [Check(name, seconds, ()) for name, seconds in (("a", 300.0), ("b", 200.0), ("c", 100.0), ("d", 600.0))]
    assert [[one.name for one in part] for part in slices(made, 540.0)] == [["a", "b"], ["c"], ["d"]]


@pytest.mark.parametrize(
    ("code", "output", "result"),
    [
        (0, '{"ok": true}\n{"ok": true}\n', "2 of 2 as planted"),
        (0, "{}", "as expected"),
        (0, "ranks ddp right\ncases: 1 right, 2 left out\n", "1 right, 2 left out"),
        (1, '{"ok": true}\n{"ok": false}\n', 'failed (exit code 1): 1 of 2 as planted, {"ok": false}'),
        (
            1,
            '{"ok": false, "a": 1}\n{"ok": true}\n',
            'failed (exit code 1): 1 of 2 as planted, {"ok": false, "a": 1}',
        ),
        (2, "Traceback\nValueError: a | b\n", "failed (exit code 2): ValueError: a b"),
        (-9, "", "failed (exit code -9): no output"),
    ],
)
def test_a_result_is_one_cell(code: int, output: str, result: str) -> None:
    assert judged(code, output) == result


def test_what_a_check_prints_is_kept(tmp_path: Path) -> None:
    check = Check("day_does_not_exist", 60.0, ())
    row = day.run(check, "no GPU", "abc", 60.0, is_dry=False, kept=tmp_path)
    assert row.result.startswith("failed (exit code 1): ")
    assert "No module named" in (tmp_path / "day_does_not_exist.txt").read_text()
