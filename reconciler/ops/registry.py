"""Every question and every act, declared once: what transports offer, what dispatch checks, what the docs list.

Data only: importing this file loads no reader, no store and no database driver.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from reconciler.core.states import Outcome, Reason
from reconciler.errors import InvalidInput
from reconciler.ops import payloads, refine, schedule
from reconciler.ops.entry import TOKEN_BYTES_MAX, Audit, Database, Entry, Example, Kind, Parameter

PAGE_ROWS_DEFAULT: Final = 50
PAGE_ROWS_MAX: Final = 1_000

_SUBMISSION: Final = Parameter(
    "submission",
    Kind.ID,
    "the submission's id, alone or as SESSION/SUBMISSION",
    required=True,
    positional=True,
)
_SESSION: Final = Parameter("session", Kind.ID, "the session, where the submission's id alone is not enough")
_LIMIT: Final = Parameter(
    "limit",
    Kind.INTEGER,
    "how many rows at most",
    default=PAGE_ROWS_DEFAULT,
    minimum=1,
    maximum=PAGE_ROWS_MAX,
)
_DRY_RUN: Final = Parameter("dry_run", Kind.BOOLEAN, "say what would be done, and do nothing", default=False)
_REASON: Final = Parameter("reason", Kind.TEXT, "why, for the audit; needed on a production database")
_FILES: Final = Parameter(
    "files", Kind.TEXT, "session files and folders; - reads standard input", required=True, positional=True, many=True
)
_FORMAT: Final = Parameter("format", Kind.TEXT, "the files' format, where it should not be guessed")
_ALL_PROMPTS: Final = Parameter(
    "all_prompts", Kind.BOOLEAN, "every prompt of each session, not only the last one", default=False
)


def _act(*parameters: Parameter) -> tuple[Parameter, ...]:
    return (*parameters, _REASON, _DRY_RUN)


_QUESTIONS: Final = (
    Entry(
        "status",
        "Show what is pending, held, overdue and running",
        "reconciler.ops.overview:status",
        payloads.STATUS,
        details=(
            "Counts over the whole database. `overdue` counts what a runner could have claimed for longer than"
            " limits.overdue_s; `due` what the next pass will look at."
        ),
        examples=(
            Example("reconciler status", "the state of the default database"),
            Example("reconciler status --json", "the same for programs"),
        ),
    ),
    Entry(
        "list",
        "List submissions, by filter, page by page",
        "reconciler.ops.listing:list_submissions",
        payloads.LIST,
        parameters=(
            Parameter(
                "status",
                Kind.TEXT,
                "which ones: by status, or held, overdue, stuck, unsettled, all (default: unsettled; settled with an"
                " --outcome; all with a --session)",
                choices=("queued", "running", "waiting", "settled", "held", "overdue", "stuck", "unsettled", "all"),
            ),
            Parameter("session", Kind.ID, "of this session only"),
            Parameter("outcome", Kind.TEXT, "settled so", choices=tuple(word.value for word in Outcome)),
            Parameter(
                "reason",
                Kind.TEXT,
                "the reason of the outcome, of the hold or of the last decision",
                choices=tuple(word.value for word in Reason),
            ),
            Parameter("origin", Kind.TEXT, "native or mirrored", choices=("native", "mirrored")),
            Parameter("owner", Kind.TEXT, "held by this runner"),
            Parameter("since", Kind.INSTANT, "not before: admitted (unsettled) or settled; an instant, or 2h, 7d ago"),
            Parameter("until", Kind.INSTANT, "before: the same"),
            Parameter(
                "sort",
                Kind.TEXT,
                "oldest or newest first (default: oldest; newest for settled ones)",
                choices=("oldest", "newest"),
            ),
            _LIMIT,
            Parameter("page", Kind.TEXT, "the next_page of the page before", bytes_max=TOKEN_BYTES_MAX),
        ),
        details=(
            "A page is stable: rows that come or go in between neither repeat nor hide others. `next_page` leads on;"
            " it belongs to the filters and the order it was made with."
        ),
        examples=(
            Example("reconciler list", "everything without an outcome, oldest first"),
            Example("reconciler list --status stuck", "what waits for somebody for longer than it should"),
            Example("reconciler list --outcome failed --since 24h", "what failed since yesterday"),
            Example("reconciler list --status held --json", "what needs a person, for programs"),
        ),
    ),
    Entry(
        "show",
        "Show a session's entries as a tree",
        "reconciler.ops.tree:show",
        payloads.SHOW,
        parameters=(
            Parameter("session", Kind.ID, "the session", required=True, positional=True),
            Parameter(
                "entries", Kind.INTEGER, "how many of the newest entries", default=100, minimum=1, maximum=PAGE_ROWS_MAX
            ),
            Parameter(
                "text_chars",
                Kind.INTEGER,
                "how much of each entry's text, in characters; 0 shows none",
                default=160,
                minimum=0,
                maximum=100_000,
            ),
        ),
        details="The active path is marked; texts are cut, and what a terminal would obey is made harmless.",
        examples=(
            Example("reconciler show SESSION", "the newest entries, the active path marked"),
            Example("reconciler show SESSION --text-chars 2000", "with more of what was said"),
        ),
    ),
    Entry(
        "explain",
        "Explain a submission: what the record proves, what was decided, what comes next",
        "reconciler.ops.explaining:explain",
        payloads.EXPLAIN,
        parameters=(
            _SUBMISSION,
            _SESSION,
            Parameter(
                "decisions", Kind.INTEGER, "how many of the newest decisions", default=20, minimum=1, maximum=1000
            ),
        ),
        details="Writes nothing. `next` is what a pass would do at this moment, from the code that a pass runs.",
        examples=(
            Example("reconciler explain SUBMISSION", "why it is where it is"),
            Example("reconciler explain SESSION/SUBMISSION --json", "the same for programs"),
        ),
    ),
    Entry(
        "tail",
        "Show decisions as they are made",
        "reconciler.ops.listing:tail",
        payloads.TAIL,
        parameters=(
            Parameter("session", Kind.ID, "of this session only"),
            Parameter("since", Kind.INSTANT, "from then on (default: the newest ones)"),
            Parameter(
                "position",
                Kind.TEXT,
                "go on behind the `position` of an earlier answer",
                bytes_max=TOKEN_BYTES_MAX,
            ),
            _LIMIT,
        ),
        details="On a command line it follows until it is interrupted; --no-follow stops after what there is.",
        examples=(
            Example("reconciler tail", "follow"),
            Example("reconciler tail --since 1h --no-follow", "the last hour"),
        ),
    ),
    Entry(
        "inspect",
        "Classify session files, without any database",
        "reconciler.ops.files:inspect",
        payloads.INSPECT,
        parameters=(_FILES, _FORMAT, _ALL_PROMPTS),
        database=Database.NONE,
        details=(
            "Reads the files and says of each session's last prompt how far it got: absent, completed, continuable or"
            " uncertain, with the entries that prove it. Nothing is written anywhere."
        ),
        examples=(
            Example("reconciler inspect session.jsonl", "the state of its last prompt"),
            Example("reconciler inspect DIRECTORY --all-prompts --json", "of every prompt, for programs"),
        ),
        long=True,
    ),
    Entry(
        "db current",
        "Show which schema the database has",
        "reconciler.ops.database:current",
        payloads.DB_CURRENT,
        database=Database.ANY,
        examples=(Example("reconciler db current", "found and needed"),),
    ),
    Entry(
        "db check",
        "Compare the database's tables with the ones this program needs",
        "reconciler.ops.database:check",
        payloads.DB_CHECK,
        database=Database.ANY,
        examples=(Example("reconciler db check", "exit code 1 where something differs"),),
    ),
    Entry(
        "config show",
        "Show the settings in force and where each comes from; secrets are masked",
        "reconciler.ops.overview:config_show",
        payloads.CONFIG,
        database=Database.NONE,
        examples=(Example("reconciler config show", "every setting with its source"),),
    ),
)

_DATABASE: Final = (
    Entry(
        "db upgrade",
        "Bring the database to the schema this program needs",
        "reconciler.ops.database:upgrade_schema",
        payloads.DB_UPGRADE,
        parameters=(_DRY_RUN,),
        acts=True,
        database=Database.ANY,
        dry_run=True,
        details="No other verb changes a schema. Stop what uses the database, and back it up, before.",
        examples=(
            Example("reconciler db upgrade --dry-run", "which steps it would take"),
            Example("reconciler db upgrade", "take them"),
        ),
    ),
)

_WORK: Final = (
    Entry(
        "submit",
        "Admit a prompt to a native session",
        "reconciler.ops.work:submit",
        payloads.SUBMIT,
        parameters=_act(
            Parameter("session", Kind.ID, "the session; made where there is none", positional=True),
            Parameter("submission", Kind.ID, "its id, unique in the session", positional=True),
            Parameter(
                "payload",
                Kind.JSON,
                "the payload: JSON text, a file (@FILE), or - for standard input",
                positional=True,
            ),
            Parameter("again", Kind.ID, "admit the payload of this settled submission anew, as ID~2"),
            Parameter("kind", Kind.TEXT, "what it is", default="prompt", choices=("prompt", "signal")),
            Parameter("deadline_s", Kind.NUMBER, "it fails if it has no outcome after so many seconds", minimum=0.001),
            Parameter("entity_hints", Kind.TEXT, "type/id of things it is about", many=True),
            Parameter(
                "fact_count",
                Kind.INTEGER,
                "facts that the first retrieval gave",
                default=0,
                minimum=0,
                maximum=2**31 - 1,
            ),
        ),
        acts=True,
        database=Database.CREATE,
        dry_run=True,
        audit=Audit.INSIDE,
        details="The same id with the same content again is no error and changes nothing; other content is a conflict.",
        examples=(
            Example("""reconciler submit SESSION SUBMISSION '{"text": "go on"}'""", "JSON text"),
            Example("reconciler submit SESSION SUBMISSION @prompt.json", "a file"),
            Example("""echo '"go on"' | reconciler submit SESSION SUBMISSION -""", "standard input"),
            Example("reconciler submit --again SESSION/SUBMISSION", "once more what was settled, under a new id"),
        ),
    ),
    Entry(
        "import",
        "Import session files of other programs",
        "reconciler.ops.files:import_files",
        payloads.IMPORT,
        parameters=_act(
            _FILES,
            _FORMAT,
            _ALL_PROMPTS,
            Parameter("own", Kind.BOOLEAN, "make the sessions native: our runners go on with them", default=False),
            Parameter(
                "force", Kind.BOOLEAN, "--own even though the source was written to a short while ago", default=False
            ),
        ),
        acts=True,
        database=Database.CREATE,
        dry_run=True,
        audit=Audit.AFTER,
        details=(
            "An imported session is mirrored: its program goes on owning it, a pass settles only what the record"
            " proves, and anything else is advice. The same file twice changes nothing; one that grew adds what is new."
        ),
        examples=(
            Example("reconciler import session.jsonl", "mirror one session"),
            Example("reconciler import DIRECTORY --own", "take over what a dead host left"),
        ),
        long=True,
    ),
    Entry(
        "once",
        "Run one pass: look at what is due, settle or requeue it",
        "reconciler.ops.work:once",
        payloads.ONCE,
        parameters=(
            Parameter(
                "limit",
                Kind.INTEGER,
                "how many rows at most (default: all that are due)",
                minimum=1,
                maximum=10_000_000,
            ),
            Parameter(
                "no_wait", Kind.BOOLEAN, "do not wait two beats to be allowed to judge ended leases", default=False
            ),
            _DRY_RUN,
        ),
        acts=True,
        database=Database.WRITE,
        dry_run=True,
        details="A second pass with nothing new writes nothing.",
        examples=(
            Example("reconciler once --dry-run", "what a pass would do"),
            Example("reconciler once", "do it"),
        ),
        long=True,
    ),
)

_ON_SUBMISSION: Final = (_SUBMISSION, _SESSION)


def _operator_act(
    name: str,
    summary: str,
    *parameters: Parameter,
    details: str,
    examples: tuple[Example, ...],
    module: str = "acts",
) -> Entry:
    return Entry(
        name,
        summary,
        f"reconciler.ops.{module}:{name.replace('-', '_')}",
        payloads.ACT,
        parameters=_act(*parameters),
        details=details,
        examples=examples,
        acts=True,
        database=Database.WRITE,
        dry_run=True,
        audit=Audit.INSIDE,
        needs_reason=True,
    )


_ACTS: Final = (
    _operator_act(
        "abort",
        "Ask for a submission's abort",
        *_ON_SUBMISSION,
        details=(
            "Finished work stays finished: a submission whose record shows an answer is settled completed. Without a"
            " live attempt the next pass settles it; a live one hears of it at its next beat and has the grace to stop."
        ),
        examples=(
            Example("reconciler abort SUBMISSION --dry-run", "what it would do"),
            Example("reconciler abort SUBMISSION --reason 'wrong customer'", "do it"),
        ),
    ),
    _operator_act(
        "retry",
        "End a submission's backoff and grant it one more attempt",
        *_ON_SUBMISSION,
        details="A settled submission never runs again: the refusal names the command that submits it anew.",
        examples=(Example("reconciler retry SUBMISSION --reason 'the provider is back'", "try it now"),),
    ),
    _operator_act(
        "settle",
        "Write a submission's outcome by hand",
        _SUBMISSION,
        Parameter(
            "outcome",
            Kind.TEXT,
            "completed, failed or aborted",
            required=True,
            positional=True,
            choices=tuple(word.value for word in Outcome),
        ),
        _SESSION,
        Parameter("fence", Kind.BOOLEAN, "even though its runner holds a live lease: it is fenced off", default=False),
        details=(
            "An outcome never changes afterwards. Finished work cannot be called failed or aborted, and a live lease is"
            " respected unless --fence says otherwise."
        ),
        examples=(
            Example("reconciler settle SUBMISSION failed --dry-run", "whether it may be settled so"),
            Example("reconciler settle SUBMISSION failed --reason 'source is lost'", "settle it"),
        ),
    ),
    _operator_act(
        "release",
        "End a submission's hold: the next pass decides on it again",
        *_ON_SUBMISSION,
        Parameter("repair_leaf", Kind.ID, "make this entry the session's leaf before: its path must be sound"),
        details="Refused while the damage or the error it is held for is still there, with what can be done.",
        examples=(
            Example("reconciler release SUBMISSION --reason 'checked by hand'", "let it go on"),
            Example("reconciler release SUBMISSION --repair-leaf ENTRY", "go on from an entry that is sound"),
        ),
    ),
    _operator_act(
        "resolve",
        "Record what a person found out about a call without a result",
        Parameter("session", Kind.ID, "the session", required=True, positional=True),
        Parameter("call", Kind.ID, "the call's id, or ENTRY[POSITION]", required=True, positional=True),
        Parameter(
            "as",
            Kind.TEXT,
            "what was found out",
            required=True,
            choices=("happened", "not-happened", "diverged", "unreadable"),
        ),
        details="The finding becomes the call's result, which the model reads. The last two leave the submission held.",
        examples=(
            Example("reconciler resolve SESSION CALL --as happened --reason 'seen in the ledger'", "it took effect"),
        ),
        module="session_acts",
    ),
    _operator_act(
        "move-leaf",
        "Make another entry the end of a native session's active path",
        Parameter("session", Kind.ID, "the session", required=True, positional=True),
        Parameter("entry", Kind.ID, "the entry", required=True, positional=True),
        details="Nothing is removed. What waits in the session is decided on again, from the new path.",
        examples=(Example("reconciler move-leaf SESSION ENTRY --dry-run", "whether it can be done"),),
        module="session_acts",
    ),
)


def _index(entries: tuple[Entry, ...]) -> Mapping[str, Entry]:
    return MappingProxyType({entry.name: entry for entry in entries})


REGISTRY: Final[Mapping[str, Entry]] = _index(
    (*_QUESTIONS, *_DATABASE, *_WORK, *_ACTS, *refine.ENTRIES, *schedule.ENTRIES)
)


def entry_of(name: str) -> Entry:
    """Return the entry *name*.

    Raises:
        InvalidInput: there is none; the nearest name is the hint.
    """
    entry = REGISTRY.get(name)
    if entry is None:
        near = difflib.get_close_matches(str(name), REGISTRY, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(sorted(REGISTRY))}"
        raise InvalidInput(f'there is no question or act "{name!s:.60}"', hint=hint)
    return entry
