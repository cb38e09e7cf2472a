"""Acts on many submissions at once, and the `operations` that they become.

A filter instead of an id makes a bulk act: what it selects is frozen into an operation, and each member is acted on by
the very act that a person would call, in a transaction that notes it too. After a crash the operation is resumed; an
item that is done is never done again. A dry run counts by the same filter and tries the first members.
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from reconciler.core.canonical import canonical_json
from reconciler.core.states import Outcome
from reconciler.errors import (
    Conflict,
    DatabaseInvalid,
    InvalidInput,
    LimitExceeded,
    NotFound,
    NothingSelected,
    ReconcilerError,
    RowUnreadable,
    StoreConflict,
    StoreFault,
)
from reconciler.ops.asking import Asked, Reply
from reconciler.ops.entry import Audit, Database, Entry, Example, Kind, Parameter
from reconciler.ops.operations_shape import BULK_FILTERS, ITEMS_SHOWN, OPERATION, OPERATION_LIST
from reconciler.ops.render import Column, Payload, Style, plain, table, when
from reconciler.ops.values import instant, parsed

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from reconciler.store.listing import Filters, Place
    from reconciler.store.operations import Item, Operation

MEMBERS_MAX: Final = 1_000_000
_PAGE: Final = 1_000
_ITEMS: Final = 200
_TRIES: Final = 3

_OPERATION: Final = Parameter("operation", Kind.ID, "the operation's id", required=True, positional=True)
_REASON: Final = Parameter("reason", Kind.TEXT, "why, for the audit")
_DRY_RUN: Final = Parameter("dry_run", Kind.BOOLEAN, "say what would be done, and do nothing", default=False)

ENTRIES: Final = (
    Entry(
        "operations list",
        "List bulk acts, newest first",
        "reconciler.ops.operations:list_",
        OPERATION_LIST,
        parameters=(
            Parameter(
                "status",
                Kind.TEXT,
                "which ones (default: all)",
                choices=("open", "done", "cancelled", "preparing"),
            ),
            Parameter("limit", Kind.INTEGER, "how many at most", default=50, minimum=1, maximum=1_000),
        ),
        examples=(Example("reconciler operations list --status open", "what was not finished"),),
    ),
    Entry(
        "operations show",
        "Show what became of each item of a bulk act",
        "reconciler.ops.operations:show",
        OPERATION,
        parameters=(
            _OPERATION,
            Parameter("items", Kind.TEXT, "which items", choices=("all", "pending", "done", "already", "refused")),
            Parameter("after", Kind.INTEGER, "items behind this number", default=0, minimum=0, maximum=MEMBERS_MAX),
            Parameter("limit", Kind.INTEGER, "how many items at most", default=50, minimum=0, maximum=1_000),
        ),
        examples=(Example("reconciler operations show OPERATION --items refused", "what needs a person"),),
    ),
    Entry(
        "operations resume",
        "Go on with a bulk act that was interrupted",
        "reconciler.ops.operations:resume",
        OPERATION,
        parameters=(_OPERATION, _DRY_RUN),
        details="What is done is not done again. Several may resume the same one: each item is done once.",
        examples=(Example("reconciler operations resume OPERATION", "finish it"),),
        acts=True,
        database=Database.WRITE,
        dry_run=True,
        audit=Audit.FIRST,
        long=True,
    ),
    Entry(
        "operations cancel",
        "Cancel a bulk act: what is done stays done, the rest is left alone",
        "reconciler.ops.operations:cancel",
        OPERATION,
        parameters=(_OPERATION, _REASON, _DRY_RUN),
        examples=(Example("reconciler operations cancel OPERATION --reason 'wrong filter'", "stop it"),),
        acts=True,
        database=Database.WRITE,
        dry_run=True,
        audit=Audit.INSIDE,
    ),
)


# --- the acts --------------------------------------------------------------------------------------------------------


def abort(asked: Asked) -> Reply:
    """Carry out `abort`."""
    return _one_or_many(asked)


def retry(asked: Asked) -> Reply:
    """Carry out `retry`."""
    return _one_or_many(asked)


def release(asked: Asked) -> Reply:
    """Carry out `release`."""
    return _one_or_many(asked)


def settle(asked: Asked) -> Reply:
    """Carry out `settle`. With a filter the outcome is the only word."""
    submission, outcome = asked["submission"], asked["outcome"]
    if outcome is None and submission in set(Outcome):
        asked = replace(asked, params={**asked.params, "submission": None, "outcome": submission})
    if asked["outcome"] is None:
        raise InvalidInput(
            "settle needs an outcome: completed, failed or aborted", hint="reconciler settle SUBMISSION OUTCOME"
        )
    return _one_or_many(asked)


def _one_or_many(asked: Asked) -> Reply:
    given = [name for name in BULK_FILTERS if asked.params.get(name) is not None and name != "session"]
    if asked["submission"] is not None:
        if given:
            raise InvalidInput(
                f"cannot {asked.entry.name} one submission and what --{given[0].replace('_', '-')} selects",
                hint="name a submission, or a filter",
            )
        return _act_of(asked.entry.name)(asked)
    if not given and asked["session"] is None:
        raise NothingSelected(
            f"cannot {asked.entry.name} everything: no submission and no filter was given",
            hint="name a submission, or say which ones: --status, --session, --with-reason, --origin, --owner,"
            " --since, --until",
        )
    if asked.params.get("repair_leaf") is not None:
        raise InvalidInput("--repair-leaf names an entry of one session: it goes with one submission")
    return _bulk(asked)


def _act_of(verb: str) -> Callable[[Asked], Reply]:
    from reconciler.ops import acts

    found: Callable[[Asked], Reply] = {
        "abort": acts.abort,
        "retry": acts.retry,
        "settle": acts.settle,
        "release": acts.release,
    }[verb]
    return found


# --- many ------------------------------------------------------------------------------------------------------------


def _filters(asked: Asked) -> Filters:
    from reconciler.store.listing import Filters, Which

    return Filters(
        which=Which(asked["status"] or "unsettled"),
        session_id=asked["session"],
        reason=asked["with_reason"],
        origin=asked["origin"],
        owner=asked["owner"],
        since=asked["since"],
        until=asked["until"],
        overdue_s=asked.desk.limits.overdue_s,
    )


def _filter_json(asked: Asked) -> dict[str, Any]:
    found = {name: asked.params.get(name) for name in BULK_FILTERS}
    # As instants: "2h" would mean another one at each look.
    found |= {name: instant(found[name]) for name in ("since", "until")}
    return {name: value for name, value in found.items() if value is not None}


def _members(asked: Asked) -> list[tuple[str, str]]:
    from reconciler.store.operations import members_page

    filters = _filters(asked)
    found: list[tuple[str, str]] = []
    after: Place | None = None
    # One state of the database, so that nothing that moves meanwhile is missed or met twice.
    with asked.reading() as conn:
        while True:
            page, after = members_page(conn, filters, after=after, limit=_PAGE)
            found += page
            if len(found) > MEMBERS_MAX:
                raise LimitExceeded(
                    f"cannot {asked.entry.name} more than {MEMBERS_MAX} submissions at once", hint="narrow the filter"
                )
            if after is None:
                return found


def _bulk(asked: Asked) -> Reply:
    members = _members(asked)
    if asked.dry_run or not members:
        return _previewed(asked, members)
    operation_id = _freeze(asked, members)
    found = _work_off(asked, operation_id)
    return _bulk_reply(asked, found, _shown_items(asked, operation_id, ("refused",)))


def _previewed(asked: Asked, members: list[tuple[str, str]]) -> Reply:
    act = _act_of(asked.entry.name)
    items = []
    for number, (session_id, submission_id) in enumerate(members[:ITEMS_SHOWN], 1):
        one = _for_one(asked, asked.params, session_id, submission_id)
        try:
            reply = act(one)
            items.append(_item(number, session_id, submission_id, reply.payload["result"], reply.payload["message"]))
        except (ReconcilerError, ValueError, KeyError, TypeError) as error:
            refused = _about_the_row(error)
            if refused is None:
                raise
            items.append(_item(number, session_id, submission_id, "refused", refused.message, refused.code))
    count = len(members)
    message = f"{asked.entry.name} of {count} submissions" if count else "the filter selects nothing"
    return Reply(
        {
            **_nothing(asked),
            "result": "would" if count else "already",
            "message": message,
            "operation": {
                "operation_id": None,
                "status": None,
                "filter": _filter_json(asked),
                "total": count,
                "pending": count,
                "done": 0,
                "already": 0,
                "refused": 0,
                "items": items,
            },
        },
        changed=False,
    )


def _nothing(asked: Asked) -> dict[str, Any]:
    return {
        "session_id": None,
        "submission_id": None,
        "action": asked.entry.name,
        "status": None,
        "outcome": None,
        "dry_run": asked.dry_run,
    }


def _item(
    number: int, session_id: str, submission_id: str, status: str, message: str | None, code: str | None = None
) -> dict[str, Any]:
    return {
        "number": number,
        "session_id": session_id,
        "submission_id": submission_id,
        "status": status,
        "message": message,
        "code": code,
    }


def _bulk_reply(asked: Asked, found: Operation, items: list[dict[str, Any]]) -> Reply:
    counts = _counts(found)
    text = ", ".join(f"{name} {counts[name]}" for name in ("done", "already", "refused", "pending") if counts[name])
    result = "done" if counts["done"] else "already"
    return Reply(
        {
            **_nothing(asked),
            "result": result,
            "message": f"{asked.entry.name} of {found.total} submissions: {text or 'nothing to do'}",
            "operation": {
                "operation_id": found.operation_id,
                "status": found.status,
                "filter": parsed(found.filter),
                "total": found.total,
                **counts,
                "items": items,
            },
        }
    )


def _freeze(asked: Asked, members: list[tuple[str, str]]) -> str:
    """Write the operation with its members, in pieces; only the last one opens it."""
    from reconciler.ops.audit import audit_row
    from reconciler.store import operations as store
    from reconciler.store.audit import write_audit
    from reconciler.store.engine import run_transaction

    operation_id = uuid.uuid4().hex
    parameters = {name: asked.params[name] for name in ("outcome", "fence") if asked.params.get(name) is not None}
    engine = asked.desk.engine

    def begin(conn: Connection) -> None:
        store.prepare(
            conn,
            operation_id,
            verb=asked.entry.name,
            parameters=canonical_json(parameters),
            filter_text=canonical_json(_filter_json(asked)),
            operator=asked.desk.operator,
            reason=asked["reason"],
        )

    run_transaction(engine, begin)
    for start in range(0, len(members), _PAGE):
        piece = members[start : start + _PAGE]
        run_transaction(
            engine,
            lambda conn, piece=piece, first=start + 1: store.add_members(conn, operation_id, piece, first=first),  # type: ignore[misc]
        )

    def open_(conn: Connection) -> None:
        store.open_prepared(conn, operation_id, total=len(members))
        named = replace(asked, params={**asked.params, "operation": operation_id})
        write_audit(conn, audit_row(named, None, None))

    run_transaction(engine, open_)
    return operation_id


class _Taken(Exception):
    """Somebody else did the item, or the operation is not open any more: the act is taken back."""


def _for_one(asked: Asked, params: Mapping[str, Any], session_id: str, submission_id: str) -> Asked:
    one = {**params, "session": session_id, "submission": submission_id}
    return replace(asked, params=one, given=frozenset(one))


def _work_off(asked: Asked, operation_id: str) -> Operation:
    """Act on every pending item, each in a transaction of its own, and close the operation."""
    from reconciler.store import operations as store
    from reconciler.store.engine import run_transaction

    found = _operation(asked, operation_id)
    done = found.total - found.counts.get("pending", 0)
    after = 0
    while found.status == store.OPEN:
        with asked.reading() as conn:
            items = store.pending_items(conn, operation_id, after=after, limit=_ITEMS)
        if not items:
            break
        for item in items:
            if not _do(asked, operation_id, item):
                found = _operation(asked, operation_id)
                if found.status != store.OPEN:
                    break
            done += 1
            asked.desk.progress(done, found.total, f"of {asked.entry.name}")
        after = items[-1].number
    run_transaction(asked.desk.engine, lambda conn: store.close_if_done(conn, operation_id))
    return _operation(asked, operation_id)


def _about_the_row(error: Exception) -> ReconcilerError | None:
    """Return the error that one item is refused with; None where it is no matter of the item."""
    if isinstance(error, DatabaseInvalid) and error.detail is None:
        # Without the database's own word it is about a value.
        return RowUnreadable(error.message)
    if isinstance(error, StoreFault):
        return None
    if isinstance(error, ReconcilerError):
        return error
    return RowUnreadable(f"{type(error).__name__}: {error}")


def _do(asked: Asked, operation_id: str, item: Item) -> bool:
    """Act on one item; False where it was taken back."""
    from reconciler.store import operations as store
    from reconciler.store.engine import run_transaction

    def beside(conn: Connection, reply: Reply) -> None:
        result = canonical_json({"message": reply.payload["message"]})
        status = "done" if reply.changed else "already"
        if not store.finish_item(conn, operation_id, item.number, status=status, result=result):
            raise _Taken

    params = {**asked.params, "operation": operation_id, "dry_run": False}
    one = replace(_for_one(asked, params, item.session_id, item.submission_id), beside=beside)
    act = _act_of(asked.entry.name)
    for tried in range(_TRIES):
        try:
            act(one)
        except _Taken:
            return False
        except StoreConflict:
            if tried < _TRIES - 1:
                continue
            raise
        except (ReconcilerError, ValueError, KeyError, TypeError) as error:
            refused = _about_the_row(error)
            if refused is None:
                # No matter of this item: the operation stays open, and is resumed.
                raise
            refusal = canonical_json({"message": refused.message, "code": refused.code, "hint": refused.hint})
            return run_transaction(
                asked.desk.engine,
                partial(
                    store.finish_item,
                    operation_id=operation_id,
                    number=item.number,
                    status="refused",
                    result=refusal,
                ),
            )
        return True
    return False


# --- operations ------------------------------------------------------------------------------------------------------


def _operation(asked: Asked, operation_id: str) -> Operation:
    from reconciler.store import operations as store

    with asked.reading() as conn:
        found = store.operation(conn, operation_id)
        if found is not None:
            return found
        near = difflib.get_close_matches(operation_id, store.newest_ids(conn, limit=1_000), n=1, cutoff=0.6)
    hint = f'did you mean "{near[0]}"?' if near else "see `reconciler operations list`"
    raise NotFound(f'there is no operation "{operation_id}"', hint=hint)


def _counts(found: Operation) -> dict[str, int]:
    return {name: found.counts.get(name, 0) for name in ("pending", "done", "already", "refused")}


def _shown(found: Operation) -> dict[str, Any]:
    return {
        "operation_id": found.operation_id,
        "verb": found.verb,
        "status": found.status,
        "parameters": parsed(found.parameters),
        "filter": parsed(found.filter),
        "operator": found.operator,
        "reason": found.reason,
        "created_at": instant(found.created_at),
        "finished_at": instant(found.finished_at),
        "total": found.total,
        **_counts(found),
    }


def _shown_items(
    asked: Asked, operation_id: str, statuses: tuple[str, ...], *, after: int = 0, limit: int = ITEMS_SHOWN
) -> list[dict[str, Any]]:
    from reconciler.store import operations as store

    with asked.reading() as conn:
        items = store.items_page(conn, operation_id, statuses=statuses, after=after, limit=limit)
    found = []
    for item in items:
        result = parsed(item.result) or {}
        found.append(
            _item(
                item.number,
                item.session_id,
                item.submission_id,
                item.status,
                result.get("message"),
                result.get("code"),
            )
        )
    return found


def list_(asked: Asked) -> Reply:
    """Answer `operations list`."""
    from reconciler.store import operations as store

    statuses = (asked["status"],) if asked["status"] else ("open", "done", "cancelled", "preparing")
    with asked.reading() as conn:
        found = store.list_operations(conn, statuses=statuses, limit=asked["limit"])
    return Reply({"operations": [_shown(one) for one in found]})


def _reply(asked: Asked, found: Operation, items: list[dict[str, Any]], *, result: str) -> Reply:
    return Reply(
        {**_shown(found), "result": result, "dry_run": asked.dry_run, "items": items},
        changed=result == "done",
    )


_STATUSES: Final = ("pending", "done", "already", "refused")


def show(asked: Asked) -> Reply:
    """Answer `operations show`."""
    found = _operation(asked, asked["operation"])
    statuses = _STATUSES if asked["items"] in (None, "all") else (asked["items"],)
    items = _shown_items(asked, found.operation_id, statuses, after=asked["after"], limit=asked["limit"])
    return _reply(asked, found, items, result="shown")


def resume(asked: Asked) -> Reply:
    """Carry out `operations resume`."""
    from reconciler.ops.audit import audit_row
    from reconciler.ops.registry import entry_of
    from reconciler.store import operations as store
    from reconciler.store.audit import write_audit
    from reconciler.store.engine import run_transaction

    found = _operation(asked, asked["operation"])
    if found.status == store.DONE:
        return _reply(asked, found, [], result="already")
    if found.status != store.OPEN:
        why = "its members were never all written down" if found.status == store.PREPARING else "it was cancelled"
        raise Conflict(
            f'cannot resume operation "{found.operation_id}": {why}',
            hint=f"give the act anew: reconciler {found.verb} with its filter",
        )
    if asked.dry_run:
        items = _shown_items(asked, found.operation_id, ("pending",))
        return _reply(asked, found, items, result="would")
    # Whoever resumes it has their name on what follows, whatever becomes of it.
    run_transaction(asked.desk.engine, lambda conn: write_audit(conn, audit_row(asked, None, None)))
    # The act as it was given: its own parameters and reason, with whoever resumes it.
    entry = entry_of(found.verb)
    params = {parameter.name: parameter.default for parameter in entry.parameters}
    params |= parsed(found.parameters) | {"reason": found.reason}
    done = _work_off(replace(asked, entry=entry, params=params), found.operation_id)
    return _reply(asked, done, _shown_items(asked, done.operation_id, ("refused",)), result="done")


def cancel(asked: Asked) -> Reply:
    """Carry out `operations cancel`."""
    from reconciler.ops.acting import perform
    from reconciler.ops.audit import audit_row
    from reconciler.store import operations as store
    from reconciler.store.audit import write_audit

    found = _operation(asked, asked["operation"])
    if found.status == store.DONE:
        raise Conflict(f'cannot cancel operation "{found.operation_id}": it is done')

    def work(conn: Connection) -> bool:
        done = store.cancel(conn, found.operation_id)
        if done:
            write_audit(conn, audit_row(asked, None, None))
        return done

    changed = perform(asked, work)
    result = "already" if not changed else "would" if asked.dry_run else "done"
    return _reply(asked, _operation(asked, found.operation_id), [], result=result)


# --- renderers -------------------------------------------------------------------------------------------------------


def bulk_lines(payload: Payload, style: Style) -> list[str]:
    """Return what the answer of a bulk act says beside its message."""
    found = payload.get("operation")
    if found is None:
        return []
    lines = []
    if found["operation_id"]:
        lines.append(style.dim(f"operation {found['operation_id']}, {found['status']}"))
    lines += _item_lines(found["items"], style)
    left = found["total"] - len(found["items"])
    if payload["dry_run"] and left > 0:
        lines.append(f"… and {left} more")
    return lines


def _item_lines(items: list[dict[str, Any]], style: Style) -> list[str]:
    return table(
        items,
        (
            Column("#", lambda row: row["number"], right=True),
            Column("SUBMISSION", lambda row: f"{row['session_id']}/{row['submission_id']}", shrinks=True, least=20),
            Column("RESULT", lambda row: row["status"]),
            Column("WHY", lambda row: row["message"], shrinks=True, least=20),
        ),
        style,
    )


def _list(payload: Payload, style: Style) -> list[str]:
    if not payload["operations"]:
        return ["no bulk acts"]
    return table(
        payload["operations"],
        (
            Column("OPERATION", lambda row: row["operation_id"]),
            Column("VERB", lambda row: row["verb"]),
            Column("STATUS", lambda row: row["status"], coloured=True),
            Column("CREATED", lambda row: when(row["created_at"])),
            Column("TOTAL", lambda row: row["total"], right=True),
            Column("PENDING", lambda row: row["pending"] or None, right=True),
            Column("REFUSED", lambda row: row["refused"] or None, right=True),
            Column("OPERATOR", lambda row: row["operator"], shrinks=True),
            Column("REASON", lambda row: row["reason"], shrinks=True),
        ),
        style,
    )


def _show(payload: Payload, style: Style, *, name: str = "operations show") -> list[str]:
    parts = ", ".join(f"{name} {payload[name]}" for name in _STATUSES if payload[name])
    head = f"{payload['verb']}, {payload['status']}: {parts or 'no items'} of {payload['total']}"
    lines = [f"{style.bold(payload['operation_id'])}  {head}"]
    if payload["result"] == "would":
        lines.append(f"would: {_WOULD[name]} (a dry run: nothing was written)")
    if payload["filter"]:
        shown = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in payload["filter"].items())
        lines.append(style.dim(f"filter: {plain(shown)}"))
    if payload["reason"]:
        lines.append(style.dim(f"reason: {plain(payload['reason'])} ({plain(payload['operator'])})"))
    return [*lines, *_item_lines(payload["items"], style)]


_WOULD: Final[Mapping[str, str]] = MappingProxyType(
    {"operations resume": "go on with what is pending", "operations cancel": "leave what is pending alone"}
)

RENDERERS: Final[Mapping[str, Callable[[Payload, Style], list[str]]]] = MappingProxyType(
    {
        "operations list": _list,
        "operations show": _show,
        "operations resume": partial(_show, name="operations resume"),
        "operations cancel": partial(_show, name="operations cancel"),
    }
)
