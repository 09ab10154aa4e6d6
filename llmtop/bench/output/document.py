"""Results of a bench as documents: for the terminal, and for the summary of a CI job or a comment."""

from __future__ import annotations

from llmtop.bench.model.results import Bench
from llmtop.bench.output.tables import (
    comparison_sentences,
    comparison_table,
    headline,
    ranking_table,
    runs_tables,
)
from llmtop.document.model import Block, Document, Paragraph
from llmtop.format import counted, duration

_MARKS = {"regression": "❌", "undecidable": "❔", "failed": "❌", "interrupted": "❔", "running": "❔"}
_STATES = {"done": "", "interrupted": ": interrupted", "failed": ": not all could be measured", "running": ""}


def bench_document(found: Bench) -> Document:
    """Return each figure over all runs, what has to be said of single ones, and what they were held to."""
    attached = [run for run in found.runs if run.attached]
    window = f"{found.settings.steps} steps" if found.settings.steps else f"{found.settings.seconds:g} s"
    warmup = counted(found.settings.warmup, "step")
    head = f"{counted(len(attached), 'run')} of {window} each, after {warmup} of warm-up{_STATES[found.state]}"
    lines = []
    verdicts = sorted({run.verdict for run in attached if run.window is not None})
    if verdicts:
        bounds = [run for run in attached if run.verdict == "unknown" and run.figures.gpu_idle_bound]
        reasons = "; ".join(dict.fromkeys(run.verdict_summary for run in bounds if run.verdict_summary))
        lines.append(f"verdict: {', '.join(verdicts)}{f' ({reasons})' if reasons else ''}")
    costs = [run.figures.overhead_seconds for run in found.runs if run.figures.overhead_seconds is not None]
    if costs:
        lines.append(f"attached: {duration(max(costs))} per step, as estimated by the training")
    lines += [found.attach_cost_text] if found.attach_cost_text else []
    lines += [f"run {run.number} is not steady: {why}" for run in found.runs for why in run.unsteady]
    notes = [Paragraph(line) for line in (*lines, *found.notes)]
    return Document("llmtop bench", (Paragraph(head, "title"), *runs_tables(found), *notes, *_outcome(found)))


def _outcome(found: Bench) -> list[Block]:
    """Blocks on the limits of the runs and the decision; empty without limits."""
    word, sentence = headline(found)
    if found.comparison is not None:
        decision = [] if found.comparison.decision == "none" else [Paragraph(f"decision: {word}", is_lead=True)]
        table = [comparison_table(found.comparison)] if found.comparison.changes else []
        said = [Paragraph(one) for one in comparison_sentences(found.comparison)]
        return [*decision, Paragraph(f"{sentence}.", is_lead=not decision), *table, *said]
    if found.ranking is not None:
        return [Paragraph(f"{sentence}.", is_lead=True), ranking_table(found.ranking)]
    return []


def summary_document(found: Bench) -> Document:
    """Return the decision first, then the table it rests on, and all that is to be known."""
    word, sentence = headline(found)
    blocks: list[Block] = [Paragraph(sentence, "title", is_lead=True)]
    if found.comparison is not None and found.comparison.changes:
        blocks.append(comparison_table(found.comparison))
    elif found.ranking is not None:
        blocks.append(ranking_table(found.ranking))
    else:
        blocks += runs_tables(found)
    lines = comparison_sentences(found.comparison) if found.comparison is not None else []
    lines += [f"run {run.number}: {one}" for run in found.runs for one in (*run.unsteady, *run.notes)]
    lines += [*found.notes, _settings_text(found)]
    blocks += [Paragraph(line, is_item=True) for line in lines]
    return Document(f"{_MARKS.get(word, '✅')} llmtop bench: {word}", blocks)


def _settings_text(found: Bench) -> str:
    asked = found.settings
    window = f"{asked.steps} steps" if asked.steps is not None else duration(asked.seconds)
    facts = ", ".join(f"{name} {value}" for name, value in found.environment.items())
    about = f"{asked.runs} runs of {window} after {asked.warmup} to warm up"
    return f"{about}: {' '.join(found.command)}{f' ({facts})' if facts else ''}"
