"""Every command block of README and docs is executed, or carries the reason why not."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.doc_blocks import Block, Reader, blocks_of, command_blocks, pages
from tests.support.installed import needs
from tests.support.ports import free_port
from tests.support.processes import REPOSITORY, environment

MOST_NOT_RUN = 0.2
"""Share of command blocks that may need a GPU, root or a cluster."""
BLOCKS = command_blocks()
PAGES = sorted({block.page for block in BLOCKS if not block.reason and not block.elsewhere})
TUTORIAL = "docs/tutorial.md"


@pytest.mark.shape
def test_few_blocks_are_not_executed() -> None:
    left = [block for block in BLOCKS if block.reason]
    assert len(BLOCKS) >= 35
    assert len(left) <= MOST_NOT_RUN * len(BLOCKS), [f"{one.page}:{one.line}" for one in left]


@pytest.mark.shape
def test_a_comment_before_a_block_is_one_of_the_two_forms() -> None:
    for block in BLOCKS:
        if block.before.startswith("<!--"):
            assert block.reason or block.elsewhere, f"{block.page}:{block.line}: {block.before}"
        if block.elsewhere:
            source = (REPOSITORY / block.elsewhere).read_text()
            program = next(word for word in ("srun", "ssh", "cluster", "tail") if word in block.text)
            assert program in source, f"{block.elsewhere} runs no {program}"


@pytest.mark.shape
def test_every_block_has_commands_and_none_is_indented() -> None:
    assert not [f"{block.page}:{block.line}" for block in BLOCKS if not block.commands]
    for page in pages():
        assert not re.search(r"\n\n    llmtop ", (REPOSITORY / page).read_text()), page


@contextmanager
def training(reader: Reader, seconds: int = 300) -> Iterator[None]:
    """A training that runs beside the commands of a page."""
    with subprocess.Popen(
        [sys.executable, "train.py", str(seconds)], cwd=reader.folder, env=environment(**reader.variables)
    ) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with tempfile.TemporaryDirectory(prefix="llmtop-docs-") as sockets:  # a socket's path is short
        os.chmod(sockets, 0o700)
        yield Reader(tmp_path, variables={"LLMTOP_DIR": sockets, "CUDA_VISIBLE_DEVICES": ""})


def run_blocks(page: str, reader: Reader) -> None:
    """Run the blocks of a page in order."""
    for block in BLOCKS:
        if block.page == page and not block.reason and not block.elsewhere:
            for line in block.commands:
                reader.run(line)


BESIDE_A_TRAINING = ("docs/attach.md", "docs/captures.md", "docs/faq.md", "docs/screen.md")
"""Pages whose commands look at a training that runs."""
SHORTER = (re.compile(r"llmtop bench (?!.*--runs)"), "llmtop bench --runs 2 --warmup 2 --steps 30 ")
PIP = f"{sys.executable} -m pip"


def placeholders(page: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """What stands for values of the reader's on a page."""
    install = (re.compile(r"^pip install \.$"), f"{PIP} install -q --no-deps -t at {REPOSITORY}")
    known: dict[str, tuple[tuple[str, str], ...]] = {
        "docs/agents.md": ((r"^pip install '\.\[mcp\]'$", f"{PIP} show -q mcp"),),
        "docs/bench.md": ((r"bench/baseline\.json", "base.json"), (r"(?<!_)train\.py", "train.py 60")),
        # py-spy may get no core in the 20 ms of five steps.
        "docs/captures.md": ((r"--steps 5\b", "--steps 500"),),
        "docs/cluster.md": (
            (r"^llmtop export$", f"llmtop export --port {free_port()}"),
            (r"--bind (0\.0\.0\.0|10\.0\.0\.7)", f"--bind 127.0.0.1 --port {free_port()}"),
            (r"/var/lib/node_exporter|/shared/targets|/etc/prometheus", "."),
        ),
        "docs/configuration.md": (
            (r'^eval "\$\((llmtop completion zsh)\)"$', r"\1 > /dev/null"),
            (r"~/.config/fish/completions/", ""),
        ),
        "docs/install.md": (
            (r"^pip wheel (.*) \.$", rf"{PIP} wheel -q \1 {REPOSITORY}"),
            (r"^pip install (dist.*)$", rf"{PIP} install -q --no-deps -t wheel \1"),
        ),
        "docs/postmortem.md": ((r"\| jq .*$", "| python -m json.tool"), (r"train\.py-…", "train.py-*")),
        "docs/runs.md": ((r"95ba2a88", "$(llmtop runs --json | tail -1 | cut -d'\"' -f4)"),),
        "docs/symptoms.md": ((r"^python ", f"{sys.executable} "),),
    }
    return (install, SHORTER, *((re.compile(pattern), text) for pattern, text in known.get(page, ())))


@pytest.mark.slow("test_commands_and_options_that_a_page_names_are_there finds options that do not exist")
@pytest.mark.parametrize("page", [page for page in PAGES if page != TUTORIAL])
def test_the_commands_of_a_page_run(page: str, reader: Reader) -> None:
    reader.replaced = placeholders(page)
    reader.variables["LLMTOP_RUN_LOG"] = "1"  # off in other tests
    if page == "docs/agents.md":
        needs("mcp")
    if page == "docs/symptoms.md":
        needs("torch")
    for name in ("logs", "dumps", "JOB_FOLDER"):
        (reader.folder / name).mkdir()
        (reader.folder / name / "rank_0.log").write_text("[rank0]: RuntimeError: CUDA error: unknown error\n")
    if page == "docs/runs.md":
        for _ in range(3):  # one is deleted, two are compared
            reader.run(f"{sys.executable} train.py 2")
    if page in BESIDE_A_TRAINING:
        with training(reader):
            reader.wait_for_training()
            run_blocks(page, reader)
    else:
        run_blocks(page, reader)


@pytest.mark.torch
@pytest.mark.slow("tests/test_examples.py runs an example; CI alone runs the whole tutorial")
@pytest.mark.timeout(1800)
def test_the_tutorial_runs_in_its_order(reader: Reader) -> None:
    """The training of its first block goes on beside the next ones, as in a second pane."""
    reader.replaced = ((re.compile(r"llmtop-captures/NAME"), "$(ls -d llmtop-captures/*py-spy)"), SHORTER)
    (reader.folder / "examples").symlink_to(REPOSITORY / "examples")
    beside: subprocess.Popen[bytes] | None = None
    try:
        for block in (block for block in BLOCKS if block.page == TUTORIAL):
            for line in block.commands:
                if line.startswith("llmtop run ") and beside is None:
                    env = environment(**reader.variables)
                    beside = subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=reader.folder, env=env)
                    reader.wait_for_training()
                    continue
                if line.startswith("llmtop bench") and beside is not None:
                    beside.kill()
                output = reader.run(line, 300)
                if line.startswith("llmtop capture --engine py-spy"):
                    assert "Images.__getitem__" in output
    finally:
        if beside is not None:
            beside.kill()
            beside.wait(100)


@pytest.mark.torch
def test_the_script_of_the_page_on_attaching_runs_as_it_is(tmp_path: Path) -> None:
    (script,) = (
        block.text
        for block in blocks_of("docs/attach.md")
        if block.language == "python" and "import torch\n" in block.text
    )
    path = tmp_path / "script.py"
    path.write_text(script)
    # With a second thread each operator waits until that one gets a core, beside other tests for minutes in all.
    env = environment(LLMTOP_DIR=str(tmp_path), CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    done = subprocess.run(
        [sys.executable, str(path)], env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_python_of_the_pages_compiles_and_names_what_llmtop_has() -> None:
    found = [block for page in pages() for block in blocks_of(page) if block.language == "python"]
    assert len(found) >= 4
    for block in found:
        compile(block.text, f"{block.page}:{block.line}", "exec")
        for module, names in re.findall(r"^from (llmtop[\w.]*) import (\w+)", block.text, re.MULTILINE):
            source = Path(REPOSITORY, *module.split(".")).with_suffix(".py")
            assert re.search(rf"^class {names}\b", source.read_text(), re.MULTILINE), f"{module} has no {names}"
        for name in re.findall(r"\bllmtop\.(\w+)\(", block.text):
            assert hasattr(importlib.import_module("llmtop"), name), f"llmtop has no {name}: {block_name(block)}"


def block_name(block: Block) -> str:
    """Page and line."""
    return f"{block.page}:{block.line}"
