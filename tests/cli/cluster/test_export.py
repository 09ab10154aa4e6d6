"""llmtop export as a program: where it listens, what it says, how it ends."""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from collectors.run_notes.node_writer import LOCK
from llmtop.cli.live.stream import ENDING
from tests.support import nvml_stub, preloaded
from tests.support.other_user import OtherUser, healthy
from tests.support.processes import environment, wait_for
from tests.support.prometheus import Exporter, Sample, fetch, of, samples
from tests.support.trainings import STEPPING, Training

SECRET = STEPPING + "# hunter2\n"


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return nvml_stub.Scenario.eight_gpus().write(tmp_path / "scenario")


def refused(*arguments: str, **extra: str) -> tuple[int, str]:
    """The exit code and the sentence of one that does not start."""
    if extra:  # what Python reads when it starts
        command = [sys.executable, "-m", "llmtop", "export", *arguments]
        env = environment(**extra)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    else:
        done = preloaded.llmtop("export", *arguments)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.usefixtures("runtime_dir")
def test_gpus_and_a_training_are_told_and_no_command_line(scenario: Path) -> None:
    with (
        Exporter("-i", "0.2", scenario=scenario) as exporter,
        Training(SECRET, RANK="0", WORLD_SIZE="2") as training,
    ):
        page = exporter.when("llmtop_tokens_total", pid=str(training.pid))
        assert len(of(page, "DCGM_FI_DEV_POWER_USAGE")) == 8
        before = of(page, "llmtop_steps_total", pid=str(training.pid))[0][2]
        wait_for(lambda: of(exporter.page(), "llmtop_steps_total")[0][2] > before)
        assert of(page, "llmtop_rank_info", pid=str(training.pid), rank="0", uid=str(os.getuid()))
        assert "hunter2" not in fetch(exporter.url)
        training.kill()
        wait_for(lambda: not of(exporter.page(), "llmtop_steps_total"), what="the training that ended to go")
        assert exporter.end() == 0
        assert exporter.process.stdout is not None
        assert exporter.process.stdout.read() == ""


@pytest.mark.usefixtures("runtime_dir")
def test_what_a_dcgm_exporter_on_the_node_tells_is_left_to_it(scenario: Path) -> None:
    """By its own text; of a GPU that it does not know, and of what its list lacks, ours is the only word."""
    text = "".join(
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="{n}",UUID="{nvml_stub.gpu_uuid(n)}",pci_bus_id="00000000:1B:00.0",'
        f'device="nvidia{n}",modelName="NVIDIA H200",Hostname="node7"}} 97\n'
        for n in range(7)
    )

    class Dcgm(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dcgm) as dcgm:
        threading.Thread(target=dcgm.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        url = f"http://127.0.0.1:{dcgm.server_port}/metrics"
        with Exporter("-i", "0.2", "--dcgm-exporter", url, scenario=scenario) as exporter:
            exporter.when("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", least=8)

            def exported() -> list[str]:
                return [one[1]["gpu"] for one in of(exporter.page(), "DCGM_FI_DEV_GPU_UTIL")]

            # On a busy machine the server may reply later than within the exporter's limit, and is asked again.
            wait_for(lambda: exported() == ["7"], 150, "the one GPU that the node's dcgm-exporter does not know")
        dcgm.shutdown()


BESIDE_A_LISTENER = """
import subprocess, sys
from tests.support import nvml_stub
from tests.support.other_user import listening_as
uid, *command = sys.argv[1:]
body = "".join(f'DCGM_FI_DEV_GPU_UTIL{{gpu="{n}",UUID="{nvml_stub.gpu_uuid(n)}"}} 97\\n' for n in range(8))
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with listening_as(int(uid), "127.0.0.1", 9400, body.encode()):
    subprocess.run(command)
"""


@pytest.mark.slow("one listener stands for all; each starts two programs in a namespace", kept=("other",))
@pytest.mark.namespaces
@pytest.mark.usefixtures("runtime_dir")
@pytest.mark.parametrize(
    ("uid", "named", "ours"), [(4141, False, 8), (4141, True, 0), (0, False, 0)], ids=["other", "named", "root"]
)
def test_another_user_on_the_port_of_dcgm_exporter_takes_no_series_away(
    scenario: Path, tmp_path: Path, uid: int, named: bool, ours: int
) -> None:
    """In a network namespace, where port 9400 is free."""
    unshare = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if (
        os.geteuid() != 0
        or shutil.which("ip") is None
        or subprocess.run([*unshare, "true"], check=False, timeout=240).returncode
    ):
        pytest.skip("only root can listen as two users, in a network namespace, with ip")
    command = [*unshare, sys.executable, "-c", BESIDE_A_LISTENER, str(uid), sys.executable, "-m", "llmtop"]
    arguments = ["--textfile", str(tmp_path), "-i", "0.2"]
    arguments += ["--dcgm-exporter", "http://127.0.0.1:9400/metrics"] if named else []
    file = tmp_path / "llmtop.prom"
    with Exporter(*arguments, scenario=scenario, command=command, usual_dcgm=True, listens=False) as exporter:

        def told() -> list[Sample] | None:
            page = samples(file.read_text()) if file.exists() else []
            ignored = [sample[1]["uid"] for sample in of(page, "llmtop_dcgm_exporter_ignored")]
            is_ready = len(of(page, "DCGM_FI_DEV_POWER_USAGE")) == 8 and ignored == (["4141"] if ours else [])
            return page if is_ready else None

        page = wait_for(told, 60)
        assert page is not None
        assert len(of(page, "DCGM_FI_DEV_GPU_UTIL")) == ours
        wait_for(lambda: exporter.said.count("\n") == 1 + bool(ours), what="the lines on standard error")
        assert exporter.said.count("is ignored: user 4141 listens there") == bool(ours)


@pytest.mark.slow("two exporters after 600 steps; test_gpus_and_a_training_are_told_and_no_command_line has one")
@pytest.mark.usefixtures("runtime_dir")
def test_a_restarted_exporter_counts_no_history_again(tmp_path: Path) -> None:
    script = """
import os, time
import llmtop
while not os.path.exists(os.environ["END"]):
    with llmtop.step():
        time.sleep(0.002)
time.sleep(1000)
"""
    end = tmp_path / "end"
    with Training(script, RANK="0", WORLD_SIZE="1", END=str(end)) as training:
        with Exporter("-i", "0.2") as first:
            first.when("llmtop_steps_total")
            wait_for(lambda: of(first.page(), "llmtop_steps_total")[0][2] > 600, 60)
            end.touch()
            first.end()
        with Exporter("-i", "0.2") as again:
            counted = of(again.when("llmtop_steps_total"), "llmtop_steps_total")[0][2]
        assert counted == 0, "the training has made no step since, but tells its last 512"
        assert training.poll() is None


@pytest.mark.slow("how seldom a training writes; test_gpus_and_a_training_are_told_and_no_command_line has what")
@pytest.mark.usefixtures("runtime_dir")
def test_a_training_may_keep_its_steps_for_longer_than_for_a_screen(runtime_dir: Path) -> None:
    """Each message costs the training some 0.3 ms, and a page is made every few seconds."""
    script = """
import time
import llmtop
from llmtop.instrument.serve import server
monitors = []
class Monitor(server.Monitor):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        monitors.append(self)
server.Monitor = Monitor
llmtop.attach()
while True:
    with llmtop.step():
        time.sleep(0.05)
    here = [one for one in monitors if one.subscribed and not one.is_closed]
    print(min((one.hold_s for one in here), default=0.0), flush=True)
"""
    with Training(script, LLMTOP_DIR=str(runtime_dir)) as training:
        assert training.stdout is not None
        holds = map(float, training.stdout)
        assert next(holds) < 0.1
        with Exporter(LLMTOP_DIR=str(runtime_dir)):
            assert next(hold for hold in holds if hold >= 0.1) == 0.5
            with subprocess.Popen(
                [sys.executable, "-m", "llmtop", "--json"],
                env=environment(LLMTOP_DIR=str(runtime_dir)),
                stdout=subprocess.DEVNULL,
            ) as screen:
                hold = next(hold for hold in holds if hold < 0.5)
                screen.kill()
            assert hold == 0.4


def test_without_bind_it_is_there_for_this_machine_alone() -> None:
    with Exporter() as exporter:
        host, port = exporter.target.split(":")
        assert host == "127.0.0.1"
        listening = [
            line.split()[1]
            for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
            if line.split()[3] == "0A"
        ]
        mine = [where for where in listening if where.endswith(f":{int(port):04X}")]
        assert mine == [f"0100007F:{int(port):04X}"]
        with pytest.raises(OSError):  # noqa: PT011  refused
            socket.create_connection(("127.0.0.2", int(port)), timeout=5)
        exporter.when("llmtop_node_info")
        assert "whoever" not in exporter.said


@pytest.mark.usefixtures("runtime_dir")
def test_with_bind_it_says_who_can_read_it() -> None:
    with Exporter("--bind", "0.0.0.0") as exporter:
        assert exporter.url.startswith("http://0.0.0.0:")
        wait_for(lambda: "whoever reaches port" in exporter.said)
        exporter.when("llmtop_node_info")


@pytest.mark.usefixtures("runtime_dir")
def test_two_on_one_port_are_a_sentence_and_the_first_goes_on() -> None:
    with Exporter() as exporter:
        port = exporter.target.split(":")[1]
        code, said = refused("--port", port)
        assert code == 3
        assert "another llmtop export" in said
        assert exporter.when("llmtop_node_info")


@pytest.mark.usefixtures("runtime_dir")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--port", "70000"), 2, "70000"),
        (("--bind", "no.such.host.invalid"), 2, "no such address"),
        (("--keyfile", "x"), 2, "--certfile"),
        (("--certfile", "/nonexistent"), 2, "no certificate"),
        (("--textfile", "/nonexistent"), 3, "cannot be written"),
        (("--textfile", "/tmp", "--file-sd", "/tmp/x.json"), 2, "--port"),
        (("--port", "0", "--file-sd", "/tmp"), 2, ".json"),
        (("--dcgm-exporter", "nowhere"), 2, "not the URL"),
        (("--interval", "nan"), 2, "outside the allowed range"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: tuple[str, ...], code: int, words: str) -> None:
    got, said = refused(*arguments)
    assert got == code, said
    assert words in said


@pytest.mark.usefixtures("runtime_dir")
def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['prometheus_client'] = None\n")
    path = f"{tmp_path}{os.pathsep}{environment()['PYTHONPATH']}"
    code, said = refused("--port", "0", PYTHONPATH=path)
    assert code == 3
    assert "pip install '.[cluster]'; elsewhere: pip install prometheus-client httpx" in said


def test_the_rules_are_printed_without_anything_else() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llmtop", "export", "--rules"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stdout.startswith("#")
    assert "record: rank:llmtop_late_seconds:mean1m" in done.stdout


@pytest.mark.usefixtures("runtime_dir")
def test_a_textfile_needs_no_port(tmp_path: Path) -> None:
    folder = tmp_path / "textfile"
    folder.mkdir()
    with Exporter("--textfile", str(folder), "-i", "0.2", listens=False) as exporter:
        file = folder / "llmtop.prom"
        wait_for(lambda: file.exists() and of(samples(file.read_text()), "llmtop_node_info"), 60)
        assert "http" not in exporter.said
        assert exporter.end() == 0
        assert not file.exists()


@pytest.mark.slow(
    "two signals stand for all; each starts an exporter",
    kept=(
        "2",
        "15",
    ),
)
@pytest.mark.usefixtures("runtime_dir")
@pytest.mark.parametrize("number", ENDING)
def test_it_ends_with_0_and_takes_its_entry_along(tmp_path: Path, number: int) -> None:
    entry = tmp_path / "node.json"
    with Exporter("--file-sd", str(entry)) as exporter:
        assert exporter.target in wait_for(lambda: entry.exists() and entry.read_text(), 60)
        exporter.when("llmtop_node_info")
        assert exporter.end(number) == 0
        assert not entry.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may")
def test_all_users_is_for_root() -> None:
    code, said = refused("--all-users")
    assert code == 3
    assert "sudo llmtop export" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_tells_all_users_and_none_of_their_command_lines(runtime_dir: Path) -> None:
    uid = 61777
    try:
        with OtherUser(Path("/tmp"), uid, healthy()) as other, Exporter("--all-users", "-i", "0.2") as exporter:
            page = exporter.when("llmtop_rank_info", uid=str(uid), seconds=60)
            assert of(page, "llmtop_rank_info", pid=str(other.pid), rank="0")
            assert "hunter2" not in fetch(exporter.url)
            # A training of root's own beside the tests has its run written; the lock is no socket.
            sockets = [path.name for path in runtime_dir.iterdir() if path.name != LOCK]
            assert not sockets, "no $LLMTOP_DIR says where to look"
    finally:
        shutil.rmtree(f"/tmp/llmtop-{uid}", ignore_errors=True)


@pytest.mark.slow("150 connections; test_many_connections_that_say_nothing_keep_nobody_out has the server alone")
@pytest.mark.usefixtures("runtime_dir")
def test_garbage_and_many_connections_leave_the_training_its_steps() -> None:
    with Training(STEPPING, RANK="0", WORLD_SIZE="1") as training, Exporter("-i", "0.2") as exporter:
        exporter.when("llmtop_steps_total")
        host, port = exporter.target.split(":")
        held = []
        for number in range(150):
            one = socket.create_connection((host, int(port)), timeout=240)
            held.append(one)
            with contextlib.suppress(OSError):  # the oldest are dropped
                one.sendall((b"\xff" * 2000, b"GET / HTTP/1.1\r\n", b"")[number % 3])
        before = of(exporter.page(), "llmtop_steps_total")[0][2]
        wait_for(lambda: of(exporter.page(), "llmtop_steps_total")[0][2] > before + 50)
        assert of(exporter.page(), "llmtop_steps_lost_total")[0][2] == 0
        for one in held:
            one.close()
        assert training.poll() is None


@pytest.mark.slow("3000 steps beside a stopped exporter; tests/instrument has a stopped monitor")
@pytest.mark.usefixtures("runtime_dir")
def test_a_stopped_exporter_holds_no_training_up() -> None:
    script = (
        STEPPING.replace("while True:", "print('go', flush=True)\nfor i in range(3000):")
        + "print('done', flush=True)\n"
    )
    with Training(script, RANK="0", WORLD_SIZE="1") as training, Exporter("-i", "0.2") as exporter:
        exporter.when("llmtop_node_info")
        exporter.process.send_signal(signal.SIGSTOP)
        training.hear("go")
        training.hear("done")
        exporter.process.send_signal(signal.SIGCONT)
        time.sleep(0.1)
        assert exporter.when("llmtop_node_info")
