"""Options that `llmtop capture` and `llmtop captures` share."""

from __future__ import annotations

from pathlib import Path

import click

out_option = click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of the captures' folders.  [default: llmtop-captures]",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON alone on stdout, one object a line."
)
