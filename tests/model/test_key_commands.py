"""Advice for outputs without keys."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from llmtop.model.key_commands import without_keys
from llmtop.rules.rule import PROFILE, stack_advice

RULES = Path(__file__).parents[2] / "llmtop" / "rules"


def _advice_in_source() -> list[str]:
    """Every text of a rule that names a key."""
    texts = [
        node.value
        for path in sorted(RULES.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [text for text in texts if re.search(r"\bpress \w\b", text)]


def test_no_advice_of_a_rule_names_a_key_where_there_is_none() -> None:
    found = _advice_in_source()
    assert len(found) > 15
    for advice in found:
        for pid in (812, None):
            said = without_keys(advice, pid)
            assert not re.search(r"\bpress\b", said), said
            assert re.search(r"llmtop (?:capture|doctor --loader)|py-spy dump --pid", said) or "run: " in said, (
                said
            )


@pytest.mark.parametrize(
    ("advice", "pid", "said"),
    [
        (PROFILE, 812, "run llmtop capture --pid 812 to profile a few steps"),
        (PROFILE, None, "run llmtop capture to profile a few steps"),
        (stack_advice("rank 5", 812), 812, "for the Python stacks of rank 5, run: py-spy dump --pid 812"),
        (
            "press s for the Python stacks of the data loader; check the disk",
            812,
            "run llmtop doctor --loader 812 to see what the data loader does; check the disk",
        ),
        (
            "tokenize once; press s for the Python stacks",
            812,
            "tokenize once; run py-spy dump --pid 812 for the Python stacks",
        ),
        ("check the cooling", 812, "check the cooling"),
    ],
)
def test_a_command_stands_in_the_place_of_the_key(advice: str, pid: int | None, said: str) -> None:
    assert without_keys(advice, pid) == said
