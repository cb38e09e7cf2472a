"""The command line ``reconciler``: finds the verb, and nothing else. Verbs are made when they are called."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import click

from reconciler import __version__
from reconciler.entrypoints.commands import terminal
from reconciler.entrypoints.commands.verbs import Globals, global_options, globals_of, make_command, usage_exit
from reconciler.entrypoints.process import prepare_process
from reconciler.ops.exits import EXIT_ERROR, EXIT_USAGE
from reconciler.ops.registry import REGISTRY

EXIT_INTERRUPTED: Final = 130

# In the order of --help; a verb of the registry that isn't here comes last.
_SECTIONS: Final = (
    ("Look at session files", ("inspect",)),
    ("Do the work", ("import", "submit", "once", "run", "watch")),
    ("Ask", ("status", "list", "show", "explain", "tail", "schedule")),
    ("Act", ("abort", "retry", "settle", "release", "resolve", "move-leaf", "operations", "refine")),
    ("Keep house", ("db", "config", "doctor", "fsck", "prune", "export", "mcp", "completion")),
)

# Verbs that are no question and no act: module, the name of its click command, and its summary, which the help shows
# without loading it.
_OTHERS: Final = {
    "run": ("reconciler.entrypoints.daemon", "command", "Run the daemon: passes, schedule, signs of life"),
    "mcp": ("reconciler.entrypoints.mcp_server", "command", "Offer the questions to agents as tools (MCP)"),
    "completion": ("reconciler.entrypoints.commands.completion", "command", "Print the completion of a shell"),
}

# Verbs of two words, by their first.
_GROUPS: Final = {
    "config": "The settings in force",
    "db": "The database's schema: look at it, compare it, upgrade it",
    "operations": "Bulk acts: what a filter selected, what became of each, going on after a crash",
    "refine": "The refine gate: epochs of candidate edits, their budgets and steps",
    "schedule": "Scheduled jobs and their slots",
}

_HELP: Final = """Settle or requeue what crashed agent sessions left behind, and say why.

The database is named by --database, a --context of the configuration, or RECONCILER_DATABASE_URL; without any of them
it is an SQLite file in your data folder.

Exit codes: 0 done or nothing to do, 1 error, 2 usage, 3 needs a person, 4 any gate verdict but accepted, 75 database
unreachable or locked.
"""


class _Verbs(click.Group):
    """A group whose commands are made from the registry when they are asked for."""

    def __init__(self, prefix: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        self._prefix = prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs, in the order of the help."""
        names = {
            name.removeprefix(self._prefix).partition(" ")[0] for name in REGISTRY if name.startswith(self._prefix)
        }
        if self._prefix:
            return sorted(names)
        names |= {name for name, (module, _, _) in _OTHERS.items() if _is_there(module)}
        order = [name for _, section in _SECTIONS for name in section]
        return sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb; None where there is none."""
        name = self._prefix + cmd_name
        if name in REGISTRY:
            from reconciler.entrypoints.commands.special import SPECIAL

            command = SPECIAL[name]() if name in SPECIAL else make_command(REGISTRY[name])
            return _with_further(name, cmd_name, command) if _has_further(name) else command
        if not self._prefix and cmd_name in _OTHERS and _is_there(_OTHERS[cmd_name][0]):
            module, attribute, _ = _OTHERS[cmd_name]
            found: click.Command = getattr(import_module(module), attribute)
            return found
        if _has_further(name):
            return _Verbs(
                prefix=f"{name} ",
                name=cmd_name,
                help=f"{_GROUPS.get(name, name)}.",
                short_help=_GROUPS.get(name, name),
                context_settings={"help_option_names": ["-h", "--help"]},
            )
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or name the nearest one."""
        if args and self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            of = f" of {self._prefix.strip()!r}" if self._prefix else ""
            raise click.UsageError(f"there is no verb {args[0]!r}{of}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs by section."""
        names = self.list_commands(ctx)
        sections = _SECTIONS if not self._prefix else (("Commands", tuple(names)),)
        left = [name for name in names if not any(name in section for _, section in sections)]
        for title, section in (*sections, ("More", tuple(left))):
            rows = [(name, self._summary(ctx, name)) for name in section if name in names]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _summary(self, ctx: click.Context, name: str) -> str:
        entry = REGISTRY.get(self._prefix + name)
        if entry is not None:
            return entry.summary
        if not self._prefix and name in _OTHERS:
            return _OTHERS[name][2]
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(100)


def _has_further(name: str) -> bool:
    return any(entry.startswith(f"{name} ") for entry in REGISTRY)


def _with_further(name: str, cmd_name: str, command: click.Command) -> click.Group:
    """Return a verb that has further words too: `prune`, and `prune forget`."""

    def callback(**given: Any) -> None:
        ctx = click.get_current_context()
        if ctx.invoked_subcommand is None:
            ctx.invoke(command, **given)
            return
        globals_of(ctx).take(given)
        said = [text for text in given if ctx.get_parameter_source(text) is click.core.ParameterSource.COMMANDLINE]
        if said:
            raise click.UsageError(f"{said[0]!r} belongs to {name!r} alone, not to {ctx.invoked_subcommand!r}", ctx)

    return _Verbs(
        prefix=f"{name} ",
        name=cmd_name,
        callback=callback,
        params=command.params,
        help=command.help,
        short_help=command.short_help,
        epilog=command.epilog,
        invoke_without_command=True,
        context_settings=command.context_settings,
    )


def _is_there(module: str) -> bool:
    return find_spec(module) is not None


def _group_callback(**given: Any) -> None:
    ctx = click.get_current_context()
    ctx.obj = Globals()
    globals_of(ctx).take(given)


def make_cli() -> click.Group:
    """Return the command line."""
    return _Verbs(
        name="reconciler",
        help=_HELP,
        callback=_group_callback,
        params=[
            *global_options(),
            click.Option(
                ["--version"],
                is_flag=True,
                expose_value=False,
                is_eager=True,
                help="Show the version.",
                callback=_show_version,
            ),
        ],
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        terminal.write_out(f"reconciler {__version__}")
        ctx.exit(0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if argv is None:
        prepare_process()
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        result = make_cli().main(args=args, prog_name="reconciler", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        terminal.write_err(error.format_message())
        return EXIT_USAGE
    except click.UsageError as error:
        hint = None if error.ctx is None else f"see `{error.ctx.command_path} --help`"
        return usage_exit(error.format_message(), as_json="--json" in args, hint=hint)
    except click.ClickException as error:
        return usage_exit(error.format_message(), as_json="--json" in args)
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except terminal.NotShown as error:
        terminal.write_err(
            f"error: could not write the answer to standard output: {error} (output_lost)\n"
            "way out: what was asked for was done; ask again to read the answer, into a file with room for it"
        )
        return EXIT_ERROR
    except BrokenPipeError:
        terminal.forget_pipe(sys.stdout)
        return 0
    return result if isinstance(result, int) else 0
