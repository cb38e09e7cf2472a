"""`completion`: the text that teaches a shell the verbs and their options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from reconciler.entrypoints.commands import terminal

SHELLS = ("bash", "zsh", "fish")


@click.command(
    "completion",
    help='Print what teaches a shell to complete verbs and options.\n\nbash: eval "$(reconciler completion bash)"',
    short_help="Print the completion of a shell",
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion of *shell*."""
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"there is no completion for {shell}")
    terminal.write_out(found(ctx.find_root().command, {}, "reconciler", "_RECONCILER_COMPLETE").source())
