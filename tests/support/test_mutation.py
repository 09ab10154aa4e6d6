"""Mutants: each changes what it says and nothing else, and the tests that execute a line are the ones that run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import mutants as command
from tests.support.equivalent_mutants import EQUIVALENT
from tests.support.mutants import Lines, choose, function_lines, nearness, summary
from tests.support.mutation import Mutant, mutants
from tests.support.processes import REPOSITORY

SOURCE = '''"""A limit of 3."""
LIMIT: int = 3


def f(values: list[int], name: str = "x") -> int | None:
    if not values and len(values) <= LIMIT:
        raise ValueError(f"only {LIMIT - 1}: {name}")
    total = min(values) * 2 - 1
    total += 1
    values.append(total)
    return total
'''


def _made() -> dict[tuple[int, str], str]:
    return {(one.line, one.before): one.after for one in mutants("a.py", SOURCE) if one.compiles(SOURCE)}


def test_each_kind_of_change_is_made_and_sentences_are_left_alone() -> None:
    assert _made() == {
        (2, "3"): "4",
        (6, "not values and len(values) <= LIMIT"): "(not (not values and len(values) <= LIMIT))",
        (6, "not "): "",
        (6, "and"): "or",
        (6, "<="): "<",
        (8, "min"): "max",
        (8, "*"): "/",
        (8, "2"): "3",
        (8, "-"): "+",
        (8, "1"): "2",
        (9, "+="): "-=",
        (9, "1"): "2",
        (10, "values.append(total)"): "pass",
        (11, "return total"): "return None",
    }


def test_a_mutant_changes_one_line_and_is_known_again_when_lines_before_it_change() -> None:
    mutant = next(one for one in mutants("a.py", SOURCE) if one.before == "<=")
    changed = mutant.apply(SOURCE).splitlines()
    assert [
        number for number, pair in enumerate(zip(changed, SOURCE.splitlines(), strict=True), 1) if len({*pair}) > 1
    ] == [6]
    later = next(one for one in mutants("a.py", "import os\n" + SOURCE) if one.before == "<=")
    assert (later.line, later.key) == (7, mutant.key)
    with pytest.raises(ValueError, match="has no '<='"):
        mutant.apply("import os\n" + SOURCE)


def test_what_is_no_python_any_more_does_not_compile() -> None:
    mutant = Mutant("a.py", 1, 0, 5, "break", "import", "break")
    assert not mutant.compiles("break\n")


def test_bytes_before_the_change_may_be_no_ascii() -> None:
    (mutant,) = (one for one in mutants("a.py", 'x = "µ" if a < b else "é"\n') if one.before == "<")
    assert mutant.apply('x = "µ" if a < b else "é"\n') == 'x = "µ" if a <= b else "é"\n'


PATH = "llmtop/rules/gpu.py"
LINE = min(function_lines(PATH))
MUTANT = Mutant(PATH, LINE, 0, 1, "1", "2", "1")
NEAR, FAR, CHILD, OTHER = (
    "tests/rules/test_gpu.py::test_a",
    "tests/tui/test_app.py::test_b",
    "tests/rules/test_hang.py::test_c",
    "tests/tui/test_app.py::test_d",
)


def test_tests_that_execute_the_line_run_first_and_near_ones_that_wait_after_them() -> None:
    seconds = {NEAR: 2.0, FAR: 0.1, CHILD: 3.0, OTHER: 0.1}
    lines = Lines(seconds, frozenset({CHILD, OTHER}), {PATH: {LINE: {FAR, NEAR}, LINE + 1: {OTHER}}})
    assert lines.select(MUTANT) == [NEAR, FAR, CHILD]


def test_of_a_line_that_an_import_executes_all_near_tests_run_and_those_of_its_name_first() -> None:
    """Whichever test imported it first."""
    seconds = {NEAR: 2.0, FAR: 0.1, CHILD: 0.3, OTHER: 0.1}
    lines = Lines(seconds, frozenset(), {PATH: {1: {OTHER}, LINE: {FAR}}})
    assert lines.select(replace(MUTANT, line=1)) == [OTHER, NEAR, CHILD]
    assert lines.select(MUTANT) == [FAR]


def test_lines_of_functions_are_those_of_their_bodies() -> None:
    path = "llmtop/protocol/job_store.py"
    texts = (REPOSITORY / path).read_text().splitlines()
    of = {text.strip(): number in function_lines(path) for number, text in enumerate(texts, 1)}
    assert of["beat: int = 0"] is False
    assert of["class Keys:"] is False
    assert of["def __init__(self, prefix: str) -> None:"] is False
    assert of["self._prefix = prefix"] is True


def test_tests_that_take_too_long_together_are_cut() -> None:
    tests = {f"tests/rules/test_gpu.py::test_{number:02}": 4.0 for number in range(20)}
    lines = Lines(tests, frozenset(), {PATH: {LINE: set(tests)}})
    assert len(lines.select(MUTANT)) == command.EXPECTED_SECONDS // 4
    slow = Lines({NEAR: 50.0}, frozenset(), {PATH: {LINE: {NEAR}}})
    assert slow.select(MUTANT) == [NEAR]


@pytest.mark.parametrize(
    ("path", "test", "folders"),
    [
        ("llmtop/rules/state/gpu.py", "tests/rules/test_gpu.py::test_a", 2),
        ("collectors/hub.py", "tests/collectors/test_hub.py::test_a[x/y]", 2),
        ("llmtop/trace/nsys/load.py", "tests/trace/nsys/test_load.py::test_a", 3),
        ("llmtop/rules/gpu.py", "tests/tui/test_app.py::test_a", 1),
    ],
)
def test_nearness_counts_the_folders_of_the_mirrored_place(path: str, test: str, folders: int) -> None:
    assert nearness(path, test) == folders


def test_the_seed_draws_the_same_mutants_of_each_area_evenly() -> None:
    chosen = choose("a seed", 10, ["bench", "wire"])
    assert chosen == choose("a seed", 10, ["bench", "wire"]) != choose("another", 10, ["bench", "wire"])
    assert [area for area, _ in chosen] == ["bench", "wire"] * 5
    assert len({(one.path, one.line) for _, one in chosen}) == 10


def test_what_was_not_noticed_is_listed_and_equivalent_mutants_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list(mutants("a.py", SOURCE))[:4]
    outcomes = ("noticed by tests/test_a.py::test_x", "noticed at the import", "survived")
    known = {one.key: outcome for one, outcome in zip(made[:3], outcomes, strict=True)}
    monkeypatch.setitem(EQUIVALENT, made[3].key, "a proof")
    text, are_too_few = summary([("rules", one) for one in made], known)
    assert not are_too_few
    assert "2 of 3 noticed: 67 %" in text
    assert f"survived: a.py:{made[2].line}" in text


@pytest.mark.parametrize(
    ("noticed", "judged", "too_few"),
    [
        (120, 150, False),
        (119, 150, True),
        (10, 10, False),
        (4, 10, False),
        (3, 10, True),
        (0, 2, False),
        (0, 0, False),
    ],
)
def test_ten_mutants_fail_only_where_chance_does_not_explain_it(noticed: int, judged: int, too_few: bool) -> None:
    # Binomial tables, p = 0.8: P(X <= 3 of 10) = 0.00086, P(X <= 4 of 10) = 0.0064, P(0 of 2) = 0.04
    assert command.is_too_few(noticed, judged) is too_few


def test_each_equivalent_mutant_is_of_a_line_that_is_there() -> None:
    keys = {
        one.key
        for path in {key.partition(": ")[0] for key in EQUIVALENT}
        for one in mutants(path, (REPOSITORY / path).read_text())
    }
    assert sorted(EQUIVALENT.keys() - keys) == []
