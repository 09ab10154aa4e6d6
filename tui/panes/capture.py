"""The capture dialog as rows: the form, the stages of one under way, and what came of it."""

from __future__ import annotations

from textwrap import wrap

from rich.style import Style

from llmtop import format as fmt
from llmtop.capture.base import folder
from llmtop.capture.base.job import STAGES, Plan, Progress
from llmtop.capture.capabilities import Ability
from llmtop.capture.engines import ENGINES
from llmtop.capture.take import Result
from llmtop.errors import NotPossibleHere
from llmtop.naming import file_names
from llmtop.report.document import report_document
from tui.capture.form import ALWAYS_LISTED, CONDITIONS, ENGINE, LENGTH, OPTIONS, TARGET, WHEN, Form
from tui.capture.session import ARMED_LIMITS, Capturing
from tui.paint.document import document_rows
from tui.paint.rows import CellTheme, Row, pad
from tui.panes.alert_rows import fitting_clause

_LABEL = 10
_STAGE_WORDS = {
    "prepare": "connect",
    "start": "start recording",
    "record": "record the steps",
    "stop": "stop, write the file",
    "export": "export, check the file",
    "analyse": "analyse the file",
}


def form(asked: Form, width: int, theme: CellTheme) -> tuple[list[Row], dict[int, int]]:
    """Return the form, and of each row that can be chosen which of `Form.fields` it is."""
    lines: list[Row] = []
    places: dict[int, int] = {}
    fields = asked.fields()
    current = fields[min(asked.at, len(fields) - 1)]

    def line(kind: str, name: str, label: str, text: str, note: str = "") -> None:
        here = (kind, name) == current
        places[len(lines)] = fields.index((kind, name)) if (kind, name) in fields else -1
        row = Row(width).add(f" {theme.glyphs.selected if here else ' '} ", theme.palette.selected)
        row.add(pad(label, _LABEL), theme.palette.dim)
        row.add(f"‹ {text} ›" if here else f"  {text}  ", theme.palette.cursor if here else theme.palette.strong)
        head, colon, rest = note.partition(": ")
        inner = fitting_clause(rest, row.free_cells - 4 - len(head)) if colon else ""
        said = f"{head}: {inner}" if inner else note if colon else fitting_clause(note, row.free_cells - 2) or note
        lines.append(row.add(f"  {said}", theme.palette.dim).end(theme.palette.text))

    if not asked.groups:
        return _no_target_rows(width, theme), {}
    if asked.preface:
        lines += _paragraph(asked.preface, width, theme.palette.info, theme)
    target = asked.group_name(asked.group)
    commands = {fmt.printable(one.target.command or "?") for one in asked.group}
    line(TARGET, "", "target", target, " ".join(sorted(commands)))
    engine = asked.chosen_engine
    line(ENGINE, "", "engine", engine.name if engine else "none available", engine.description if engine else "")
    _engines(asked, lines, width, theme)
    line(
        LENGTH,
        "",
        "length",
        length_words(asked.length),
        "whole steps" if asked.length[0] else "seconds by the clock",
    )
    for number, option in enumerate(asked.available_options()):
        on = option.name in asked.chosen
        refused = asked.option_refusal(option.name)
        note = f"cost: {option.cost}" if refused is None else f"unavailable: {refused.reason}"
        line(OPTIONS, option.name, "more" if number == 0 else "", f"[{'x' if on else ' '}] {option.name}", note)
    when = "now" if asked.condition is None else str(asked.condition)
    much = (
        ""
        if asked.condition is None
        else f"armed: at most {ARMED_LIMITS.captures} captures, {ARMED_LIMITS.cooldown_seconds:.0f} s apart, "
        f"{fmt.size(ARMED_LIMITS.disk_bytes)} in total"
    )
    if (WHEN, "") in asked.fields():
        line(
            WHEN,
            "",
            "when",
            when,
            much or f"left, right: choose one of {len(CONDITIONS) - 1} conditions to start it",
        )
    lines.append(_room(asked, width, theme))
    lines.append(Row(width).end(theme.palette.text))
    for text in _details(asked, current):
        lines += _paragraph(text, width, theme.palette.text, theme)
    return lines, {row: place for row, place in places.items() if place >= 0}


def _details(asked: Form, current: tuple[str, str]) -> list[str]:
    """Return all about the line that the person is on, where the line itself had to be cut."""
    kind, name = current
    if kind == OPTIONS:
        option = next(one for one in asked.available_options() if one.name == name)
        refused = asked.option_refusal(name)
        no = "" if refused is None else f" Unavailable: {refused.reason}; to change that: {refused.command}"
        return [fmt.printable(f"{name}: {option.summary}. Cost: {option.cost}.{no}")]
    if kind == ENGINE:
        warned = [f"{one.engine}: {one.warning}." for one in asked.abilities() if one.warning]
        cannot = [
            f"{one.engine} is unavailable: {one.reason}." + (f" To change that: {one.command}" * bool(one.command))
            for one in asked.abilities()
            if not one.is_supported and (asked.unfolded or one.engine == ALWAYS_LISTED)
        ]
        engine = asked.chosen_engine
        records = [f"{engine.name} records: {engine.description}."] if engine is not None else []
        return [fmt.printable(line) for line in records + warned + cannot]
    if kind == WHEN:
        return ["An armed capture starts by itself when the slow step or the alert that you chose occurs."]
    return []


def _no_target_rows(width: int, theme: CellTheme) -> list[Row]:
    text = (
        "No training can be captured. Start one with: llmtop run -- COMMAND (with --nsys for nsys as well), or "
        "call llmtop.attach() in it."
    )
    return _paragraph(text, width, theme.palette.text, theme)


def _engines(asked: Form, lines: list[Row], width: int, theme: CellTheme) -> None:
    """A line for each engine that can, and for nsys; the others in one line, or with their reasons."""
    palette, glyphs = theme.palette, theme.glyphs
    folded = [] if asked.unfolded else asked.unavailable()
    for ability in asked.abilities():
        if ability in folded:
            continue
        row = Row(width).add(" " * (_LABEL + 5), palette.text)
        row.add(pad(ability.engine, 16), palette.strong if ability.engine == asked.engine else palette.text)
        if not ability.is_supported:
            _add_reason(row.add("unavailable", palette.dim), ability, theme)
        elif ability.warning:
            warning = fmt.printable(ability.warning)
            row.add(fitting_clause(warning, row.free_cells) or warning, palette.warning)
        else:
            row.add("available", palette.dim)
        lines.append(row.end(palette.text))
    if folded:
        row = Row(width).add(" " * (_LABEL + 5), palette.text)
        names = f"{len(folded)} unavailable"
        tail = f" {glyphs.dot} w: why"
        listed = _fitting_names([one.engine for one in folded], row.free_cells - len(names) - len(tail) - 2)
        row.add(names, palette.text).add(f": {listed}" if listed else "", palette.dim)
        lines.append(row.add(tail, palette.info).end(palette.text))


def _fitting_names(names: list[str], room: int) -> str:
    """Return as many names as fit whole."""
    said = ""
    for name in names:
        longer = f"{said}, {name}" if said else name
        if len(longer) > room:
            return f"{said}, …" if said and len(said) + 3 <= room else said
        said = longer
    return said


def _add_reason(row: Row, ability: Ability, theme: CellTheme) -> None:
    """Why an engine cannot, and the command that would change it: of nsys the command, which is what counts."""
    palette, reason = theme.palette, fmt.printable(ability.reason)
    command = fmt.printable(ability.command)
    if command.startswith("llmtop run --nsys") and ability.engine == ALWAYS_LISTED:
        row.add(f" {theme.glyphs.arrow} ", palette.dim).add(command, palette.code)
        return
    row.add(f": {reason}", palette.dim)
    if command:
        row.add(f" {theme.glyphs.arrow} ", palette.dim).add(command, palette.code)


def _room(asked: Form, width: int, theme: CellTheme) -> Row:
    row = Row(width).add(" " * 3, theme.palette.text).add(pad("into", _LABEL + 2), theme.palette.dim)
    try:
        note, style = (
            f"{fmt.size(folder.check_disk(asked.parent))} free; a capture takes 1 to 20 MB, more with stacks",
            theme.palette.dim,
        )
    except NotPossibleHere as error:
        note, style = str(error), theme.palette.warning
    path = str(asked.parent)
    said = fitting_clause(note, row.free_cells - 2 - len(path)) or note.partition(";")[0]
    row.add(fmt.shorten_middle(path, max(row.free_cells - 2 - len(said), 8)), theme.palette.text)
    return row.add(f"  {said}", style).end(theme.palette.text)


def length_words(length: tuple[int | None, float | None]) -> str:
    """ "5 steps" or "2.00 s"."""
    steps, seconds = length
    return f"{steps} step{'' if steps == 1 else 's'}" if steps else fmt.duration(seconds)


def progress_rows(capturing: Capturing, width: int, theme: CellTheme) -> list[Row]:
    """Return the stages of a capture, those done with their seconds, the present one with how far it is."""
    palette = theme.palette
    plan, progress = capturing.plan, capturing.progress
    rows = [_headline(plan, width, theme), Row(width).end(palette.text)]
    if capturing.state == "armed" and progress is None:
        rows += _paragraph(f"Armed: waits for {capturing.condition}.", width, palette.info, theme)
        rows += [Row(width).add(f"   {fmt.printable(text)}", palette.text) for text in capturing.fired]
        return rows
    order = [name for name in STAGES if name != "done" and (name != "export" or _exports(plan))]
    for name in order:
        began = capturing.stages.get(name)
        following = [
            capturing.stages[later] for later in order[order.index(name) + 1 :] if later in capturing.stages
        ]
        ended = following[0] if following else None
        now = progress if progress is not None and progress.stage == name else None
        rows.append(_stage(name, (began, ended), now, width, theme))
    return rows


def _exports(plan: Plan | None) -> bool:
    return plan is not None and ENGINES[plan.engine].has_export_stage


def _stage(
    name: str, times: tuple[float | None, float | None], progress: Progress | None, width: int, theme: CellTheme
) -> Row:
    """Return one stage; `progress` is set for the present one, `times` are when it began and ended."""
    palette, (began, ended) = theme.palette, times
    row = Row(width)
    words = pad(_STAGE_WORDS[name], 22)
    if began is not None and ended is not None:
        row.add("   done  ", palette.dim).add(words, palette.text).add(fmt.duration(ended - began), palette.dim)
    elif progress is not None and began is not None:
        row.add(f" {theme.glyphs.selected} now   ", palette.info).add(words, palette.strong)
        if progress.steps is not None and progress.wanted:
            row.add(_gauge(progress.steps / progress.wanted, theme), palette.compute_line)
            row.add(f" {progress.steps} of {progress.wanted} steps  ", palette.text)
        row.add(f"{progress.elapsed - began:.1f} s  ", palette.dim).add(
            fmt.printable(progress.detail), palette.dim
        )
    else:
        row.add("         ", palette.dim).add(words, palette.dim)
    return row.end(palette.text)


def _gauge(share: float, theme: CellTheme) -> str:
    full = round(20 * min(max(share, 0.0), 1.0))
    return theme.glyphs.gauge_full * full + theme.glyphs.gauge_empty * (20 - full)


def _headline(plan: Plan | None, width: int, theme: CellTheme) -> Row:
    row = Row(width).add(" Capture", theme.palette.strong)
    if plan is not None:
        names = ", ".join(target.name for target in plan.targets[:4])
        more = "" if len(plan.targets) <= 4 else f" and {len(plan.targets) - 4} more"
        text = (
            f" {theme.glyphs.dot} {plan.engine} {theme.glyphs.dot} {length_words((plan.steps, plan.seconds))} of "
        )
        row.add(f"{text}{names}{more}", theme.palette.text)
    return row.end(theme.palette.text)


def outcome(capturing: Capturing, width: int, theme: CellTheme) -> list[Row]:
    """Return the rows of the result: one sentence, or the report."""
    rows = [_headline(capturing.plan, width, theme), Row(width).end(theme.palette.text)]
    if capturing.error:
        style = theme.palette.warning if capturing.state == "failed" else theme.palette.text
        rows += _paragraph(fmt.printable(capturing.error), width, style, theme)
    if capturing.result is not None:
        rows += result(capturing.result, width, theme)
    return rows


def result(taken: Result, width: int, theme: CellTheme) -> list[Row]:
    """Return where it is, how it gets elsewhere, and its report."""
    palette = theme.palette
    early = taken.info.stopped_early
    rows = _paragraph(fmt.printable(early, 400), width, palette.warning, theme) if early else []
    rows += [
        Row(width).add(f"   {taken.summary}", palette.strong),
        Row(width).add("   copy  ", palette.dim).add(taken.copy_command, palette.code),
        Row(width).add("   open  ", palette.dim).add(taken.open_command, palette.code),
    ]
    if taken.slowest_step_text:
        rows += _paragraph(taken.slowest_step_text, width, palette.dim, theme)
    for note in taken.info.notes:
        rows += _paragraph(f"note: {fmt.printable(note)}", width, palette.warning, theme)
    rows.append(Row(width))
    document = taken.document if taken.report is None else report_document(taken.report)
    if document is not None:
        rows += document_rows(document.blocks, width, theme)
    else:
        written = taken.folder / file_names.REPORT_TEXT
        lines = written.read_text(errors="replace").splitlines() if written.is_file() else []
        rows += [Row(width).add(f"  {fmt.printable(line)}", palette.text) for line in lines if line != "```"]
    return rows


def _paragraph(text: str, width: int, style: Style, theme: CellTheme) -> list[Row]:
    return [Row(width).add(f"   {line}", style).end(theme.palette.text) for line in wrap(text, max(width - 6, 20))]
