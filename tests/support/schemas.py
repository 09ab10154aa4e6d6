"""What --json prints, against what `llmtop schema` prints."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

from llmtop.cli.schema.command import json_schema


def schema_faults(name: str, value: Any) -> list[str]:
    """Return where a decoded JSON value does not follow the schema of this name, as sentences."""
    found = Draft202012Validator(json_schema(name)).iter_errors(value)
    return [f"{error.json_path}: {error.message[:200]}" for error in found]
