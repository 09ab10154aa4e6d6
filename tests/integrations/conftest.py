"""What tests of integrations share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.support.steps import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Runs programs below `llmtop run`, each in a fork: one for all tests, for its start takes seconds."""
    folder = tempfile.mkdtemp(prefix="lt-")
    zygote = Zygote(LLMTOP_DIR=folder)
    yield zygote
    zygote.close()
    shutil.rmtree(folder)
