"""Form of every text report that the data under tests/data gives: 80 columns, closed brackets, plain numbers."""

from __future__ import annotations

import itertools
import lzma
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from llmtop.analysis.analyze import analyze
from llmtop.compare.compare import compare_reports
from llmtop.compare.document import brief_comparison, comparison_document
from llmtop.document.cells import unclosed
from llmtop.document.model import Document, Finding, Paragraph
from llmtop.document.text import block_lines, write_text
from llmtop.format import plain, width_of
from llmtop.ncu.document import kernels_document
from llmtop.ncu.judge import ncu_report
from llmtop.ncu.read import read
from llmtop.report import model
from llmtop.report.document import brief_document, findings, report_document, step_lines
from llmtop.report_kinds.kind import ReadOptions
from llmtop.report_kinds.kinds import read_document
from tests.support import ncu_reports
from tests.support.data import DATA, HEALTHY, KINETO, LAUNCH_BOUND, TWO_GPUS
from tests.support.labelled import SETS, unpacked_set
from tests.support.memory_allocator import Allocator, Training

COLUMNS = 80
PACKED = sorted(path for folder in ("jax", "torch_xla") for path in (DATA / folder).glob("*.json.xz"))
_EXPONENT = re.compile(r"\d(?:\.\d+)?e[+-]\d+\s?%")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Document]]:
    """Each report in both lengths, with the name of its file."""
    return list(_documents(tmp_path_factory.mktemp("reports")))


def _documents(folder: Path) -> Iterator[tuple[str, Document]]:
    tuning = next(path for path in SETS if path.name.startswith("tuning"))
    paths = [path for _, _, path in unpacked_set(tuning, folder)]
    reports = [(path.name, analyze(path)) for path in (HEALTHY, LAUNCH_BOUND, TWO_GPUS, KINETO, *paths)]
    for packed in PACKED:
        plain_file = folder / packed.stem
        plain_file.write_bytes(lzma.decompress(packed.read_bytes()))
        reports.append((packed.name, analyze(plain_file)))
    for name, report in reports:
        yield name, report_document(report)
        yield name, brief_document(report)
    for (one, before), (other, after) in itertools.pairwise(reports[:16]):
        found = compare_reports(before, after)
        yield f"{one} to {other}", comparison_document(found)
        yield f"{one} to {other}", brief_comparison(found)
    for name in ncu_reports.RECORDED:
        path = ncu_reports.unpacked(name, folder)
        yield name, kernels_document([ncu_report(path, *read(path))])
    for name, document in _other_kinds(folder):
        yield name, document(True)
        yield name, document(False)


def _other_kinds(folder: Path):  # type: ignore[no-untyped-def]
    allocator = Allocator()
    Training(allocator).steps(3)
    made = [allocator.write(folder / "memory.pickle"), *sorted((DATA / "many_gpus").glob("*.llmtop"))]
    for path in made:
        found = read_document([path], ReadOptions())
        yield path.name, lambda full, found=found: found.document(full=full)


@pytest.mark.slow("reads all labelled captures of a set; test_text_fits_the_width has one report")
def test_every_report_fits_eighty_columns(documents: list[tuple[str, Document]]) -> None:
    assert len(documents) > 100
    wide = [
        f"{name}: {line}"
        for name, document in documents
        for line in write_text(document, COLUMNS).splitlines()
        if width_of(line) > COLUMNS
    ]
    assert wide == []


@pytest.mark.slow(
    "reads all labelled captures of a set; test_lines_that_are_left_out_close_their_brackets has one line"
)
def test_no_sentence_leaves_a_bracket_open(documents: list[tuple[str, Document]]) -> None:
    """Of findings and paragraphs, cut or whole; names of kernels in tables lose their middle with its brackets."""
    open_ones = []
    for name, document in documents:
        for block in document.blocks:
            if isinstance(block, Finding | Paragraph):
                text = " ".join(line.text.strip() for line in block_lines(block, COLUMNS))
                open_ones += [f"{name}: {text}"] if unclosed(text) else []
    assert open_ones == []


@pytest.mark.slow("reads all labelled captures of a set; test_numbers_have_no_exponent has numbers alone")
def test_no_percentage_is_in_scientific_notation(documents: list[tuple[str, Document]]) -> None:
    bad = [name for name, document in documents if _EXPONENT.search(write_text(document, COLUMNS))]
    assert bad == []


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(99.6, 2, "100"), (123.4, 2, "120"), (1.234e7, 4, "12340000"), (0.00001234, 2, "0.000012"), (6.1, 2, "6.1")],
)
def test_numbers_have_no_exponent(value: float, digits: int, text: str) -> None:
    assert plain(value, digits) == text


def test_a_thought_is_cut_outside_of_brackets() -> None:
    fix = "Capture some steps (torch.profiler: schedule(wait=10); nsys: a range (NVTX); each step). Then again."
    finding = model.Finding(id="idle", severity="info", summary="Idle.", fix=fix, next="", confirm="", evidence={})
    report = model.Report(
        source="a", engine="kineto", tool_version="", window_seconds=1.0, devices=(), phases=(), kernels=(),
        copies=(), api=(), gaps=(), verdict="unknown", findings=(finding,), summary="s", second=None,
        at_border=False, steps=model.StepsJudged(found_by="none"),
    )  # fmt: skip
    assert findings(report)[0].todo == fix
    brief = brief_document(report)
    shown = next(block for block in brief.blocks if isinstance(block, Finding))
    assert shown.todo == fix.partition(" Then")[0]


def test_one_step_has_one_time() -> None:
    one = model.StepsJudged(found_by="ProfilerStep", count=1, seconds_p50=0.164, seconds_min=0.164, spread_pct=0.0)
    report = structs.replace(analyze(HEALTHY), steps=one)
    assert step_lines(report) == ["Steps: 1 (ProfilerStep), by the host's clock 164 ms."]


def test_lines_that_are_left_out_close_their_brackets() -> None:
    words = " ".join(f"word{number}" for number in range(40))
    block = Paragraph(f"Launch less (torch.compile [{words}]; fused)", most_lines=2)
    lines = [line.text for line in block_lines(block, 40)]
    assert lines[-1].endswith("…])")
    assert all(width_of(line) <= 40 for line in lines)
