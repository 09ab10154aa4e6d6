"""Which stage of a pipeline this rank has, where its group has no name: all ranks, without a mesh.

The first micro-batch of a stage of torch.distributed.pipelining shows it; then torch's own function is put back,
so that later ones cost nothing.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from llmtop.instrument.guest.guard import report_internal_error
from llmtop.instrument.identity import roles

_WHAT = "the pipeline's stages"
_MODULE = "torch.distributed.pipelining.stage"
_KIND, _NAME = "_PipelineStageBase", "forward_one_chunk"


class PipelineStages:
    """Looks for loaded pipelining now and then, until a stage has run."""

    def __init__(self) -> None:
        self._is_done = False

    def await_stage(self) -> None:
        """Wait for the next micro-batch of a stage, once the module is loaded."""
        module = None if self._is_done else sys.modules.get(_MODULE)
        kind = getattr(module, _KIND, None)
        if kind is None:
            return
        self._is_done = True
        original = vars(kind).get(_NAME)
        if not callable(original):
            return

        @functools.wraps(original)
        def first(stage: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if vars(kind).get(_NAME) is first:
                    setattr(kind, _NAME, original)
                if stage.group_size > 1:
                    roles.note({"pp": int(stage.group_rank)})
            except BaseException as error:  # noqa: BLE001 - the door: in the script's own call
                report_internal_error(_WHAT, error)
            return original(stage, *args, **kwargs)

        setattr(kind, _NAME, first)
