"""`llmtop tail`: what each rank of a run did in its last two minutes."""

from __future__ import annotations

from pathlib import Path

import click

from llmtop.cli.report.rendered import html_option, markdown_option, print_rendered, refuse_both


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--slowest", is_flag=True, help="Show the slowest step of each rank, with its phases and stacks.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@markdown_option
@html_option
def tail(*, run: str | None, slowest: bool, as_json: bool, markdown: bool, html: Path | None) -> None:
    """Show what each rank did in its last two minutes, also after it was killed.

    RUN is the id of a run or its folder; without it the newest run of this node. The files are written by each
    attached training (LLMTOP_RUNS names their folder) and outlive SIGKILL; those of a lost node are lost with it.
    """
    from llmtop.postmortem.answer.rendered import TailDocument
    from llmtop.postmortem.last_minutes import find_run, read_tail

    refuse_both(as_json=as_json, markdown=markdown)
    found = TailDocument(read_tail(find_run(run)), slowest=slowest)
    print_rendered(found, as_json=as_json, full=True, markdown=markdown, html=html)
