"""The lines across the screen: header, host, notes, footer, and the pane shown without a GPU."""

from __future__ import annotations

import time
from textwrap import wrap

from rich.style import Style

from llmtop import format as fmt
from llmtop.model.links import total_rates
from llmtop.model.snapshot import Host, Snapshot
from tui.paint import gpu_names
from tui.paint.rows import CellTheme, Row, clip, elapsed, frame
from tui.paint.text_width import cell_len
from tui.panes.alert_rows import fitting_clause
from tui.panes.words import job_and_ranks
from tui.state.stalled import still_pids
from tui.state.view import View


def header(view: View, width: int, theme: CellTheme) -> Row:
    """Return the header: user and host at the left, the shown instant at the right."""
    palette, dot = theme.palette, f" {theme.glyphs.dot} "
    row = Row(width).add(" llmtop ", palette.header_strong)
    right = _instant(view, row.free_cells, theme)
    left = Row(row.free_cells - right.used)
    if view.snapshot is not None:
        left.add(" " + fmt.printable(view.snapshot.host.name), palette.header)
        room = left.free_cells - len(dot)
        for text, style in _header_facts(view, view.snapshot, room, theme):
            if left.free_cells >= cell_len(text) + len(dot):
                left.add(dot, palette.header_dim).add(text, style)
    return row.join(left.end(palette.header)).join(right)


def _instant(view: View, room: int, theme: CellTheme) -> Row:
    """Return True if what is shown is now; LIVE only then."""
    palette, row = theme.palette, Row(room)
    if view.snapshot is None:
        return row
    clock = time.strftime("%H:%M:%S", time.localtime(view.snapshot.time))
    history = view.history
    if view.replay:
        row.add(f" REPLAY {view.replay} ", palette.mark)
        if view.paused:
            row.add(" ", palette.header).add(" PAUSED ", palette.mark)
        return row.add(f"  {clock} ", palette.header)
    if history.instant is not None:
        ago = max((history.newest or history.instant) - history.instant, 0.0)
        word = "PAUSED" if view.paused else "REWOUND"
        row.add(f" {word} {clock} ", palette.mark)
        return row.add(f" {elapsed(ago)} ago, L: now " if not view.paused else " space: continue ", palette.header)
    if view.silent_seconds is not None:
        row.add(f" NO DATA for {elapsed(view.silent_seconds)} ", palette.warning_badge)
        return row.add(f" {clock} ", palette.header)
    pace = "" if view.interval == 1.0 else f"every {view.interval:g} s "
    return (
        row.add(f" {pace}", palette.header_dim)
        .add("LIVE ", palette.header_strong)
        .add(f"{clock} ", palette.header)
    )


def _header_facts(view: View, snapshot: Snapshot, room: int, theme: CellTheme) -> list[tuple[str, Style]]:
    """Return the parts of the first line, the most important first, which is short where there is little room."""
    palette = theme.palette
    texts: list[tuple[str, Style]] = []
    gpus = view.gpus()
    if gpus:
        said, short = gpu_names.gpu_counts(gpus), fmt.counted(len(gpus), "GPU")
        texts.append((said if cell_len(said) <= room else short, palette.header_dim))
    if view.selection != "all":
        texts.append((f"GPUs shown: {fmt.printable(view.selection)}", palette.header_dim))
    texts += [(text, palette.header) for text in _job(view)]
    if snapshot.host.driver_version:
        texts.append((f"driver {fmt.printable(snapshot.host.driver_version)}", palette.header_dim))
    if snapshot.host.cuda_version:
        texts.append((f"CUDA {fmt.printable(snapshot.host.cuda_version)}", palette.header_dim))
    return texts


def _job(view: View) -> list[str]:
    """Return the run that is shown: which of several, how far it is, what it logged first."""
    rank, jobs, job = view.rank(), view.jobs(), view.job()
    if rank is None:
        return []
    texts = []
    if job is not None:
        name, seen = job_and_ranks(job)
        name = fmt.printable(name, 40)
        texts.append(
            f"job {jobs.index(job) + 1} of {len(jobs)} (J): {name}, {seen}" if len(jobs) > 1 else f"{name}, {seen}"
        )
    if rank.total_steps and rank.step is not None:
        done = min(rank.step + 1, rank.total_steps)
        stands = view.snapshot is None or rank.pid in still_pids(view.snapshot)
        left = "" if stands or rank.eta_seconds is None else f" {fmt.duration(rank.eta_seconds)} left"
        texts.append(f"{done:,}/{rank.total_steps:,}{left}")
    for logged, value in list(rank.metrics.items())[:1]:
        texts.append(f"{fmt.printable(logged, 20)} {fmt.figure(value)}")
    return texts


def host(view: View, width: int, theme: CellTheme) -> Row:
    """Return a line on CPU, memory, disk and network of this machine."""
    palette = theme.palette
    row = Row(width)
    if view.snapshot is None:
        return row.end(palette.text)
    now = view.snapshot.host
    row.add(" CPU ", palette.dim).add(f"{fmt.percent(now.cpu_pct):>4} ", palette.text)
    for label, text, cells in _host_figures(now):
        if len(label) + cells + 5 > row.free_cells:
            break  # a later one that is shorter would stand beside a label that is not its own
        row.add(f"   {label} ", palette.dim).add(text.ljust(cells), palette.text)
    return row.end(palette.text)


def _host_figures(now: Host) -> list[tuple[str, str, int]]:
    memory = f"{fmt.size(now.memory_used_bytes)} of {fmt.size(now.memory_total_bytes)}"
    figures = [("load", fmt.number(now.load_1m, 1), 5), ("memory", memory, 20)]
    if now.cpu_per_core_pct:
        # One core at 100 % of many is typical of an input pipeline in one process.
        figures.insert(0, ("busiest core", fmt.percent(max(now.cpu_per_core_pct)), 4))
    if now.cpus_allowed is not None and now.cpu_per_core_pct:
        figures.insert(0, ("of", f"{len(now.cpu_per_core_pct)} cores, {now.cpus_allowed:.3g} allowed", 20))
    if now.swap_used_bytes:
        figures.append(("swap", fmt.size(now.swap_used_bytes), 8))
    if now.links:
        received, sent = total_rates(now.links)
        figures += [("NIC rx", fmt.rate(received), 10), ("tx", fmt.rate(sent), 10)]
    figures += [
        ("disk r", fmt.rate(now.disk_read_bytes_per_s), 10),
        ("w", fmt.rate(now.disk_write_bytes_per_s), 10),
        ("net rx", fmt.rate(now.net_rx_bytes_per_s), 10),
        ("tx", fmt.rate(now.net_tx_bytes_per_s), 10),
    ]
    return figures


def notes(view: View, width: int, theme: CellTheme) -> Row:
    """Return the first sentence for the person at the screen, and how many more there are."""
    palette = theme.palette
    found = () if view.snapshot is None else view.snapshot.host.notes
    if not found:
        return Row(width).end(palette.text)
    more = f"  +{len(found) - 1} more: ? shows all" if len(found) > 1 else ""
    row, said, room = Row(width).add(f" {theme.glyphs.info} ", palette.info), fmt.printable(found[0]), width - 3
    if cell_len(said) > room - len(more):  # whole sentences rather than half a one more
        said = next((f"{text}." for text in (said.partition(". ")[0],) if len(text) < room - len(more)), said)
        said = fitting_clause(said, room - len(more)) or said
    return row.add(clip(said, room - len(more)) + more, palette.dim).end(palette.text)


def no_gpu(view: View, width: int, height: int, theme: CellTheme) -> list[Row]:
    """Paint why no GPU is shown and what to do, exactly `height` rows.

    Args:
        view: the selection, and the notes of the collectors, which are shown word for word.
        width: cells.
        height: rows; below 3 there is no frame.
        theme: colours and glyphs of this terminal.
    """
    palette = theme.palette
    lines: list[tuple[str, bool]] = []
    if view.snapshot is None:
        lines = [("Waiting for the first sample …", False)]
    elif view.selection == "attached":
        lines = [
            ("No attached training uses a GPU; press f to show all GPUs.", True),
            ("f  shows all GPUs again", False),
        ]
    else:
        lines = [("llmtop finds no GPU here; llmtop doctor gives the reason.", True)]
        lines += [(fmt.printable(note), False) for note in view.snapshot.host.notes]
        lines.append(("llmtop doctor  lists what works on this machine, and how to change that", False))
    inner = width - 4
    rows = [
        Row(inner).add(line, palette.strong if strong else palette.dim)
        for text, strong in lines
        for line in wrap(text, max(inner, 10))
    ]
    if height < 3:
        return [Row(width).add(" " + row.plain(), palette.dim).end(palette.text) for row in rows[:height]]
    if len(rows) > height - 2:
        rows = rows[: height - 2]
        rows[-1] = Row(inner).add(clip(rows[-1].plain() + " …", inner), palette.dim)
    above = max((height - 2 - len(rows)) // 2, 0) if height > 8 else 0
    content = [Row(inner) for _ in range(above)] + rows
    content += [Row(inner) for _ in range(height - 2 - len(content))]
    return frame(content, width, theme, title=[("GPUs", palette.strong)])
