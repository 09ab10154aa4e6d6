"""The verdicts on labelled captures as a table for people: python -m tests.gpu.confusion ARCHIVE.tar.xz …"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

from llmtop.analysis.analyze import analyze


def confusion(archive: Path) -> Counter[tuple[str, str]]:
    """How often each (right verdict, verdict given) occurs; where two are right, the one given if it is one."""
    pairs: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as name, tarfile.open(archive) as tar:
        folder = Path(name)
        tar.extractall(folder)
        for label, entry in json.loads((folder / "labels.json").read_text()).items():
            own = folder / label
            own.mkdir()
            for file in entry["files"]:
                (folder / file).rename(own / file)
            report = analyze(own if len(entry["files"]) > 1 else own / entry["files"][0])
            said = f"{report.verdict}, at the border" if report.at_border else report.verdict
            right = report.verdict if report.verdict in entry["expected"] else entry["expected"][0]
            pairs[(right, said)] += 1
            if report.verdict not in entry["expected"]:
                print(f"{label}: {report.summary}", file=sys.stderr)
    return pairs


def markdown(pairs: Counter[tuple[str, str]]) -> str:
    """A table: one row a right verdict, one column a verdict given."""
    rows, columns = sorted({right for right, _ in pairs}), sorted({said for _, said in pairs})
    lines = ["| right \\ given | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for row in rows:
        cells = [str(pairs[(row, column)] or "") for column in columns]
        lines += [f"| {row} | {' | '.join(cells)} |"]
    return "\n".join(lines)


if __name__ == "__main__":
    for archive in map(Path, sys.argv[1:]):
        print(f"{archive.name}\n\n{markdown(confusion(archive))}\n")
