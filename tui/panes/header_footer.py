"""The lines across the screen: header, host, notes, footer, and what is said when there is no GPU."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from textwrap import wrap

from llmtop import format as fmt
from llmtop.snapshot import Host, Snapshot
from tui import gpu_names
from tui.keys import Key
from tui.paint.charts import spark
from tui.paint.rows import Look, Row, clip, frame
from tui.view import View


def header(view: View, width: int, look: Look) -> Row:
    """Who and where at the left, the state of the view at the right."""
    palette, dot = look.palette, f" {look.glyphs.dot} "
    row = Row(width).add(" llmtop ", palette.header_strong)
    right = Row(row.left)
    if view.replay:
        right.add(f" REPLAY {view.replay} ", palette.mark)
    if view.paused:
        right.add(" " if right.used else "", palette.header).add(" PAUSED ", palette.mark)
    if view.snapshot is not None:
        clock = time.strftime("%H:%M:%S", time.localtime(view.snapshot.time))
        pace = "" if view.replay else f"every {view.interval:g} s  "
        right.add(f"  {pace}", palette.header_dim).add(f"{clock} ", palette.header)
    left = Row(row.left - right.used)
    if view.snapshot is not None:
        left.add(" " + fmt.printable(view.snapshot.host.name), palette.header)
        for text in _machine(view, view.snapshot):
            if left.left >= len(text) + len(dot):
                left.add(dot + text, palette.header_dim)
    return row.join(left.end(palette.header)).join(right)


def _machine(view: View, snapshot: Snapshot) -> list[str]:
    texts = []
    gpus = view.gpus()
    if gpus:
        texts.append(gpu_names.counted(gpus))
    if view.selection != "all":
        texts.append(f"GPUs shown: {fmt.printable(view.selection)}")
    if snapshot.host.driver_version:
        texts.append(f"driver {fmt.printable(snapshot.host.driver_version)}")
    if snapshot.host.cuda_version:
        texts.append(f"CUDA {fmt.printable(snapshot.host.cuda_version)}")
    rank = view.rank()
    if rank is not None and rank.overhead_seconds is not None:
        usual = rank.step_seconds_mean or rank.step_seconds_p50
        texts.append(f"llmtop costs {fmt.overhead(rank.overhead_seconds, usual)}")
    return texts


def host(view: View, width: int, look: Look) -> Row:
    """A line on CPU, memory, disk and network of this machine."""
    palette = look.palette
    row = Row(width)
    if view.snapshot is None:
        return row.end(palette.text)
    now = view.snapshot.host
    row.add(" CPU ", palette.dim).add(f"{fmt.percent(now.cpu_pct):>4} ", palette.text)
    cells = 12 if width >= 100 else 6
    row.add(spark(view.history.cpu.levels(cells), cells, look.glyphs), palette.compute)
    for label, text, cells in _host_figures(now):
        if len(label) + cells + 5 > row.left:
            break  # a later one that is shorter would stand beside a label that is not its own
        row.add(f"   {label} ", palette.dim).add(text.ljust(cells), palette.text)
    return row.end(palette.text)


def _host_figures(now: Host) -> list[tuple[str, str, int]]:
    memory = f"{fmt.size(now.memory_used_bytes)} of {fmt.size(now.memory_total_bytes)}"
    figures = [("load", fmt.number(now.load_1m, 1), 5), ("memory", memory, 20)]
    if now.cpu_per_core_pct:
        # One core at 100 % is what an input pipeline in one process looks like on a machine of many.
        figures.insert(0, ("busiest core", fmt.percent(max(now.cpu_per_core_pct)), 4))
    if now.cpus_allowed is not None and now.cpu_per_core_pct:
        figures.insert(0, ("of", f"{len(now.cpu_per_core_pct)} cores, {now.cpus_allowed:.3g} allowed", 20))
    if now.swap_used_bytes:
        figures.append(("swap", fmt.size(now.swap_used_bytes), 8))
    figures += [
        ("disk r", fmt.rate(now.disk_read_bytes_per_s), 10),
        ("w", fmt.rate(now.disk_write_bytes_per_s), 10),
        ("net rx", fmt.rate(now.net_rx_bytes_per_s), 10),
        ("tx", fmt.rate(now.net_tx_bytes_per_s), 10),
    ]
    return figures


def notes(view: View, width: int, look: Look) -> Row:
    """The first sentence for the person at the screen, and how many more there are."""
    palette = look.palette
    found = () if view.snapshot is None else view.snapshot.host.notes
    if not found:
        return Row(width).end(palette.text)
    more = f"  +{len(found) - 1} more: ? shows all" if len(found) > 1 else ""
    row = Row(width).add(f" {look.glyphs.info} ", palette.info)
    return row.add(clip(fmt.printable(found[0]), width - 3 - len(more)) + more, palette.dim).end(palette.text)


def footer(keys: Sequence[Key], width: int, look: Look, labels: Mapping[str, str] | None = None) -> Row:
    """The keys that work here. Those without room are in the help, which is always named.

    Args:
        keys: in the order of their worth; the last is always shown.
        width: of the row.
        look: how to draw.
        labels: what to say instead of a key's label.
    """
    labels = labels or {}
    palette = look.palette
    row = Row(width)
    if not keys:
        return row.end(palette.key_label)
    *others, last = keys
    reserved = len(last.shown) + len(last.label) + 3
    for key in others:
        label = labels.get(key.label, key.label)
        if len(key.shown) + len(label) + 3 + reserved <= row.left:
            row.add(f" {key.shown} ", palette.key).add(f"{label} ", palette.key_label)
    row.add(f" {last.shown} ", palette.key).add(f"{last.label} ", palette.key_label)
    return row.end(palette.key_label)


def no_gpu(view: View, width: int, height: int, look: Look) -> list[Row]:
    """Why no GPU is shown, in the collectors' words, and what to do."""
    palette = look.palette
    lines: list[tuple[str, bool]] = []
    if view.snapshot is None:
        lines = [("Waiting for the first sample …", False)]
    elif view.selection == "attached":
        lines = [("No attached training uses a GPU.", True), ("g  shows all GPUs again", False)]
    else:
        lines = [("No GPU to show.", True)]
        lines += [(fmt.printable(note), False) for note in view.snapshot.host.notes]
        lines.append(("llmtop doctor  says what this machine allows, and what would change it", False))
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
    return frame(content, width, look, title=[("GPUs", palette.strong)])
