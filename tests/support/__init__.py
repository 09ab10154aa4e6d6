"""What the tests of several parts share."""

from __future__ import annotations

import tarfile

if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later; Debian's 3.11.2 has neither it nor the argument
    tarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)
