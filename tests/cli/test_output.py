"""What commands print: no text of a file is obeyed by the terminal, and JSON brings each value back as it was."""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from pathlib import Path

import click
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtop.format import escaped_json, printable_lines
from llmtop.recording.reader_writer import Reader
from llmtop.report.model import Report
from tests.support import hostile
from tests.support.preloaded import llmtop
from tests.support.processes import REPOSITORY
from tests.tui.terminal.test_no_escapes import captured, recorded

_OBEYED = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording and captures in which every text is hostile, each in a file of a hostile name."""
    folder = tmp_path_factory.mktemp("hostile")
    recorded(folder).rename(folder / f"{hostile.text()[:60].replace('/', '_')}.llmtop.gz")
    captured(folder)
    (folder / "report.json").write_bytes(msgspec.json.encode(hostile.value(Report, 1)))
    return folder


COMMANDS = {
    "report": "report {capture} --full",
    "markdown": "report {capture} --markdown",
    "report as JSON": "report {capture} --json",
    "recording": "report {recording}",
    "recording as JSON": "report {recording} --json",
    "replay": "replay {recording} --json",
    "compare": "compare {capture} {report}",
    "compare as JSON": "compare {capture} {report} --json",
    "captures": "captures --out {captures}",
    "captures as JSON": "captures --out {captures} --json",
    "no such file": "report {recording}-none",
    "no recording": "replay {report} --json",
    "no such option": "report --{hostile}",
    "no such choice": "capture --engine {hostile}",
    "kernel": "kernel {capture}",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_no_command_prints_what_a_terminal_obeys(command: str, place: Path) -> None:
    names = {
        "recording": next(place.glob("*.llmtop.gz")),
        "captures": place / "llmtop-captures",
        "capture": next((place / "llmtop-captures").iterdir()),
        "report": place / "report.json",
        "hostile": hostile.text(),
    }
    done = llmtop(*(word.format(**names) for word in command.split(" ")))
    assert done.returncode in (0, 1, 2, 3), done.stderr
    assert done.stdout or done.stderr
    for written in (done.stdout, done.stderr):
        assert hostile.obeyed(written.encode()) == []
        if "--json" not in command:
            assert "\x1b" not in written
    for line in done.stdout.splitlines() if "--json" in command else ():
        json.loads(line)


def test_replayed_json_has_the_texts_of_the_recording(place: Path) -> None:
    recording = next(place.glob("*.llmtop.gz"))
    lines = llmtop("replay", recording, "--json").stdout.splitlines()
    moments = [moment for _, moment in Reader(recording).snapshots()]
    assert [json.loads(line)["host"]["name"] for line in lines] == [moment.host.name for moment in moments]


@given(
    st.recursive(st.text() | st.integers(0, 9), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner))
)
def test_json_for_a_terminal_is_of_the_same_value(value: object) -> None:
    written = escaped_json(msgspec.json.encode(value))
    assert msgspec.json.decode(written) == value
    assert not [char for char in written.decode() if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")]
    bidirectional = "\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    assert not re.search(f"[\x00-\x1f\x7f-\x9f{bidirectional}\u2028\u2029]", written.decode())


@given(st.text(st.sampled_from("a\x1b[1;m]K\n\x9b\u202e\x7f\r"), max_size=30))
def test_styled_lines_keep_their_colours_alone(text: str) -> None:
    red = click.style("x", fg="red")
    shown = printable_lines(f"{red}{text}", styled=True)
    assert shown.startswith(red)
    plain = re.sub("\x1b\\[[0-9;]*m", "", shown)
    assert not [char for char in plain if unicodedata.category(char) in _OBEYED and char != "\n"]
    assert len(printable_lines(text)) == len(text)


def test_characters_that_hide_text_are_escaped_in_json() -> None:
    hidden = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zl", "Zp")]
    written = escaped_json(msgspec.json.encode(hidden))
    assert msgspec.json.decode(written) == hidden
    assert written.isascii()


@pytest.mark.shape
def test_one_module_of_the_command_line_writes_to_standard_streams() -> None:
    found = []
    files = [*(REPOSITORY / "llmtop" / "cli").rglob("*.py"), REPOSITORY / "llmtop" / "__main__.py"]
    for path in files:
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        written = {ast.unparse(call) for call in calls} & {
            *("print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write", "os.write"),
        }
        found += [(path.name, *sorted(written))] if written else []
    assert found == [("output.py", "click.echo", "os.write")]
