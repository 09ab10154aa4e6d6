"""The rows of the shown alert: problem, age, reason, advice, and the keys for it.

A row holds whole clauses only: a reason cut in its middle helps no reader.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from rich.style import Style

from llmtop import format as fmt
from llmtop.model import gpu_busy
from llmtop.model.snapshot import Alert, Gpu, Rank, Snapshot
from tui.core import keys
from tui.paint import alert_style
from tui.paint.rows import CellTheme, Row, clip, elapsed
from tui.paint.text_width import cell_len
from tui.panes import phase_bars
from tui.state import process_ref
from tui.state.stalled import stalled_seconds
from tui.state.view import View

_CLAUSE_END = re.compile(r"[;,] | \(|(?<! run): (?=[a-z])")
"""Where an advice may be cut: not before the command to run."""


def paint(view: View, width: int, height: int, theme: CellTheme) -> list[Row]:
    """Paint the chosen alert, or the most severe one, exactly `height` rows.

    Args:
        view: the snapshot, the muted alerts and the choice.
        width: cells.
        height: rows: 1 holds the alert alone, from 2 on follow the advice, the keys and the next alert.
        theme: colours and glyphs of this terminal.
    """
    snapshot = view.snapshot
    unmuted = view.alerts.unmuted(snapshot)
    alert = view.alerts.selected_alert(unmuted)
    if snapshot is None or alert is None:
        rows = _no_alert_row(view, width, theme)
    else:
        rows = [_alert(alert, len(unmuted) - 1, snapshot, view, width, theme, alone=height == 1)]
        if height > 1:
            rows.append(_next_row(alert, unmuted, view, width, theme))
    rows += [Row(width) for _ in range(height - len(rows))]
    return [row.end(theme.palette.text) for row in rows[:height]]


def points(alert: Alert) -> list[str]:
    """Return the reason in clauses, the cause first."""
    return [fmt.printable(text) for text in alert.points]


def fitting(clauses: Sequence[str], room: int, gap: str = ", ") -> str:
    """Return as many clauses as fit, each of them whole; of the first, its beginning where not even that fits."""
    said = clip(clauses[0], room) if clauses else ""
    for clause in clauses[1:]:
        if cell_len(said) + len(gap) + cell_len(clause) > room:
            break
        said += gap + clause
    return said


def _no_alert_row(view: View, width: int, theme: CellTheme) -> list[Row]:
    palette, since = theme.palette, view.alerts.since
    if view.snapshot is None:
        return [Row(width).add(f" {theme.glyphs.info} no sample yet: alerts are not known", palette.dim)]
    last = view.alerts.last_ended(view.snapshot.time)
    muted = 0 if view.snapshot is None else len(view.snapshot.alerts)
    text = f" {theme.glyphs.info} no alerts" + (f", {muted} muted (a)" if muted else "")
    texts = [text]
    if not muted and since is not None and since < view.snapshot.time and last is None:
        text += f" for {alert_style.age_of(view.snapshot.time - since)}"
        texts = [text + time.strftime(", since %H:%M:%S", time.localtime(since)), text, *texts]
    told = "" if muted else _no_alert_advice(view)
    said = next(filter(None, (fitting_clause(told, width - cell_len(one) - 5) for one in texts)), "")
    text = next((one for one in texts if cell_len(one) + cell_len(said) + 5 <= width), texts[-1])
    rows = [Row(width).add(text, palette.dim)]
    if said:
        rows[0].add(f"  {theme.glyphs.arrow} ", palette.dim).add(said, palette.text)
    if last is not None and view.snapshot is not None:
        ended = last.until or 0.0
        clauses = [
            f"last: {alert_style.alert_word(last.alert)} {alert_style.subject(last.alert, view.snapshot)}",
            f"for {alert_style.duration_text(last.alert, ended)}",
            *points(last.alert)[:1],
        ]
        count = view.alerts.ended_count(view.snapshot.time)
        when = f"ended {alert_style.age_of(view.snapshot.time - ended)} ago (a: all {count})"
        rows.append(Row(width).add("   " + fitting([*clauses[:2], when, *clauses[2:]], width - 4), palette.dim))
    return rows


def _no_alert_advice(view: View) -> str:
    """Return the facts, and the limits of judgement, while there is no alert; empty where a training makes no
    steps."""
    rank, since = view.rank(), view.alerts.since
    if view.snapshot is not None and since is not None and view.snapshot.time < since:
        return "alerts of this time are known from the run's files only"
    if rank is None:
        return _unjudged_gpu(view) or (
            "steps are not judged: no training attached" if view.gpus() else "no GPU and no training to judge"
        )
    if rank.state != "running" or rank.step_seconds_p50 is None:
        return _unjudged_gpu(view)
    silent = None if view.snapshot is None else stalled_seconds(rank, view.snapshot.time)
    if silent is not None:
        stacks = "" if view.replay else "; press s for the Python stacks"
        return f"no step for {elapsed(silent)}, cause unknown{stacks}"
    can = not view.replay or view.demo
    capture = "; press c to profile a few steps" if can else ""
    if rank.window_seconds is not None and rank.window_seconds < JUDGED_SECONDS:
        return (
            f"only {fmt.duration(rank.window_seconds)} of steps so far, too few to judge; wait some seconds"
            + capture
        )
    untold = _untold(rank, view) or _unjudged_gpu(view)
    return (untold or "no action needed") + capture


def _unjudged_gpu(view: View) -> str:
    """Return what is known of a GPU in use on which a kernel may spin unseen, and which values its driver does not
    give; "" without such a GPU.

    NVML has no utilization of a GPU in MIG mode, and no power of an instance; other drivers give no power limit,
    no power, or no utilization.
    """
    from llmtop.rules.gpu import (
        values_missing_for_low_power,
    )  # at start the configuration that its thresholds are of is not yet known

    snapshot = view.snapshot
    if snapshot is None:
        return ""
    parents = {gpu.uuid: gpu.mig_parent_uuid for gpu in snapshot.gpus}
    used = _uuids_in_use(snapshot, parents)
    active = {gpu.uuid: gpu.sm_active_pct or 0.0 for gpu in snapshot.gpus}
    found = [
        (gpu, missing)
        for gpu in view.gpus()
        if gpu.uuid in used or (gpu.util_pct or 0.0) >= _USED_PCT
        if active.get(gpu.mig_parent_uuid or "", 0.0) < _NO_INSTANCE_IDLE_PCT
        if (missing := values_missing_for_low_power(gpu))
    ]
    if not found:
        return ""
    gpu, missing = min(found, key=lambda one: (one[0].mig_parent_uuid is not None, _power_share(one[0])))
    part, whole = gpu.mig_parent_uuid is not None, gpu.uuid in parents.values()
    name = f"{'MIG ' * (part or whole)}{'instance' if part else 'GPU'} {view.gpu_label(gpu)}"
    return _unjudged_text(gpu, missing, name, is_in_mig_mode=whole)


def _unjudged_text(gpu: Gpu, missing: Sequence[str], name: str, *, is_in_mig_mode: bool) -> str:
    """Return what is known of the GPU, and what is absent."""
    power = [fmt.watts(gpu.power_watts)] if gpu.power_watts is not None else []
    if power and gpu.power_limit_watts:
        power = [f"{fmt.number(gpu.power_watts)} of {fmt.watts(gpu.power_limit_watts)}"]
    util = [] if gpu.util_pct is None else [f"{fmt.percent_text(gpu.util_pct)} util"]
    active = [] if gpu.sm_active_pct is None else [f"SM active {fmt.percent_text(gpu.sm_active_pct)}"]
    if is_in_mig_mode and power:
        seen = ", ".join([f"{power[0]} on {name}", *active])
        return f"not judged: {seen}; the driver gives no {' and no '.join(missing)} in MIG mode"
    seen = ", ".join(text for text in (" at ".join([*power, *util]), *active) if text)
    absent = ", ".join(missing).replace("power limit", "a power limit")
    clauses = f"{name} is not judged without {absent}", seen, "the driver gives none"
    return "; ".join(clause for clause in clauses if clause)


def _uuids_in_use(snapshot: Snapshot, parents: Mapping[str, str | None]) -> set[str]:
    """Return the GPUs that a process uses, and the parents of such MIG instances.

    An instance of which the only users are trainings that make steps is left out: a kernel that spins would hold
    them up.
    """
    steps = {
        rank.pid
        for rank in snapshot.ranks
        if rank.state == "running" and rank.step is not None and stalled_seconds(rank, snapshot.time) is None
    }
    users = [(rank.pid, rank.gpu_uuid) for rank in snapshot.ranks if rank.state != "gone"]
    users += [(process.pid, process.gpu_uuid) for process in snapshot.processes]
    used = {uuid for pid, uuid in users if uuid is not None and not (parents.get(uuid) and pid in steps)}
    return used | {parent for _, uuid in users if uuid is not None and (parent := parents.get(uuid))}


def _power_share(gpu: Gpu) -> float:
    """Return power as a share of the limit; 1 where either is unknown."""
    limit = gpu.power_limit_watts
    return gpu.power_watts / limit if gpu.power_watts is not None and limit else 1.0


def _untold(rank: Rank, view: View) -> str:
    """Return the largest part of the step that no rule judges; empty if there is none."""
    phases = [phase for phase in rank.phases if "/" not in phase.name]
    whole = phase_bars.step_seconds(rank, phase_bars.parts(rank), "host")
    if not view.gpus() and phases and whole > 0:
        longest = max(phases, key=lambda phase: phase.host_seconds)
        share = fmt.percent_text(100 * longest.host_seconds / whole)
        return f"{fmt.printable(longest.name)} takes {share} of the step (host clock); no GPU found"
    if rank.gpu_busy_pct is not None and rank.gpu_busy_pct <= 100 - IDLE_PCT:
        return f"the GPU is idle {gpu_busy.idle_text(rank)} of the time, cause unknown"
    return ""


_USED_PCT = 95.0
"""Utilization from which some process must use a GPU fully, even if none is listed."""
_NO_INSTANCE_IDLE_PCT = 100.0 * (1 - 1 / 7)
"""SM activity of a GPU in MIG mode from which no instance can be idle: the smallest has a seventh of the SMs."""
JUDGED_SECONDS = 5.0
"""Rules judge steps of some seconds; before that nothing is said to be well."""
IDLE_PCT = 30.0
"""Percent from which an idle GPU needs attention, whatever the reason."""


def _alert(
    alert: Alert, others: int, snapshot: Snapshot, view: View, width: int, theme: CellTheme, *, alone: bool
) -> Row:
    """Badge, age, subject and reason; the least important is left out first.

    Args:
        alone: True: there is no row below for the advice, so this one has it, where there is room.
    """
    palette = theme.palette
    badge = f" {alert_style.mark(alert, theme)} {alert_style.alert_word(alert)} "
    said = points(alert)
    row = Row(width).add(badge, alert_style.badge(alert, theme))
    age, least = alert_style.age(alert, snapshot.time), cell_len(said[0]) if said else 0
    following = advice(alert, view) if alone else ""
    tail = _other_alerts(others, row.free_cells - 2 - least)
    room = row.free_cells - len(tail) - 2
    named, full, short, _ = alert_style.subjects(alert, snapshot)
    dated = [(shown, about) for about in (named, full, short) for shown in (f"for {age}", age)]
    for shown, about in (*dated, ("", full), ("", short), (f"for {age}", ""), (age, "")):
        words = " ".join(text for text in (shown, about) if text)
        if cell_len(words) + 3 + least <= room:
            row.add(f" {shown}" if shown else "", palette.text)
            row.add(f" {about}" if about else "", palette.strong)
            row.add("  ", palette.text)
            return _reason(row, said, following, tail, theme)
    return _reason(row.add(" ", palette.text), said, following, tail, theme)


def _other_alerts(count: int, room: int) -> str:
    """Return how many alerts there are besides; the reason comes first, so in fewer words where that needs the
    room."""
    if not count:
        return ""
    return f"+{count} more (A) " if len(f"+{count} more (A) ") <= room else f"+{count} (A) "


def _reason(row: Row, said: list[str], following: str, tail: str, theme: CellTheme) -> Row:
    palette = theme.palette
    row.add(fitting(said, max(row.free_cells - len(tail) - 1, 0)), palette.text)
    arrow = f"  {theme.glyphs.arrow} "
    begun = fitting_clause(following, row.free_cells - len(arrow) - len(tail) - 1)
    if begun:
        row.add(arrow, palette.dim).add(begun, palette.text)
    return row.add_right(tail, palette.info, palette.text) if tail else row


def advice(alert: Alert, view: View, screen: str = keys.MAIN) -> str:
    """Return the advice on one line, without the clauses that name a key which refuses here and now.

    Args:
        alert: whose advice it is.
        view: whether a recording is shown, and which process the alert is about.
        screen: `NAME` of the screen that shows it.

    Returns:
        "" without an advice, or where all of it is such keys.
    """
    said = fmt.printable(alert.next) if alert.next else ""
    named = set(_PRESSED.findall(said))
    refusing = named - _working_keys(alert, view, screen)
    if not refusing:
        return said
    shut = "|".join(map(re.escape, sorted(refusing)))
    said = re.sub(rf" \([^()]*\bpress ({shut})\b[^()]*\)", "", said, flags=re.IGNORECASE)
    said = re.sub(rf"\b[Pp]ress ({shut}) [^,;]*, or run: ", "run: ", said)  # the command works without the key
    parts = re.split(r"(; |\. (?=[A-Z]))", said)
    kept = ""
    for clause, mark in zip(parts[::2], ["", *parts[1::2]], strict=True):
        if not refusing & set(_PRESSED.findall(clause)):
            kept += (mark if kept else "") + clause
    return kept


_PRESSED = re.compile(r"\b[Pp]ress (\S)(?=[\s.,;:)]|$)")
"""How an advice names a key."""


def _working_keys(alert: Alert, view: View, screen: str) -> set[str]:
    """Return the keys that act on a screen now; those about a process only where the alert has one."""
    here = keys.for_screen(screen, replaying=bool(view.replay), demo=view.demo)
    pid = None if view.snapshot is None else process_ref.alert_process(alert, view.snapshot).pid
    return {name for key in here if pid is not None or view.demo or not key.about for name in key.names}


def fitting_clause(text: str, room: int) -> str:
    """Return as much of a sentence as fits and is whole by itself: to a clause's end, and with no bracket left
    open."""
    if cell_len(text) <= room:
        return text
    for found in reversed(list(_CLAUSE_END.finditer(text))):
        said = text[: found.start()]
        if cell_len(said) <= room and said.count("(") == said.count(")"):
            return said
    return ""


def key_words(alert: Alert, view: View, screen: str = keys.MAIN) -> list[tuple[str, str]]:
    """Return the keys that act on an alert on a screen, each with its action and target."""
    about = process_ref.ProcessRef() if view.snapshot is None else process_ref.alert_process(alert, view.snapshot)
    return [
        (key.shown, key.alert.format(whom=about.name))
        for key in keys.alert_keys(replaying=bool(view.replay), demo=view.demo, screen=screen)
        if "{whom}" not in key.alert or about.name
    ]


def add_keys(row: Row, words: Sequence[tuple[str, str]], room: int, theme: CellTheme) -> Row:
    """Append as many keys as fit whole.

    Args:
        row: to append to.
        words: key and what it does, the most important first.
        room: cells that the keys may take.
        theme: colours of this terminal.
    """
    palette = theme.palette
    for key, does in words:
        needed = cell_len(key) + cell_len(does) + 4
        if needed > room:
            break
        room -= needed
        row.add(f"{key} ", _bold(palette.info)).add(f"{does}   ", palette.dim)
    return row


def _next_row(alert: Alert, unmuted: list[Alert], view: View, width: int, theme: CellTheme) -> Row:
    """Return the next action as far as it fits, then keys as far as there is room, then the next alert."""
    palette, arrow = theme.palette, f"   {theme.glyphs.arrow} "
    row = Row(width)
    said = fitting_clause(advice(alert, view), width - len(arrow) - 1)
    row.add(arrow if said else "   ", palette.dim).add(said, palette.text)
    row.add(" " * min(3, row.free_cells) if said else "", palette.text)
    named = set(_PRESSED.findall(said))
    words = [(key, does) for key, does in key_words(alert, view) if key not in named]
    needed = sum(cell_len(key) + cell_len(does) + 4 for key, does in words)
    tail = (
        ""
        if view.snapshot is None
        else _next_alert(alert, unmuted, view.snapshot, max(row.free_cells - needed - 1, 0))
    )
    add_keys(row, words, row.free_cells - cell_len(tail), theme)
    return row.add_right(f"{tail} ", palette.dim, palette.text) if tail else row


def _next_alert(alert: Alert, unmuted: list[Alert], snapshot: Snapshot, room: int) -> str:
    """Return which alert the key for the next one shows; with fewer words where there is less room."""
    if len(unmuted) < 2:
        return ""
    following = unmuted[(unmuted.index(alert) + 1) % len(unmuted)]
    for about in alert_style.subjects(following, snapshot):
        text = f"A next: {alert_style.alert_word(following)} {about}".rstrip()
        if cell_len(text) <= room:
            return text
    return ""


def _bold(style: Style) -> Style:
    return style + Style(bold=True)
