"""Windows by torch_xla's profiler server: real processes and sockets, with a stand-in for torch_xla's own client.

The real torch_xla is tried where LLMTOP_TORCH_XLA names a Python that has it (4 GB: nothing fetches it).
"""

from __future__ import annotations

import json
import lzma
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmtop.analysis.analyze import analyze
from llmtop.capture import targets
from llmtop.capture.base.job import Target
from llmtop.capture.engines import ENGINES
from llmtop.capture.torch_xla import client, ports
from llmtop.errors import NotPossibleHere
from llmtop.report.model import from_json
from tests.support import torch_xla_stand_in as stand_in
from tests.support.processes import REPOSITORY, environment, stop, wait_for
from tests.trace.files.test_xspace import XPROF, with_xprof
from tests.trace.xla.test_torch_xla_traces import DATA

REAL = os.environ.get("LLMTOP_TORCH_XLA", "")
ENGINE = ENGINES["xla.profiler"]
NO_ANSWER = "has no profiler server of torch_xla that answers"
"""What llmtop says after a second, which on a busy machine is too short for the stand-in."""


class Training:
    """The stand-in, listening."""

    def __init__(self, folder: Path, *kinds: str, loads: bool = True, **variables: str) -> None:
        self.home = stand_in.made(folder, loads)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.torch_xla_stand_in", str(self.home), *kinds],
            env=environment(**variables), cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.ports = [int(port) for port in self.process.stdout.readline().split()]
        self.pid = self.process.pid

    def does(self, what: str) -> Training:
        (self.home / "does").write_text(what)
        return self

    def capture(self, out: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "llmtop", "capture", "--pid", str(self.pid), "--engine", "xla.profiler"]
        return subprocess.Popen(
            [*command, *(options or ("--seconds", "0.2")), "--out", str(out)],
            env={**environment(), **variables}, cwd=REPOSITORY, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def captured(self, out: Path, *options: str, **variables: str) -> tuple[int, str]:
        """Exit code, and the last line on stderr; of another try where the port did not answer in time."""
        return wait_for(
            lambda: found if NO_ANSWER not in (found := self._try(out, *options, **variables))[1] else ()
        )

    def profiler_port(self) -> int:
        """The port that is found; looked for until it answers in time."""

        def look() -> int:
            try:
                return ports.profiler_port(self.pid)
            except NotPossibleHere as error:
                if NO_ANSWER not in str(error):
                    raise
                return 0

        return wait_for(look, what="an answer of the port")

    def _try(self, out: Path, *options: str, **variables: str) -> tuple[int, str]:
        taking = self.capture(out, *options, **variables)
        said = taking.communicate(timeout=240)[1]
        assert "Traceback" not in said
        return taking.returncode, said.strip().splitlines()[-1]


@pytest.fixture
def training(tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv(ports.VARIABLE, raising=False)
    started: list[Training] = []

    def start(*kinds: str, **more: Any) -> Training:
        started.append(Training(tmp_path / f"training{len(started)}", *kinds, **more))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate(timeout=240)


def test_a_window_comes_from_the_one_port_that_speaks_first_and_hears_nothing(
    training: Any, tmp_path: Path
) -> None:
    one = training("silent", "grpc", "mail")
    assert ENGINE.refusal(Target(one.pid)) is None
    assert one.profiler_port() == one.ports[1]
    assert Target(one.pid) in targets.list_unattached()
    data = tmp_path / "some.pb"
    data.write_bytes(b"\1" * 300)
    code, _ = one.does(f"write {data}").captured(tmp_path / "captures")
    assert code == 0
    (folder,) = (tmp_path / "captures").iterdir()
    assert (folder / "traces" / f"pid{one.pid}.xplane.pb").read_bytes() == data.read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == ["capture.json", "environment.json", "traces"]
    assert (one.home / "asked").read_text() == f"localhost:{one.ports[1]} 200 CPU"
    told = json.loads((folder / "capture.json").read_bytes())
    assert (told["engine"], told["state"], told["window_seconds"]) == ("xla.profiler", "done", 0.2)
    assert any("no report could be made" in note for note in told["notes"])
    output = one.process.communicate("", timeout=240)[0]
    assert output == "", "not a byte was sent to any of its ports"


@pytest.mark.slow("a capture by another engine; one whole capture of each is in make test")
@with_xprof
def test_all_steps_of_its_window_are_judged_whatever_number_was_asked_for(
    training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(XPROF))
    monkeypatch.setenv("PYTHONPATH", str(XPROF))
    data = tmp_path / "some.pb"
    data.write_bytes(lzma.decompress((DATA / "cpu_steptrace.xplane.pb.xz").read_bytes()))
    one = training("grpc").does(f"write {data}")
    with_library = {"PYTHONPATH": f"{REPOSITORY}:{XPROF}"}
    code, said = one.captured(tmp_path / "c", "--steps", "2", **with_library)
    assert code == 0, said
    (folder,) = (tmp_path / "c").iterdir()
    report = from_json((folder / "report.json").read_bytes())
    assert (report.engine, report.verdict) == ("xla.profiler", analyze(folder / "traces").verdict)
    assert report.steps.count == analyze(data.rename(tmp_path / "some.xplane.pb")).steps.count > 2
    notes = json.loads((folder / "capture.json").read_bytes())["notes"]
    assert any("by the clock" in note for note in notes)


@pytest.mark.slow("one failure stands for all; each starts a client", kept=("die-ended by itself (exit code -6)",))
@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("fail", "recorded nothing (No trace event was collected because there were no responses)"),
        ("die", "ended by itself (exit code -6)"),
        ("nothing", "left no .xplane.pb"),
        ("hang", "has not answered for"),
    ],
)
def test_a_client_that_fails_is_one_sentence_and_nothing_is_kept(
    does: str, says: str, training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = training("grpc").does(does)
    if does == "hang":
        from click.testing import CliRunner

        from llmtop.cli.capture.command import capture

        monkeypatch.setattr(client, "WRITE_SECONDS", 0.5)
        asked = [
            "--pid",
            str(one.pid),
            "--engine",
            "xla.profiler",
            "--seconds",
            "0.2",
            "--out",
            str(tmp_path / "c"),
        ]

        def refused() -> str:
            found = CliRunner().invoke(capture, asked, standalone_mode=False).exception
            assert isinstance(found, NotPossibleHere)
            return "" if NO_ANSWER in str(found) else str(found)

        said = wait_for(refused)
    else:
        code, said = one.captured(tmp_path / "c")
        assert code == 3
    assert says in said
    assert list((tmp_path / "c").iterdir()) == []
    assert one.process.poll() is None


def test_a_python_that_does_not_load_torch_xla_is_told(training: Any, tmp_path: Path) -> None:
    code, said = training("grpc", loads=False).does("nothing").captured(tmp_path / "c")
    assert code == 3
    assert (
        "does not load torch_xla here (ModuleNotFoundError: No module named 'a_library_that_is_not_here')" in said
    )


def test_a_cancel_ends_the_client_and_keeps_nothing(training: Any, tmp_path: Path) -> None:
    one = training("grpc").does("hang")

    def recording() -> subprocess.Popen[str] | None:
        taking = one.capture(tmp_path / "c")
        wait_for(lambda: (one.home / "asked").exists() or taking.poll() is not None, 60, "the client to record")
        if taking.poll() is None:
            return taking
        said = taking.communicate(timeout=240)[1]
        assert NO_ANSWER in said, said
        return None

    taking = wait_for(recording)
    assert taking is not None
    children = (Path(f"/proc/{taking.pid}/task/{taking.pid}/children").read_text()).split()
    taking.send_signal(signal.SIGINT)
    taking.communicate(timeout=240)
    assert taking.returncode == 130
    assert list((tmp_path / "c").iterdir()) == []
    assert all(not Path(f"/proc/{child}").exists() for child in children)


@pytest.mark.slow("a capture by another engine; one whole capture of each is in make test")
def test_which_of_several_servers_it_is_must_be_said(training: Any, tmp_path: Path) -> None:
    one = training("grpc", "grpc").does("nothing")
    several = f"has several gRPC servers (ports {', '.join(map(str, sorted(one.ports)))}): set LLMTOP_XLA_PORT"
    # Where one of the two does not answer in time, the other is captured.
    code, said = wait_for(lambda: found if several in (found := one.captured(tmp_path / "c"))[1] else ())
    assert code == 3
    _, said = one.captured(tmp_path / "c", LLMTOP_XLA_PORT=str(one.ports[1]))
    assert "left no .xplane.pb" in said
    assert f"localhost:{one.ports[1]} " in (one.home / "asked").read_text()
    code, said = one.captured(tmp_path / "c", LLMTOP_XLA_PORT="1")
    assert code == 3
    assert "LLMTOP_XLA_PORT is 1, but the process does not listen there" in said


def test_what_the_training_s_environment_says_wins(training: Any) -> None:
    one = training("grpc", "silent", MASTER_PORT="1")
    assert ports.candidate_ports(one.pid) == sorted(one.ports)
    other = training("grpc", LLMTOP_XLA_PORT="7")
    refused = ENGINE.refusal(Target(other.pid))
    assert refused is not None
    assert "LLMTOP_XLA_PORT is 7" in refused.reason


def test_the_rendezvous_of_a_job_is_left_alone(training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = training("grpc", "grpc")
    monkeypatch.setattr(ports.procfs, "environ", lambda pid: {"MASTER_PORT": str(one.ports[0])})
    assert ports.candidate_ports(one.pid) == [one.ports[1]]


def test_without_a_server_or_torch_xla_it_is_said_what_would_change_that(training: Any) -> None:
    refused = ENGINE.refusal(Target(training().pid))
    assert refused is not None
    assert refused.reason == "the script has not started the profiler server of torch_xla"
    assert "start_server(9012)" in refused.command
    none = ENGINE.refusal(Target(os.getpid()))
    assert none is not None
    assert none.reason == "the process has not imported torch_xla"


def test_torch_s_own_profiler_is_said_to_see_the_host_alone(training: Any) -> None:
    engine = ENGINES["torch.profiler"]
    assert "records the host alone" in engine.warning(Target(training().pid))
    assert engine.warning(Target(os.getpid())) == ""


@pytest.mark.slow("a capture by another engine; one whole capture of each is in make test")
def test_a_training_that_is_stopped_is_said_to_be(training: Any, tmp_path: Path) -> None:
    one = training("grpc").does("nothing")
    stop(one.pid)
    code, said = one.captured(tmp_path / "c")
    assert code == 3
    assert "is stopped, so its profiler does not reply" in said


_SCRIPT = """
import os, sys, time
os.environ["PJRT_DEVICE"] = "CPU"
import torch, torch_xla
import torch_xla.debug.profiler as xp
server = xp.start_server(0 or int(sys.argv[1]))
device = torch_xla.device()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.ones(16, 64, device=device)
for step in range(10 ** 9):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    if step == 20:
        print("steps", flush=True)
"""


@pytest.mark.slow("a real torch_xla, which is given by hand; the stand-in's tests have the same ways")
@pytest.mark.skipif(not REAL, reason="no torch_xla: LLMTOP_TORCH_XLA names no Python that has it")
@pytest.mark.skipif(not XPROF.is_dir(), reason="no xprof: tests/fetch_jax.sh brings it to .cache/xprof")
def test_a_real_training_is_captured_and_its_steps_are_torch_xla_s_own(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.py").write_text(_SCRIPT)
    command = [REAL, str(tmp_path / "script.py"), str(20_000 + os.getpid() % 10_000)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "steps\n"
            out = tmp_path / "c"
            done = subprocess.run(
                [sys.executable, "-m", "llmtop", "capture", "--pid", str(process.pid), "--steps", "3",
                 "--out", str(out)],
                env={**environment(), "PYTHONPATH": f"{REPOSITORY}:{XPROF}"},
                cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            (folder,) = out.iterdir()
            report = from_json((folder / "report.json").read_bytes())
            assert (report.engine, report.makeup and report.makeup.framework) == ("xla.profiler", "torch_xla")
            assert "torch_xla.sync" in report.steps.found_by
            assert report.steps.count > 5
            assert 0 < (report.devices[0].busy_pct or 0) <= 100
            assert process.poll() is None
        finally:
            process.kill()
