"""The whole public API of a training script. Importing this loads nothing heavy.

    import llmtop

    llmtop.attach(total_steps=10_000, params=124e6, dtype="bf16")
    for batch in llmtop.loader(dataloader):
        with llmtop.step(tokens=batch.numel()):
            with llmtop.phase("forward"):
                loss = model(batch)
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                optimizer.step()
        llmtop.log(loss=loss)

None of this ever raises, waits or prints on account of llmtop itself. `LLMTOP_OFF=1` turns all of it off;
`LLMTOP_DEBUG=1` says on stderr why nothing is published.
"""

from __future__ import annotations

from llmtop.instrument.api import attach, loader, log, phase, step
from llmtop.version import __version__

__all__ = ["__version__", "attach", "loader", "log", "phase", "step"]
