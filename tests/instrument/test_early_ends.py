"""Trainings that end while their first monitor connects: they end as without llmtop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.early_ends import (
    AT_FIRST_CONNECTION,
    AT_REQUESTS,
    EARLY_WAYS,
    Caller,
    EarlyEnd,
    EarlyWay,
    early_training,
    end_plain,
)
from tests.support.installed import needs
from tests.support.processes import wait_for

RETURN = EARLY_WAYS[0]


def end_within_import(
    way: EarlyWay, module: str, where: str, seconds: float, how: str, runtime_dir: Path, folder: Path
) -> EarlyEnd:
    """End a training while its server thread is within the import of a module."""
    begun = folder / "begun"
    slow = {"SLOW_MODULE": module, "SLOW_WHERE": where, "SLOW_SECONDS": str(seconds), "SLOW_BEGUN": str(begun)}
    with early_training(way, folder / "script.py", how, LLMTOP_DIR=str(runtime_dir), **slow) as training:
        requests = [module] if module in AT_REQUESTS else []
        with Caller(runtime_dir, training, *requests) as caller:
            caller.go()
            wait_for(begun.exists, what=f"the import of {module}")
            return training.end()


@pytest.mark.slow(
    "three moments of the matrix; each starts a training",
    kept=(
        "llmtop.instrument.control.self_capture-within-0.3",
        "llmtop.instrument.control.op_ranges-before-2",
        "llmtop.instrument.control.pause-within-1",
    ),
)
@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.3, 1, 2])
@pytest.mark.parametrize("where", ["before", "within"])
@pytest.mark.parametrize("module", [*AT_FIRST_CONNECTION, *AT_REQUESTS])
def test_an_import_in_the_server_thread_harms_no_end(
    module: str, where: str, seconds: float, runtime_dir: Path, tmp_path: Path
) -> None:
    ending = end_within_import(RETURN, module, where, seconds, "by hand", runtime_dir, tmp_path)
    assert (ending.code, ending.stderr) == (0, "")
    assert list(runtime_dir.iterdir()) == []


@pytest.mark.slow(
    "two ends of the matrix; each starts two trainings",
    kept=(
        "by hand-SIGINT",
        "by hand-raise",
    ),
)
@pytest.mark.parametrize("way", EARLY_WAYS, ids=lambda way: way.name)
@pytest.mark.parametrize("how", ["by hand", pytest.param("run", marks=pytest.mark.torch)])
def test_every_end_within_an_import_is_as_without_llmtop(
    way: EarlyWay, how: str, runtime_dir: Path, tmp_path: Path
) -> None:
    if how == "run":
        needs("torch")
    ending = end_within_import(way, AT_FIRST_CONNECTION[1], "within", 60, how, runtime_dir, tmp_path)
    plain = end_plain(way, tmp_path / "script.py")
    assert (ending.code, ending.stderr) == (plain.code, plain.stderr)
    left = [path.suffix for path in runtime_dir.iterdir()]
    assert left == ([".sock"] if way.leaves_socket else [])
