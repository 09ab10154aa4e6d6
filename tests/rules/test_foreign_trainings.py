"""What stands on the screen of trainings, most of others, as they were recorded on H100s.

The verdicts were judged by hand from a capture of the same run: docs/measurements.md has the figures.
"""

from __future__ import annotations

import lzma
from collections import Counter

import pytest

from llmtop.model import bottlenecks
from llmtop.model.snapshot import Snapshot, from_json
from llmtop.rules.engine import Rules
from tests.support import import_data

FOLDER = import_data.DATA / "foreign"
JUDGED_SECONDS = 8.0
RIGHT: dict[str, str | None] = {
    "accelerate_cv": "input_bound",  # one step of four waits for all four workers, and none of those had events
    "dcgan": "input_bound",  # 38 % of all time begins epochs of 16 steps
    "ddp_tutorial": "launch_bound",  # 13 % waits for data, and the GPU is idle for 80
    "ddp_tutorial_again": "launch_bound",  # its steps of 1.3 ms vary: the last forty say nothing of a second
    "fsdp2_example": "launch_bound",  # equal ranks, now the one and now the other ahead
    "fsdp2_example_again": "launch_bound",  # the GPU of the rank that seems behind waits for the other
    "fsdp2_example_polls": "launch_bound",  # and kernels that wait for the other rank read the host's memory
    "hf_gpt2": "sync_bound",
    "imagenet_resnet50": "launch_bound",  # beside loss.item(), during which the GPU works
    "lightning_autoencoder": "input_bound",  # decodes pictures in the training's own thread
    "mingpt_adder": "launch_bound",
    "nanogpt_char": "launch_bound",
    "nanogpt_ddp": "straggler",  # rank 0 logs, and waits for the loss that it logs
    "nanogpt_sample": "launch_bound",
    "open_clip": "launch_bound",
    "resnet50": "launch_bound",  # of this repository; beside copies from pageable memory
    "timm_benchmark": None,  # the GPU is at work for 98.6 % of the time
    "timm_train": "input_bound",  # short epochs
    "word_lstm": "launch_bound",
    "word_transformer": "launch_bound",
}
BOUND = {"launch_bound", "sync_bound", "input_bound", "h2d_bound", "communication_bound", "straggler"}


def recorded(name: str) -> list[Snapshot]:
    with lzma.open(FOLDER / f"{name}.jsonl.xz") as file:
        return [from_json(line) for line in file]


def test_every_recording_is_judged() -> None:
    assert {path.name.split(".")[0] for path in FOLDER.iterdir()} == set(RIGHT)
    assert set(RIGHT.values()) - {None} <= set(bottlenecks.BOTTLENECKS)


@pytest.mark.parametrize("name", RIGHT)
def test_the_verdict_of_the_last_seconds_is_right(name: str) -> None:
    snapshots, rules = recorded(name), Rules()
    told = [rules.apply(snapshot) for snapshot in snapshots]
    last = [one for one in told if one.time >= told[-1].time - JUDGED_SECONDS]
    stood = Counter(alert for one in last for alert in {alert.id for alert in one.alerts} & BOUND)
    if (expected := RIGHT[name]) is not None:
        right = stood.pop(expected, 0)
        assert right > len(last) / 2, f"{expected} in {right} of {len(last)}, else {stood}"
    assert not stood, "nothing else is said"
