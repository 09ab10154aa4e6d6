"""docs/ssh.md: the screen over ssh, with a real sshd of this machine's own on a port and keys of the test's."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.ports import free_port
from tests.support.processes import REPOSITORY, environment, wait_for
from tests.support.terminal import Terminal
from tests.support.trainings import Training

pytestmark = pytest.mark.sshd
STEPS = """
import llmtop, time
llmtop.attach()
while True:
    with llmtop.step():
        time.sleep(0.02)
"""
_FETCHED = REPOSITORY / ".cache" / "sshd"


class Host(NamedTuple):
    """Where to log in."""

    ssh: list[str]
    folder: Path


def program(name: str) -> str | None:
    """Fetched to .cache/sshd, else on PATH."""
    for folder in ("usr/sbin", "usr/bin"):
        if (_FETCHED / folder / name).exists():
            return str(_FETCHED / folder / name)
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _with_sshd_s_user(folder: Path) -> list[str]:
    """What a command is started by where this machine has no user for sshd's separated half: one in a copy of the
    list of users, which only that command sees."""
    with suppress(KeyError):
        pwd.getpwnam("sshd")
        return []
    users = folder / "passwd"
    users.write_text(Path("/etc/passwd").read_text() + "sshd:x:54322:65534::/run/sshd:/usr/sbin/nologin\n")
    users.chmod(0o644)
    if shutil.which("unshare") is None:
        pytest.skip("there is no user sshd here, and no unshare")
    mounted = f'mount --bind {users} /etc/passwd && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mounted, "sh"]


@pytest.fixture
def host() -> Iterator[Host]:
    daemon, client, keygen = program("sshd"), program("ssh"), program("ssh-keygen")
    if daemon is None or client is None or keygen is None:
        pytest.skip("no sshd: run tests/fetch_hosts.sh, or install openssh-server")
    if os.geteuid() != 0:
        pytest.skip("sshd is run as root, and this is not")
    folder = Path(tempfile.mkdtemp(prefix="lssh-", dir="/root"))
    folder.chmod(0o700)
    variables = environment()
    variables["LD_LIBRARY_PATH"] = ":".join(str(_FETCHED / lib / "x86_64-linux-gnu") for lib in ("usr/lib", "lib"))
    for key in ("host", "mine"):
        subprocess.run(
            [keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)],
            env=variables,
            check=True,
            timeout=240,
        )
    (folder / "authorized").write_text((folder / "mine.pub").read_text())
    port = free_port()
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\n"
        f"AuthorizedKeysFile {folder / 'authorized'}\n"
        f"PidFile {folder / 'pid'}\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nStrictModes no\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    command = [*_with_sshd_s_user(folder), daemon, "-D", "-e", "-f", str(folder / "config")]
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen(command, env=variables, stderr=log)
    options = ["-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={folder / 'known'}"]
    options += ["-i", str(folder / "mine")]
    ssh = [client, *options, "-p", str(port), f"{getpass.getuser()}@127.0.0.1"]
    try:
        wait_for(lambda: "listening" in (folder / "log").read_text() or started.poll() is not None)
        assert started.poll() is None, (folder / "log").read_text()
        yield Host(ssh, folder)
    finally:
        started.terminate()
        started.wait(100)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow("a host or a driver's process of its own")
def test_the_screen_over_ssh_shows_a_training_of_there(host: Host, runtime_dir: Path) -> None:
    with Training(STEPS) as training:
        remote = f"cd {REPOSITORY} && LLMTOP_DIR={runtime_dir} {sys.executable} -m llmtop"
        with Terminal([host.ssh[0], "-t", *host.ssh[1:], remote], (120, 30)) as terminal:
            terminal.shows("LIVE", 60)
            terminal.shows(str(training.pid), 30)
            terminal.resize(80, 24)
            terminal.shows("? help")
            terminal.keys("q")
            assert terminal.ends() == 0


@pytest.mark.slow("a host or a driver's process of its own")
def test_without_t_there_is_no_terminal_and_it_says_so(host: Host) -> None:
    remote = f"cd {REPOSITORY} && {sys.executable} -m llmtop"
    done = subprocess.run(
        [*host.ssh, remote], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=240, check=False
    )
    assert done.returncode == 2
    assert "is not a terminal" in done.stderr
