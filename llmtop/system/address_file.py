"""The file with the address of a webhook, which is a secret."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from llmtop.errors import UnusableInput
from llmtop.system.inputs import open_input

_MAX_ADDRESS_BYTES = 4096


def read_address(path: Path) -> str:
    """Return the address in a file.

    Raises:
        UnusableInput: it cannot be read, others can read it, or it holds no http or https address. The sentence
            never has the address.
    """
    with open_input(path) as file:
        info = os.fstat(file.fileno())
        if info.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(info.st_mode) & 0o077:
            raise UnusableInput(
                f"others can read {path}, which holds the address of the webhook; run: chmod 600 {path}"
            )
        data = file.read(_MAX_ADDRESS_BYTES + 1)
    try:
        address = data.decode("ascii").strip()
    except UnicodeDecodeError:
        address = ""
    is_address = address.startswith(("http://", "https://")) and address.isprintable() and " " not in address
    if not is_address or len(data) > _MAX_ADDRESS_BYTES:
        raise UnusableInput(f"{path} must hold one address that begins with https:// or http://, and nothing else")
    return address
