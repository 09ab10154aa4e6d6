"""`llmtop postmortem`: the rank that failed first in a dead or hung job, from its dumps and logs."""

from __future__ import annotations

from pathlib import Path

import click

from llmtop.cli.report.rendered import html_option, markdown_option, print_rendered, refuse_both


@click.command()
@click.argument("paths", metavar="PATH...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option("--full", is_flag=True, help="Print all evidence. Default: the most important 60 lines.")
@markdown_option
@html_option
def postmortem(*, paths: tuple[Path, ...], as_json: bool, full: bool, markdown: bool, html: Path | None) -> int:
    """Name the rank that failed first in a dead or hung job.

    PATH is a file or a folder: flight-recorder dumps, error files, logs of ranks, torchrun, SLURM and the kernel.
    Replies of NCCL RAS, memory snapshots, and stacks of py-spy or faulthandler are read too. Pass all files: a
    missing rank is evidence. Exits with 0 if a culprit is named, with 3 if the files do not decide it.
    """
    from llmtop.errors import EXIT_DONE, EXIT_ENVIRONMENT
    from llmtop.postmortem.answer.decide import find_culprits
    from llmtop.postmortem.answer.rendered import PostmortemDocument

    refuse_both(as_json=as_json, markdown=markdown)
    report = find_culprits(paths)
    print_rendered(PostmortemDocument(report), as_json=as_json, full=full, markdown=markdown, html=html)
    return EXIT_DONE if report.culprits else EXIT_ENVIRONMENT
