"""The table of kinds: what engines, commands and screens name is in it, and it is all that a new kind needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmtop.capture.engines import ENGINES
from llmtop.cli.report.command import report
from llmtop.document.model import Document, Paragraph
from llmtop.report_kinds import kinds
from llmtop.report_kinds.kind import ReadOptions, ReportDocument, ReportKind
from tui.screens.registry import SCREENS


def test_each_engine_has_a_kind_and_each_kind_a_screen() -> None:
    names = [kind.name for kind in kinds.KINDS]
    assert len(set(names)) == len(names)
    assert {engine.report_kind for engine in ENGINES.values()} <= set(names)
    assert {kinds.kind_named(name).screen for name in names} <= SCREENS.keys()


class _Note(ReportDocument):
    def json(self) -> bytes:
        return b'{"note":1}'

    def document(self, *, full: bool) -> Document:
        return Document("Note", [Paragraph("a note")])


class _NoteKind(ReportKind):
    name = "note"
    screen = "ReportScreen"

    def read(self, paths: Sequence[Path], options: ReadOptions) -> ReportDocument | None:
        return _Note() if paths[0].suffix == ".note" else None


@pytest.mark.parametrize(
    ("options", "printed"),
    [([], "a note\n"), (["--json"], '{"note":1}\n'), (["--markdown"], "# Note\n\na note\n")],
)
def test_a_kind_in_the_table_is_read_by_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], printed: str
) -> None:
    monkeypatch.setattr(kinds, "KINDS", (_NoteKind(), *kinds.KINDS))
    path = tmp_path / "one.note"
    path.write_text("")
    assert CliRunner().invoke(report, [str(path), *options]).output == printed
