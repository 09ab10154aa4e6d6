"""Have the nsys of this machine turn a .nsys-rep into SQLite."""

from __future__ import annotations

from pathlib import Path

from llmtop.errors import NotPossibleHere, UnusableInput

_SECONDS = 600.0


def export(report: Path, folder: Path) -> Path:
    """Export `report` into `folder` and return the path of the SQLite file.

    Raises:
        NotPossibleHere: no usable nsys is here, or it hangs.
        UnusableInput: nsys cannot read the report, as when a newer nsys wrote it.
    """
    from llmtop.nsys_cli import tool as nsys

    try:
        tool = nsys.find()
    except NotPossibleHere as error:
        raise NotPossibleHere(
            f"{report} must be exported to SQLite first: {error}, or export it where it was made: "
            "nsys export --type sqlite REPORT.nsys-rep"
        ) from None
    target = folder / f"{report.stem}.sqlite"
    done = tool.run(
        "export", "--type=sqlite", "--force-overwrite=true", f"--output={target}", str(report), seconds=_SECONDS
    )
    said = done.stdout + done.stderr
    # nsys 2023.4 answers 0 and leaves a file of empty tables when the report is newer than itself.
    if done.returncode != 0 or "rror" in said or not target.exists():
        raise UnusableInput(
            f"{tool.path} ({tool.version_text}) cannot export {report}: it is damaged, or a newer nsys wrote it; "
            "export it with the one that did: nsys export --type sqlite REPORT.nsys-rep"
        )
    return target
