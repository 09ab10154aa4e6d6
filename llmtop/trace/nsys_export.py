"""Have the nsys of this machine turn a .nsys-rep into SQLite."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from llmtop.errors import NotPossibleHere, UnusableInput

_SECONDS = 600


def export(report: Path, folder: Path) -> Path:
    """Export `report` into `folder` and return the path of the SQLite file.

    Raises:
        NotPossibleHere: no nsys is here.
        UnusableInput: nsys cannot read the report, as when a newer nsys wrote it.
    """
    nsys = os.environ.get("LLMTOP_NSYS") or shutil.which("nsys")
    if not nsys:
        raise NotPossibleHere(
            f"{report} must be exported by nsys, which is not here; install Nsight Systems or set LLMTOP_NSYS, or "
            "export it where it was made: nsys export --type sqlite REPORT.nsys-rep"
        )
    target = folder / f"{report.stem}.sqlite"
    command = [nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={target}", str(report)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotPossibleHere(f"{nsys} did not export {report}: {error}") from None
    said = done.stdout + done.stderr
    # nsys 2023.4 answers 0 and leaves a file of empty tables when the report is newer than itself.
    if "rror" in said or not target.exists():
        raise UnusableInput(
            f"{nsys} cannot export {report}: it was perhaps written by a newer nsys; export it with the one that "
            "wrote it: nsys export --type sqlite REPORT.nsys-rep"
        )
    return target
