"""XLA's own file of a trace, by the real xprof; and what is said where that is not, or does not load."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.trace.files.open import open_trace
from llmtop.trace.xla import viewer as xla_viewer
from tests.support.processes import REPOSITORY
from tests.support.xla_traces import DATA, unpacked

XPROF = REPOSITORY / ".cache" / "xprof"
with_xprof = pytest.mark.skipif(
    not XPROF.is_dir(), reason="no xprof: tests/fetch_jax.sh brings it to .cache/xprof"
)


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """Recorded with the trace of the same name."""
    path = tmp_path / "rank0.xplane.pb"
    path.write_bytes(lzma.decompress((DATA / "cpu_window.xplane.pb.xz").read_bytes()))
    return path


@pytest.fixture
def xprof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(XPROF))
    monkeypatch.syspath_prepend(str(XPROF))


@with_xprof
@pytest.mark.usefixtures("xprof")
def test_it_shows_what_the_trace_beside_it_shows(space: Path, tmp_path: Path) -> None:
    ours, theirs = analyze(space), analyze(unpacked("cpu_window", tmp_path))
    assert (ours.verdict, ours.steps.count, ours.engine) == (theirs.verdict, 8, "jax.profiler")
    assert ours.devices[0].busy_pct == pytest.approx(theirs.devices[0].busy_pct, abs=0.01)
    assert [row.name for row in ours.operators] == [row.name for row in theirs.operators]
    assert {row.name for row in ours.phases} == {row.name for row in theirs.phases}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cpu_window.trace.json.gz", space.name], (
        "xprof leaves nothing beside what it reads"
    )


@with_xprof
@pytest.mark.usefixtures("xprof")
def test_a_folder_without_another_trace_is_read_by_it(space: Path) -> None:
    assert len(open_trace(space.parent).ops) > 100


@with_xprof
@pytest.mark.usefixtures("xprof")
@pytest.mark.parametrize("keep", [0, 1, 5000, 100_000])
def test_one_that_is_cut_or_none_is_refused_in_a_sentence(space: Path, keep: int) -> None:
    space.write_bytes(space.read_bytes()[:keep] if keep != 1 else b"\xff" * 4000)
    with pytest.raises(UnusableInput, match=r"cut or damaged|is empty"):
        open_trace(space)


def test_without_xprof_it_is_said_what_would_read_it(space: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla_viewer, "is_xprof_installed", lambda: False)
    with pytest.raises(NotPossibleHere, match=r"pip install xprof; the \.trace\.json\.gz that JAX writes beside"):
        open_trace(space)


def test_an_xprof_that_does_not_load_is_no_damage_of_the_file(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken" / "xprof").mkdir(parents=True)
    (tmp_path / "broken" / "xprof" / "__init__.py").write_text("import a_library_that_is_not_here\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    monkeypatch.syspath_prepend(str(tmp_path / "broken"))
    with pytest.raises(NotPossibleHere, match=r"xprof does not load here \(.*a_library_that_is_not_here"):
        open_trace(space)
