"""llmtop completion: what teaches a shell to complete llmtop's commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from llmtop.cli.output import print_text
from llmtop.errors import EXIT_DONE

VARIABLE = "_LLMTOP_COMPLETE"
"""Set by the shell's function when it asks llmtop how a word could go on; click answers."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: str) -> int:
    """Print the shell code that completes llmtop's commands and options with tab."""
    made = get_completion_class(shell)
    assert made is not None, "click knows these three"
    root = click.get_current_context().find_root().command
    # Not source(): it starts the shell, which may not be installed here, for its version.
    complete = made(root, {}, "llmtop", VARIABLE)
    print_text(complete.source_template % complete.source_vars())
    return EXIT_DONE
