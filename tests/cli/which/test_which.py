"""`llmtop which`: symptoms, their first tool, and the page that has the same table."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from llmtop.__main__ import COMMANDS
from llmtop.capture.engines import ENGINES
from llmtop.model.bottlenecks import BOTTLENECKS
from llmtop.report.advice.symptoms import SYMPTOMS, find_symptoms, nearest_symptoms
from llmtop.report.advice.table import ADVICE
from tests.support.preloaded import llmtop
from tests.support.processes import REPOSITORY


def page_row(identifier: str) -> str:
    """The row of docs/symptoms.md for one symptom."""
    one = next(one for one in SYMPTOMS if one.id == identifier)
    return f"| {one.title} | `{one.id}` | {one.tool} | `{one.command}` |"


@pytest.mark.parametrize("identifier", [one.id for one in SYMPTOMS])
def test_the_page_has_the_row_of_the_table(identifier: str) -> None:
    page = (REPOSITORY / "docs" / "symptoms.md").read_text()
    assert page_row(identifier) in page.splitlines()


def test_the_page_has_no_other_rows() -> None:
    page = (REPOSITORY / "docs" / "symptoms.md").read_text()
    assert len(re.findall(r"^\| [^|]+ \| `\w+` \|", page, re.MULTILINE)) == len(SYMPTOMS)


def test_alerts_are_those_of_rules() -> None:
    from llmtop.rules import COMMUNICATOR_RULES, GPU_RULES, JOB_RULES, LINK_RULES, RANK_RULES

    rules = {rule.id for rule in (*GPU_RULES, *RANK_RULES, *JOB_RULES, *COMMUNICATOR_RULES, *LINK_RULES)}
    alerts = [one.alert for one in SYMPTOMS if one.alert]
    assert set(alerts) <= rules
    assert len(alerts) == len(set(alerts)) >= 19


def test_commands_name_subcommands_and_engines_that_exist() -> None:
    for one in SYMPTOMS:
        words = shlex.split(one.command.partition("   #")[0])
        if words[0] == "llmtop" and len(words) > 1 and not words[1].startswith("-"):
            assert words[1] in COMMANDS, one.id
        if "--engine" in words:
            assert words[words.index("--engine") + 1] in ENGINES, one.id


def test_advice_is_that_of_reports() -> None:
    done = llmtop("which", "input_bound", "--json")
    (one,) = json.loads(done.stdout)["symptoms"]
    assert one["fix"] == ADVICE["input_bound"].fix
    assert one["command"] == ADVICE["input_bound"].next


@pytest.mark.parametrize("name", [one.id for one in SYMPTOMS])
def test_an_id_is_one_symptom(name: str) -> None:
    assert [one.id for one in find_symptoms(name)] == [name]
    assert [one.id for one in find_symptoms(name.upper().replace("_", "-"))] == [name]


@pytest.mark.parametrize("name", ["input_bound", "straggler", "memory_pressure", "hung_collective"])
def test_the_badge_of_an_alert_is_its_symptom(name: str) -> None:
    badge = BOTTLENECKS[name].badge  # type: ignore[index]
    assert [one.id for one in find_symptoms(badge)] == [name]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("GPU memory grows", "memory_growth"),
        ("OOM", "memory_pressure"),
        ("the training hangs", "hung_collective"),
        ("data loader", "input_bound"),
        ("one rank is slower", "straggler"),
        ("is my change faster", "prove"),
        ("microbenchmark", "time_a_kernel"),
        ("nccl slow", "communication_bound"),
        ("tokenizer", "input_bound"),
        ("tokenization", "input_bound"),
        ("collate", "input_bound"),
        ("item", "sync_bound"),
        ("slow data loading", "input_bound"),
        ("checkpoint", "rare_steps"),
        ("slow checkpoint", "rare_steps"),
        ("NaN loss", "non_finite"),
        ("hang", "stalled"),
        ("crash", "job_died"),
        ("segfault", "job_died"),
        ("loss spike", "loss_spike"),
        ("gradient explosion", "loss_spike"),
        ("multi-node", "cluster"),
        ("multi-node", "communication_bound"),
        ("throughput drop", "slower"),
        ("low MFU", "launch_bound"),
    ],
)
def test_words_of_users_find_their_symptom(query: str, wanted: str) -> None:
    assert wanted in [one.id for one in find_symptoms(query)]


def test_an_unknown_symptom_is_answered_with_the_nearest_and_exit_code_2() -> None:
    done = llmtop("which", "stragler")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "straggler (one rank is slower than the others)" in done.stderr
    assert nearest_symptoms("trhottled clocks")[0].id == "throttled"
    assert "Traceback" not in llmtop("which", "").stderr


def test_without_a_symptom_all_are_listed() -> None:
    done = llmtop("which")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [one.id for one in SYMPTOMS]
