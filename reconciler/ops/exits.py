"""Exit codes: the one place that decides them, for every verb and every error (contract, section 5).

A reader answers what it found; what that means for whoever called stands here, as tables over the payloads. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from reconciler import errors
from reconciler.errors import ReconcilerError

# Done, or nothing to do.
EXIT_DONE: Final = 0
# A typed error.
EXIT_ERROR: Final = 1
# The call could not be understood.
EXIT_USAGE: Final = 2
# Needs a person: this call held something, or met a conflict or damage.
EXIT_NEEDS_PERSON: Final = 3
# Any verdict of the refine gate but `accepted`.
EXIT_NOT_ACCEPTED: Final = 4
# The database is unreachable or locked: the same call may go through later.
EXIT_UNAVAILABLE: Final = 75

Payload = Mapping[str, Any]

# The other codes are typed errors that the caller can mend alone.
_CONFLICTS: Final = (
    errors.Conflict,
    errors.EpochOpen,
    errors.AlreadySettled,
    errors.SourceConflict,
    errors.SourceOwned,
)
_DAMAGE: Final = (errors.SessionDamaged, errors.RowUnreadable)
_UNAVAILABLE: Final = (errors.DatabaseUnavailable, errors.DatabaseIoError, errors.StoreConflict)

_EXIT_OF_CODE: Final[Mapping[str, int]] = MappingProxyType(
    {kind.code: EXIT_NEEDS_PERSON for kind in (*_CONFLICTS, *_DAMAGE)}
    | {kind.code: EXIT_UNAVAILABLE for kind in _UNAVAILABLE}
)


def exit_of_error(error: ReconcilerError) -> int:
    """Return the exit code of a call that ended with *error*."""
    return exit_of_code(error.code)


def exit_of_code(code: str) -> int:
    """Return the exit code that goes with the code of an error."""
    return _EXIT_OF_CODE.get(code, EXIT_ERROR)


def exit_of_answer(name: str, params: Mapping[str, Any], payload: Payload) -> int:
    """Return the exit code of the verb *name*, called with *params*, that answered *payload*."""
    rule = RULES.get(name)
    return EXIT_DONE if rule is None else rule(params, payload)


# --- the verbs whose answers say more than "done" --------------------------------------------------------------------


def _once(_params: Payload, payload: Payload) -> int:
    # A dry run holds nothing.
    needs = not payload["dry_run"] and (payload["held"] or payload["conflicts"] or payload["set_aside"])
    return EXIT_NEEDS_PERSON if needs else EXIT_DONE


def _explain(_params: Payload, payload: Payload) -> int:
    following = payload["next"]
    is_held = payload["held_at"] is not None or "hold" in (following["action"], following["advice"])
    return EXIT_NEEDS_PERSON if is_held or payload["unreadable"] else EXIT_DONE


def _files(_params: Payload, payload: Payload) -> int:
    """`inspect`, `import`: a file that could not be taken, or of which nothing could be read, else damage in one."""
    codes = {
        exit_of_code(problem["code"])
        for file in payload["files"]
        if file["format"] is None or file["session_id"] is None
        for problem in file["problems"]
        # An empty file is no error.
        if problem["code"] != NO_SESSION
    }
    if EXIT_ERROR in codes:
        return EXIT_ERROR
    damaged = any(submission["integrity"] for file in payload["files"] for submission in file["submissions"])
    return EXIT_NEEDS_PERSON if codes or damaged else EXIT_DONE


def _bulk(_params: Payload, payload: Payload) -> int:
    """An act with a filter: what it was refused, and what it left, is for a person."""
    found = payload.get("operation")
    return EXIT_DONE if found is None else _operation_left(found, dry_run=payload["dry_run"])


def _resume(_params: Payload, payload: Payload) -> int:
    return _operation_left(payload, dry_run=payload["dry_run"])


def _operation_left(found: Payload, *, dry_run: bool) -> int:
    refused = any(item["status"] == "refused" for item in found["items"]) or found["refused"]
    return EXIT_NEEDS_PERSON if refused or (found["pending"] and not dry_run) else EXIT_DONE


def _resolve(params: Payload, payload: Payload) -> int:
    return EXIT_NEEDS_PERSON if params["as"] in LEAVES_HELD and not payload["dry_run"] else EXIT_DONE


NO_SESSION: Final = "no_session"

# What a person found out that leaves the submission held.
LEAVES_HELD: Final = frozenset({"diverged", "unreadable"})


def _doctor(_params: Payload, payload: Payload) -> int:
    if not payload["reachable"]:
        return EXIT_UNAVAILABLE
    return {"ok": EXIT_DONE, "warning": EXIT_NEEDS_PERSON, "error": EXIT_ERROR}[payload["status"]]


def _gate(_params: Payload, payload: Payload) -> int:
    accepted = all(answer["verdict"] == "accepted" for answer in payload["answers"])
    return EXIT_DONE if accepted else EXIT_NOT_ACCEPTED


def _needs_person_where(
    needs: Callable[[Payload], object],
) -> Callable[[Payload, Payload], int]:
    return lambda _params, payload: EXIT_NEEDS_PERSON if needs(payload) else EXIT_DONE


def _error_where(fails: Callable[[Payload], object]) -> Callable[[Payload, Payload], int]:
    return lambda _params, payload: EXIT_ERROR if fails(payload) else EXIT_DONE


def _is_other_schema(payload: Payload) -> bool:
    return bool(payload["schema"]["found"] != payload["schema"]["needed"])


# A verb that isn't here ends with 0 whatever it answers.
RULES: Final[Mapping[str, Callable[[Payload, Payload], int]]] = MappingProxyType(
    {
        "once": _once,
        "explain": _explain,
        "show": _needs_person_where(lambda payload: payload["damage"] or payload["unreadable"]),
        "list": _needs_person_where(lambda payload: any(row["unreadable"] for row in payload["submissions"])),
        "inspect": _files,
        "import": _files,
        "watch": _needs_person_where(
            lambda payload: any(change["standing"] == "damaged" for change in payload["changes"])
        ),
        "abort": _bulk,
        "retry": _bulk,
        "settle": _bulk,
        "release": _bulk,
        "resolve": _resolve,
        "operations resume": _resume,
        "export": _needs_person_where(lambda payload: payload["problems"]),
        "fsck": _needs_person_where(lambda payload: payload["left"]),
        "doctor": _doctor,
        "status": _error_where(_is_other_schema),
        "db check": _error_where(lambda payload: _is_other_schema(payload) or payload["differences"]),
        "schedule run": _error_where(lambda payload: payload["result"] == "failed"),
        "refine gate": _gate,
    }
)
