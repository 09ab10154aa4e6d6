"""Table of every key of the program. Footer, help, mouse and the palette of commands are made from it.

One key has one meaning on all screens, `llmtop cluster` among them (`tests/tui/core/test_keys.py`); what a screen
does for it is its action.

To add a screen: write `tui/screens/NAME.py` with a class derived from `tui.screens.base.LlmtopScreen`, and here
its name, in `_OTHERS` and in `TITLES` of key_lookup.py too, one `Key` with `screen="Class"`, and its module in
`tui.screens.registry`. It is imported when the key is pressed first, and the app pushes it. To add an action of an
existing screen: add a `Key` with `action="…"` and write `action_…` on that screen (or, for a key that works
everywhere, on the app).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import force_setattr

EVERYWHERE = "everywhere"
"""Every screen of the monitor; the cluster's app is named besides."""
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
SIGNALS = "signals"
CLUSTER = "cluster"
CLUSTER_HELP = "cluster help"
OF_THE_CLUSTER = (CLUSTER, CLUSTER_HELP)
"""Screens of the other app."""


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
    """One sentence, for the help; empty: another key's sentence says it."""
    meaning: str = ""
    """Meaning of the key wherever it works; made from the action if not given."""
    shown: str = ""
    """How the key is written, if not as the first of `keys`; of two keys both, with a blank between them."""
    partner: str = ""
    """Textual's name of the second key in `shown`, which a click on it presses."""
    where: tuple[str, ...] = (EVERYWHERE,)
    """The names of the screens (`BoardScreen.NAME`) on which it works."""
    screen: str = ""
    """"module:Class" of the screen that the key opens."""
    about: bool = False
    """True if that screen shows one process, which is then passed to it."""
    alert: str = ""
    """Effect of the key on the shown alert, in two or three words; {whom} is replaced by the process."""
    replay: bool | None = None
    """True: only in a replay; False: only live."""
    demo: Literal["", "too", "only"] = ""
    """True if it works in the demo (a recording with prepared captures) though not in a replay; or only there."""
    gpu: bool = False
    """True if it needs a GPU: footer and help leave it out on a machine without one."""

    def __post_init__(self) -> None:
        if self.screen and not self.action:
            force_setattr(self, "action", f"open{'_about' * self.about}('{self.screen}')")
        if not self.shown:
            force_setattr(self, "shown", self.keys.split(",")[0])
        if not self.meaning:
            force_setattr(self, "meaning", self.screen or self.action.partition("(")[0])

    @property
    def names(self) -> list[str]:
        """Textual's names of the keys."""
        return self.keys.split(",")

    def is_on(self, screen: str) -> bool:
        """Return True if the key is one of this screen's, whatever the mode."""
        return screen in self.where or (EVERYWHERE in self.where and screen not in OF_THE_CLUSTER)

    def works(self, screen: str, *, replaying: bool, demo: bool = False) -> bool:
        """Return True if the key does something on this screen in this mode; see `fits`."""
        return self.is_on(screen) and self.fits(replaying=replaying, demo=demo)

    def fits(self, *, replaying: bool, demo: bool) -> bool:
        """Return True if the key is one of this mode.

        Args:
            replaying: whether a recording is shown.
            demo: whether there are prepared captures beside it.
        """
        if self.demo == "only" or (demo and self.demo):
            return demo
        return self.replay in (None, replaying)


PAGES = (HELP, ALERTS, STACKS, REPORT, COMPARISON, MEMORY, DEMO_END, KERNELS, CAPTURE, SIGNALS, CLUSTER_HELP)
"""Screens of text."""
LISTS = (MAIN, RANKS, PROCESSES, CAPTURES, FLAME, CLUSTER)
"""Screens with a line to act on."""
_MOVING = (*LISTS, *PAGES, GPU, TIMELINE)
_SORTED = (MAIN, RANKS, PROCESSES, CAPTURES, CLUSTER)
_OTHERS = (
    *(GPU, PROCESSES, RANKS, HELP, ALERTS, STACKS, REPORT, TIMELINE, COMPARISON, CAPTURES, FLAME, MEMORY),
    *(DEMO_END, KERNELS, CAPTURE, SIGNALS, CLUSTER_HELP),
)
_TIMED = (MAIN, GPU, ALERTS, RANKS, PROCESSES)
"""Screens that show one instant, which can be moved."""

# In the order of the footer; what comes last there is always shown, so it is the help.
KEYS: tuple[Key, ...] = (
    Key("q", "leave", "quit", "Quit; on another screen, go back.", "leave", where=(MAIN, CLUSTER)),
    Key(
        "q,escape,backspace",
        "back",
        "back",
        "Go back to the screen before. A running capture continues.",
        "leave",
        where=_OTHERS,
    ),
    Key(
        "escape,backspace",
        "back",
        "",
        "Close the charts of one node, and show all nodes again.",
        "leave",
        where=(CLUSTER,),
    ),
    Key("ctrl+c", "quit", "", "Quit at once, from any screen.", where=(EVERYWHERE, *OF_THE_CLUSTER)),
    Key(
        "a",
        "",
        "alerts",
        "Show all alerts: rule, evidence over time, next step; below them the alerts that have ended.",
        where=(MAIN, GPU, RANKS),
        screen="AlertScreen",
        alert="evidence",
    ),
    Key(
        "s",
        "",
        "stacks",
        "Show the Python stacks of the shown alert's rank or of the training, refreshed each second.",
        where=(MAIN, GPU, ALERTS),
        screen="StacksScreen",
        about=True,
        alert="stacks of {whom}",
        replay=False,
    ),
    Key(
        "c",
        "again",
        "",
        "Show the dialog again, for another capture.",
        "capture",
        where=(CAPTURE,),
        replay=False,
        demo="too",
    ),
    Key(
        "c",
        "capture",
        "capture",
        "Show the command that captures the accused ranks; press c again to run it.",
        where=(CLUSTER,),
    ),
    Key(
        "c",
        "",
        "capture",
        "Capture some steps of a training, of the shown alert's rank if there is one. A dialog with the best "
        "choice opens; enter starts.",
        "capture",
        where=(MAIN, GPU, PROCESSES, RANKS, STACKS, ALERTS, CAPTURES, REPORT, DEMO_END),
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
        "Mute the shown alert until it ends, and show the next; no bell rings. On the alerts: unmute it.",
        where=(MAIN, GPU, ALERTS),
        alert="mute",
    ),
    Key("z", "acknowledge(False)", "", "Hide the chosen down node; Z: all down.", "mute", "z Z", "Z", (CLUSTER,)),
    Key("Z", "acknowledge(True)", "", "", meaning="acknowledge all", where=(CLUSTER,)),
    Key("A", "next_alert", "", "Show the next alert.", where=(MAIN,)),
    Key("A", "next_alert", "next", "Choose the next alert.", where=(ALERTS,)),
    Key(
        "o",
        "",
        "captures",
        "List the captures, the newest first: verdict, step time, size; open, compare and delete them.",
        where=(MAIN, GPU, PROCESSES, CAPTURE, ALERTS, DEMO_END),
        screen="CapturesScreen",
    ),
    Key("space", "again", "again", "Play the recording again from its beginning.", "pause", where=(DEMO_END,)),
    Key(
        "e",
        "",
        "what next",
        "Show what this demo contained, and how to watch your own training with llmtop.",
        where=(MAIN,),
        screen="DemoEndScreen",
        replay=True,
        demo="only",
    ),
    Key(
        "space",
        "pause",
        "pause",
        "Freeze the screen, while sampling continues; press space again to continue with the latest sample.",
        "pause",
    ),
    Key("enter", "go", "GPU", "Open the selected GPU, with large charts.", where=(MAIN,), gpu=True),
    Key("enter", "go", "charts", "Show the charts of the chosen node.", where=(CLUSTER,)),
    Key(
        "0,1,2,3,4,5,6,7,8,9",
        "gpu_number('%')",
        "",
        "Open the GPU with this number.",
        shown="0-9",
        where=(MAIN, GPU),
        gpu=True,
    ),
    Key(
        "p",
        "",
        "processes",
        "Show the processes on the GPUs: sort, filter, send a signal.",
        where=(MAIN, GPU),
        screen="ProcessesScreen",
    ),
    Key(
        "C",
        "",
        "",
        "Repeat the last capture without the dialog; opens the dialog if that process has ended.",
        where=(MAIN, GPU, PROCESSES, RANKS, STACKS, ALERTS, CAPTURES, REPORT),
        screen="RepeatScreen",
        about=True,
        replay=False,
        demo="too",
    ),
    Key("enter", "go", "capture", "Start the capture; afterwards, show the dialog again.", where=(CAPTURE,)),
    Key(
        "left",
        "change(-1)",
        "change",
        "Choose the previous or the next value of the selected line.",
        "left",
        shown="left right",
        partner="right",
        where=(CAPTURE,),
    ),
    Key("right", "change(1)", "", "", "right", where=(CAPTURE,)),
    Key("x", "cancel", "cancel", "Cancel the capture, or disarm it; the training continues.", where=(CAPTURE,)),
    Key("w", "whole", "engines", "Show or hide the engines that are unavailable, with reasons.", where=(CAPTURE,)),
    Key("w", "whole", "waiting", "Show or hide the threads that wait.", where=(STACKS,)),
    Key("w", "whole", "evidence", "Show the evidence of all alerts, or of the chosen one alone.", where=(ALERTS,)),
    Key("tab", "next_rank(1)", "rank", "Show the stacks of the next rank.", "next rank", where=(STACKS,)),
    Key(
        "shift+tab", "next_rank(-1)", "", "Show the stacks of the previous rank.", "previous rank", where=(STACKS,)
    ),
    Key(
        "left_square_bracket",
        "span(-1)",
        "span",
        "Show a shorter or a longer span in all charts, from one minute on; the mouse wheel does the same.",
        "shorter span",
        shown="[ ]",
        partner="right_square_bracket",
        where=(MAIN, GPU, ALERTS, CLUSTER),
    ),
    Key(
        "right_square_bracket",
        "span(1)",
        "",
        "",
        "longer span",
        shown="]",
        where=(MAIN, GPU, ALERTS, CLUSTER),
    ),
    Key(
        "left_square_bracket",
        "zoom(0.5)",
        "zoom",
        "Show a shorter or a longer part of the step; the mouse wheel does the same.",
        "shorter span",
        shown="[ ]",
        partner="right_square_bracket",
        where=(TIMELINE,),
    ),
    Key("right_square_bracket", "zoom(2)", "", "", "longer span", shown="]", where=(TIMELINE,)),
    Key(
        "less_than_sign,comma",
        "seek(-10)",
        "rewind",
        "Show the whole screen as it was ten seconds earlier, or ten seconds later.",
        "earlier",
        shown="< >",
        partner="greater_than_sign",
        where=_TIMED,
    ),
    Key("greater_than_sign,full_stop", "seek(10)", "", "", "later", shown=">", where=_TIMED),
    Key(
        "less_than_sign,comma",
        "instant(1)",
        "rewind",
        "Show an earlier or a later instant, by a tenth of the span.",
        "earlier",
        shown="< >",
        partner="greater_than_sign",
        where=(CLUSTER,),
    ),
    Key("greater_than_sign,full_stop", "instant(-1)", "", "", "later", shown=">", where=(CLUSTER,)),
    Key(
        "L",
        "last",
        "",
        "Return to now; in a recording, go to its end.",
        "now",
        where=(*_TIMED, CLUSTER),
    ),
    Key(
        "H",
        "first",
        "",
        "Go to the oldest sample; in a recording, to its beginning.",
        "oldest",
        where=_TIMED,
    ),
    Key("r", "", "ranks", "Show all ranks in one table.", where=(MAIN, GPU), screen="RanksScreen"),
    Key(
        "enter",
        "go",
        "open",
        "Open the chosen capture; where a question is shown, confirm it.",
        where=(CAPTURES,),
    ),
    Key(
        "v",
        "compare",
        "compare",
        "Compare the chosen capture with the one marked by m, else the baseline, else the one before it.",
        where=(CAPTURES,),
    ),
    Key("m", "mark_first", "first", "Mark the chosen capture as the first of a comparison.", where=(CAPTURES,)),
    Key(
        "b",
        "baseline",
        "baseline",
        "Mark the chosen capture as the baseline of later captures; stored in the folder.",
        where=(CAPTURES,),
    ),
    Key(
        "u",
        "kernels",
        "ncu",
        "Show what ncu measured of the kernels of this capture (.ncu-rep).",
        where=(CAPTURES,),
    ),
    Key("d,delete", "delete", "delete", "Delete the chosen capture; asks first.", where=(CAPTURES,)),
    Key("K", "keep", "keep newest", "Delete all but the newest captures; asks how many.", where=(CAPTURES,)),
    Key(
        "left",
        "keep_more(-1)",
        "",
        "While K asks how many captures to keep: choose fewer or more.",
        "left",
        shown="left right",
        partner="right",
        where=(CAPTURES,),
    ),
    Key("right", "keep_more(1)", "", "", "right", where=(CAPTURES,)),
    Key(
        "enter",
        "go",
        "evidence",
        "Show the evidence, the fix and the next command of the chosen finding.",
        where=(REPORT,),
    ),
    Key("l", "timeline", "timeline", "Draw one step: GPU, idle time, host calls, phases.", where=(REPORT,)),
    Key("b", "baseline", "baseline", "Mark this capture as the baseline of later captures.", where=(REPORT,)),
    Key("v", "compare", "compare", "Compare this capture with the baseline, line by line.", where=(REPORT,)),
    Key("enter", "go", "unfold", "Unfold the chosen frame, or fold it.", where=(FLAME,)),
    Key(
        "left",
        "fold(-1)",
        "fold",
        "Fold the chosen frame, or go to its caller; right unfolds it.",
        "left",
        shown="left right",
        partner="right",
        where=(FLAME,),
    ),
    Key("right", "fold(1)", "", "", "right", where=(FLAME,)),
    Key("w", "whole", "waiting", "Show or hide the threads that wait, and llmtop's own.", where=(FLAME,)),
    Key(
        "left",
        "pan(-0.25)",
        "pan",
        "Show the part of the step a quarter of the window earlier or later.",
        "left",
        shown="left right",
        partner="right",
        where=(TIMELINE,),
    ),
    Key("right", "pan(0.25)", "", "", "right", where=(TIMELINE,)),
    Key("w", "whole", "whole step", "Show the whole step again.", where=(TIMELINE,)),
    Key(
        "left",
        "sort(-1)",
        "sort",
        "Sort by the previous or the next column.",
        "left",
        shown="left right",
        partner="right",
        where=(PROCESSES,),
    ),
    Key("right", "sort(1)", "", "", "right", where=(PROCESSES,)),
    Key("O", "sort(1)", "", "Sort by the next column; a click on a title does it too.", where=_SORTED),
    Key("R", "turn", "", "Reverse the sort order.", where=_SORTED),
    Key("f", "filter", "filter", "Show processes with these letters in pid, user or command.", where=(PROCESSES,)),
    Key("X", "signal", "signal", "Send a signal to the process; asks first.", where=(PROCESSES,), replay=False),
    Key("enter", "go", "send", "Send the selected signal, and go back.", where=(SIGNALS,)),
    Key(
        "left",
        "column(-1)",
        "",
        "Select the node in the column to the left or to the right.",
        shown="left right",
        partner="right",
        meaning="left",
        where=(CLUSTER,),
    ),
    Key("right", "column(1)", "", "", "right", where=(CLUSTER,)),
    Key(
        "left",
        "move(-1)",
        "",
        "Select the previous or the next GPU.",
        "left",
        shown="left right",
        partner="right",
        where=(MAIN, GPU),
        gpu=True,
    ),
    Key("right", "move(1)", "", "", "right", where=(MAIN, GPU), gpu=True),
    Key(
        "slash",
        "search",
        "search",
        "Search for letters; enter keeps the search, escape ends it.",
        shown="/",
        where=(*LISTS, *PAGES),
    ),
    Key(
        "n",
        "match(1)",
        "",
        "Go to the next or the previous match of the search.",
        "next match",
        shown="n N",
        partner="N",
        where=(*LISTS, *PAGES),
    ),
    Key("N", "match(-1)", "", "", "previous match", where=(*LISTS, *PAGES)),
    Key(
        "up,k",
        "move(-1)",
        "",
        "Go to the line above or below; k and j do the same.",
        "up",
        shown="up down",
        partner="down",
        where=_MOVING,
    ),
    Key("down,j", "move(1)", "", "", "down", where=_MOVING),
    Key(
        "pageup",
        "page(-1)",
        "",
        "Scroll a page up or down; ctrl+u and ctrl+d scroll half a page.",
        "page up",
        shown="pgup pgdn",
        partner="pagedown",
        where=_MOVING,
    ),
    Key("pagedown", "page(1)", "", "", "page down", shown="pgdn", where=_MOVING),
    Key("ctrl+u", "page(-0.5)", "", "", "half a page up", where=_MOVING),
    Key("ctrl+d", "page(0.5)", "", "", "half a page down", where=_MOVING),
    Key(
        "home,g",
        "edge(-1)",
        "",
        "Go to the first or the last line; home and end do the same.",
        "top",
        shown="g G",
        partner="G",
        where=_MOVING,
    ),
    Key("end,G", "edge(1)", "", "", "bottom", where=_MOVING),
    Key("M", "next_group", "group", "Group ranks by the next mesh dimension; at last by none.", where=(RANKS,)),
    Key(
        "B",
        "marker",
        "marker",
        "Draw charts with braille or with blocks, for fonts without braille.",
        where=(GPU,),
    ),
    Key("J", "next_job", "", "Show the next job, if this machine has several.", where=(MAIN,)),
    Key("tab", "next_rank(1)", "rank", "Show the steps of the next training process.", "next rank", where=(MAIN,)),
    Key(
        "shift+tab",
        "next_rank(-1)",
        "",
        "Show the steps of the previous training process.",
        "previous rank",
        where=(MAIN,),
    ),
    Key(
        "f",
        "gpu_choice",
        "GPUs",
        "Show all GPUs, or only those that attached trainings use.",
        "filter",
        where=(MAIN,),
        gpu=True,
    ),
    Key(
        "t",
        "next_theme",
        "theme",
        "Use the next theme: dark, light, high contrast, the terminal's own colors.",
        where=(EVERYWHERE, *OF_THE_CLUSTER),
    ),
    Key(
        "plus,equals_sign",
        "faster",
        "faster",
        "Sample more or less often.",
        shown="+ -",
        partner="minus",
        replay=False,
    ),
    Key("minus", "slower", "", "", shown="-", replay=False),
    Key(
        "plus,equals_sign",
        "speed(2)",
        "faster",
        "Play the recording twice or half as fast.",
        "faster",
        shown="+ -",
        partner="minus",
        replay=True,
    ),
    Key("minus", "speed(0.5)", "", "", "slower", shown="-", replay=True),
    Key(
        "left_curly_bracket",
        "seek(-60)",
        "",
        "Show the screen as it was a minute earlier or later.",
        "a minute earlier",
        shown="{ }",
        partner="right_curly_bracket",
        where=_TIMED,
    ),
    Key("right_curly_bracket", "seek(60)", "", "", "a minute later", shown="}", where=_TIMED),
    Key(
        "left_parenthesis",
        "seek_share(-0.05)",
        "",
        "Show the whole screen as it was 5 % of the stored history earlier or later.",
        "5 % earlier",
        shown="( )",
        partner="right_parenthesis",
        where=_TIMED,
    ),
    Key("right_parenthesis", "seek_share(0.05)", "", "", "5 % later", shown=")", where=_TIMED),
    Key("y", "copy", "copy", "Copy the command that is shown to the terminal's clipboard (OSC 52)."),
    Key("S", "save", "save", "Save the screen as an SVG picture and as text, in the current folder."),
    Key(
        "ctrl+z",
        "suspend_process",
        "",
        "Suspend llmtop and return to the shell; fg resumes it.",
        where=(EVERYWHERE, *OF_THE_CLUSTER),
    ),
    Key(
        "ctrl+p",
        "command_palette",
        "",
        "Open the palette of commands, which lists every action and theme by name.",
    ),
    Key(
        "question_mark,h,f1",
        "back",
        "",
        "",
        "help",
        shown="?",
        where=(HELP, CLUSTER_HELP),
    ),
    Key(
        "h",
        "help_or_hang",
        "",
        "While a collective hangs: show the stacks of all ranks of this node, grouped. Otherwise the same as ?.",
        "help",
    ),
    Key("h", "help", "", "", "help", where=(CLUSTER,)),
    Key(
        "question_mark,f1",
        "help",
        "help",
        "Show the keys of this screen, and how to read the screen.",
        shown="?",
        where=(EVERYWHERE, CLUSTER),
    ),
)


def for_screen(screen: str, *, replaying: bool = False, demo: bool = False) -> list[Key]:
    """Return the keys that work on a screen, in the footer's order."""
    found: list[Key] = []
    taken: set[str] = set()
    for key in KEYS:
        names = set(key.names)
        if key.works(screen, replaying=replaying, demo=demo) and not names <= taken:  # the first one is done
            taken |= names
            found.append(key)
    return found


def alert_keys(*, replaying: bool, demo: bool = False, screen: str = "") -> list[Key]:
    """Return the keys that act on the shown alert; of one screen, if one is given."""
    found = [key for key in KEYS if key.alert and key.fits(replaying=replaying, demo=demo)]
    return [key for key in found if not screen or key.is_on(screen)]
