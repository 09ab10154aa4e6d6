"""Steps and phases of a PyTorch training that does nothing for it.

`llmtop run` calls `install()` in every process right after torch has been imported; integrations call it too.
From then on, in a process that trains:

- ``dataload``: each wait for a batch in the iterator of a torch DataLoader.
- ``h2d``: each ``Tensor.to``, ``cuda`` and ``copy_`` that brings a host tensor to a CUDA device between the loader
  and the forward pass.
- ``forward``: calls of the outermost nn.Module with gradients enabled. Known from the first backward pass on.
- ``backward``: ``Tensor.backward`` and ``torch.autograd.backward``.
- ``communication``: in a process group of more than one, collectives that block Python, and what the end of a
  backward pass waits for the other ranks (DDP and FSDP over gloo). NCCL makes the GPU wait, not the host: there
  only the GPU's clock shows it.
- ``generate``: transformers' ``generate`` in a training; ``evaluation`` and ``checkpoint`` between two steps;
  ``rollout``: forward passes without gradients between two steps, by a policy that acts in an environment.
- ``optimizer``: ``Optimizer.step``, less forward and backward passes of a closure.
- a step, from the first of these to the end of an optimizer's step. Several backward passes before it are one
  step. Where several optimizers take turns (GAN, one for each group of parameters) the one that came last closes
  the step, so that a round of all of them is one. Waits and forwards of an evaluation are left out.

What has not trained and answers requests, or calls a model again and again, is published as that: see
`inference`. The first backward pass makes a training of it.

Tokens are counted only where the model is called with ``input_ids`` or a first argument of integers in two
dimensions. Samples are counted where the batches come from a torch DataLoader that groups them itself
(``batch_size=``): no shape tells which dimension is the batch. Both are of this rank.

An optimizer's step that no hook sees (within compiled code, or by an optimizer that is none of torch's) ends a
step when the next one begins, detected by a parameter that has changed, as long as hooks see no optimizer of
torch's. Not seen: a loader that is not torch's, steps that GradScaler skips, a forward within one compiled
function, a second thread that trains. What cannot be observed or attributed is reported to the monitor. A script
that calls llmtop.step() is left to itself; its phase() and loader() lie within the steps found here.
"""

from __future__ import annotations

from typing import Any

_installed: Any = None


def install() -> Any:
    """Install the hooks on torch, once per process however often it is called.

    Returns:
        The `Loop` that they notify.

    Raises:
        ImportError, AttributeError: this torch is older than 2.2 and has no such hooks.
    """
    global _installed
    if _installed is None:
        from llmtop.instrument.auto import hooks
        from llmtop.instrument.control import out_of_memory

        out_of_memory.watch()
        _installed = hooks.install(again=install)
    return _installed
