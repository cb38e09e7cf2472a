"""The questions, as data: what operators and their agents may ask."""

from __future__ import annotations

from typing import Final

from reconciler.core.states import Outcome, Reason
from reconciler.ops import payloads
from reconciler.ops.entry import TOKEN_BYTES_MAX, Database, Entry, Example, Kind, Parameter
from reconciler.ops.parameters import ALL_PROMPTS, FILES, FORMAT, LIMIT, PAGE_ROWS_MAX, SESSION, SUBMISSION

QUESTIONS: Final = (
    Entry(
        "status",
        "Show what is pending, held, overdue and running",
        "reconciler.ops.overview:status",
        payloads.STATUS,
        database=Database.ANY,
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
            LIMIT,
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
            SUBMISSION,
            SESSION,
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
            LIMIT,
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
        parameters=(FILES, FORMAT, ALL_PROMPTS),
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
