"""The table of keys: one key, one meaning, on all screens of both apps."""

from __future__ import annotations

from collections import Counter, defaultdict
from importlib import import_module
from itertools import product

import pytest

from tui.app import LlmtopApp
from tui.cluster.app import ClusterApp
from tui.cluster.screen import ClusterHelp, ClusterScreen
from tui.core import keys
from tui.core.key_lookup import TITLES, answer, own_and_shared
from tui.core.keys import Key
from tui.screens.main import MainScreen
from tui.screens.registry import SCREENS

MODES = list(product((False, True), repeat=2))


def meanings(table: tuple[Key, ...]) -> dict[str, set[str]]:
    """What each key means, over all screens and modes."""
    found: dict[str, set[str]] = defaultdict(set)
    for key in table:
        for name in key.names:
            found[name].add(key.meaning)
    return found


def test_one_key_has_one_meaning_on_all_screens() -> None:
    assert {name: said for name, said in meanings(keys.KEYS).items() if len(said) > 1} == {}


def test_a_second_meaning_is_found() -> None:
    one, other = Key("n", "match(1)", "", "", "next match"), Key("n", "next_alert", "", "", where=(keys.MAIN,))
    assert meanings((one, other))["n"] == {"next match", "next_alert"}


@pytest.mark.parametrize("screen", sorted(TITLES))
def test_a_screen_has_a_title_and_no_key_twice(screen: str) -> None:
    assert {screen for key in keys.KEYS for screen in key.where if screen != keys.EVERYWHERE} == set(TITLES)
    for replaying, demo in MODES:
        fit = [key for key in keys.KEYS if screen in key.where and key.fits(replaying=replaying, demo=demo)]
        own = Counter(name for key in fit for name in key.names)
        assert [name for name, count in own.items() if count > 1] == []


@pytest.mark.parametrize("screen", sorted(TITLES))
def test_every_screen_can_be_left_and_explains_each_of_its_keys(screen: str) -> None:
    for replaying, demo in MODES:
        here = keys.for_screen(screen, replaying=replaying, demo=demo)
        names = {name for key in here for name in key.names}
        assert {"q", "ctrl+c", "question_mark"} <= names
        own, shared = own_and_shared(screen, replaying=replaying, demo=demo)
        explained = {name for key in [*own, *shared] for name in [*key.names, key.partner]}
        pairs = {"ctrl+u", "ctrl+d", "question_mark", "h", "f1"}  # in the sentence of another key; the help itself
        silent = [key.keys for key in here if not {*key.names} & (explained | pairs)]
        assert silent == []


@pytest.mark.parametrize("screen", sorted({*keys.LISTS, *keys.PAGES}))
def test_every_list_and_every_page_is_searched_and_jumped_through_by_the_same_keys(screen: str) -> None:
    names = {name for key in keys.for_screen(screen) for name in key.names}
    jumps = {"home", "end", "g", "G", "pageup", "pagedown", "ctrl+u", "ctrl+d", "up", "down", "k", "j"}
    assert jumps | {"slash", "n", "N"} <= names


def test_each_action_is_there_on_its_screen_or_on_the_app() -> None:
    pushed = {
        "TimelineScreen": "tui.screens.timeline",
        "ComparisonScreen": "tui.screens.comparison",
        "SignalScreen": "tui.screens.signal",
    }
    classes = [getattr(import_module(module), name) for name, module in (SCREENS | pushed).items()]
    found = [(one, LlmtopApp) for one in classes] + [(ClusterScreen, ClusterApp), (ClusterHelp, ClusterApp)]
    assert {one.NAME for one, _ in found} == set(TITLES) - {keys.MAIN}
    missing = [
        f"{key.keys} on {screen.NAME}: {key.action}"
        for screen, app in [*found, (MainScreen, LlmtopApp)]
        for key in keys.KEYS
        if key.is_on(screen.NAME)
        and not any(hasattr(one, f"action_{key.action.partition('(')[0]}") for one in (screen, app))
    ]
    assert missing == []


def test_a_partner_is_a_key_of_the_same_screens() -> None:
    for key in keys.KEYS:
        if key.partner:
            assert " " in key.shown
            assert any(key.partner in one.names and set(key.where) <= set(one.where) for one in keys.KEYS), key


@pytest.mark.parametrize(
    ("name", "character", "screen", "replaying", "said"),
    [
        ("c", "c", keys.MAIN, True, "c (capture) works only live; this is a recording."),
        ("J", "J", keys.PROCESSES, False, "J (next job) works only on the main screen."),
        ("Q", "Q", keys.MAIN, False, "Q does nothing here. Did you mean q (quit)?"),
        ("P", "P", keys.MAIN, False, "P does nothing here. Did you mean p (processes)?"),
        ("f5", None, keys.MAIN, False, "f5 does nothing here. ? lists the keys of this screen."),
        ("tab", "\t", keys.GPU, False, "tab does nothing here. ? lists the keys of this screen."),
        ("r", "r", keys.CLUSTER, False, "r does nothing here."),
        ("ctrl+q", None, keys.CLUSTER, False, "Did you mean q (quit)?"),
    ],
)
def test_a_key_that_does_nothing_is_answered(
    name: str, character: str | None, screen: str, replaying: bool, said: str
) -> None:
    assert said in answer(name, character, screen, replaying=replaying)
