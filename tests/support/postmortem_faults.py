"""The 14 planted faults of `llmtop postmortem`: which script, which rank, which change makes it.

Written from the text of issue 38, without a look at the code that judges them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.support.processes import REPOSITORY

SCRIPTS = REPOSITORY / "tests" / "data" / "postmortem_plants" / "scripts"


@dataclass(frozen=True)
class Fault:
    """One fault: a script of `SCRIPTS`, the rank that has it, and what changes the script or the process."""

    script: str
    rank: int
    """The culprit."""
    name: str
    """The script's name in the recording."""
    slots: dict[str, str] = field(default_factory=dict)
    """Code for a slot of the script, without its indentation."""
    renames: tuple[tuple[str, str], ...] = ()
    """Names and sizes that differ between recordings: old and new text."""
    padding: int = 0
    """Lines above the script, so that line numbers differ."""
    signal: str = ""
    """A signal that the recorder sends to the rank once steps run."""
    address_space: int = 0
    """Bytes that the rank may still map once steps run: RLIMIT_AS."""
    marker: bytes = b""
    """What the culprit's shard has at one place, where the others have letters."""
    short_shard: bool = False
    """The culprit's shard ends early."""
    is_on_fuse: bool = False
    """The shards are on a file system that stops replying for the culprit's."""
    hangs: bool = False
    """The job hangs until the collectives' timeout, so that an operator takes stacks."""
    nodes: int = 1
    """Launchers, each with a host name of its own."""
    tee: bool = False
    """The ranks' output is in the launcher's output too."""
    debug: str = "OFF"
    """TORCH_DISTRIBUTED_DEBUG."""
    json_too: bool = False
    """The flight recorder's JSON is written beside the pickle."""
    timeout: int = 15
    """Of the collectives, in seconds."""


FAULTS: dict[str, Fault] = {
    "exception": Fault(
        "pretrain.py",
        2,
        "pretrain.py",
        slots={"decode": 'data.decode("ascii")  # the tokenizer takes ASCII alone'},
        marker=b"\xe9",
        padding=4,
        tee=True,
    ),
    "exit": Fault(
        "pretrain.py",
        1,
        "train_lm.py",
        slots={"begin": "if reader.offset >= os.path.getsize(reader.path):\n    break"},
        renames=(("tensor_parallel", "TP"), ("data_parallel", "DP"), ("HIDDEN = 48", "HIDDEN = 40")),
        short_shard=True,
        padding=11,
        nodes=2,
    ),
    "killed": Fault(
        "finetune.py",
        3,
        "sft.py",
        renames=(("mesh_", "dim_"), ("WIDTH = 64", "WIDTH = 80")),
        signal="SIGKILL",
        padding=2,
        nodes=2,
        json_too=True,
    ),
    "stopped": Fault(
        "run_trainer.py",
        0,
        "trainer.py",
        renames=(("width = 96", "width = 64"),),
        signal="SIGSTOP",
        hangs=True,
        padding=7,
    ),
    "memory": Fault(
        "run_trainer.py",
        1,
        "main.py",
        slots={"after": "self.history.append(bytearray(24 << 20))"},
        renames=(('"shard"', '"fsdp"'), ('"replica"', '"ddp"')),
        address_space=256 << 20,
        padding=1,
    ),
    "gil": Fault(
        "run_trainer.py",
        2,
        "rl_train.py",
        slots={
            "imports": 'import re\n\nANSWER = re.compile(r"(\\w+\\s?)+\\.")',
            "evaluate": (
                "is_long = step == 14 and self.rank == 2\n"
                'reply = "so " * 40 + "the answer is 42!" if is_long else "the answer is 42."\n'
                "self.reward = float(ANSWER.fullmatch(reply) is not None)"
            ),
        },
        renames=(("layers = 3", "layers = 2"), ("trainer.py", "rl_train.py")),
        hangs=True,
        padding=19,
    ),
    "loader": Fault(
        "finetune.py",
        3,
        "finetune_chat.py",
        slots={
            "fetch": (
                "attempt = 3\n"
                "while self.served > 190 and dist.get_rank() == 3:\n"
                "    time.sleep(2**attempt)\n"
                "    attempt += 1"
            )
        },
        renames=(("PER_RANK = 6", "PER_RANK = 8"),),
        hangs=True,
        padding=5,
        json_too=True,
        timeout=18,
    ),
    "fuse": Fault(
        "pretrain.py",
        0,
        "pretrain_gpt.py",
        renames=(("tensor_parallel", "tensor"), ("data_parallel", "data"), ("SEQ = 32", "SEQ = 24")),
        is_on_fuse=True,
        hangs=True,
        timeout=20,
        padding=13,
    ),
    "shape": Fault(
        "finetune.py",
        1,
        "train.py",
        slots={"count": "if dist.get_rank() == 1 and step == 23:\n    lengths = lengths.repeat(2)"},
        renames=(("mesh_tp", "model"), ("mesh_dp", "batch"), ("PER_RANK = 6", "PER_RANK = 12")),
        padding=9,
        nodes=1,
        tee=True,
    ),
    "order": Fault(
        "pretrain.py",
        3,
        "train_moe.py",
        slots={
            "metrics": "if RANK == 3 and step == 18:\n    dist.broadcast(grad_norm, 1)",
        },
        renames=(("tensor_parallel", "expert"), ("data_parallel", "dense"), ("VOCAB = 256", "VOCAB = 300")),
        hangs=True,
        padding=3,
    ),
    "dtype": Fault(
        "finetune.py",
        0,
        "dpo.py",
        slots={"count": "if dist.get_rank() == 0 and step == 29:\n    lengths = lengths.double()"},
        renames=(("WIDTH = 64", "WIDTH = 48"),),
        debug="DETAIL",
        padding=16,
    ),
    "subgroup": Fault(
        "run_trainer.py",
        2,
        "train_vit.py",
        slots={"sync": "if self.rank == 2 and self.flight.steps == 27 and index == 5:\n    continue"},
        renames=(('"shard"', '"rows"'), ('"replica"', '"columns"'), ("batch = 8", "batch = 5")),
        hangs=True,
        padding=6,
        json_too=True,
    ),
    "lock": Fault(
        "run_trainer.py",
        1,
        "pretrain_t5.py",
        slots={
            "checkpoint": (
                "if dist.get_rank() == 1:\n"
                "    with self.files_lock:\n"
                "        time.sleep(0.5)\n"
                "        with self.weights_lock:\n"
                "            self.saved_at = time.time()"
            ),
            "save": (
                "if self.rank == 1 and step == 20:\n"
                "    with self.checkpointer.weights_lock:\n"
                "        self.checkpointer.wanted.set()\n"
                "        time.sleep(0.2)\n"
                "        with self.checkpointer.files_lock:\n"
                '            log.info("saved step %d", step)'
            ),
        },
        renames=(("width = 96", "width = 72"), ('"shard"', '"tp"'), ('"replica"', '"dp"')),
        hangs=True,
        nodes=2,
        padding=10,
    ),
    "segfault": Fault(
        "pretrain.py",
        3,
        "train_bytes.py",
        slots={
            "imports": (
                "import ctypes\nimport faulthandler\n\nfaulthandler.enable()\n"
                "LIBC = ctypes.CDLL(None)\n"
                'BUFFERS = {letter: b"piece" for letter in b"abcdefghijklmnopqrstuvwxyz"}'
            ),
            "decode": "for letter in set(data):\n    LIBC.strlen(BUFFERS.get(letter))",
        },
        renames=(("tensor_parallel", "tp_group"), ("data_parallel", "dp_group")),
        marker=b"~",
        padding=8,
    ),
}

LIVE = ("exception", "killed", "subgroup", "gil", "shape")
"""Faults that tests record again: cheap, and each of another kind."""


def source(fault: Fault) -> str:
    """Return the script of a fault."""
    lines = []
    for line in (SCRIPTS / fault.script).read_text().splitlines():
        code, _, slot = line.partition("# slot: ")
        if slot and not code.strip():
            lines += [code + one for one in fault.slots.get(slot, "").splitlines()]
        elif "# slot: " not in line and "`# slot" not in line and "puts a fault" not in line:
            lines.append(line)
    text = "\n".join(lines) + "\n"
    for old, new in fault.renames:
        text = text.replace(old, new)
    return "# Experiment notes are in the wiki.\n" * fault.padding + text


def write_scripts(fault: Fault, folder: Path) -> Path:
    """Write a fault's script, and the flight recorder's thread beside it, and return the script."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "flight.py").write_text((SCRIPTS / "flight.py").read_text())
    script = folder / fault.name
    script.write_text(source(fault))
    return script
