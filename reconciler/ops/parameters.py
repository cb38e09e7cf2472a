"""Parameters that several questions and acts share."""

from __future__ import annotations

from typing import Final

from reconciler.ops.entry import Kind, Parameter

PAGE_ROWS_DEFAULT: Final = 50
PAGE_ROWS_MAX: Final = 1_000

SUBMISSION: Final = Parameter(
    "submission",
    Kind.ID,
    "the submission's id, alone or as SESSION/SUBMISSION",
    required=True,
    positional=True,
)
SESSION: Final = Parameter("session", Kind.ID, "the session, where the submission's id alone is not enough")
LIMIT: Final = Parameter(
    "limit",
    Kind.INTEGER,
    "how many rows at most",
    default=PAGE_ROWS_DEFAULT,
    minimum=1,
    maximum=PAGE_ROWS_MAX,
)
DRY_RUN: Final = Parameter("dry_run", Kind.BOOLEAN, "say what would be done, and do nothing", default=False)
REASON: Final = Parameter("reason", Kind.TEXT, "why, for the audit; needed on a production database")
FILES: Final = Parameter(
    "files",
    Kind.TEXT,
    "session files, folders, SQLite databases, postgresql:// URLs; - reads standard input",
    required=True,
    positional=True,
    many=True,
)
FORMAT: Final = Parameter("format", Kind.TEXT, "the files' format, where it should not be guessed")
ALL_PROMPTS: Final = Parameter(
    "all_prompts", Kind.BOOLEAN, "every prompt of each session, not only the last one", default=False
)


def act_parameters(*parameters: Parameter) -> tuple[Parameter, ...]:
    """Return the parameters of an act: its own, the reason, and the dry run."""
    return (*parameters, REASON, DRY_RUN)
