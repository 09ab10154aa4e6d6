"""Options that `llmtop capture` and `llmtop captures` share."""

from __future__ import annotations

from pathlib import Path

import click

out_option = click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for captures.  [default: llmtop-captures]",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print only JSON on stdout, one object per line."
)
