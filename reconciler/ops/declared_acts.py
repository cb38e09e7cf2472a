"""The acts, as data: the database's schema, work that moves on, and what operators do by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from reconciler.core.states import Outcome
from reconciler.ops import payloads
from reconciler.ops.entry import Audit, Database, Entry, Example, Kind, Parameter
from reconciler.ops.operations_shape import BULK_ACT, BULK_PARAMETERS
from reconciler.ops.parameters import ALL_PROMPTS, DRY_RUN, FILES, FORMAT, SESSION, SUBMISSION, act_parameters

_DATABASE: Final = (
    Entry(
        "db upgrade",
        "Bring the database to the schema this program needs",
        "reconciler.ops.database:upgrade_schema",
        payloads.DB_UPGRADE,
        parameters=(DRY_RUN,),
        acts=True,
        database=Database.ANY,
        dry_run=True,
        audit=Audit.INSIDE,
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
        parameters=act_parameters(
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
        parameters=act_parameters(
            FILES,
            FORMAT,
            ALL_PROMPTS,
            Parameter("own", Kind.BOOLEAN, "make the sessions native: our runners go on with them", default=False),
            Parameter(
                "force", Kind.BOOLEAN, "--own even though the source was written to a short while ago", default=False
            ),
            Parameter(
                "jobs",
                Kind.INTEGER,
                "how many other processes read files ahead (default: as many as pay; 0: none)",
                minimum=0,
                maximum=64,
            ),
        ),
        acts=True,
        database=Database.CREATE,
        dry_run=True,
        audit=Audit.FIRST,
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
            DRY_RUN,
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

# Without a submission these acts take what a filter selects.
_ONE_OR_FILTER: Final = replace(SUBMISSION, required=False)
_SESSION: Final = replace(SESSION, help=f"{SESSION.help}; without a submission: all of this session")
_ON_SUBMISSION: Final = (_ONE_OR_FILTER, _SESSION)


def _operator_act(
    name: str,
    summary: str,
    *parameters: Parameter,
    details: str,
    examples: tuple[Example, ...],
    module: str = "acts",
    bulk: bool = False,
) -> Entry:
    # An act that takes a filter instead of an id goes through the room that freezes what it selects.
    return Entry(
        name,
        summary,
        f"reconciler.ops.{'operations' if bulk else module}:{name.replace('-', '_')}",
        BULK_ACT if bulk else payloads.ACT,
        parameters=act_parameters(*parameters, *(BULK_PARAMETERS if bulk else ())),
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
            Example("reconciler abort --session SESSION --status queued --dry-run", "all that wait in a session"),
        ),
        bulk=True,
    ),
    _operator_act(
        "retry",
        "End a submission's backoff and grant it one more attempt",
        *_ON_SUBMISSION,
        details="A settled submission never runs again: the refusal names the command that submits it anew.",
        examples=(
            Example("reconciler retry SUBMISSION --reason 'the provider is back'", "try it now"),
            Example("reconciler retry --with-reason provider_retry --reason 'it is back'", "all that wait for it"),
        ),
        bulk=True,
    ),
    _operator_act(
        "settle",
        "Write a submission's outcome by hand",
        _ONE_OR_FILTER,
        Parameter(
            "outcome",
            Kind.TEXT,
            "completed, failed or aborted",
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
            Example("reconciler settle failed --status held --since 7d --dry-run", "all that are held since a week"),
        ),
        bulk=True,
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
            Example("reconciler release --with-reason write_failed --dry-run", "all that are held for one reason"),
        ),
        bulk=True,
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
        details="The finding becomes the call's result, which the model reads. The last two leave the submission held."
        " A call that the record proves never started is resolved as not-happened only.",
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

ACTS: Final = (*_DATABASE, *_WORK, *_ACTS)
