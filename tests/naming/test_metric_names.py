"""Names of logged values, as libraries and scripts write them."""

from __future__ import annotations

import pytest

from llmtop.naming.metric_names import metric_kind

NAMES = {
    "loss": [
        "loss",
        "train_loss",
        "train/loss",
        "Loss",
        "lm loss",
        "training loss",
        "loss_step",
        "train_loss_step",
    ],
    "grad_norm": ["grad_norm", "train/grad_norm", "gnorm", "grad/global_norm", "gradient_norm", "total_grad_norm"],
    "loss_scale": ["loss_scale", "grad_scale", "loss-scale", "grad_scaler", "train/loss_scale"],
    "lr": ["lr", "learning_rate", "train/lr", "lr-AdamW", "learning rate", "lr_0"],
    None: [
        *("eval_loss", "val/loss", "test_loss", "loss_ema", "avg_loss", "moe_aux_loss", "kl_loss", "reward"),
        *("epoch", "grad_norm_avg", "param_norm", "color", "best_loss", "glossary", "entropy"),
    ],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_the_kind_of_a_logged_value_is_known_by_its_name(kind: str | None, name: str) -> None:
    assert metric_kind(name) == kind
