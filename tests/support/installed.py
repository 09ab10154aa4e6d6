"""What tests need that may not be installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(library: str) -> None:
    """Skip the test, or at the top of a module all of it, where a library is not installed.

    It is not imported: these tests have it imported by processes of theirs, and each of the workers, which all
    collect every module, would spend seconds on torch and what is built on it.
    """
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed", allow_module_level=True)
