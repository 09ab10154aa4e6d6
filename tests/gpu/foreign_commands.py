"""Trainings of public repositories, as their authors start them, for `check_truth`.

The repositories lie in the ignored folder `.foreign/`, one folder each, at the commits that docs/measurements.md
names; none of their code is here. Nothing is downloaded when they run: `prepare` makes what they would load,
pictures of noise, a text, weights at random. `hf_gpt2` and `resnet50` are two of this repository, with synthetic
data, which earlier figures are of.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.processes import REPOSITORY

FOREIGN = REPOSITORY / ".foreign"
TORCHRUN = "-m torch.distributed.run --standalone --nproc-per-node 2"
NANO_GPT = "--eval_interval=100000 --max_iters=1000000 --dataset=shakespeare_char"


@dataclass(frozen=True)
class Command:
    """One command line: what follows `python`."""

    folder: str
    """Below `.foreign`."""
    line: str
    prepare: Callable[[Path], None] | None = None
    """Makes what it loads; gets its folder."""
    ranks: int = 1
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """The words of the line."""
        return shlex.split(self.line)


def _images(folder: Path, name: Callable[[int], str], count: int, side: int = 500) -> None:
    import numpy as np
    from PIL import Image  # type: ignore[import-not-found]

    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / name(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 255, (side // 10, side // 10, 3), dtype=np.uint8))
        coarse.resize((side, side)).save(path, quality=90)


def _folder_of_classes(folder: Path) -> None:
    for split in ("train", "val"):
        _images(folder / "data" / split, lambda number: f"class{number % 10}/{number}.jpg", 2000)


def _pets(folder: Path) -> None:
    _images(folder / "data", lambda number: f"breed_{number % 10}_{number}.jpg", 1000)
    for number in range(1000, 24_000):  # three epochs of so many last for as long as is watched and captured
        os.link(
            folder / "data" / f"breed_{number % 10}_{number % 1000}.jpg",
            folder / "data" / f"breed_{number % 10}_{number}.jpg",
        )
    import timm  # type: ignore[import-not-found]
    from safetensors.torch import save_file

    model = timm.create_model("resnet50d", pretrained=False)
    hub = (
        Path.home()
        / ".cache"
        / "huggingface"
        / "hub"
        / f"models--{model.default_cfg['hf_hub_id'].replace('/', '--')}"
    )
    (hub / "snapshots" / "0").mkdir(parents=True, exist_ok=True)
    (hub / "refs").mkdir(exist_ok=True)
    (hub / "refs" / "main").write_text("0")
    save_file(model.state_dict(), hub / "snapshots" / "0" / "model.safetensors")


def _text(folder: Path) -> None:
    """A text to train on: this Python's own documentation strings and code."""
    import json
    import string

    words = "".join(Path(module).read_text(errors="ignore") for module in (json.__file__, string.__file__)) * 40
    (folder / "input.txt").write_text(words.encode("ascii", "ignore").decode())


def _wikitext(folder: Path) -> None:
    texts = folder / "data" / "wikitext-2"
    (texts / "train.txt").write_text((texts / "test.txt").read_text() + (texts / "valid.txt").read_text())


def _shakespeare(folder: Path) -> None:
    import subprocess

    _text(folder / "data" / "shakespeare_char")
    subprocess.run(
        [sys.executable, "prepare.py"], cwd=folder / "data" / "shakespeare_char", check=True, timeout=3600
    )


def _checkpoint(folder: Path) -> None:
    import subprocess

    _shakespeare(folder)
    size = (
        "--eval_interval=1",
        "--eval_iters=1",
        "--max_iters=1",
        "--always_save_checkpoint=True",
        "--compile=False",
    )
    command = [sys.executable, "train.py", "config/train_shakespeare_char.py", *size, "--out_dir=out"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=3600)


def _endless(folder: Path) -> None:
    """Its ten steps are over before anybody can look: they become a million."""
    script = folder / "example.py"
    script.write_text(script.read_text().replace("for _ in range(10):", "for _ in range(1_000_000):"))


def _digits(folder: Path) -> None:
    import torch

    for name, count in (("training.pt", 60_000), ("test.pt", 10_000)):
        for kept in (folder / "Datasets" / "_MNIST" / "processed", folder / "Datasets" / "MNIST" / "processed"):
            kept.mkdir(parents=True, exist_ok=True)
            pictures = torch.randint(0, 255, (count, 28, 28), dtype=torch.uint8)
            torch.save((pictures, torch.randint(10, (count,))), kept / name)
    from tests.gpu.foreign_digits import write_raw

    for kept in (folder / "Datasets", folder / "pytorch" / "basics" / "data"):
        write_raw(kept / "MNIST" / "raw")


COMMANDS = {
    "imagenet_resnet50": Command("examples/imagenet", "main.py -a resnet50 --dummy -b 64 -j 8"),
    "word_transformer": Command(
        "examples/word_language_model", "main.py --accel --model Transformer --epochs 1000 --lr 5", _wikitext
    ),
    "word_lstm": Command("examples/word_language_model", "main.py --accel --model LSTM --epochs 1000", _wikitext),
    "dcgan": Command("examples/dcgan", "main.py --dataset fake --accel --niter 100 --workers 8"),
    "nanogpt_char": Command(
        "nanoGPT", f"train.py config/train_shakespeare_char.py {NANO_GPT} --compile=False", _shakespeare
    ),
    "nanogpt_compiled": Command(
        "nanoGPT", f"train.py {NANO_GPT} --gradient_accumulation_steps=1 --batch_size=16", _shakespeare
    ),
    "nanogpt_ddp": Command(
        "nanoGPT",
        f"{TORCHRUN} train.py {NANO_GPT} --gradient_accumulation_steps=2 --batch_size=12 --compile=False",
        _shakespeare,
        ranks=2,
    ),
    "nanogpt_sample": Command(
        "nanoGPT", "sample.py --out_dir=out --num_samples=1000 --max_new_tokens=200", _checkpoint
    ),
    "mingpt_adder": Command(
        "minGPT", "projects/adder/adder.py --trainer.max_iters=1000000", variables={"PYTHONPATH": "."}
    ),
    "timm_train": Command(
        "pytorch-image-models",
        "train.py --data-dir data --model vit_small_patch16_224 --num-classes 10 --amp --batch-size 128"
        " --workers 12 --epochs 1000",
        _folder_of_classes,
    ),
    "timm_benchmark": Command(
        "pytorch-image-models",
        "benchmark.py --model resnet50 --bench inference --batch-size 256 --num-bench-iter 2000 --amp",
    ),
    "open_clip": Command(
        "open_clip/src",
        "-m open_clip_train.main --dataset-type synthetic --train-num-samples 100000 --model ViT-B-32"
        " --batch-size 128 --precision amp_bf16 --workers 12 --epochs 100",
    ),
    "accelerate_cv": Command(
        "accelerate/examples",
        "cv_example.py --data_dir data --mixed_precision bf16",
        _pets,
        variables={"HF_HUB_OFFLINE": "1"},
    ),
    "lightning_autoencoder": Command(
        "lightning/examples/pytorch/basics",
        "autoencoder.py --trainer.max_epochs=1000",
        lambda folder: _digits(folder.parents[1]),
    ),
    "ddp_tutorial": Command(
        "examples/distributed/ddp-tutorial-series", f"{TORCHRUN} multigpu_torchrun.py 100000 100000", ranks=2
    ),
    "fsdp2_example": Command("examples/distributed/FSDP2", f"{TORCHRUN} example.py", _endless, ranks=2),
    "hf_gpt2": Command("../tests/gpu", "truth_hf_gpt2.py"),
    "resnet50": Command("../tests/gpu", "truth_resnet50.py"),
}
