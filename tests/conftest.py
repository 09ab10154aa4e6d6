"""Fixtures for all parts."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import machine
from tests.support.nvml_stub import Driver
from tests.support.steps import Zygote


def pytest_configure(config: pytest.Config) -> None:
    """Take ctrl+c again where the tests run behind a shell's `&`, which has them and all they start ignore it;
    pass over the configuration of who runs them; and with the slow tests have Hypothesis make more examples."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("LLMTOP_EXAMPLES", "100" if "slow or not slow" in config.getoption("markexpr") else "20")
    settings.register_profile("llmtop", deadline=None)  # a test beside others takes what time they leave it
    settings.load_profile("llmtop")
    os.environ["LLMTOP_RUN_LOG"] = "0"  # tests of runs turn it on
    os.environ["HISTFILE"] = os.devnull  # a shell that a test types into adds nothing to the user's history
    nobodys = Path(tempfile.gettempdir()) / "llmtop-tests-have-no-configuration"
    os.environ["XDG_CONFIG_HOME"] = os.environ["XDG_STATE_HOME"] = str(nobodys / str(os.getpid()))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without looking for garbage, which would take each worker a third of that time.

    All tests together are half a million objects, and a full collection takes half a second, so there are few of
    them from then on. Nothing is frozen (gc.freeze) as is usual: llmtop looks for modules in another way where
    something is.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.set_threshold(*gc.get_threshold()[:2], 200)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the mark `slow` off the parameters that it keeps, and skip slow tests where `-m` does not name them.

    Raises:
        pytest.UsageError: a mark keeps a parameter that its test does not have.
    """
    missing: dict[str, set[str]] = {}
    for item in items:
        parameters = item.name.partition("[")[2][:-1]
        for mark in [mark for mark in item.own_markers if mark.name == "slow" and "kept" in mark.kwargs]:
            missing.setdefault(item.nodeid.partition("[")[0], set(mark.kwargs["kept"])).discard(parameters)
            if parameters in mark.kwargs["kept"]:
                item.own_markers.remove(mark)
        slow = item.get_closest_marker("slow")
        if slow is not None and "slow" not in (config.getoption("markexpr") or ""):
            item.add_marker(pytest.mark.skip(reason=f"slow ({slow.args[0]}): run with -m slow"))
    are_chosen = config.getoption("lf", False) or any("[" in argument for argument in config.args)
    if not are_chosen and (stale := [f"{test} {sorted(left)}" for test, left in missing.items() if left]):
        raise pytest.UsageError(f"marked as kept, but not among the parameters: {', '.join(stale)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a skipped test whose real parts are all there: $LLMTOP_TESTS_MUST_RUN names the marks, with commas.

    A machine that cannot do what the test needs (tests.support.machine.cannot) is no reason to fail.
    """
    report = yield
    there = os.environ.get("LLMTOP_TESTS_MUST_RUN", "").split(",")
    parts = (line.partition(":")[0] for line in item.config.getini("markers") if ": needs " in line)
    must = {part for part in parts if item.get_closest_marker(part)}
    if (
        report.skipped
        and must
        and must <= {*there}
        and not hasattr(report, "wasxfail")
        and machine.CANNOT not in str(report.longrepr)
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped, but {', '.join(sorted(must))} is here: {report.longrepr}"
    return report


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private LLMTOP_DIR with a short path: a unix socket's may have 107 characters, and tmp_path's has more."""
    directory = Path(tempfile.mkdtemp(prefix="lt-"))
    monkeypatch.setenv("LLMTOP_DIR", str(directory))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Runs programs below `llmtop run`, each in a fork: one for all tests, for its start takes seconds."""
    folder = tempfile.mkdtemp(prefix="lt-")
    zygote = Zygote(LLMTOP_DIR=folder)
    yield zygote
    zygote.close()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def bare_zygote() -> Iterator[Zygote]:
    """Runs programs without llmtop, to compare with."""
    folder = tempfile.mkdtemp(prefix="lt-")
    zygote = Zygote(bare=True, LLMTOP_DIR=folder)
    yield zygote
    zygote.close()
    shutil.rmtree(folder)


@pytest.fixture
def nvml_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Eight H200s behind a stand-in for NVML, which the real binding loads in this process."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver = Driver(tmp_path / "scenario")
    yield driver
    driver.reset()
