"""Skip of a test for which this machine lacks something that nobody can install."""

from __future__ import annotations

from typing import NoReturn

import pytest

CANNOT = "this machine cannot run it: "


def cannot(reason: str) -> NoReturn:
    """Skip the running test, also where $LLMTOP_TESTS_MUST_RUN names its mark.

    Args:
        reason: what the machine lacks.

    Raises:
        pytest.skip.Exception: always.
    """
    pytest.skip(CANNOT + reason)
