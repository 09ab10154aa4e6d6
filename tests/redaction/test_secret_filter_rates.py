"""Share of the secrets of detect-secrets' patterns that the filter finds, and of plain lines that it changes."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

from llmtop.redaction.secret_filter import variable_without_secrets, without_secrets, words_without_secrets
from tests.support.pattern_examples import example

_ROOT = Path(__file__).parents[2]
_OWN = "secret"
"""Files so called hold secrets for tests."""
_EXAMPLES = 30
_LOG_LINES = 20_000


def _patterns() -> dict[str, str]:
    """Return the patterns of detect-secrets' plugins that describe a whole secret, by plugin and number."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.plugins.base import RegexBasedDetector

    found = {}
    for name, plugin in sorted(get_mapping_from_secret_type_to_class().items()):
        if not issubclass(plugin, RegexBasedDetector) or name in ("Public IP (ipv4)",):
            continue
        for number, pattern in enumerate(plugin.denylist):
            found[f"{name} {number}"] = pattern.pattern
    return found


def _secrets() -> list[tuple[str, str]]:
    """Return names of services and secrets of them: what the pattern's last group, or all of it, describes."""
    drawn = random.Random(20)
    found = []
    for name, pattern in _patterns().items():
        service = re.sub(r"[^a-z]+", "_", name.lower()).strip("_").split("_")[0]
        for _ in range(_EXAMPLES):
            text = example(pattern, drawn)
            match = re.search(pattern, text)
            groups = [group for group in match.groups() if group] if match is not None else []
            secret = max(groups, key=len) if groups else text
            if len(secret) >= 8 and not re.search(r"[\s\"'/@#]", secret):
                found.append((service, secret))
    return found


def _in_places(service: str, secret: str, drawn: random.Random) -> dict[str, tuple[str, str]]:
    """Return by kind of place: a text with the secret, and what the filter makes of it."""
    name = f"{service}_{drawn.choice(['key', 'token', 'secret', 'password', 'api_key'])}"
    option = "--" + name.replace("_", drawn.choice("-_"))
    words = ["train.py", "--lr", "3e-4", *drawn.choice([[option, secret], [f"{option}={secret}"]]), "--bf16"]
    url = drawn.choice([f"https://u:{secret}@host.org/x", f"https://host.org/x?a=1&{name}={secret}&b=2"])
    remote = drawn.choice([f"https://{secret}@git.host.org/a/b.git", f"https://oauth2:{secret}@git.host.org/a/b"])
    line = drawn.choice([f'{name.upper()} = "{secret}"', f"    {name}: {secret}", f"{name}='{secret}',"])
    diff = f"@@ -1,2 +1,2 @@\n{drawn.choice('-+ ')}{line}\n x = 1\n"
    return {
        "command line": (" ".join(words), " ".join(words_without_secrets(words))),
        "environment": (secret, variable_without_secrets(name.upper(), secret)),
        "URL": (url, without_secrets(url)),
        "git remote": (remote, without_secrets(remote)),
        "diff": (diff, without_secrets(diff)),
    }


def test_at_least_95_percent_of_the_secrets_are_found_in_each_kind_of_place() -> None:
    drawn = random.Random(21)
    total: dict[str, int] = {}
    missed: dict[str, list[str]] = {}
    for service, secret in _secrets():
        for kind, (before, after) in _in_places(service, secret, drawn).items():
            total[kind] = total.get(kind, 0) + 1
            if secret in after:
                missed.setdefault(kind, []).append(before)
    for kind, number in total.items():
        print(f"{kind}: {100 - 100 * len(missed.get(kind, [])) / number:.2f} % of {number}")
    assert len(total) == 5
    assert min(total.values()) > 500
    for kind, number in total.items():
        assert len(missed.get(kind, [])) <= 0.05 * number, (kind, missed[kind][:10])


def _changed(lines: list[str]) -> list[str]:
    return [line for line in lines if without_secrets(line) != line]


@pytest.mark.slow(
    "every line of the program; test_at_most_one_of_a_thousand_lines_of_the_history_is_changed has some of them"
)
def test_at_most_one_of_a_thousand_lines_of_these_files_is_changed() -> None:
    files = [path for folder in ("llmtop", "tui", "collectors") for path in sorted((_ROOT / folder).rglob("*.py"))]
    lines = [line for path in files if _OWN not in path.name for line in path.read_text().splitlines()]
    changed = _changed(lines)
    print(f"files: {1000 * len(changed) / len(lines):.2f} of 1,000 of {len(lines)} lines")
    assert len(changed) <= len(lines) / 1000, changed[:20]


def test_at_most_one_of_a_thousand_lines_of_the_history_is_changed() -> None:
    # Not the tests of the filter: they are full of made-up secrets.
    command = ["git", "-C", str(_ROOT), "log", "-p", "-n", "60", "--", ".", ":!*secret*", ":!tests/redaction"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=240, check=True)
    except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("no history of git here")
    lines = done.stdout.splitlines()[:_LOG_LINES]
    if len(lines) < 5000:
        pytest.skip("the history of git here is too short")
    changed = _changed(lines)
    print(f"history: {1000 * len(changed) / len(lines):.2f} of 1,000 of {len(lines)} lines")
    assert len(changed) <= len(lines) / 1000, changed[:20]


@pytest.mark.parametrize(
    "line",
    [
        "train.py --lr 3e-4 --tokenizer gpt2 --max-tokens 2048 --pass-through --passes 3",
        "torchrun train.py --dtype float8_e4m3fnuz --run-name llama3-70b-sft-lr2e5-bs64-h100x8",
        "srun -p gpu --gres gpu:8 python train.py --key-value-heads 8 --forward-pass 2 --pin-memory",
        "mkdir -p /data/runs/x && python train.py --model Qwen/Qwen2.5-Coder-32B-Instruct-GPTQ-Int4",
    ],
)
def test_command_lines_of_trainings_stay_readable(line: str) -> None:
    assert without_secrets(line) == line
    assert " ".join(words_without_secrets(line.split(" "))) == line


@pytest.mark.parametrize(
    "text",
    ['-PASSWORD = "{}"', '+PASSWORD = "{}"', "-MY_PW={}", '- pass_ = "{}"', "--password = {}",
     "python x.py --pw {}", "python x.py -p {}", '--PASSWORD = "{}"', '<add key="Password" value="{}" />',
     "  - name: DB_PASS\n    value: {}", '+p.add_argument("--db-password", type=str, default="{}")',
     '-os.environ.setdefault("MLFLOW_TRACKING_PASSWORD", "{}")', '+db_password = (\n+    "{}"\n+)',
     "+machine a.org\n+  login u\n+  password {}\n"],
)  # fmt: skip
def test_passwords_of_words_are_found_by_their_names(text: str) -> None:
    assert "hunter" not in without_secrets(text.format("hunter"))
