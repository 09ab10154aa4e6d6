"""Keys of a screen for its help, and the answer to a key that does nothing there."""

from __future__ import annotations

from collections.abc import Sequence

from tui.core import keys
from tui.core.keys import EVERYWHERE, KEYS, OF_THE_CLUSTER, Key, for_screen

_MOST_OWN = 12
"""A key of more screens than these is listed with those of every screen."""

TITLES = {
    keys.MAIN: "the main screen",
    keys.GPU: "one GPU",
    keys.PROCESSES: "processes",
    keys.RANKS: "ranks",
    keys.HELP: "this help",
    keys.ALERTS: "the alerts",
    keys.CAPTURE: "the capture dialog",
    keys.STACKS: "stacks",
    keys.REPORT: "a report",
    keys.TIMELINE: "a timeline",
    keys.COMPARISON: "a comparison",
    keys.CAPTURES: "the captures",
    keys.FLAME: "sampled stacks",
    keys.MEMORY: "a memory snapshot",
    keys.DEMO_END: "the end of the demo",
    keys.KERNELS: "kernels",
    keys.SIGNALS: "the signals",
    keys.CLUSTER: "the cluster",
    keys.CLUSTER_HELP: "this help",
}


def title_of(screen: str) -> str:
    """Return the title of a screen, such as "the main screen"."""
    return TITLES.get(screen, screen)


def own_and_shared(
    screen: str, *, replaying: bool = False, demo: bool = False, gpus: bool = True
) -> tuple[list[Key], list[Key]]:
    """Return the keys of one screen for its help, each sentence once: its own, and those that work (nearly)
    everywhere.

    Args:
        screen: `NAME` of the screen.
        replaying: whether a recording is shown.
        demo: whether there are prepared captures beside it.
        gpus: whether there is a GPU; without one, keys for GPUs are left out.
    """
    here = [
        key for key in for_screen(screen, replaying=replaying, demo=demo) if key.help and (gpus or not key.gpu)
    ]
    shared = [key for key in here if EVERYWHERE in key.where or len(key.where) > _MOST_OWN]
    return [key for key in here if key not in shared], shared


_FEW = 3
"""More screens than these are not listed one by one."""


def answer(name: str, character: str | None, screen: str, *, replaying: bool, demo: bool = False) -> str:
    """Return why a key does nothing on this screen in this mode, and which key may have been meant.

    Args:
        name: the key, as Textual calls it.
        character: what it types; None for keys that type nothing.
        screen: the `NAME` of the screen on top.
        replaying: whether a recording is shown.
        demo: whether there are prepared captures beside it.
    """
    shown = _key_text(name, character)
    known = [key for key in KEYS if name in key.names and (demo or key.demo != "only")]
    places = [key for key in known if key.fits(replaying=replaying, demo=demo)]
    for key in known:
        if key.works(screen, replaying=not replaying) or (not places and name not in _MOVES):
            why = "works only live; this is a recording" if replaying else "works only in recordings; this is live"
            return f"{shown} ({_does(key)}) {why}."
    named = [key for key in places if screen not in OF_THE_CLUSTER or key.is_on(screen)]
    if named and name not in _MOVES:
        where = " or ".join(dict.fromkeys(_places(key.where) for key in named))
        return f"{shown} ({_does(named[0])}) works only {where}. ? lists the keys of this screen."
    meant = _meant(name, screen, replaying=replaying, demo=demo)
    hint = f" Did you mean {meant.shown} ({_does(meant)})?" if meant else ""
    return f"{shown} does nothing here.{hint} ? lists the keys of this screen."


def _places(where: Sequence[str]) -> str:
    if EVERYWHERE in where:
        return "everywhere"
    if len(where) > _FEW:
        return "on other screens"
    return "on " + " and ".join(title_of(name) for name in where)


def _meant(name: str, screen: str, *, replaying: bool, demo: bool) -> Key | None:
    """Return the key of the screen that a wrong one is mistaken for: another case, or without ctrl or alt."""
    near = (name.swapcase(), name.rpartition("+")[2], f"ctrl+{name}") if name not in _MOVES else ()
    here = for_screen(screen, replaying=replaying, demo=demo)
    return next((key for one in near for key in here if one in key.names), None)


_MOVES = frozenset({"up", "down", "left", "right", "pageup", "pagedown", "tab", "shift+tab", "enter", "escape"})
"""Keys with an effect of its own on each screen: where they do nothing, no other screen is named."""


def _key_text(name: str, character: str | None) -> str:
    return character if character and character.isprintable() and not character.isspace() else name


def _does(key: Key) -> str:
    return key.label or (key.alert.partition(" {")[0] or key.meaning.replace("_", " "))
