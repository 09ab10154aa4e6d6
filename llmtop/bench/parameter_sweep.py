"""One knob of a command: a variable of its environment, or {} among its words, and the values to try."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llmtop.bench.protocol import Variant
from llmtop.errors import UnusableInput
from llmtop.redaction.secret_filter import variable_without_secrets, words_without_secrets

PLACEHOLDER = "{}"
"""Placeholder for the value in a command."""
_MOST = 16
"""Values; each is run several times."""


def parameter_variants(text: str, command: Sequence[str]) -> list[Variant]:
    """Variants that --vary requests: `NAME=V1,V2,…`, or `V1,V2,…` where the command has a {}.

    Where the command has a {}, each value takes its place, and NAME is only what it is called; else NAME is set in
    the environment.

    Raises:
        UnusableInput: there is nothing to vary, or only one value.
    """
    has_placeholder = any(PLACEHOLDER in word for word in command)
    name, equals, listed = text.partition("=")
    if not equals:
        name, listed = "", text
    values = [value.strip() for value in listed.split(",")]
    if not has_placeholder and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UnusableInput(
            f"--vary {text}: write an environment variable with its values (NUM_WORKERS=2,4,8), or the values "
            "alone (2,4,8) with {{}} in the command in their place"
        )
    if "" in values or len(values) < 2 or len(set(values)) < len(values) or len(values) > _MOST:
        raise UnusableInput(f"--vary {text}: give from two to {_MOST} different values, with a comma between them")
    return [_variant(name, value, command, has_placeholder=has_placeholder) for value in values]


def _variant(name: str, value: str, command: Sequence[str], *, has_placeholder: bool) -> Variant:
    label = f"{name}={value}" if name else value
    if words_without_secrets([label]) != [label] or (name and variable_without_secrets(name, value) != value):
        raise UnusableInput(
            "--vary: a value looks like a secret, and values are stored in files: vary another parameter"
        )
    if has_placeholder:
        return Variant(tuple(word.replace(PLACEHOLDER, value) for word in command), label)
    return Variant(tuple(command), label, {name: value})
