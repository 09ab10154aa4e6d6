"""Every key of the program in one table. Bindings, footer, help and the palette of commands are made from it.

To add a screen: write `tui/screens/NAME.py` with a class derived from `tui.screens.base.LlmtopScreen`, and here
its name, in `_OTHERS` and `_TITLES` too, one `Key` with `screen="Class"`, and its module in
`tui.screens.registry`. It is imported when the key is pressed first, and the app pushes it. To add an action of an
existing screen: add a `Key` with `action="…"` and write `action_…` on that screen (or, for a key that works
everywhere, on the app).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import force_setattr

EVERYWHERE = "everywhere"
MAIN = "main"
GPU = "gpu"
PROCESSES = "processes"
RANKS = "ranks"
HELP = "help"
ALERTS = "alerts"
CAPTURE = "capture"
STACKS = "stacks"
REPORT = "report"
TIMELINE = "timeline"
COMPARISON = "comparison"
CAPTURES = "captures"
FLAME = "flame"
MEMORY = "memory"
DEMO_END = "demo end"
KERNELS = "kernels"


class Key(Struct, frozen=True):
    """One key, or several with the same meaning."""

    keys: str
    """Textual's names, separated by commas: "q,ctrl+c"."""
    action: str
    """The action's name with arguments, as Textual's bindings write it; "%" stands for the key that was pressed.
    Made from `screen` if that is given."""
    label: str
    """One word, for the footer; empty: not in the footer."""
    help: str
    """One sentence, for the help screen."""
    shown: str = ""
    """How the key is written in the footer, if not as the first of `keys`."""
    where: tuple[str, ...] = (EVERYWHERE,)
    """The names of the screens (`LlmtopScreen.NAME`) on which it works."""
    screen: str = ""
    """"module:Class" of the screen that the key opens."""
    about: bool = False
    """Whether that screen shows one process, which is then passed to it."""
    alert: str = ""
    """What the key does about the shown alert, in two or three words; {whom} is replaced by the process."""
    replay: bool | None = None
    """True: only in a replay; False: only live."""
    demo: Literal["", "too", "only"] = ""
    """Whether it works in the demo (a recording with prepared captures) though not in a replay; or only there."""

    def __post_init__(self) -> None:
        if self.screen and not self.action:
            force_setattr(self, "action", f"open{'_about' * self.about}('{self.screen}')")
        if not self.shown:
            force_setattr(self, "shown", self.keys.split(",")[0])

    def works(self, screen: str, *, replaying: bool, demo: bool = False) -> bool:
        """Whether the key does something on this screen in this mode; see `fits`."""
        here = EVERYWHERE in self.where or screen in self.where
        return here and self.fits(replaying=replaying, demo=demo)

    def fits(self, *, replaying: bool, demo: bool) -> bool:
        """Whether the key is one of this mode.

        Args:
            replaying: whether a recording is shown.
            demo: whether there are prepared captures beside it.
        """
        if self.demo == "only" or (demo and self.demo):
            return demo
        return self.replay in (None, replaying)


_PAGED = (RANKS, HELP, ALERTS, STACKS, REPORT, COMPARISON, MEMORY, DEMO_END, KERNELS)
_OTHERS = (
    *(GPU, PROCESSES, RANKS, HELP, ALERTS, STACKS, REPORT, TIMELINE, COMPARISON, CAPTURES, FLAME, MEMORY),
    DEMO_END,
    KERNELS,
)

# In the order of the footer; what comes last there is always shown, so it is the help.
KEYS: tuple[Key, ...] = (
    Key("q", "quit", "quit", "Quit; on another screen, back to the one before.", where=(MAIN,)),
    Key("q,escape,backspace", "back", "back", "Back to the screen before.", where=_OTHERS),
    Key("ctrl+c", "quit", "", "Quit at once, from any screen."),
    Key(
        "a",
        "",
        "alerts",
        "The alerts that hold: rule, evidence over time, next step; and those that held, and for how long.",
        where=(MAIN, GPU),
        screen="AlertScreen",
        alert="evidence",
    ),
    Key("a", "unfold_all", "evidence", "The evidence of all alerts, or of the chosen one alone.", where=(ALERTS,)),
    Key(
        "s",
        "",
        "stacks",
        "What the Python threads of the shown alert's rank, or of the training, are doing now; each second anew.",
        where=(MAIN, GPU, ALERTS),
        screen="StacksScreen",
        about=True,
        alert="stacks of {whom}",
        replay=False,
    ),
    Key(
        "c",
        "",
        "capture",
        "Capture a focused window of a training, of the shown alert's rank if there is one: a dialog filled with "
        "the best choice; enter captures.",
        where=(MAIN, GPU, PROCESSES, STACKS, ALERTS, CAPTURES),
        screen="CaptureScreen",
        about=True,
        alert="capture {whom}",
        replay=False,
        demo="too",
    ),
    Key(
        "z",
        "mute",
        "",
        "Mute the shown alert for as long as it holds: no bell, and the next one is shown; on the alerts, hear it "
        "again.",
        where=(MAIN, GPU, ALERTS),
        alert="mute",
    ),
    Key("n", "next_alert", "", "Show the next alert.", where=(MAIN,)),
    Key("n", "next_alert", "next", "Choose the next alert.", where=(ALERTS,)),
    Key(
        "o",
        "",
        "captures",
        "The captures, the newest first: what each one says, its step and its size; open and compare them.",
        where=(MAIN, GPU, PROCESSES, CAPTURE, ALERTS, DEMO_END),
        screen="CapturesScreen",
    ),
    Key("space", "again", "again", "Play the recording again from its beginning.", where=(DEMO_END,)),
    Key(
        "e",
        "",
        "what next",
        "What the recording showed, and how to watch a training of one's own.",
        where=(MAIN,),
        screen="DemoEndScreen",
        replay=True,
        demo="only",
    ),
    Key("space", "pause", "pause", "Freeze the screen; samples are taken on, and are there when you go on."),
    Key("enter", "open_gpu", "GPU", "The selected GPU large, with charts.", where=(MAIN,)),
    Key(
        "0,1,2,3,4,5,6,7,8,9",
        "gpu_number('%')",
        "",
        "The GPU of that number large.",
        shown="0-9",
        where=(MAIN, GPU),
    ),
    Key(
        "p",
        "",
        "processes",
        "Processes on the GPUs: sort, filter, send a signal.",
        where=(MAIN, GPU),
        screen="ProcessesScreen",
    ),
    Key(
        "C",
        "",
        "",
        "Repeat the last capture without asking; asks where that process has ended.",
        where=(MAIN, GPU, PROCESSES, STACKS, ALERTS, CAPTURES),
        screen="RepeatScreen",
        about=True,
        replay=False,
        demo="too",
    ),
    Key("enter", "go", "capture", "Capture what the dialog says; afterwards, ask again.", where=(CAPTURE,)),
    Key("up,k", "field(-1)", "", "The line above.", where=(CAPTURE,)),
    Key("down,j", "field(1)", "choose", "The line below.", shown="up down", where=(CAPTURE,)),
    Key("left", "change(-1)", "", "The value before.", where=(CAPTURE,)),
    Key("right", "change(1)", "change", "The next value.", shown="left right", where=(CAPTURE,)),
    Key("pageup", "field(-10)", "", "Ten lines up.", shown="pgup", where=(CAPTURE,)),
    Key("pagedown", "field(10)", "", "Ten lines down.", shown="pgdn", where=(CAPTURE,)),
    Key(
        "escape,x",
        "cancel",
        "cancel",
        "Call the capture off, or disarm it; the training runs on.",
        shown="x",
        where=(CAPTURE,),
    ),
    Key("q,backspace", "back", "back", "Back; a capture under way goes on.", where=(CAPTURE,)),
    Key("w", "waiting", "waiting", "Show or hide the threads that wait.", where=(STACKS,)),
    Key("tab", "next_rank(1)", "rank", "The stacks of the next rank.", where=(STACKS,)),
    Key("shift+tab", "next_rank(-1)", "", "The stacks of the rank before.", where=(STACKS,)),
    Key(
        "left_square_bracket",
        "span(-1)",
        "span",
        "All charts over a shorter span, down to a minute; with ] a longer one; so does the mouse wheel.",
        shown="[ ]",
        where=(MAIN, GPU, ALERTS),
    ),
    Key(
        "right_square_bracket",
        "span(1)",
        "",
        "All charts over a longer span.",
        shown="]",
        where=(MAIN, GPU, ALERTS),
    ),
    Key(
        "less_than_sign,comma",
        "seek(-10)",
        "rewind",
        "The whole screen as it was ten seconds before; > ten seconds on, end back to now.",
        shown="< >",
    ),
    Key("greater_than_sign,full_stop", "seek(10)", "", "Ten seconds on.", shown=">"),
    Key("end", "last", "", "Back to now; in a replay to the end of the recording."),
    Key("home", "first", "", "To the oldest that is remembered; in a replay to the beginning."),
    Key("r", "", "ranks", "All ranks in one table.", where=(MAIN, GPU), screen="RanksScreen"),
    Key(
        "enter", "go", "open", "What the chosen capture says; where something is asked, do it.", where=(CAPTURES,)
    ),
    Key(
        "v",
        "compare",
        "compare",
        "The chosen capture against the one marked with m, else the baseline, else the one taken before it.",
        where=(CAPTURES,),
    ),
    Key(
        "m",
        "mark_first",
        "first",
        "Take the chosen capture as the one that the next is compared with.",
        where=(CAPTURES,),
    ),
    Key(
        "b",
        "baseline",
        "baseline",
        "Mark the chosen capture as the baseline that later ones are held against; kept in the folder.",
        where=(CAPTURES,),
    ),
    Key("o", "kernels", "kernels", "What ncu measured of this capture's kernels (.ncu-rep).", where=(CAPTURES,)),
    Key("d,delete", "delete", "delete", "Delete the chosen capture; asks first.", where=(CAPTURES,)),
    Key("K", "keep", "keep newest", "Delete all but the newest captures; asks how many.", where=(CAPTURES,)),
    Key("up,k", "move(-1)", "", "The capture above.", where=(CAPTURES,)),
    Key("down,j", "move(1)", "", "The capture below.", where=(CAPTURES,)),
    Key("pageup", "move(-10)", "", "Ten captures up.", shown="pgup", where=(CAPTURES,)),
    Key("pagedown", "move(10)", "", "Ten captures down.", shown="pgdn", where=(CAPTURES,)),
    Key("left", "keep_more(-1)", "", "Keep fewer, where it is asked how many.", where=(CAPTURES,)),
    Key("right", "keep_more(1)", "", "Keep more, where it is asked how many.", where=(CAPTURES,)),
    Key(
        "enter",
        "unfold",
        "evidence",
        "The chosen finding with its evidence, fix and next command.",
        where=(REPORT,),
    ),
    Key("up,k", "finding(-1)", "", "The finding above.", where=(REPORT,)),
    Key("down,j", "finding(1)", "", "The finding below.", where=(REPORT,)),
    Key("pageup", "page(-1)", "", "A page up.", shown="pgup", where=_PAGED),
    Key("pagedown", "page(1)", "page", "A page down.", shown="pgdn", where=_PAGED),
    Key("up,k", "scroll(-1)", "", "One line up.", where=(COMPARISON, MEMORY, DEMO_END, KERNELS)),
    Key("down,j", "scroll(1)", "", "One line down.", where=(COMPARISON, MEMORY, DEMO_END, KERNELS)),
    Key("l", "timeline", "timeline", "One step drawn: GPU, idle time, the host's calls, phases.", where=(REPORT,)),
    Key(
        "b",
        "baseline",
        "baseline",
        "Mark this capture as the baseline that later ones are held against.",
        where=(REPORT,),
    ),
    Key("v", "compare", "compare", "This capture against the baseline, line by line.", where=(REPORT,)),
    Key(
        "enter,right",
        "fold(1)",
        "unfold",
        "What the chosen frame called; enter folds it away again.",
        where=(FLAME,),
    ),
    Key(
        "left",
        "fold(-1)",
        "fold",
        "Fold the chosen frame; folded, go to the one that called it.",
        where=(FLAME,),
    ),
    Key("up,k", "move(-1)", "", "The frame above.", where=(FLAME,)),
    Key("down,j", "move(1)", "", "The frame below.", where=(FLAME,)),
    Key("pageup", "move(-10)", "", "Ten frames up.", shown="pgup", where=(FLAME,)),
    Key("pagedown", "move(10)", "", "Ten frames down.", shown="pgdn", where=(FLAME,)),
    Key("w", "waiting", "waiting", "Show or hide the threads that wait, and llmtop's own.", where=(FLAME,)),
    Key("up,k", "zoom(0.5)", "zoom in", "Look closer at the middle.", where=(TIMELINE,)),
    Key("down,j", "zoom(2)", "zoom out", "Look at more of the step.", where=(TIMELINE,)),
    Key(
        "left",
        "pan(-0.25)",
        "pan",
        "A quarter of the window back; with the right arrow, on.",
        shown="left right",
        where=(TIMELINE,),
    ),
    Key("right", "pan(0.25)", "", "A quarter of the window on.", where=(TIMELINE,)),
    Key("0,home", "whole", "whole step", "The whole step again.", where=(TIMELINE,)),
    Key("up,left,k", "select(-1)", "", "Select the GPU before.", shown="up left", where=(MAIN, GPU)),
    Key("down,right,j", "select(1)", "", "Select the next GPU.", shown="down right", where=(MAIN, GPU)),
    Key(
        "m",
        "marker",
        "marker",
        "Draw charts with braille or with blocks, for fonts without braille.",
        where=(GPU,),
    ),
    Key("up,k", "scroll(-1)", "", "One line up.", where=(RANKS, HELP, ALERTS, STACKS)),
    Key("down,j", "scroll(1)", "", "One line down.", where=(RANKS, HELP, ALERTS, STACKS)),
    Key("up,k", "move(-1)", "", "The process above.", where=(PROCESSES,)),
    Key("down,j", "move(1)", "", "The process below.", where=(PROCESSES,)),
    Key("pageup", "move(-10)", "", "Ten processes up.", shown="pgup", where=(PROCESSES,)),
    Key("pagedown", "move(10)", "", "Ten processes down.", shown="pgdn", where=(PROCESSES,)),
    Key(
        "right",
        "sort(1)",
        "sort",
        "Sort by the next column, or with the left arrow by the one before.",
        shown="left right",
        where=(PROCESSES,),
    ),
    Key("left", "sort(-1)", "", "Sort by the column before.", where=(PROCESSES,)),
    Key("r", "turn", "reverse", "Turn the order round.", where=(PROCESSES,)),
    Key("slash", "filter", "filter", "Show only what has these letters in it.", shown="/", where=(PROCESSES,)),
    Key("x", "signal", "signal", "Send a signal to the process; asks first.", where=(PROCESSES,), replay=False),
    Key("J", "next_job", "", "Show the next job, where there are several.", where=(MAIN, GPU)),
    Key("tab", "next_rank(1)", "rank", "Show the steps of the next training process.", where=(MAIN,)),
    Key("shift+tab", "next_rank(-1)", "", "Show the steps of the training process before.", where=(MAIN,)),
    Key("g", "gpu_choice", "GPUs", "Show all GPUs, or only those that attached trainings use.", where=(MAIN,)),
    Key("t", "next_theme", "theme", "Next theme: dark, light, high contrast, the terminal's own colours."),
    Key("plus,equals_sign", "faster", "faster", "Take samples more often.", shown="+", replay=False),
    Key("minus", "slower", "slower", "Take samples less often.", shown="-", replay=False),
    Key("plus,equals_sign", "speed(2)", "faster", "Play twice as fast.", shown="+", replay=True),
    Key("minus", "speed(0.5)", "slower", "Play half as fast.", shown="-", replay=True),
    Key(
        "right_curly_bracket",
        "seek(60)",
        "",
        "A minute on.",
        shown="}",
    ),
    Key("left_curly_bracket", "seek(-60)", "", "A minute back; with } a minute on.", shown="{ }"),
    Key(
        "left_parenthesis",
        "seek_share(-0.05)",
        "",
        "Five per cent of all that is remembered or recorded back; with ) on.",
        shown="( )",
    ),
    Key(
        "right_parenthesis",
        "seek_share(0.05)",
        "",
        "Five per cent of all that is remembered or recorded on.",
        shown=")",
    ),
    Key("y", "copy", "copy", "Copy the command that is shown to the terminal's clipboard (OSC 52)."),
    Key("S", "save", "save", "Save what is shown as an SVG picture and as text, in the folder llmtop runs in."),
    Key("ctrl+z", "suspend_process", "", "Stop llmtop and go back to the shell, whose fg fetches it again."),
    Key("ctrl+p", "command_palette", "", "The palette of commands: every action and every theme by name."),
    Key(
        "question_mark,h,f1",
        "",
        "help",
        "All keys, and what the screen shows.",
        shown="?",
        screen="HelpScreen",
    ),
)


def for_screen(screen: str, *, replaying: bool = False, demo: bool = False) -> list[Key]:
    """The keys that work on a screen, in the footer's order."""
    found: list[Key] = []
    taken: set[str] = set()
    for key in KEYS:
        names = set(key.keys.split(","))
        if key.works(screen, replaying=replaying, demo=demo) and not names <= taken:  # the first one is done
            taken |= names
            found.append(key)
    return found


_FEW = 3
"""More screens than these are not listed one by one."""
_TITLES = {
    MAIN: "on the main screen",
    GPU: "on one GPU",
    PROCESSES: "on processes",
    RANKS: "on ranks",
    HELP: "on this help",
    ALERTS: "on the alerts",
    CAPTURE: "on a capture",
    STACKS: "on stacks",
    REPORT: "on a report",
    TIMELINE: "on a timeline",
    COMPARISON: "on a comparison",
    CAPTURES: "on the captures",
    FLAME: "on sampled stacks",
    MEMORY: "on a memory snapshot",
    DEMO_END: "at the end of the demo",
    KERNELS: "on kernels",
}


def groups(*, replaying: bool, demo: bool = False) -> list[tuple[str, list[Key]]]:
    """The keys for the help, each once: those of the main screen, those that work everywhere, then by screen."""
    found: dict[tuple[str, ...], list[Key]] = {(MAIN,): [], (EVERYWHERE,): []}
    for key in KEYS:
        if key.fits(replaying=replaying, demo=demo):
            where = (MAIN,) if MAIN in key.where else key.where
            found.setdefault(where, []).append(key)
    return [(_group_title(where), keys) for where, keys in found.items()]


def _group_title(names: tuple[str, ...]) -> str:
    if EVERYWHERE in names:
        return "everywhere"
    if names == _OTHERS:
        return "on every other screen"
    if len(names) > _FEW:
        return "on screens of text"
    return " and ".join(_TITLES.get(name, f"on {name}") for name in names)


def alert_keys(*, replaying: bool, demo: bool = False) -> list[Key]:
    """The keys that act on the shown alert."""
    return [key for key in KEYS if key.alert and key.fits(replaying=replaying, demo=demo)]


def refusal(name: str, screen: str, *, replaying: bool, demo: bool = False) -> str:
    """Return why a key of the table does nothing on this screen in this mode; "" for keys that are not expected
    there.

    Args:
        name: the key, as Textual calls it.
        screen: the `NAME` of the screen on top.
        replaying: whether a recording is shown.
        demo: whether there are prepared captures beside it.
    """
    known = [key for key in KEYS if name in key.keys.split(",") and (key.label or key.screen or key.alert)]
    known = [key for key in known if demo or key.demo != "only"]
    places = [key for key in known if key.fits(replaying=replaying, demo=demo)]
    for key in known:
        if key.works(screen, replaying=not replaying) or (not places and name not in _MOVES):
            why = "is for what runs now; this is a recording" if replaying else "is for recordings; this is live"
            return f"{key.shown} ({_does(key)}) {why}."
    if not places or name in _MOVES:
        return ""
    where = " or ".join(dict.fromkeys(_group_title(key.where) for key in places))
    return f"{places[0].shown} ({_does(places[0])}) works {where}, not here; q goes back."


_MOVES = frozenset({"up", "down", "left", "right", "pageup", "pagedown", "tab", "shift+tab", "enter", "escape"})
"""Keys with another meaning on each screen; where they do nothing, no refusal is shown."""


def _does(key: Key) -> str:
    return key.label or (key.alert or key.help.partition(":")[0]).partition(" {")[0].lower().rstrip(".")
