"""Typed errors, split by who can mend them.

Every error has a stable ``code`` (programs match on it), a ``message`` that names the thing and the reason, an optional
``detail``, a ``hint`` that says the way out, and ``safe_to_retry``. Texts are free to change, codes are not.
"could not" in a message means that a retry may work, "cannot" that it never will.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

# Of a message, or of a hint.
_TEXT_CHARACTERS_MAX: Final = 4_000


class ReconcilerError(Exception):
    """The session reconciler could not do what was asked."""

    code: ClassVar[str] = "error"
    safe_to_retry: ClassVar[bool] = False
    default_hint: ClassVar[str | None] = None

    def __init__(
        self,
        message: str | None = None,
        *,
        detail: Mapping[str, Any] | str | None = None,
        hint: str | None = None,
    ) -> None:
        # The class docstring is the default message, so the text, the type and the docs cannot drift apart.
        self.message = _presentable(message or " ".join((type(self).__doc__ or "").split()))
        self.detail = detail
        self.hint = _presentable(hint) if hint else self.default_hint
        super().__init__(self.message)

    def __str__(self) -> str:
        """Return the message with the way out: what a traceback and a log of a Python program show."""
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def as_dict(self) -> dict[str, Any]:
        """Return the value of ``error`` in a JSON answer: code, message, detail, hint."""
        return {"code": self.code, "message": self.message, "detail": self.detail, "hint": self.hint}


def _presentable(text: str) -> str:
    """Return a text that can be printed and kept: whatever a caller passed may be quoted in it."""
    if len(text) > _TEXT_CHARACTERS_MAX:
        text = f"{text[:_TEXT_CHARACTERS_MAX]}… ({len(text)} characters)"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class RunnerFault(ReconcilerError):
    """A runner's call cannot be carried out."""


class OperatorFault(ReconcilerError):
    """A request of an operator or of a configuration cannot be carried out."""


class StoreFault(ReconcilerError):
    """The database could not do its part."""


# --- input -----------------------------------------------------------------------------------------------------------


class InvalidInput(RunnerFault, ValueError):
    """A value is outside what the contract allows."""

    code = "invalid_input"


class IllegalTransition(RunnerFault):
    """A status has no such event."""

    code = "illegal_transition"

    def __init__(self, kind: str, status: str, event: str) -> None:
        super().__init__(
            f'cannot apply event "{event}" to a {kind} with status "{status}"',
            detail={"kind": kind, "status": status, "event": event},
        )


class Conflict(RunnerFault):
    """The same id was used before with other content, or the record contradicts the call."""

    code = "conflict"


class ReservedId(InvalidInput):
    """The id or the kind is reserved for the system's own entries."""

    code = "reserved_id"


# --- things that are not there, or not in the right state ----------------------------------------------------------


class NotFound(OperatorFault):
    """There is no such thing in this database."""

    code = "not_found"


class AmbiguousId(OperatorFault):
    """The id names more than one submission."""

    code = "ambiguous_id"
    default_hint = "name the session too: SESSION/SUBMISSION, or --session"


class AttemptLost(RunnerFault):
    """The attempt is no longer the current one, or its lease is over; nothing was written.

    ``outcome`` is the submission's outcome if it has one, else None.
    """

    code = "attempt_lost"

    def __init__(
        self,
        message: str | None = None,
        *,
        outcome: str | None = None,
        detail: Mapping[str, Any] | str | None = None,
        hint: str | None = None,
    ) -> None:
        self.outcome = outcome
        super().__init__(
            message,
            detail=detail if detail is not None else {"outcome": outcome},
            hint=hint or "stop working on it: another attempt owns the submission, or it is settled",
        )


class NotBegun(RunnerFault):
    """The attempt has not begun: call begin() before append()."""

    code = "not_begun"


class RunnerClosed(RunnerFault):
    """The runner is closed: make another one."""

    code = "runner_closed"


class SessionMirrored(RunnerFault):
    """The session is mirrored: another program owns it."""

    code = "session_mirrored"
    default_hint = "import it with --own to make it native, once the program that wrote it has stopped"


class SessionDamaged(RunnerFault):
    """The session's record is damaged; the submission is left held."""

    code = "session_damaged"
    default_hint = "look at it with `reconciler explain`, then settle, abort, or mend it with `release --repair-leaf`"


class AlreadySettled(RunnerFault):
    """The submission has its outcome, which never changes."""

    code = "already_settled"


class SourceNotQuiet(OperatorFault):
    """The source was written to a short while ago: its program may still be running."""

    code = "source_not_quiet"
    safe_to_retry = True
    default_hint = "stop the program that writes it and wait, or pass --force"


class SourceOwned(OperatorFault):
    """The source's sessions are native now: it cannot be imported again."""

    code = "source_owned"


class SourceConflict(OperatorFault):
    """Two sources claim the same session with different content."""

    code = "source_conflict"


class SourceUnreadable(OperatorFault):
    """The source could not be read."""

    code = "source_unreadable"


class UnknownFormat(OperatorFault):
    """The file is in no known session format."""

    code = "unknown_format"
    default_hint = "name the format with --format"


class SourceVersionUnknown(OperatorFault):
    """The source is of a known program, in a version whose tables or lines aren't known."""

    code = "source_version_unknown"


class NothingSelected(OperatorFault):
    """The filter is empty: a bulk act needs a filter that says what it means."""

    code = "nothing_selected"


class ConfigurationInvalid(OperatorFault):
    """The configuration is not valid."""

    code = "configuration_invalid"


class LimitExceeded(InvalidInput):
    """The value is larger than the limit."""

    code = "limit_exceeded"


# --- refine gate ---------------------------------------------------------------------------------------------------


class EpochClosed(RunnerFault):
    """The epoch is closed: it takes no further step."""

    code = "epoch_closed"
    default_hint = "open the next epoch of the subject"


class EpochOpen(Conflict):
    """The subject has an open epoch already."""

    code = "epoch_open"
    default_hint = "close it first (`refine close SUBJECT`), or gate against it"


# --- store ---------------------------------------------------------------------------------------------------------


class DatabaseUnavailable(StoreFault):
    """The database could not be reached, or stayed locked."""

    code = "database_unavailable"
    safe_to_retry = True


class DatabaseIoError(DatabaseUnavailable):
    """The operating system could not read or write the database's files; nothing was written."""

    code = "database_io_error"


class DatabaseReadOnly(StoreFault):
    """The database is read-only."""

    code = "database_read_only"


class DatabaseFull(StoreFault):
    """The database's disk is full, or a limit on its size is reached; nothing was written."""

    code = "database_full"


class DatabaseInvalid(StoreFault):
    """The file is not a database, or it is damaged."""

    code = "database_invalid"


class RowUnreadable(StoreFault):
    """A stored row holds a value that this program did not write and can't read."""

    code = "row_unreadable"
    default_hint = "`reconciler fsck` names the row; mend its value with SQL, or restore it from a backup"


class SchemaMismatch(StoreFault):
    """The database has another schema version than this program needs."""

    code = "schema_mismatch"


class UnsupportedOnDialect(StoreFault):
    """This database cannot do that."""

    code = "unsupported_on_dialect"


class StoreConflict(StoreFault):
    """Another process changed the rows in between; nothing was written."""

    code = "store_conflict"
    safe_to_retry = True
