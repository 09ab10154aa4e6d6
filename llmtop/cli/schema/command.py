"""llmtop schema: the JSON Schema of each object that a command prints with --json, made from its type."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import click

from llmtop.cli.output import print_encoded, print_text
from llmtop.errors import EXIT_DONE

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class JsonOutput(NamedTuple):
    """One kind of JSON object, and where it comes from."""

    type: str
    """module:class, imported when its schema is asked for."""
    title: str
    """Name of the object, for the list and for `title` of the schema."""
    commands: tuple[str, ...] = ()
    """Commands that print it with --json."""


OUTPUTS: Final[dict[str, JsonOutput]] = {
    "snapshot": JsonOutput(
        "llmtop.model.snapshot:Snapshot",
        "everything known at one instant",
        ("live", "replay", "demo"),
    ),
    "alert": JsonOutput("llmtop.model.snapshot:Alert", "a rule that holds now; part of a snapshot"),
    "report": JsonOutput("llmtop.report.model:Report", "report on a capture or a recording", ("report",)),
    "memory": JsonOutput("llmtop.memory.model:MemoryReport", "report on allocator snapshots", ("report",)),
    "stacks": JsonOutput("llmtop.stacks.model:StackReport", "report on Python stacks", ("report",)),
    "kernels": JsonOutput("llmtop.ncu.judge:NcuReport", "report on kernels under ncu", ("kernel",)),
    "kernels-list": JsonOutput("llmtop.ncu.judge:NcuReports", "reports on several files of ncu", ("kernel",)),
    "kernel-commands": JsonOutput(
        "llmtop.cli.printed:KernelCommands", "hot kernels of a capture, with the commands of ncu", ("kernel",)
    ),
    "comparison": JsonOutput("llmtop.compare.model:Comparison", "comparison of two reports", ("compare",)),
    "memory-growth": JsonOutput(
        "llmtop.memory.model:LeakReport", "comparison of two allocator snapshots", ("compare",)
    ),
    "postmortem": JsonOutput(
        "llmtop.postmortem.model:PostmortemReport", "the rank that failed first in a job", ("postmortem",)
    ),
    "tail": JsonOutput(
        "llmtop.postmortem.last_minutes:TailReport", "the last two minutes of each rank of a run", ("tail",)
    ),
    "bench": JsonOutput("llmtop.bench.model.results:Bench", "metrics.json of a bench", ("bench",)),
    "capture": JsonOutput("llmtop.capture.base.folder:Info", "capture.json of a capture's folder"),
    "capture-result": JsonOutput(
        "llmtop.cli.printed:CaptureResult", "a capture that was taken, with its report", ("capture",)
    ),
    "capture-not-taken": JsonOutput(
        "llmtop.cli.printed:CaptureNotTaken", "a trigger that fired, where the capture failed", ("capture",)
    ),
    "capture-listing": JsonOutput("llmtop.cli.printed:CaptureListing", "one capture of the list", ("captures",)),
    "capture-removal": JsonOutput(
        "llmtop.cli.printed:CaptureRemoval", "a capture that was removed", ("captures",)
    ),
    "orphan-stop": JsonOutput(
        "llmtop.cli.printed:OrphanStop", "an orphaned capture that was stopped", ("captures",)
    ),
    "run": JsonOutput("llmtop.runs.report:RunReport", "one run with its restarts and its ledger", ("runs",)),
    "run-removal": JsonOutput("llmtop.cli.printed:RunRemoval", "a run that was deleted", ("runs",)),
    "recording": JsonOutput("llmtop.cli.printed:RecordingSummary", "summary of a recording", ("record",)),
    "cluster": JsonOutput("collectors.prometheus.cluster_view:ClusterView", "all nodes", ("cluster",)),
    "doctor": JsonOutput("llmtop.cli.doctor.command:Diagnosis", "what this machine supports", ("doctor",)),
    "symptoms": JsonOutput("llmtop.cli.printed:SymptomList", "symptoms with the first tool for each", ("which",)),
    "bundle": JsonOutput("llmtop.cli.printed:BundleWritten", "an archive for a bug report", ("doctor",)),
    "config": JsonOutput("llmtop.config:Config", "config.toml, all settings"),
    "config-settings": JsonOutput(
        "llmtop.cli.printed:ConfigSettings", "settings other than the defaults", ("config",)
    ),
}
"""Outputs by the name that `llmtop schema` takes."""


@click.command()
@click.argument("name", type=click.Choice(list(OUTPUTS)), metavar="NAME", required=False)
def schema(*, name: str | None) -> int:
    """Print the JSON Schema (2020-12) of what --json prints.

    NAME is one of the list that `llmtop schema` prints. docs/contracts.md says which fields may change.
    """
    from llmtop.format import encode_json

    if name is None:
        for known, output in OUTPUTS.items():
            by = f" (llmtop {', '.join(output.commands)} --json)" if output.commands else ""
            print_text(f"{known:<18} {output.title}{by}")
        return EXIT_DONE
    print_encoded(encode_json(json_schema(name)))
    return EXIT_DONE


def json_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of one kind of object.

    Args:
        name: a key of `OUTPUTS`.

    Returns:
        A schema of draft 2020-12. Objects may have more fields than it lists: a later llmtop adds some.

    Raises:
        KeyError: no schema has this name.
    """
    import msgspec

    output = OUTPUTS[name]
    module, _, attribute = output.type.partition(":")
    found = msgspec.json.schema(getattr(importlib.import_module(module), attribute))
    for one in _objects(found):
        if "description" in one:
            one["description"] = re.sub(r"\s*\n\s*", " ", str(one["description"])).strip()
    return {"$schema": DIALECT, "title": f"llmtop {name}: {output.title}", **found}


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for one in value.values():
            yield from _objects(one)
    elif isinstance(value, list):
        for one in value:
            yield from _objects(one)
