"""Settings: read once from flags, environment and one TOML file, checked once, then values.

Order of precedence: flags, environment, file, defaults. Every fault is a ConfigurationInvalid that names the place, the
reason and the way out; several faults of one reading come together. Unknown keys and unknown RECONCILER_ variables are
refused, with the nearest known one: a setting that is silently ignored is worse than a refusal.

Knows nothing of databases: a URL is a text here.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from reconciler.core.jobs import Job
from reconciler.core.model import DEFAULT_LIMITS, Limits
from reconciler.errors import ConfigurationInvalid, InvalidInput
from reconciler.service.settings import DEFAULT_DAEMON, DaemonSettings, daemon_faults

ENV_PREFIX: Final = "RECONCILER_"
SYSTEM_FILE: Final = Path("/etc/reconciler/config.toml")
DATABASE_FILE: Final = "reconciler.sqlite3"
CONFIG_BYTES_MAX: Final = 1024 * 1024

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("auto", "json", "text")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class NamedContext:
    """A database by name: its URL, or the variable that holds it."""

    name: str
    url: str | None = None
    url_env: str | None = None
    # Acts ask before they touch it, and need a reason.
    production: bool = False


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How events are written: ``auto`` is text on a terminal, else JSON."""

    level: str = "info"
    format: str = "auto"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a program runs with. Made by `load`; nothing is read later."""

    database_url: str
    # Where the URL comes from, in words.
    database_source: str
    # The embedded default, which verbs that admit work make where it is missing.
    is_default_database: bool = False
    # A flag or a variable named it: somebody meant this one.
    is_named: bool = False
    context: str | None = None
    production: bool = False
    contexts: Mapping[str, NamedContext] = field(default_factory=dict)
    # PostgreSQL: the schema that holds the tables.
    schema: str = "reconciler"
    operator: str | None = None
    hints: bool = True
    limits: Limits = DEFAULT_LIMITS
    log: LogSettings = field(default_factory=LogSettings)
    daemon: DaemonSettings = DEFAULT_DAEMON
    # In the order of the file.
    jobs: tuple[Job, ...] = ()
    # The file that was read, None where there is none.
    config_file: Path | None = None
    # setting -> where its value comes from; a setting that isn't here has its default.
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line says; None where it says nothing."""

    database: str | None = None
    context: str | None = None
    config: str | None = None
    hints: bool | None = None


# --- the known names -------------------------------------------------------------------------------------------------

_LIMIT_FIELDS: Final = MappingProxyType({item.name: item for item in dataclasses.fields(Limits)})
_DAEMON_FIELDS: Final = MappingProxyType({item.name: item for item in dataclasses.fields(DaemonSettings)})
_TOP_KEYS: Final = (
    "database_url",
    "context",
    "schema",
    "operator",
    "hints",
    "contexts",
    "limits",
    "log",
    "daemon",
    "jobs",
)
_CONTEXT_KEYS: Final = ("url", "url_env", "production")
_LOG_KEYS: Final = ("level", "format")
# Variables beside the limits, and the setting each of them sets.
_VARIABLES: Final = MappingProxyType(
    {
        "RECONCILER_DATABASE_URL": "database_url",
        "RECONCILER_CONTEXT": "context",
        "RECONCILER_CONFIG": "config",
        "RECONCILER_SCHEMA": "schema",
        "RECONCILER_OPERATOR": "operator",
        "RECONCILER_HINTS": "hints",
        "RECONCILER_LOG_LEVEL": "log.level",
        "RECONCILER_LOG_FORMAT": "log.format",
    }
)
_LIMIT_VARIABLES: Final = MappingProxyType(
    {f"{ENV_PREFIX}LIMITS_{name.upper()}": f"limits.{name}" for name in _LIMIT_FIELDS}
)
_DAEMON_VARIABLES: Final = MappingProxyType(
    {f"{ENV_PREFIX}DAEMON_{name.upper()}": f"daemon.{name}" for name in _DAEMON_FIELDS}
)
# For the tests of programs that use this one.
_RESERVED_PREFIX: Final = "RECONCILER_TEST_"


def environment_variables() -> Mapping[str, str]:
    """Return every variable that is read, and the setting it sets."""
    return {**_VARIABLES, **_LIMIT_VARIABLES, **_DAEMON_VARIABLES}


def default_config_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return where a file is looked for, the first one that exists counts: the user's, then the system's."""
    return (_base_folder(environ, "XDG_CONFIG_HOME", ".config") / "reconciler" / "config.toml", SYSTEM_FILE)


def default_database_file(environ: Mapping[str, str]) -> Path:
    """Return the embedded default database: a file in the user's data folder."""
    return _base_folder(environ, "XDG_DATA_HOME", ".local/share") / "reconciler" / DATABASE_FILE


def _base_folder(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    given = environ.get(variable)
    # The XDG specification: a relative path is invalid and is ignored.
    if given and Path(given).is_absolute():
        return Path(given)
    home = environ.get("HOME")
    try:
        return (Path(home) if home else Path.home()) / below_home
    except RuntimeError:
        raise ConfigurationInvalid(
            "cannot find the user's home folder",
            hint=f"set HOME or {variable}, or name a database and a configuration file",
        ) from None


# --- reading ---------------------------------------------------------------------------------------------------------


class _Faults:
    """What is wrong, gathered so that one run shows all of it."""

    def __init__(self) -> None:
        self.items: list[tuple[str, str]] = []

    def add(self, message: str, hint: str) -> None:
        self.items.append((message, hint))

    def unknown(self, what: str, name: str, known: Iterable[str], where: str) -> None:
        names = list(known)
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
        hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(sorted(names))}"
        self.add(f'unknown {what} "{name}" in {where}', hint)

    def raise_if_any(self) -> None:
        if not self.items:
            return
        message, hint = self.items[0]
        if len(self.items) == 1:
            raise ConfigurationInvalid(message, hint=hint)
        raise ConfigurationInvalid(
            f"{message} (and {len(self.items) - 1} more)",
            detail={"faults": [{"message": text, "hint": way} for text, way in self.items]},
            hint=hint,
        )


def load(flags: Flags | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings.

    Raises:
        ConfigurationInvalid: something is unknown, of the wrong type or out of range; the detail lists every fault.
    """
    flags = flags or Flags()
    environ = os.environ if environ is None else environ
    faults = _Faults()
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    path, document = _read_file(flags, environ)
    contexts: dict[str, NamedContext] = {}
    jobs: list[Job] = []
    if path is not None:
        _take_document(document, f'the file "{path}"', values, sources, contexts, faults)
        jobs = _jobs(document.get("jobs", {}), f'the file "{path}"', faults)
    _take_environment(environ, contexts, values, sources, faults)
    limits = _limits(values, sources, faults)
    daemon = _daemon(values, sources, faults)
    log = LogSettings(level=values.get("log.level", "info"), format=values.get("log.format", "auto"))
    faults.raise_if_any()
    url, source, context = _choose_database(flags, environ, values, sources, contexts)
    return Settings(
        database_url=url if url is not None else f"sqlite:///{default_database_file(environ)}",
        database_source=source,
        is_default_database=url is None,
        is_named=bool(flags.database or flags.context)
        or any(_from_environment(sources, key) for key in ("database_url", "context")),
        context=None if context is None else context.name,
        production=context is not None and context.production,
        contexts=MappingProxyType(contexts),
        schema=values.get("schema", "reconciler"),
        operator=values.get("operator"),
        hints=flags.hints if flags.hints is not None else values.get("hints", True),
        limits=limits,
        log=log,
        daemon=daemon,
        jobs=tuple(jobs),
        config_file=path,
        sources=MappingProxyType(sources),
    )


def _read_file(flags: Flags, environ: Mapping[str, str]) -> tuple[Path | None, dict[str, Any]]:
    named = flags.config or environ.get("RECONCILER_CONFIG")
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            where = "--config" if flags.config else "RECONCILER_CONFIG"
            raise ConfigurationInvalid(
                f'there is no configuration file "{path}"', hint=f"mend {where}, or leave it out"
            )
    else:
        found = next((file for file in default_config_files(environ) if file.is_file()), None)
        if found is None:
            return None, {}
        path = found
    try:
        with path.open("rb") as stream:
            data = stream.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationInvalid(
            f'cannot read the configuration file "{path}": {error.strerror or error}', hint="mend its permissions"
        ) from error
    if len(data) > CONFIG_BYTES_MAX:
        raise ConfigurationInvalid(
            f'cannot use the configuration file "{path}": it is larger than {CONFIG_BYTES_MAX} bytes',
            hint="is it the right file?",
        )
    # Only where there is a file: a cold start pays for what it uses.
    import tomllib

    try:
        return path, tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationInvalid(
            f'cannot read the configuration file "{path}": {error}', hint="it must be TOML in UTF-8"
        ) from error


def _take_document(
    document: Mapping[str, Any],
    where: str,
    values: dict[str, Any],
    sources: dict[str, str],
    contexts: dict[str, NamedContext],
    faults: _Faults,
) -> None:
    for key, value in document.items():
        match key:
            case "contexts":
                for name, table in _table(value, "contexts", where, faults).items():
                    _take_context(name, table, where, contexts, faults)
            case "limits":
                for name, limit in _table(value, "limits", where, faults).items():
                    if name not in _LIMIT_FIELDS:
                        faults.unknown("limit", name, _LIMIT_FIELDS, where)
                        continue
                    values[f"limits.{name}"], sources[f"limits.{name}"] = limit, where
            case "daemon":
                for name, setting in _table(value, "daemon", where, faults).items():
                    if name not in _DAEMON_FIELDS:
                        faults.unknown("key of [daemon]", name, _DAEMON_FIELDS, where)
                        continue
                    values[f"daemon.{name}"], sources[f"daemon.{name}"] = setting, where
            case "jobs":
                pass  # read by themselves, below
            case "log":
                for name, setting in _table(value, "log", where, faults).items():
                    if name not in _LOG_KEYS:
                        faults.unknown("key of [log]", name, _LOG_KEYS, where)
                        continue
                    _take(f"log.{name}", setting, where, values, sources, faults)
            case "database_url" | "context" | "schema" | "operator" | "hints":
                _take(key, value, where, values, sources, faults)
            case _:
                faults.unknown("key", key, _TOP_KEYS, where)


def _table(value: Any, name: str, where: str, faults: _Faults) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    faults.add(f'"{name}" in {where} is no table', f"write [{name}]")
    return {}


def _take_context(name: str, table: Any, where: str, contexts: dict[str, NamedContext], faults: _Faults) -> None:
    if not _NAME.match(name):
        faults.add(
            f"cannot use {name!r} as the name of a context in {where}", 'letters, digits, ".", "_" and "-", at most 64'
        )
        return
    found = _table(table, f"contexts.{name}", where, faults)
    for key in found:
        if key not in _CONTEXT_KEYS:
            faults.unknown(f"key of [contexts.{name}]", key, _CONTEXT_KEYS, where)
    url, url_env, production = found.get("url"), found.get("url_env"), found.get("production", False)
    if not isinstance(production, bool):
        faults.add(f'"production" of context "{name}" in {where} is neither true nor false', "write true or false")
        return
    for key, value in (("url", url), ("url_env", url_env)):
        if value is not None and (not isinstance(value, str) or not value):
            faults.add(f'"{key}" of context "{name}" in {where} is no text', f'write {key} = "…"')
            return
    if (url is None) == (url_env is None):
        faults.add(
            f'context "{name}" in {where} must have either "url" or "url_env"',
            "url_env names the variable that holds the URL, so that no password stands in the file",
        )
        return
    contexts[name] = NamedContext(name, url=url, url_env=url_env, production=production)


def _take_environment(
    environ: Mapping[str, str],
    contexts: Mapping[str, NamedContext],
    values: dict[str, Any],
    sources: dict[str, str],
    faults: _Faults,
) -> None:
    named = {context.url_env for context in contexts.values() if context.url_env}
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX) or variable.startswith(_RESERVED_PREFIX) or variable in named:
            continue
        where = f"the environment ({variable})"
        text = environ[variable]
        if variable in _LIMIT_VARIABLES:
            key = _LIMIT_VARIABLES[variable]
            values[key], sources[key] = _from_text(_LIMIT_FIELDS[key.removeprefix("limits.")].type, text), where
        elif variable in _DAEMON_VARIABLES:
            key = _DAEMON_VARIABLES[variable]
            kind = _DAEMON_FIELDS[key.removeprefix("daemon.")].type
            values[key], sources[key] = text if kind == "str" else _from_text(kind, text), where
        elif variable in _VARIABLES:
            key = _VARIABLES[variable]
            # Set and empty means not set, as in most programs.
            if text and key != "config":
                _take(key, _from_text("bool", text) if key == "hints" else text, where, values, sources, faults)
        else:
            known = [*_VARIABLES, *_LIMIT_VARIABLES, *_DAEMON_VARIABLES]
            faults.unknown("variable", variable, known, "the environment")


_WORDS: Final = MappingProxyType(
    {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
)


def _from_text(type_name: object, text: str) -> Any:
    """Return the value of a variable, or the text itself where it is none of its type: the check names it then."""
    if type_name == "bool":
        return _WORDS.get(text.strip().lower(), text)
    try:
        return int(text) if type_name == "int" else float(text)
    except ValueError:
        return text


def _take(key: str, value: Any, where: str, values: dict[str, Any], sources: dict[str, str], faults: _Faults) -> None:
    if key == "hints":
        if not isinstance(value, bool):
            faults.add(f'"{key}" in {where} is neither true nor false', "write true or false")
            return
    elif not isinstance(value, str) or not value:
        faults.add(f'"{key}" in {where} is no text', f'write {key.rpartition(".")[2]} = "…"')
        return
    allowed = {"log.level": LOG_LEVELS, "log.format": LOG_FORMATS}.get(key)
    if allowed is not None and value not in allowed:
        faults.add(f'cannot use {key} = "{value}" in {where}', f"one of: {', '.join(allowed)}")
        return
    if key == "operator" and (len(value) > 128 or any(ord(character) < 32 for character in value)):
        faults.add(
            f"cannot use the operator's name in {where}", "at most 128 characters, none of them control characters"
        )
        return
    values[key], sources[key] = value, where


# --- limits ----------------------------------------------------------------------------------------------------------

# Where zero means something: no budget at all, no wait, no jitter.
_MAY_BE_ZERO: Final = frozenset(
    {
        "releases_max",
        "parks_max",
        "provider_errors_max",
        "redispatches_max",
        "grace_s",
        "leaf_moved_s",
        "quiet_s",
        "overdue_s",
        "backoff_base_s",
        "backoff_max_s",
        "backoff_jitter",
        "provider_backoff_base_s",
        "provider_backoff_max_s",
        "capability_backoff_s",
        "sub_turn_budget",
    }
)
_SECONDS_MAX: Final = 10 * 366 * 86400.0
_COUNT_MAX: Final = 2**31 - 1


def _limits(values: Mapping[str, Any], sources: Mapping[str, str], faults: _Faults) -> Limits:
    given: dict[str, Any] = {}
    for name, item in _LIMIT_FIELDS.items():
        key = f"limits.{name}"
        if key not in values:
            continue
        value = _checked_limit(name, item.type, values[key], sources[key], faults)
        if value is not None:
            given[name] = value
    limits = dataclasses.replace(DEFAULT_LIMITS, **given)
    for fault in limit_conflicts(limits):
        faults.add(*fault)
    return limits


def _checked_limit(name: str, type_name: object, value: Any, where: str, faults: _Faults) -> Any:
    if type_name == "bool":
        if isinstance(value, bool):
            return value
        faults.add(f'limit "{name}" in {where} is neither true nor false', "write true or false")
        return None
    whole = type_name == "int"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        faults.add(
            f'limit "{name}" in {where} is no {"whole number" if whole else "number"}: {value!r}', "write a number"
        )
        return None
    least: float = 0 if name in _MAY_BE_ZERO else (1 if whole else 0.001)
    most: float = _COUNT_MAX if whole else _SECONDS_MAX
    if not math.isfinite(value) or not least <= value <= most:
        faults.add(f'limit "{name}" in {where} is out of range: {value}', f"between {least:g} and {most:g}")
        return None
    return value if whole else float(value)


def limit_conflicts(limits: Limits) -> list[tuple[str, str]]:
    """Return which limits contradict each other, each with the way out."""
    faults: list[tuple[str, str]] = []
    for larger, smaller, why in (
        # Otherwise the general budget would hide the reason.
        ("attempts_max", "crashes_in_row_max", "above"),
        ("attempts_max", "provider_errors_max", "above"),
        ("lease_max_s", "lease_s", "at least"),
        ("backoff_max_s", "backoff_base_s", "at least"),
        ("provider_backoff_max_s", "provider_backoff_base_s", "at least"),
    ):
        most, least = getattr(limits, larger), getattr(limits, smaller)
        if most > least or (why == "at least" and most == least):
            continue
        message = f"limits contradict each other: {larger} = {most:g} is not {why} {smaller} = {least:g}"
        faults.append((message, f"raise limits.{larger}, or lower limits.{smaller}"))
    if limits.lease_s < 2 * limits.beat_s:
        message = (
            f"limits contradict each other: lease_s = {limits.lease_s:g} is under two beats of {limits.beat_s:g} s"
        )
        faults.append((message, "a lease must outlive a lost beat: raise limits.lease_s, or lower limits.beat_s"))
    if limits.backoff_factor < 1:
        faults.append((f"limit backoff_factor = {limits.backoff_factor:g} is below 1", "a backoff does not shrink"))
    if limits.backoff_jitter > 1:
        faults.append((f"limit backoff_jitter = {limits.backoff_jitter:g} is above 1", "a share between 0 and 1"))
    return faults


# --- the daemon and its jobs -----------------------------------------------------------------------------------------


def _daemon(values: Mapping[str, Any], sources: Mapping[str, str], faults: _Faults) -> DaemonSettings:
    given: dict[str, Any] = {}
    before = len(faults.items)
    for name, item in _DAEMON_FIELDS.items():
        key = f"daemon.{name}"
        if key not in values:
            continue
        value = values[key]
        if not _is_of(item.type, value):
            words = {"bool": "neither true nor false", "str": "no text", "int": "no whole number", "float": "no number"}
            faults.add(
                f'"{key}" in {sources[key]} is {words[str(item.type)]}: {value!r:.100}', f"see {key} in the docs"
            )
            continue
        given[name] = float(value) if item.type == "float" else value
    settings = dataclasses.replace(DEFAULT_DAEMON, **given)
    if len(faults.items) == before:
        for fault in daemon_faults(settings):
            faults.add(*fault)
    return settings


def _is_of(type_name: object, value: object) -> bool:
    if isinstance(value, bool) or type_name == "bool":
        return isinstance(value, bool) and type_name == "bool"
    if type_name == "float":
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, int if type_name == "int" else str)


def _jobs(tables: Any, where: str, faults: _Faults) -> list[Job]:
    if not tables:
        return []
    from reconciler.service.job_table import JOBS_MAX, job_from_table

    found = _table(tables, "jobs", where, faults)
    if len(found) > JOBS_MAX:
        faults.add(f"{where} has {len(found)} jobs, more than {JOBS_MAX}", "fewer jobs")
        return []
    jobs = []
    for name, table in found.items():
        try:
            jobs.append(job_from_table(name, _table(table, f"jobs.{name}", where, faults)))
        except InvalidInput as error:
            faults.add(f"{error.message} ({where})", error.hint or "")
    return jobs


# --- which database --------------------------------------------------------------------------------------------------


def _choose_database(
    flags: Flags,
    environ: Mapping[str, str],
    values: Mapping[str, Any],
    sources: Mapping[str, str],
    contexts: Mapping[str, NamedContext],
) -> tuple[str | None, str, NamedContext | None]:
    """Return the URL (None: the embedded default), where it comes from, and the context it was named by.

    A flag goes before the environment, the environment before the file; in each of them a URL and a context together
    are a contradiction.
    """
    levels = (
        (flags.database, flags.context, "--database", "--context"),
        *(
            (
                values.get("database_url") if from_environment == _from_environment(sources, "database_url") else None,
                values.get("context") if from_environment == _from_environment(sources, "context") else None,
                sources.get("database_url", ""),
                sources.get("context", ""),
            )
            for from_environment in (True, False)
        ),
    )
    for url, name, url_from, name_from in levels:
        if url is not None and name is not None:
            raise ConfigurationInvalid(f"{url_from} and {name_from} both name a database", hint="leave one of them out")
        if url is not None:
            return url, url_from, _context_of(url, contexts, environ)
        if name is not None:
            context = _named(name, name_from, contexts)
            return _url_of(context, environ), f'context "{name}" ({name_from})', context
    return None, "the default", None


def _from_environment(sources: Mapping[str, str], key: str) -> bool:
    return sources.get(key, "").startswith("the environment")


def _named(name: str, where: str, contexts: Mapping[str, NamedContext]) -> NamedContext:
    if name in contexts:
        return contexts[name]
    near = difflib.get_close_matches(name, contexts, n=1, cutoff=0.6)
    if near:
        hint = f'did you mean "{near[0]}"?'
    elif contexts:
        hint = f"known: {', '.join(sorted(contexts))}"
    else:
        hint = "contexts stand in the configuration file: [contexts.NAME] with url or url_env"
    raise ConfigurationInvalid(f'unknown context "{name}" ({where})', hint=hint)


def _url_of(context: NamedContext, environ: Mapping[str, str]) -> str:
    if context.url is not None:
        return context.url
    url = environ.get(context.url_env or "")
    if not url:
        raise ConfigurationInvalid(
            f'context "{context.name}" takes its URL from the variable {context.url_env}, which is not set',
            hint=f"set {context.url_env}",
        )
    return url


def _context_of(url: str, contexts: Mapping[str, NamedContext], environ: Mapping[str, str]) -> NamedContext | None:
    # A production database that is named by its bare URL stays one.
    for context in contexts.values():
        if url == (context.url if context.url is not None else environ.get(context.url_env or "")):
            return context
    return None
