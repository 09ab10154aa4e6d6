"""Each private name of Textual works as the file of them says, and no other file of the screen uses one."""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.segment import Segment
from textual.app import App
from textual.drivers.headless_driver import HeadlessDriver
from textual.drivers.linux_driver import LinuxDriver
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widgets import Label

from tests.support.processes import REPOSITORY
from tui.terminal import textual_private

WRAPPER = REPOSITORY / "tui" / "terminal" / "textual_private.py"
NOT_TEXTUAL = {"_exit", "_replace"}
"""`os._exit`, and a method of named tuples."""


class _Plain(App[int]):
    def compose(self) -> Iterator[Label]:
        yield Label("one")


# --- the app and its screens ------------------------------------------------------------------------------------


async def test_the_loop_and_the_driver_of_an_app() -> None:
    app = _Plain()
    assert textual_private.event_loop(app) is None
    assert textual_private.driver_of(app) is None
    async with app.run_test():
        assert textual_private.event_loop(app) is asyncio.get_running_loop()
        driver = textual_private.driver_of(app)
        assert isinstance(driver, HeadlessDriver)
        assert textual_private.app_of(driver) is app
        assert textual_private.driver_loop(driver) is asyncio.get_running_loop()
        assert textual_private.frames_queued(app) == 0


async def test_an_app_ends_after_an_error_as_it_decides() -> None:
    error = ValueError("one")
    ended: list[Exception | None] = []

    class Hooked(textual_private.HookedApp[int]):
        def end_after_error(self) -> None:
            ended.append(textual_private.failure_of(self))
            textual_private.close_messages(self)

        def fail(self) -> None:
            raise error

    async def run() -> None:
        async with app.run_test() as pilot:
            assert textual_private.failure_of(app) is None
            app.call_later(app.fail)
            await pilot.pause()

    app = Hooked()
    with pytest.raises(ValueError, match="one"):
        await run()
    assert ended == [error]


async def test_an_error_that_is_set_is_the_failure() -> None:
    async def run() -> None:
        async with app.run_test():
            textual_private.set_failure(app, error)
            textual_private.close_messages(app)

    app, error = _Plain(), ValueError("one")
    with pytest.raises(ValueError, match="one"):
        await run()
    assert textual_private.failure_of(app) is error


async def test_what_is_on_the_screen_and_what_is_about_to_be() -> None:
    app = _Plain()
    async with app.run_test() as pilot:
        await pilot.pause()
        label = app.query_one(Label)
        shown = textual_private.visible_widgets(app.screen)
        assert {app.screen, label} <= shown.keys()
        assert shown[label][0] == label.region
        assert not textual_private.is_update_pending(app.screen)
        vars(app.screen)["_dirty_widgets"].add(label)
        assert textual_private.is_update_pending(app.screen)
        vars(app.screen)["_dirty_widgets"].clear()
        with app.batch_update():
            assert textual_private.is_update_pending(app.screen)
        assert not textual_private.has_background_screens(app)
        await app.push_screen(ModalScreen())
        assert textual_private.has_background_screens(app)


async def test_a_layout_that_is_asked_for_is_a_pending_update() -> None:
    app = _Plain()
    async with app.run_test() as pilot:
        await pilot.pause()
        app.screen.refresh(layout=True)
        assert textual_private.is_update_pending(app.screen)


async def test_lines_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Line(textual_private.CompositorUpdate):
        def render_segments(self, console: Console) -> str:
            return "a line of its own"

    app, written = _Plain(), list[str]()
    async with app.run_test():
        driver = textual_private.driver_of(app)
        assert driver is not None
        monkeypatch.setattr(driver, "write", written.append)
        monkeypatch.setattr(type(driver), "is_headless", False)
        textual_private.display(app, app.screen, Line())
    assert any("a line of its own" in text for text in written)


# --- lines ------------------------------------------------------------------------------------------------------


def test_a_line_has_its_segments_and_keeps_what_it_is_rendered_to() -> None:
    segments = [Segment("one"), Segment("two")]
    strip, console = Strip(segments), Console(color_system=None)
    assert textual_private.segments_of(strip) == segments
    assert textual_private.cached_render(strip) is None
    assert textual_private.cache_render(strip, "kept") == "kept"
    assert textual_private.cached_render(strip) == "kept"
    assert strip.render(console) == "kept"


# --- the terminal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "_sigtstp_application",
        "_sigcont_application",
        "_run_input_thread",
        "_get_terminal_size",
        "_query_in_band_window_resize",
    ],
)
def test_a_step_that_the_driver_overrides_is_called_by_textual(name: str) -> None:
    assert name in vars(textual_private.HookedDriver)
    assert name in vars(LinuxDriver)
    assert inspect.getsource(LinuxDriver).count(f"self.{name}") > 0


class _Driver(textual_private.HookedDriver):
    steps: list[str]

    def answer_sigtstp(self) -> None:
        self.steps.append("sigtstp")

    def answer_sigcont(self) -> None:
        self.steps.append("sigcont")

    def read_keys(self) -> None:
        self.steps.append("keys")

    def terminal_size(self) -> tuple[int, int]:
        return 101, 33

    def write(self, data: str) -> None:
        self.steps.append(data)


async def test_the_parts_of_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    app = _Plain()
    driver = _Driver(app)
    driver.steps = []
    textual_private.set_initial_size(driver)
    assert vars(driver)["_size"] == (101, 33)
    assert "self._driver._size" in inspect.getsource(App)
    assert not textual_private.is_writing(driver)
    source = inspect.getsource(LinuxDriver)
    assert "self._writer_thread = WriterThread(self._file)" in source
    assert "self._key_thread = Thread(" in source
    textual_private.stop_writing(driver)
    textual_private.join_key_thread(driver, 1.0)
    textual_private.disable_mouse(driver)
    assert any("\x1b[?1000l" in written for written in driver.steps)


def test_frames_wait_in_the_queue_of_the_thread_that_writes() -> None:
    from textual.drivers import _writer_thread

    assert "self._queue.put(" in inspect.getsource(_writer_thread.WriterThread)


def test_flags_of_a_terminal_as_the_driver_sets_them() -> None:
    import termios

    assert not textual_private.input_flags(termios.ICRNL) & termios.ICRNL
    assert not textual_private.local_flags(termios.ECHO | termios.ICANON) & (termios.ECHO | termios.ICANON)


def test_the_parser_makes_keys_of_text() -> None:
    assert [getattr(key, "key", None) for key in textual_private.XTermParser().feed("a")] == ["a"]


# --- nowhere else -----------------------------------------------------------------------------------------------


def _files() -> list[Path]:
    return [path for path in sorted((REPOSITORY / "tui").rglob("*.py")) if path != WRAPPER]


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.shape
def test_no_other_file_reaches_into_textual() -> None:
    found = []
    for path in _files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and re.search(r"^textual\b.*\._", node.module or ""):
                found.append(f"{path.relative_to(REPOSITORY)}:{node.lineno}: {node.module}")
            if not isinstance(node, ast.Attribute) or not _is_private(node.attr) or node.attr in NOT_TEXTUAL:
                continue
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                found.append(f"{path.relative_to(REPOSITORY)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def _own_names(tree: ast.ClassDef) -> set[str]:
    """Private methods and attributes that a class defines or sets on itself."""
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if isinstance(node.value, ast.Name) and node.value.id == "self" else set()
    return {name for name in names if _is_private(name)}


@functools.cache  # inspect parses the whole module each time
def _names(one: type[Any]) -> tuple[set[str], ast.ClassDef]:
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(one))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return _own_names(tree), tree


@pytest.mark.slow("reads all classes; only a new private name or a new Textual changes it")
def test_no_class_shares_a_private_name_with_the_class_of_textual_that_it_extends() -> None:
    found = []
    for path in _files():
        module = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        for one in vars(import_module(module)).values():
            if not inspect.isclass(one) or one.__module__ != module:
                continue
            theirs: set[str] = set()
            for base in one.__mro__:
                if base.__module__.startswith("textual"):
                    theirs |= _names(base)[0] | {name for name in vars(base) if _is_private(name)}
            if not theirs:
                continue
            own, tree = _names(one)
            ours = own.union(*(_names(base)[0] for base in one.__mro__ if base.__module__.startswith("tui.")))
            used = {
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in ("self", "cls")
            }
            shared = (own & theirs) | ((used & theirs) - ours)
            found += [f"{module}.{one.__name__}.{name}" for name in sorted(shared)]
    assert found == []
