"""The doctor: what is wrong with an installation, how bad it is, and what can be done. Reads only.

Every check gives one or more findings and never raises: a check that could not be made says so. A database that cannot
be reached is a finding too, and then the others are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy.engine import Engine

from reconciler.core.model import DEFAULT_LIMITS, Limits
from reconciler.errors import DatabaseUnavailable, ReconcilerError, SchemaMismatch
from reconciler.store import health
from reconciler.store.engine import SCHEMA_REVISIONS, SchemaState, file_of, read, require_schema, schema_state
from reconciler.store.migrate import differences
from reconciler.store.queries import Counts, count_all

CLOCK_SKEW_S: Final = 2.0
TRANSACTION_OLD_S: Final = 60.0
_DEAD_ROWS: Final = 10_000
_DEAD_SHARE: Final = 0.2
_WRAPAROUND: Final = 0.5
_DISK_LOW: Final = 1024**3
_DISK_SHARE: Final = 0.05
_DISK_OUT: Final = 64 * 1024**2
_WAL_LARGE: Final = 256 * 1024**2
_FREE_SHARE: Final = 0.3
_PAGES_MANY: Final = 25_000
# An SQLite file up to this size is read whole by its own quick check.
_QUICK_CHECK_MAX: Final = 512 * 1024**2


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    # It works, and somebody should look.
    WARNING = "warning"
    # It does not work, or work may be lost.
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. ``hint`` is the way out, None where all is well."""

    name: str
    status: Severity
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Examination:
    """All findings; ``reachable`` is False where the database could not be asked."""

    findings: tuple[Finding, ...]
    reachable: bool = True
    # As found, where `db upgrade` can do something about it.
    schema: SchemaState | None = None


def _ok(name: str, message: str) -> Finding:
    return Finding(name, Severity.OK, message)


def _warn(name: str, message: str, hint: str) -> Finding:
    return Finding(name, Severity.WARNING, message, hint)


def _bad(name: str, message: str, hint: str) -> Finding:
    return Finding(name, Severity.ERROR, message, hint)


def examine(
    engine: Engine,
    *,
    limits: Limits = DEFAULT_LIMITS,
    settings: Mapping[str, Any] | None = None,
    wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Examination:
    """Examine the database behind *engine*, and the settings (by their names) that go with it."""
    findings = list(_configuration(settings or {}, limits))
    path = file_of(engine)
    if path is not None and not path.exists():
        findings.append(
            _bad("schema", f'there is no SQLite file "{path}"', "make it with `reconciler db upgrade`, or name another")
        )
        return Examination(tuple(findings), schema=SchemaState(None))
    started = time.monotonic()
    try:
        state = schema_state(engine)
    except DatabaseUnavailable as error:
        return Examination((_bad("database", error.message, error.hint or "try again"), *findings), reachable=False)
    except ReconcilerError as error:
        return Examination((_bad("database", error.message, error.hint or "see the message"), *findings))
    took = time.monotonic() - started
    findings.insert(0, _ok("database", f"it answers ({took * 1000:.0f} ms)"))
    if not state.matches:
        findings.append(_schema(engine))
    else:
        findings.append(_ok("schema", f"it is the one needed: {state.needed}"))
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("server", lambda: _server(engine, wall_clock)) if path is None else ("file", lambda: _file(engine))
    ]
    if state.matches:
        checks += [("tables", lambda: _tables(engine)), ("work", lambda: _work(engine, limits))]
    for name, check in checks:
        try:
            findings += check()
        except DatabaseUnavailable as error:
            findings.append(_bad("database", error.message, error.hint or "try again"))
            return Examination(tuple(findings), reachable=False)
        except (ReconcilerError, OSError) as error:
            findings.append(_warn(name, f"this could not be checked: {error}", "see the message"))
    can_upgrade = state.found in SCHEMA_REVISIONS or (state.found is None and state.empty)
    return Examination(tuple(findings), schema=state if can_upgrade else None)


def _schema(engine: Engine) -> Finding:
    """Return what is wrong with the schema, in the words of whoever would refuse it."""
    try:
        require_schema(engine, for_writing=False)
    except SchemaMismatch as error:
        return _bad("schema", error.message, error.hint or "see the message")
    return _ok("schema", "it is the one needed since a moment ago")


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


def _server(engine: Engine, wall_clock: Callable[[], datetime]) -> Iterator[Finding]:
    with read(engine) as conn:
        before = wall_clock()
        found = health.server_health(conn)
    after = wall_clock()
    yield _ok("version", f"{found.version}, {_size(found.database_bytes)}")
    yield from _clock(before, found.now, after)
    old = [one for one in found.transactions if one[3] > TRANSACTION_OLD_S]
    if old:
        pid, user, state, age = old[0]
        yield _warn(
            "transactions",
            f"{len(old)} transactions are open for longer than {TRANSACTION_OLD_S:.0f} s; the oldest is of {user}"
            f" (pid {pid}, {state or 'unknown'}) since {age:.0f} s: dead rows stay, and locks too",
            f"find out what it is; SELECT pg_terminate_backend({pid}) ends it",
        )
    else:
        yield _ok("transactions", "none is open for long")
    if found.invalid_indexes:
        names = ", ".join(found.invalid_indexes)
        yield _bad("indexes", f"invalid indexes: {names}", f"REINDEX INDEX CONCURRENTLY {found.invalid_indexes[0]}")
    else:
        yield _ok("indexes", "none is invalid")
    bloated = [one for one in found.dead_rows if one[2] > _DEAD_ROWS and one[2] > _DEAD_SHARE * max(1, one[1])]
    if bloated:
        name, live, dead, vacuumed = bloated[0]
        when = "never" if vacuumed is None else f"last at {vacuumed:%Y-%m-%d %H:%M}Z"
        yield _warn(
            "bloat",
            f"{len(bloated)} tables are full of dead rows; {name} has {dead} beside {live}, vacuumed {when}",
            f"VACUUM {name}; look whether autovacuum runs, and for old transactions",
        )
    else:
        yield _ok("bloat", "few dead rows")
    if found.wraparound > _WRAPAROUND:
        yield _warn(
            "wraparound",
            f"{found.wraparound:.0%} of the transaction ids before a wraparound are used",
            "VACUUM FREEZE, and look whether autovacuum runs",
        )
    if found.in_recovery:
        yield _bad("role", "the server is a standby: nothing can be written", "connect to the primary")
    elif found.is_superuser:
        yield _warn(
            "role",
            "the role is a superuser: it may change schemas and read everything",
            "use a role with the grants that deploy/ lists",
        )
    else:
        yield _ok("role", "it is no superuser")
    if "off" in (found.fsync, found.full_page_writes):
        yield _bad(
            "durability",
            f"fsync is {found.fsync}, full_page_writes is {found.full_page_writes}: a crash of the server loses work",
            "switch both on",
        )
    else:
        yield _ok("durability", f"synchronous_commit is {found.synchronous_commit}, fsync is on")


def _clock(before: datetime, now: datetime, after: datetime) -> Iterator[Finding]:
    # The database's instant lies between the two where the clocks agree.
    skew = max((before - now).total_seconds(), (now - after).total_seconds(), 0.0)
    ahead = "behind" if now < before else "ahead"
    if skew > CLOCK_SKEW_S:
        yield _warn(
            "clock",
            f"the database's clock is {skew:.1f} s {ahead} of this host's; decisions go by the database's,"
            " but what people read off this host does not fit them",
            "let both hosts keep time by NTP",
        )
    else:
        yield _ok("clock", "the database's clock and this host's agree")


# --- SQLite ----------------------------------------------------------------------------------------------------------


def _file(engine: Engine) -> Iterator[Finding]:
    path = file_of(engine)
    quick = path is not None and path.stat().st_size <= _QUICK_CHECK_MAX
    with read(engine) as conn:
        found = health.file_health(conn, quick_check=quick)
    yield _ok("version", f"SQLite {found.version}, {_size(found.size)}")
    # One host, one clock.
    yield _ok("clock", "the database's clock is this host's")
    if found.integrity != "ok":
        yield _bad(
            "integrity",
            f"SQLite says that the file is damaged: {found.integrity}",
            "stop what writes to it, keep a copy, and restore it from a backup (or try `sqlite3 FILE .recover`)",
        )
    else:
        yield _ok("integrity", "SQLite finds no fault in it" if quick else "not checked: the file is large")
    if found.journal_mode != "wal":
        yield _bad(
            "journal",
            f'its journal mode is "{found.journal_mode}", not "wal": readers and writers stop each other',
            "put it on a local disk, where it may be written to",
        )
    elif found.wal_size > _WAL_LARGE:
        yield _warn(
            "journal",
            f"its write-ahead log has {_size(found.wal_size)}: some program keeps a transaction open",
            "find out which one (`fuser FILE`) and stop it; the log shrinks by itself then",
        )
    else:
        yield _ok("journal", f"write-ahead log, {_size(found.wal_size)}")
    free = found.free_pages / max(1, found.page_count)
    if found.page_count > _PAGES_MANY and free > _FREE_SHARE:
        yield _warn(
            "bloat",
            f"{free:.0%} of the file are free pages",
            'nothing is lost by it; `sqlite3 FILE "VACUUM"` makes it smaller while nothing else uses it',
        )
    else:
        yield _ok("bloat", f"{free:.0%} of the file are free pages")
    yield from _disk(found)
    yield from _permissions(found)


def _disk(found: health.FileHealth) -> Iterator[Finding]:
    left = f"{_size(found.disk_free)} are left on its disk ({found.disk_free / max(1, found.disk_total):.0%})"
    way = "make room: `reconciler prune --dry-run` shows what would go"
    if found.disk_free < _DISK_OUT:
        yield _bad("disk", left, way)
    elif found.disk_free < _DISK_LOW and found.disk_free < _DISK_SHARE * found.disk_total:
        yield _warn("disk", left, way)
    else:
        yield _ok("disk", left)


def _permissions(found: health.FileHealth) -> Iterator[Finding]:
    if not found.may_write:
        yield _bad(
            "permissions",
            "this user may not write to the file, or not to its folder",
            "run as the user that owns it, or change its owner",
        )
    elif found.mode & 0o077:
        yield _warn(
            "permissions",
            f"others than its owner may open the file (mode {found.mode:04o}): it holds what was said in sessions",
            f"chmod 600 {found.path}",
        )
    elif found.folder_mode & 0o1002 == 0o002:
        yield _warn(
            "permissions",
            f"everybody may write to its folder (mode {found.folder_mode:04o}), and so replace the file",
            f"chmod o-w {found.path.parent}",
        )
    else:
        yield _ok("permissions", f"mode {found.mode:04o}")


# --- both ------------------------------------------------------------------------------------------------------------


def _tables(engine: Engine) -> Iterator[Finding]:
    missing = health.missing_indexes(engine)
    if missing:
        yield _bad(
            "missing_indexes",
            f"missing: {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}; unique ones keep promises",
            "see `reconciler db check`; put them back as the migrations made them",
        )
    found = [text for text in differences(engine) if not any(name.split(" of ")[0] in text for name in missing)]
    if found:
        yield _bad("tables", f"they were changed by hand: {'; '.join(found[:3])}", "see `reconciler db check`")
    elif not missing:
        yield _ok("tables", "tables, indexes and views are as they should be")


def _work(engine: Engine, limits: Limits) -> Iterator[Finding]:
    with read(engine) as conn:
        counts = count_all(conn, overdue_s=limits.overdue_s)
        bulk = health.open_operations(conn)
    yield _count(
        "instances",
        counts.silent_instances,
        "{n} processes have gone silent without a good-bye",
        "look whether they run; what they hold is due when its leases end",
        "none has gone silent",
    )
    yield _count(
        "schedule",
        counts.missed_slots,
        "{n} schedule slots were taken and not finished",
        "see `reconciler schedule list`; a daemon takes them over",
        "no slot was missed",
    )
    yield _count(
        "quarantine",
        counts.held,
        "{n} submissions are held and wait for a person",
        "see `reconciler list --status held`, then explain, release, settle or abort",
        "nothing is held",
    )
    yield _count(
        "overdue",
        counts.overdue,
        f"{{n}} submissions have been claimable for longer than {limits.overdue_s:g} s",
        "look whether runners run and what they can do: `reconciler list --status overdue`",
        "runners keep up",
    )
    yield from _passes(counts)
    if bulk:
        operation_id, verb, pending = bulk[0]
        yield _warn(
            "operations",
            f"{len(bulk)} bulk acts are not finished; {verb} has {pending} items left",
            f"reconciler operations resume {operation_id}",
        )
    else:
        yield _ok("operations", "no bulk act was interrupted")


def _count(name: str, count: int, message: str, hint: str, fine: str) -> Finding:
    return _warn(name, message.format(n=count), hint) if count else _ok(name, fine)


# Due for longer than this, and nobody has looked: no daemon runs, or it cannot keep up.
_PASS_LATE_S: Final = 60.0


def _passes(counts: Counts) -> Iterator[Finding]:
    late = 0.0 if counts.oldest_due_at is None else (counts.now - counts.oldest_due_at).total_seconds()
    daemons = counts.instances.get("daemon", 0)
    if counts.due and late > _PASS_LATE_S:
        why = f"{daemons} daemons run" if daemons else "no daemon runs"
        yield _warn(
            "passes",
            f"{counts.due} submissions are due, the first one since {late:.0f} s; {why}",
            "start one (`reconciler run`), or have a timer call `reconciler once`",
        )
    else:
        yield _ok("passes", f"{counts.due} submissions are due; daemons: {daemons}")


def _configuration(settings: Mapping[str, Any], limits: Limits) -> Iterator[Finding]:
    faults: list[tuple[str, str]] = []
    interval = settings.get("daemon.pass_interval_s")
    if isinstance(interval, int | float) and interval > limits.lease_s:
        faults.append(
            (
                (
                    f"daemon.pass_interval_s is {interval:g}, longer than a lease of {limits.lease_s:g} s:"
                    " a crash is noticed late"
                ),
                "lower daemon.pass_interval_s",
            )
        )
    if limits.lease_s < 3 * limits.beat_s:
        faults.append(
            (
                (
                    f"limits.lease_s is {limits.lease_s:g}, under three beats of {limits.beat_s:g} s:"
                    " two lost beats look like a crash"
                ),
                "raise limits.lease_s, or lower limits.beat_s",
            )
        )
    if settings.get("daemon.prune") == "":
        faults.append(("daemon.prune is empty: nothing is ever pruned", "set it, or call `reconciler prune`"))
    if settings.get("daemon.sweep") == "":
        faults.append(("daemon.sweep is empty: settled work is not verified", "set it, or call `reconciler fsck`"))
    if limits.stall_s < limits.lease_s:
        faults.append(
            (
                (
                    f"limits.stall_s is {limits.stall_s:g}, shorter than a lease of {limits.lease_s:g} s:"
                    " work is taken from runners that are alive"
                ),
                "raise limits.stall_s above the longest tool call",
            )
        )
    if not faults:
        yield _ok("configuration", "its parts go together")
    for message, hint in faults:
        yield _warn("configuration", message, hint)


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
