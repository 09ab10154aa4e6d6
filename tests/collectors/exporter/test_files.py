"""Values in a file for node_exporter, and the entry by which Prometheus finds this exporter."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from collectors.exporter.files import TEXTFILE, Discovery, Textfile
from collectors.exporter.stage import ExportStage
from llmtop.errors import NotPossibleHere, UnusableInput
from tests.support.processes import wait_for
from tests.support.prometheus import of, samples
from tests.support.snapshots import gpu, snapshot


def test_the_file_follows_the_snapshots_and_goes_with_the_exporter(tmp_path: Path) -> None:
    stage = ExportStage(interval=3600.0)
    writer = Textfile(tmp_path, stage)
    for util in (10.0, 20.0):
        one = snapshot(time.time(), monotonic=time.monotonic(), gpus=(gpu(0, util_pct=util),))
        assert writer(stage(one)) is one
        wait_for(lambda util=util: f"{util}\n" in (tmp_path / TEXTFILE).read_text())  # type: ignore[misc]
    assert of(samples((tmp_path / TEXTFILE).read_text()), "DCGM_FI_DEV_GPU_UTIL")
    assert (tmp_path / TEXTFILE).stat().st_mode & 0o777 == 0o644, "node_exporter is another user"
    writer.close()
    assert [file.name for file in tmp_path.iterdir()] == [".llmtop.lock"]


def test_a_second_exporter_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    """node_exporter gives nothing at all where two of its files have the same series."""
    stage = ExportStage(interval=3600.0)
    writer = Textfile(tmp_path, stage)
    with pytest.raises(NotPossibleHere, match=r"another llmtop export.*--all-users"):
        Textfile(tmp_path, ExportStage(interval=1.0))
    writer(stage(snapshot(time.time(), monotonic=time.monotonic(), gpus=(gpu(0, util_pct=30.0),))))
    wait_for(lambda: "30.0" in (tmp_path / TEXTFILE).read_text())
    writer.close()
    Textfile(tmp_path, stage).close()


def test_no_link_in_the_folder_is_followed(tmp_path: Path) -> None:
    folder, other = tmp_path / "textfile", tmp_path / "other"
    folder.mkdir()
    other.write_text("theirs")
    (folder / f".{TEXTFILE}.{os.getpid()}").symlink_to(other)
    (folder / TEXTFILE).symlink_to(other)
    Textfile(folder, ExportStage(interval=1.0)).close()
    assert other.read_text() == "theirs"
    (folder / ".llmtop.lock").unlink()
    (folder / ".llmtop.lock").symlink_to(other)
    with pytest.raises(NotPossibleHere):
        Textfile(folder, ExportStage(interval=1.0))


def test_a_folder_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotPossibleHere, match="cannot be written: No such file"):
        Textfile(tmp_path / "missing", ExportStage(interval=1.0))


def test_a_file_that_cannot_be_written_meanwhile_is_written_again(tmp_path: Path) -> None:
    stage = ExportStage(interval=3600.0)
    writer = Textfile(tmp_path, stage)
    (tmp_path / TEXTFILE).unlink()
    (tmp_path / TEXTFILE).mkdir()
    writer(stage(snapshot(time.time(), monotonic=time.monotonic())))
    wait_for(lambda: writer.error, what="it to fail")
    (tmp_path / TEXTFILE).rmdir()
    writer(stage(snapshot(time.time(), monotonic=time.monotonic())))
    wait_for(lambda: (tmp_path / TEXTFILE).is_file() and writer.error is None)
    writer.close()


def test_the_entry_is_there_as_long_as_the_exporter(tmp_path: Path) -> None:
    path = tmp_path / "node7.json"
    entry = Discovery(path, "node7:9401")
    assert json.loads(path.read_text()) == [{"targets": ["node7:9401"], "labels": {}}]
    entry.close()
    assert not path.exists()


def test_an_entry_that_somebody_else_wrote_since_stays(tmp_path: Path) -> None:
    path = tmp_path / "node7.json"
    entry = Discovery(path, "node7:9401")
    Discovery(path, "node7:9402")
    entry.close()
    assert "9402" in path.read_text()


def test_a_name_that_prometheus_does_not_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match=r"end in \.json"):
        Discovery(tmp_path, "node7:9401")
    with pytest.raises(NotPossibleHere):
        Discovery(tmp_path / "missing" / "node7.json", "node7:9401")
