"""What operators do to a session: move its leaf, record what became of a call."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy.engine import Connection

from reconciler.core.model import CallDispatch
from reconciler.core.states import Reason
from reconciler.core.terms import tool_marker_entry_id
from reconciler.errors import AmbiguousId, Conflict, NotFound
from reconciler.ops.acting import act_reply, audit, gathered, perform
from reconciler.ops.asking import Asked, Reply
from reconciler.ops.naming import command, no_such_session
from reconciler.service.gather import Gathered
from reconciler.store import operator_acts as store


def move_leaf(asked: Asked) -> Reply:
    """Carry out `move-leaf`."""

    def work(conn: Connection) -> Reply:
        session_id, entry_id = asked["session"], asked["entry"]
        session = _session(conn, session_id, "move the leaf of")
        move = store.move_leaf(conn, session, entry_id, operator=asked.desk.operator, note=asked["reason"])
        if move.moved:
            _refuse_live(conn, session_id, f'move the leaf of session "{session_id}"')
            audit(conn, asked, session_id, None)
        return act_reply(
            asked,
            session_id=session_id,
            submission_id=None,
            action="move-leaf",
            done=move.moved,
            message=f'the leaf is "{entry_id}"' + (f' (was "{move.before}")' if move.moved else ""),
        )

    return perform(asked, work)


def _session(conn: Connection, session_id: str, act: str) -> Any:
    try:
        return store.lock_native_session(conn, session_id, act)
    except NotFound:
        raise no_such_session(conn, session_id) from None


def _refuse_live(conn: Connection, session_id: str, act: str) -> None:
    live = store.live_submission(conn, session_id)
    if live is not None:
        raise Conflict(
            f'cannot {act}: "{live.owner}" works on submission "{live.id}" in it',
            hint=f"abort it first ({command('abort', f'{session_id}/{live.id}')}), or wait until it is done",
        )


# What a person found out, as the model reads it.
_FINDINGS: Final = {
    "happened": "a person checked: the call was carried out and took effect; its result is not known",
    "not-happened": "a person checked: the call was not carried out; call it again if it is still needed",
    "diverged": "a person checked: the call had another effect than it should have had",
    "unreadable": "a person checked: what the call did cannot be found out",
}
# The one finding that a call can have which is proven not to have started.
_NOT_STARTED_IS: Final = "not-happened"
_LEAVES_HELD: Final = frozenset({"diverged", "unreadable"})


def resolve(asked: Asked) -> Reply:
    """Carry out `resolve`."""
    finding = asked["as"]

    def work(conn: Connection) -> Reply:
        session_id = asked["session"]
        session = _session(conn, session_id, "resolve a call of")
        head = store.head_submission(conn, session_id)
        if head is None:
            raise NotFound(f'session "{session_id}" has no submission without an outcome: nothing is to be resolved')
        _refuse_live(conn, session_id, f'resolve a call of session "{session_id}"')
        found, _ = gathered(conn, asked, session_id, head)
        call = _open_call(found, asked["call"], session_id)
        if call.dispatch is CallDispatch.NOT_STARTED and finding != _NOT_STARTED_IS:
            raise Conflict(
                f'cannot resolve call "{call.call_id}" of session "{session_id}" as {finding}: the record proves that'
                " it never started (its writer logs each start before the tool runs, and there is none)",
                detail={"entry_id": call.entry_id, "position": call.position, "dispatch": call.dispatch.value},
                hint=f"leave it: the next attempt tells the model that it never started; or say so now, with --as"
                f" {_NOT_STARTED_IS}. If the effect is there all the same, another call or program made it: tell the"
                f" model by a new prompt, or end the work ({command('abort', f'{session_id}/{head}')})",
            )
        text = _FINDINGS[finding]
        store.record_result(
            conn,
            session,
            # The id of the marker: who begins the turn finds the call closed.
            entry_id=tool_marker_entry_id(call.entry_id, call.position),
            tool_call_id=call.call_id,
            submission_id=head,
            payload={"finding": finding, "operator": asked.desk.operator, "text": text, "note": asked["reason"]},
        )
        row: Any = store.locked(conn, session_id, head)
        note = f"{call.call_id}: {finding}" + (f" ({asked['reason']})" if asked["reason"] else "")
        if finding in _LEAVES_HELD:
            store.hold_by_hand(conn, row, reason=Reason.UNKNOWN_EFFECT, operator=asked.desk.operator, note=note)
            after = "it is held until somebody releases, settles or aborts it"
        else:
            store.wake(
                conn, row, action="resolve", reason=finding.replace("-", "_"), operator=asked.desk.operator, note=note
            )
            after = "it stays held" if row.held_at is not None else "the next pass decides on it"
        audit(conn, asked, session_id, head)
        return act_reply(
            asked,
            session_id=session_id,
            submission_id=head,
            action="resolve",
            done=True,
            message=f'call "{call.call_id}" is recorded as {finding}; {after}',
            status=row.status,
        )

    return perform(asked, work)


def _open_call(found: Gathered, name: str, session_id: str) -> Any:
    calls = found.evidence.open_calls
    hits = [call for call in calls if name in (call.call_id, f"{call.entry_id}[{call.position}]")]
    if len(hits) == 1:
        return hits[0]
    if hits:
        places = [f"{call.entry_id}[{call.position}]" for call in hits]
        raise AmbiguousId(
            f'"{name}" names {len(hits)} calls without a result',
            detail={"calls": places},
            hint=f"name its place: {', '.join(places[:5])}",
        )
    open_ids = ", ".join(call.call_id for call in calls[:5]) or "none"
    raise NotFound(
        f'session "{session_id}" has no call "{name}" without a result in the turn at hand',
        hint=f"calls without a result: {open_ids}",
    )
