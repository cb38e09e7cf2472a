"""What a person's name for a submission or a session means; a near miss is answered with the nearest there is."""

from __future__ import annotations

import difflib
import shlex

from sqlalchemy.engine import Connection

from reconciler.errors import AmbiguousId, NotFound
from reconciler.store.queries import HITS_MAX, Hit, find_submissions, recent_session_ids, recent_submission_ids


def command(verb: str, name: str, rest: str = "") -> str:
    """Return a command line that a person can copy; *name* is quoted where a shell would read something into it."""
    return f"reconciler {verb} {shlex.quote(name)} {rest}".rstrip()


def named_submission(conn: Connection, name: str, session_id: str | None) -> Hit:
    """Return the one submission that *name* means: a bare id, or SESSION/SUBMISSION split at any ``/``.

    Raises:
        NotFound: none; the nearest one is the hint.
        AmbiguousId: several; the detail lists them.
    """
    hits = find_submissions(conn, name, session_id=session_id)
    if len(hits) == 1:
        return hits[0]
    if hits:
        listed = [f"{hit.session_id}/{hit.submission_id}" for hit in hits]
        more = " or more" if len(hits) == HITS_MAX else ""
        raise AmbiguousId(
            f'"{name}" names {len(hits)}{more} submissions: {", ".join(listed[:3])}{" …" if len(listed) > 3 else ""}',
            detail={"hits": [{"session_id": hit.session_id, "submission_id": hit.submission_id} for hit in hits]},
        )
    where = f' in session "{session_id}"' if session_id is not None else ""
    raise NotFound(f'there is no submission "{name}"{where}', hint=_nearest_submission(conn, name, session_id))


def no_such_session(conn: Connection, session_id: str) -> NotFound:
    """Return the error for a session that is not there."""
    near = difflib.get_close_matches(session_id, recent_session_ids(conn), n=1, cutoff=0.6)
    hint = f'did you mean "{near[0]}"?' if near else "see `reconciler list --status all` for what there is"
    return NotFound(f'there is no session "{session_id}"', hint=hint)


def _nearest_submission(conn: Connection, name: str, session_id: str | None) -> str:
    known: dict[str, str] = {}
    for session, submission in recent_submission_ids(conn, session_id=session_id):
        whole = f"{session}/{submission}"
        known.setdefault(submission, whole)
        known.setdefault(whole, whole)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f'did you mean "{known[near[0]]}"?' if near else "see `reconciler list --status all` for what there is"
