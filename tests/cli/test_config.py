"""The configuration: read by real commands, wrong ones refused with file, line and word; flags win."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import certifi
import pytest

from llmtop import config
from llmtop.capture.engines import ENGINES
from llmtop.cli.config import config as config_command
from llmtop.errors import UnusableInput
from llmtop.model.bottlenecks import AlertId
from tests.support import preloaded
from tests.support.processes import REPOSITORY, environment, wait_for
from tests.support.terminal import Terminal
from tui.core.theme_memory import ThemeMemory
from tui.paint.palette import THEMES
from tui.panes import capture_list, node_table, process_table

DEMO = REPOSITORY / "llmtop" / "data" / "demo.llmtop.gz"


def home(tmp_path: Path, text: str) -> dict[str, str]:
    """An environment in which the configuration has this text."""
    place = tmp_path / "config" / "llmtop"
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.toml").write_text(text)
    return environment(XDG_CONFIG_HOME=str(tmp_path / "config"), XDG_STATE_HOME=str(tmp_path / "state"))


def checked(*arguments: str) -> object:
    """What `llmtop config` returns in this process."""
    return config_command.main(list(arguments), standalone_mode=False)


def llmtop(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return preloaded.llmtop(*arguments, env=env)


def engine_options() -> dict[str, list[str]]:
    return {name: [option.name for option in engine.options] for name, engine in ENGINES.items()}


WRONG = (
    ('theme = "dark"\nintervall = 2\n', 2, '"intervall" is no setting: did you mean "interval"?'),
    ('theme = "drak"\n', 1, 'theme = "drak"'),
    ('\n\ninterval = "fast"\n', 3, 'interval = "fast": a number of seconds from 0.1 to 3600 is wanted'),
    ("interval = 0\n", 1, "interval = 0"),
    ("interval = nan\n", 1, "a number of seconds"),
    ("theme = dark\n", 1, '"theme = dark" is no TOML'),
    ('gpus = "0\n', 1, "is no TOML"),
    ('[alerts]\noff = [\n  "slower",\n  "strangler",\n]\n', 4, 'off = "strangler"'),
    ("[alerts.slower]\n# more\nfactor = 1.0\n", 3, "factor = 1.0: a factor from 1.1 to 100 is wanted"),
    ("[alerts.outside]\nshare = 2\n", 2, '"share" is no setting of [alerts.outside]: there are step_pct'),
    ("[alrets]\noff = []\n", 1, '"alrets" is no setting: did you mean "alerts"?'),
    ("[alerts]\noutside = {step_pct = 200}\n", 2, "step_pct = 200"),
    ("alerts = 3\n", 1, "alerts = 3: a table of settings is wanted"),
    ("[[alerts]]\noff = []\n", 1, "a table of settings is wanted"),
    ("theme = 'dark'\nalerts.strangler.step_pct = 5\n", 2, 'did you mean "straggler"?'),
    ("[alerts]\noff = []\ninterval = 2\n", 3, "is no setting of [alerts]: it belongs above the first [table]"),
    ("[capture]\nca = 'x'\n", 2, '"ca" is no setting of [capture]: it belongs into [cluster]'),
    ('[alerts]\noff = ["UNTIMED"]\n', 2, '(did you mean "outside"?)'),
    ('[alerts]\noff = ["low power"]\n', 2, '(did you mean "low_power_full_util"?)'),
    ("[capture]\nsteps = 3\nseconds = 2.0\n", 3, "exclude each other"),
    ("capture.steps = true\n", 1, "steps = true"),
    ('[columns]\nprocesses = ["pid", "nope"]\n', 2, 'processes = "nope"'),
    ('[columns]\ngpus = ["Power"]\n', 2, '(did you mean "power"?)'),
    ('gpus = "atached"\n', 1, '(did you mean "attached"?)'),
    ('gpus = "0,x"\n', 1, 'gpus = "0,x"'),
    ('[capture]\nengine = "torch.profile"\n', 2, 'is no engine: did you mean "torch.profiler"?'),
    ('[capture]\n\nengine = "zzz"\n', 3, 'engine = "zzz" is no engine: there are nsys, '),
    ('[capture]\noptions = [\n  "stacks",\n  "shape",\n]\n', 4, 'did you mean "shapes"?'),
    ('[capture]\nengine = "py-spy"\noptions = ["stacks"]\n', 3, "is no option of py-spy: there are native"),
    ('[cluster]\nprometheus = "foo"\n', 2, 'prometheus = "foo": a URL such as "http://node:9090" is wanted'),
    ('[cluster]\nprometheus = "node:9090"\n', 2, '(did you mean "http://node:9090"?)'),
    ('[cluster]\nprometheus = "ftp://node"\n', 2, "is wanted"),
    ('[cluster]\nprometheus = "http://node:99999"\n', 2, "is wanted"),
    (
        '[cluster]\nprometheus = "http://mira:hunter2@node:9090/x"\n',
        2,
        'holds a password; write "http://node:9090/x", set user, and set $LLMTOP_PROMETHEUS_PASSWORD',
    ),
    ('[cluster]\nprometheus = "mira:hunter2@node:9090"\n', 2, '(did you mean "http://node:9090"?)'),
    ('dcgm = "http://node:99999/metrics"\n', 1, "is wanted"),
    ("[alerts.straggler]\ncritical_pct = 5\n", 2, "critical_pct = 5 is below step_pct = 10, its default"),
    ("[alerts.straggler]\nstep_pct = 30\ncritical_pct = 25\n", 3, "critical_pct = 25 is below step_pct = 30: 30"),
    ("# a\u2028b\n\nintervall = 1\n", 3, "intervall"),
    ("\n" + ".".join("a" * 30_000) + " = 1\n", 2, "has 29999 dots"),
)


@pytest.mark.parametrize(("text", "line", "said"), WRONG)
def test_what_is_wrong_is_named_with_its_file_and_line(text: str, line: int, said: str) -> None:
    with pytest.raises(UnusableInput) as refused:
        config.parse(text, Path("/home/mira/config.toml"), engine_options)
    assert str(refused.value).startswith(f"/home/mira/config.toml, line {line}: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        '[capture]\nengine = "nsys"\noptions = ["no-pause"]\n',
        'gpus = "0, 2,GPU-1a2b"\n',
        '[cluster]\nprometheus = "https://[::1]:9090/prefix"\n',
        "[alerts.straggler]\nstep_pct = 30\n",
        "[alerts.straggler]\nstep_pct = 20\ncritical_pct = 20\n",
        'dcgm = "none"\n',
    ],
)
def test_what_exists_is_accepted(text: str) -> None:
    config.parse(text, Path("x"), engine_options)


def test_what_stands_in_the_file_s_place_is_named(tmp_path: Path) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(UnusableInput) as refused:
            config.load(path)
        assert str(refused.value).startswith(str(path))
        assert "\n" not in str(refused.value)
        return str(refused.value).removeprefix(str(path))

    assert "it is a folder" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "it is a named pipe" in refusal(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    assert refusal(tmp_path / "link") == f" is a link to {tmp_path}/nothing, which cannot be opened"
    with (tmp_path / "large").open("wb") as file:
        file.truncate(32 << 20)
    assert refusal(tmp_path / "large") == " has 32.0 MiB; the limit on the size of a configuration is 64 KiB"
    (tmp_path / "wide").write_bytes('theme = "dark"\n'.encode("utf-16"))
    assert refusal(tmp_path / "wide") == " is encoded as UTF-16; save it as UTF-8"
    (tmp_path / "latin").write_bytes(b'\n[capture]\nout = "/daten/B\xe4r"\n')
    assert refusal(tmp_path / "latin") == ", line 3: the byte 0xe4 is not UTF-8; save the file as UTF-8"
    (tmp_path / "deep").write_text("a = " + "[" * 30_000)
    assert "nested too deeply" in refusal(tmp_path / "deep")
    (tmp_path / "mark").write_bytes(b'\xef\xbb\xbftheme = "light"\n')
    assert config.parse(config.read_text(tmp_path / "mark") or "", tmp_path).theme == "light"


def test_config_checks_and_prints_what_is_set(tmp_path: Path) -> None:
    env = home(tmp_path, 'interval = 2.0\n[alerts]\noff = ["slower"]\n')
    checked = llmtop(env, "config", "--check")
    path = f"{tmp_path}/config/llmtop/config.toml"
    assert (checked.returncode, checked.stdout) == (0, f"{path} is valid: 2 settings other than the default\n")
    assert llmtop(env, "config").stdout.splitlines()[1:] == ["interval = 2.0", 'alerts.off = ["slower"]']
    assert json.loads(llmtop(env, "config", "--json").stdout) == {
        "path": path,
        "exists": True,
        "settings": {"interval": 2.0, "alerts.off": ["slower"]},
    }
    Path(path).unlink()
    none = llmtop(env, "config", "--check")
    assert (none.returncode, none.stdout) == (0, f"{path} does not exist: every setting has its default\n")


@pytest.mark.parametrize(
    ("table", "name", "wrong", "said", "right"),
    [
        ("cluster", "token_file", "t\u00f6ken", "write the bearer token into it", "token"),
        ("cluster", "ca", "x", "holds no certificate", Path(certifi.where()).read_text()),
        ("notify", "url_file", "x", "must hold one address", "https://example.org/hook"),
    ],
)
def test_a_file_that_the_configuration_names_is_opened(
    table: str,
    name: str,
    wrong: str,
    said: str,
    right: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refusal(named: str) -> str:
        path = (
            Path(home(tmp_path, f'[{table}]\n{name} = "{named}"\n')["XDG_CONFIG_HOME"]) / "llmtop" / "config.toml"
        )
        config.load(path)
        with pytest.raises(UnusableInput) as refused:
            checked("--check")
        start = f"{path}, line 2: {name}: {named} "
        assert str(refused.value).startswith(start)
        return str(refused.value).removeprefix(start)

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    try:
        assert "No such file or directory; write the " in refusal(f"{tmp_path}/secret")
        (tmp_path / "secrets").write_text("\n")
        assert refusal(f"{tmp_path}/secret").endswith(f'; did you mean "{tmp_path}/secrets"?')
        assert refusal(f"{tmp_path}/secrets").startswith("is empty; write the ")
        assert "it is a folder" in refusal(f"{tmp_path}/config")
        (tmp_path / "secrets").chmod(0o600)
        (tmp_path / "secrets").write_text(wrong)
        assert said in refusal(f"{tmp_path}/secrets")
        (tmp_path / "secrets").write_text(right)
        config.load(
            Path(
                home(tmp_path, f'{table}.{name} = "{tmp_path}/secrets"\n')["XDG_CONFIG_HOME"], "llmtop/config.toml"
            )
        )
        assert checked("--check") == 0
    finally:
        config.load(tmp_path / "none.toml")
    assert "is valid: 1 setting" in capsys.readouterr().out


def test_a_file_in_the_place_of_the_folder_for_captures_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    try:
        for name, code in (("file", 2), ("folder", 0)):
            text = f'[capture]\nout = "{tmp_path}/{name}"\n'
            config.load(Path(home(tmp_path, text)["XDG_CONFIG_HOME"], "llmtop/config.toml"))
            if code:
                with pytest.raises(UnusableInput, match=r"line 2: out = .* is a file: a folder"):
                    checked("--check")
            else:
                assert checked("--check") == 0
    finally:
        config.load(tmp_path / "none.toml")
    assert "is valid" in capsys.readouterr().out


def test_a_folder_that_may_not_be_entered_is_no_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "llmtop"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert checked("--check") == 0
    assert capsys.readouterr().out == f"{folder}/config.toml does not exist: every setting has its default\n"
    folder.mkdir(mode=0)
    own_uid = os.geteuid()
    if own_uid == 0:
        tmp_path.chmod(0o755)
        os.seteuid(65534)
    try:
        assert checked("--check") == 0
    finally:
        os.seteuid(own_uid)
        folder.chmod(0o700)
    assert "cannot be seen, because a folder above it may not be entered" in capsys.readouterr().out


def test_an_engine_that_does_not_exist_ends_commands_that_capture_nothing(tmp_path: Path) -> None:
    done = llmtop(home(tmp_path, '[capture]\nengine = "nsis"\n'), "captures")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith('line 2: engine = "nsis" is no engine: did you mean "nsys"?\n')


COMMANDS = (
    ["--once"],
    ["--json"],
    ["captures"],
    ["doctor"],
    ["demo", "--json"],
    ["run", "--", "true"],
    ["report", "x"],
    ["config"],
    ["config", "--check"],
    ["export", "--rules"],
    ["cluster", "--once"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_wrong_one_ends_every_command(command: list[str], tmp_path: Path) -> None:
    done = llmtop(home(tmp_path, "[alerts]\noff = 3\n"), *command)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line == (
        f"llmtop: {tmp_path}/config/llmtop/config.toml, line 2: off = 3: a list of alert ids "
        "(docs/configuration.md has them) is wanted"
    )


def alert_ids(env: dict[str, str]) -> dict[str, set[float]]:
    """What the demo's recording raises, and since when."""
    done = llmtop(env, "replay", str(DEMO), "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, set[float]] = {}
    for line in done.stdout.splitlines():
        for alert in json.loads(line)["alerts"]:
            found.setdefault(alert["id"], set()).add(alert["since"])
    return found


@pytest.mark.slow("two processes; test_another_threshold_holds_and_the_rule_says_so has other settings of alerts")
def test_alerts_that_are_off_are_not_told_and_the_others_are(tmp_path: Path) -> None:
    usual = alert_ids(home(tmp_path, ""))
    assert {"input_bound", "low_power_full_util"} <= set(usual)
    less = alert_ids(home(tmp_path, '[alerts]\noff = ["input_bound"]\n'))
    assert set(less) == set(usual) - {"input_bound"}


def test_another_threshold_holds_and_the_rule_says_so(tmp_path: Path) -> None:
    env = home(tmp_path, "[alerts.input_bound]\nstep_pct = 99\n[alerts.outside]\nstep_pct = 42\n")
    assert "input_bound" not in alert_ids(env)
    program = (
        "from llmtop import config; config.load()\n"
        "from llmtop.rules.engine import explain\nprint(explain('outside').condition)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=240, check=True
    )
    assert "42 %" in done.stdout


def test_flags_win(tmp_path: Path) -> None:
    env = home(tmp_path, 'interval = 30.0\n[capture]\nsteps = 9\nengine = "memory"\n')
    assert "[default: 30.0]" in " ".join(llmtop(env, "live", "--help").stdout.split())
    gone = llmtop(env, "capture", "--pid", "999999999", "--seconds", "2")
    assert "not both" not in gone.stderr, "a length of the configuration yields to one on the command line"
    assert gone.returncode in (2, 3)
    command = [sys.executable, "-m", "llmtop", "--json", "-i", "0.1"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as streaming:
        assert streaming.stdout is not None
        first, second = (json.loads(streaming.stdout.readline())["monotonic"] for _ in range(2))
        streaming.terminate()
    assert second - first < 30.0


def test_without_a_file_and_with_an_empty_one_nothing_changes(tmp_path: Path) -> None:
    assert config.load(tmp_path / "none.toml") == config.Config() == config.parse("", tmp_path)


def test_words_that_the_configuration_knows_are_those_of_the_program() -> None:
    hints = str(config.Theme) + str(config.Columns.__annotations__)
    assert [theme.name.removeprefix("llmtop-") for theme in THEMES] == list(get_args(get_args(config.Theme)[0])), (
        hints
    )
    for name, columns in (
        ("gpus", node_table.COLUMNS[1:]),
        ("processes", process_table.COLUMNS),
        ("captures", (*capture_list.COLUMNS, capture_list.PROGRAM)),
    ):
        titles = [column.title for column in columns]
        chosen = config.parse(f"[columns]\n{name} = {json.dumps(titles)}", Path("x")).columns
        assert getattr(chosen, name) == titles
    ids = list(get_args(AlertId))
    assert len(ids) > 10
    document = (REPOSITORY / "docs" / "configuration.md").read_text()
    shown = document.split("```toml")[1].split("```")[0]
    config.parse(shown, Path("x"))
    for known in (
        *ids,
        *config.Config.__struct_fields__,
        *config.Alerts.__struct_fields__,
        *config.Capture.__struct_fields__,
    ):
        assert re.search(rf"\b{known}\b", document), known


def test_columns_are_those_asked_for_in_their_order(tmp_path: Path) -> None:
    env = home(tmp_path, '[columns]\nprocesses = ["user", "pid", "command"]\n')
    with Terminal([sys.executable, "-m", "llmtop", "demo"], (120, 30), **env) as terminal:
        terminal.shows("REPLAY")
        wait_for(lambda: "GPU" in terminal.text(), what="a frame")
        terminal.keys("p")
        wait_for(lambda: re.search(r"user +pid +command", terminal.text()), what="the columns")
        terminal.keys("q")
        terminal.keys("q")
        assert terminal.ends() == 0


@pytest.mark.slow("four screens; test_a_theme_that_cannot_be_remembered_changes_nothing has the file")
def test_the_theme_is_remembered_and_yields_to_the_configuration(tmp_path: Path) -> None:
    env = home(tmp_path, "")
    remembered = tmp_path / "state" / "llmtop" / "theme"
    with Terminal([sys.executable, "-m", "llmtop", "demo"], (120, 30), **env) as terminal:
        terminal.shows("REPLAY")
        terminal.keys("t")
        wait_for(lambda: remembered.is_file() and remembered.read_text() == "llmtop-light\n", what="the theme")
        terminal.keys("q")
        assert terminal.ends() == 0
    assert ThemeMemory(remembered).read() == "llmtop-light"
    light = b"250;251;252"  # the background of the light theme
    for text, flags, expected in (
        ("", [], True),
        ('theme = "dark"\n', [], False),
        ("", ["--theme", "dark"], False),
    ):
        with Terminal(
            [sys.executable, "-m", "llmtop", "demo", *flags], (120, 30), **home(tmp_path, text)
        ) as again:
            again.shows("REPLAY")
            assert (light in again.raw) is expected
            again.keys("q")
            assert again.ends() == 0


def test_a_theme_that_cannot_be_remembered_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    memory = ThemeMemory(tmp_path / "file" / "theme")
    memory.write("llmtop-light")
    assert memory.read() == ""
