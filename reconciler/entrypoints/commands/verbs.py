"""Verbs made from the registry: options from parameters, help from their texts, and one way to run them all.

A verb parses, asks dispatch, shows the answer and returns its exit code. What a production database needs before it is
touched is asked here, because only a command line has a person to ask.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click

from reconciler.bootstrap import open_desk
from reconciler.config import Flags, Settings, load
from reconciler.entrypoints.commands import terminal
from reconciler.errors import InvalidInput, ReconcilerError
from reconciler.ops.asking import Answer
from reconciler.ops.dispatch import ask, redact
from reconciler.ops.entry import Database, Entry, Kind, Parameter
from reconciler.ops.exits import EXIT_USAGE, exit_of_error

# Verbs whose answers may be longer than a screen.
_PAGED: Final = frozenset({"list", "show", "explain", "config show"})


@dataclass(slots=True)
class Globals:
    """What may be said before the verb and after it; the latter counts."""

    database: str | None = None
    context: str | None = None
    config: str | None = None
    operator: str | None = None
    as_json: bool = False
    hints: bool | None = None
    yes: bool = False
    pager: bool = True

    def take(self, given: dict[str, Any]) -> None:
        """Take the global options out of a verb's."""
        for name in ("database", "context", "config", "operator"):
            value = given.pop(f"_{name}", None)
            if value is not None:
                setattr(self, name, value)
        self.as_json = given.pop("_json", False) or self.as_json
        self.yes = given.pop("_yes", False) or self.yes
        if given.pop("_no_hints", False):
            self.hints = False
        if given.pop("_no_pager", False):
            self.pager = False

    def flags(self) -> Flags:
        """Return what the configuration needs to know of it."""
        return Flags(database=self.database, context=self.context, config=self.config, hints=self.hints)


def global_options() -> list[click.Parameter]:
    """Return the options that every verb takes too."""
    return [
        click.Option(["--database", "_database"], metavar="URL", help="The database: sqlite:///PATH or postgresql://…"),
        click.Option(["--context", "_context"], metavar="NAME", help="A database named in the configuration."),
        click.Option(["--config", "_config"], metavar="FILE", help="The configuration file."),
        click.Option(["--operator", "_operator"], metavar="NAME", help="Who asks, for the audit."),
        click.Option(["--json", "_json"], is_flag=True, help="One JSON object on standard output."),
        click.Option(["--no-hints", "_no_hints"], is_flag=True, help="No follow-up hints."),
        click.Option(["--no-pager", "_no_pager"], is_flag=True, help="Never start a pager."),
        click.Option(["--yes", "_yes"], is_flag=True, help="Do not ask before touching a production database."),
    ]


def globals_of(ctx: click.Context) -> Globals:
    """Return the call's global options, made with the first request."""
    found: Globals = ctx.ensure_object(Globals)
    return found


# --- making a verb ---------------------------------------------------------------------------------------------------

Prepare = Callable[[dict[str, Any]], dict[str, Any]]
Run = Callable[["Call"], int]


def make_command(
    entry: Entry, *, prepare: Prepare | None = None, run: Run | None = None, extra: list[click.Parameter] | None = None
) -> click.Command:
    """Return the click command of an entry.

    *prepare* turns what was typed into what dispatch takes; *run* replaces asking once and showing the answer.
    """

    def callback(**given: Any) -> None:
        ctx = click.get_current_context()
        globals_ = globals_of(ctx)
        globals_.take(given)
        call = Call(entry, globals_, given)
        try:
            call.params = (prepare or _as_typed)(dict(given))
            code = (run or ask_once)(call)
        except ReconcilerError as error:
            # Before dispatch: the configuration, or a payload that could not be read.
            answer = Answer(entry.name, redact({"error": error.as_dict()}), exit_of_error(error), 0.0)
            terminal.show(answer, as_json=globals_.as_json)
            code = answer.exit_code
        finally:
            call.close()
        ctx.exit(code)

    return click.Command(
        name=entry.name.rpartition(" ")[2],
        callback=callback,
        params=[*(_option(parameter) for parameter in entry.parameters), *(extra or []), *global_options()],
        help=_help(entry),
        short_help=entry.summary,
        epilog=_epilog(entry),
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def _as_typed(given: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


def _help(entry: Entry) -> str:
    return f"{entry.summary}.\n\n{entry.details}" if entry.details else f"{entry.summary}."


def _epilog(entry: Entry) -> str:
    # \b keeps click from refolding the lines.
    lines = [f"  {example.command}\n      {example.meaning}" for example in entry.examples]
    return "\b\nExamples:\n" + "\n".join(lines) if lines else ""


_TYPES: Final[Mapping[Kind, Any]] = {Kind.INTEGER: click.INT, Kind.NUMBER: click.FLOAT}


def _option(parameter: Parameter) -> click.Parameter:
    kind = click.Choice(parameter.choices) if parameter.choices else _TYPES.get(parameter.kind, click.STRING)
    if parameter.positional:
        return click.Argument(
            [parameter.name], nargs=-1 if parameter.many else 1, required=parameter.required, type=kind
        )
    flag = f"--{parameter.name.replace('_', '-')}"
    text = parameter.help[0].upper() + parameter.help[1:]
    if parameter.kind is Kind.BOOLEAN:
        return click.Option([flag, parameter.name], is_flag=True, default=bool(parameter.default), help=text)
    shown = "" if parameter.default is None else f" [default: {parameter.default}]"
    return click.Option(
        [flag, parameter.name],
        type=kind,
        multiple=parameter.many,
        required=parameter.required,
        help=text + shown,
        metavar=None if parameter.choices else parameter.name.upper(),
    )


# --- running one -----------------------------------------------------------------------------------------------------


class Call:
    """One call of a verb: its settings and its desk, made when they are needed."""

    def __init__(self, entry: Entry, globals_: Globals, given: dict[str, Any]) -> None:
        self.entry = entry
        self.globals = globals_
        self.given = given
        self.params: dict[str, Any] = {}
        self.progress = terminal.ProgressLine(quiet=globals_.as_json and not sys.stderr.isatty())
        self._settings: Settings | None = None
        self._desk: Any = None

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        if self._settings is None:
            self._settings = load(self.globals.flags())
        return self._settings

    def ask(self, params: Mapping[str, Any]) -> Answer:
        """Ask dispatch."""
        if self._desk is None:
            self._desk = open_desk(
                self.settings, operator=self.globals.operator, application_name="reconciler-cli", progress=self.progress
            )
        try:
            return ask(self.entry.name, params, self._desk)
        finally:
            self.progress.done()

    def close(self) -> None:
        """Give the connections back."""
        if self._desk is not None:
            self._desk.close()


def ask_once(call: Call) -> int:
    """Ask once and show the answer."""
    if call.entry.changes(call.params):
        confirm_target(call)
    answer = call.ask(call.params)
    terminal.show(answer, as_json=call.globals.as_json, page=call.globals.pager and call.entry.name in _PAGED)
    return answer.exit_code


def confirm_target(call: Call) -> None:
    """Before an act: name its target where there are several, and ask before a production database is touched.

    Raises:
        InvalidInput: several databases are known and none was named, or nobody was there to say yes.
    """
    if call.entry.database is Database.NONE:
        return
    settings = call.settings
    if len(settings.contexts) > 1 and not settings.is_named:
        raise InvalidInput(
            f"cannot {call.entry.name}: the configuration names {len(settings.contexts)} databases, none was chosen",
            hint=f"name one with --context: {', '.join(sorted(settings.contexts))}",
        )
    if settings.contexts:
        terminal.write_err(f"{call.entry.name} on {_target(settings)}")
    if not settings.production or call.globals.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidInput(
            f"cannot {call.entry.name} on {_target(settings)}: it is a production database, and nobody can be asked",
            hint="say --yes, or look at it with --dry-run first",
        )
    if not click.confirm(f"{_target(settings)} is a production database. Go on?", default=False, err=True):
        raise InvalidInput("nothing was done: you said no")


def _target(settings: Settings) -> str:
    url = redact(settings.database_url)
    return f'context "{settings.context}" ({url})' if settings.context else str(url)


def usage_exit(message: str, *, as_json: bool, hint: str | None = None) -> int:
    """Show a call that could not be understood, and return its exit code."""
    error = {"code": "usage", "message": inspect.cleandoc(message), "detail": None, "hint": hint}
    terminal.show(Answer("", redact({"error": error}), EXIT_USAGE, 0.0), as_json=as_json)
    return EXIT_USAGE
