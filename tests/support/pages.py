"""Pages of the docs that are made from the code: ``python -m tests.support.pages`` writes them again.

The tables stand in the code; what they mean in one sentence, where the code has no place for it, stands here.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reconciler.config import LOG_FORMATS, LOG_LEVELS, Settings, environment_variables
from reconciler.core.model import STATE_OF_DETAIL
from reconciler.core.states import ResumeMode
from reconciler.log import EVENTS
from reconciler.ops.entry import Database, Entry, Parameter
from reconciler.ops.registry import REGISTRY
from reconciler.ops.words import RULE_OF_DETAIL, RULE_OF_REASON
from reconciler.service.job_table import JOB_KEYS
from reconciler.store.views import PUBLIC_VIEWS, VIEWS_VERSION

ROOT = Path(__file__).resolve().parents[2]
_MADE = "by `python -m tests.support.pages`; a test fails when they differ."


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, width=118, break_long_words=False, break_on_hyphens=False)


# --- cli.md ----------------------------------------------------------------------------------------------------------

_NEEDS = {
    Database.NONE: "no database",
    Database.READ: "a database of this program's schema; reads only",
    Database.WRITE: "a database of this program's schema",
    Database.CREATE: "a database of this program's schema; an SQLite file that isn't there is made",
    Database.ANY: "a database, whatever its schema",
}


def cli_page() -> str:
    """Return the reference of the command line."""
    lines = [
        "# The command line",
        "",
        f"Made from `reconciler/ops/registry.py` {_MADE}",
        "",
        *_paragraph(
            "Every verb takes `--database URL`, `--context NAME`, `--config FILE`, `--operator NAME`, `--json`,"
            " `--no-hints`, `--no-pager` and `--yes`, before the verb or after it. Answers go to standard output, words"
            " (errors, hints, progress) to standard error. With `--json` an answer is one object; readers ignore fields"
            " that they don't know. Exit codes: 0 done or nothing to do, 1 error, 2 usage, 3 needs a person, 4 any gate"
            ' verdict but `accepted`, 75 database unreachable or locked. `eval "$(reconciler completion bash)"`'
            " teaches a shell the verbs."
        ),
        "",
        *_paragraph(
            "An answer may have `followUp`, at most two hints, each with the field and the value that fired it:"
            ' `{"tool", "trigger": {"field", "value"}, "message"}`. An error is'
            ' `{"error": {"code", "message", "detail", "hint"}}`: match on the code, the texts may change.'
        ),
    ]
    for entry in REGISTRY.values():
        lines += ["", *_entry(entry)]
    return "\n".join(lines) + "\n"


def _entry(entry: Entry) -> list[str]:
    usage = " ".join(_usage(parameter) for parameter in entry.parameters if parameter.positional)
    lines = [f"## reconciler {entry.name}", "", f"{entry.summary}.", ""]
    if entry.details:
        lines += [*_paragraph(entry.details), ""]
    lines += ["```sh", f"reconciler {entry.name} {usage}".rstrip(), "```", "", f"Needs {_NEEDS[entry.database]}."]
    if entry.needs_reason:
        lines[-1] += " On a production database it needs `--reason`."
    if entry.parameters:
        lines += ["", "| parameter | what it is |", "| --- | --- |"]
        lines += [f"| {_name(parameter)} | {_meaning(parameter)} |" for parameter in entry.parameters]
    lines += ["", "Examples:", "", "```sh"]
    lines += [f"{example.command}  # {example.meaning}" for example in entry.examples]
    lines += ["```", "", "Answer:", "", "```", *_shape(entry.payload), "```"]
    return lines


def _usage(parameter: Parameter) -> str:
    name = parameter.name.upper() + ("..." if parameter.many else "")
    return name if parameter.required else f"[{name}]"


def _name(parameter: Parameter) -> str:
    if parameter.positional:
        return f"`{parameter.name.upper()}`"
    return f"`--{parameter.name.replace('_', '-')}`"


def _meaning(parameter: Parameter) -> str:
    text = parameter.help.replace("|", "\\|")
    if parameter.choices and len(parameter.choices) <= 10:
        text += f"; one of {', '.join(f'`{choice}`' for choice in parameter.choices)}"
    if parameter.default not in (None, False):
        text += f" (default {parameter.default})"
    return text


def _shape(schema: Mapping[str, Any], indent: int = 0) -> list[str]:
    """Return a payload's fields as lines: name, type, and what is in it."""
    lines: list[str] = []
    required = set(schema.get("required", ()))
    for name, inner in schema.get("properties", {}).items():
        many = "items" in inner
        item = inner.get("items", inner)
        optional = "" if name in required else " (may be missing)"
        lines.append(f"{'  ' * indent}{name}: {_type(item, many=many, whole=inner)}{optional}")
        lines += _shape(item, indent + 1)
    return lines


def _type(schema: Mapping[str, Any], *, many: bool, whole: Mapping[str, Any]) -> str:
    if not schema:
        return "list of any" if many else "any"
    kinds = schema.get("type", "any")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "enum" in schema and len(schema["enum"]) <= 8:
        text = " | ".join("null" if word is None else str(word) for word in schema["enum"])
    else:
        is_instant = schema.get("format") == "date-time"
        text = " | ".join("instant" if is_instant and kind == "string" else kind for kind in kinds)
    if many:
        text = f"list of {text}"
        if isinstance(whole.get("type"), list) and "null" in whole["type"]:
            text += " | null"
    return text


# --- events.md -------------------------------------------------------------------------------------------------------


def events_page() -> str:
    """Return the list of events."""
    lines = [
        "# Events",
        "",
        f"Made from `reconciler/log.py` {_MADE}",
        "",
        *_paragraph(
            "Events go to standard error: JSON lines, or text where it is a terminal (`log.format`). Names are"
            " `noun.past_verb`, fields carry their units. A name or a field that isn't here is a fault of the program."
        ),
        "",
        "| event | level | fields | meaning |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{name}` | {event.level} | {', '.join(f'`{field}`' for field in event.fields)} | {event.meaning} |"
        for name, event in EVENTS.items()
    ]
    return "\n".join(lines) + "\n"


# --- configuration.md ------------------------------------------------------------------------------------------------

MEANINGS: Mapping[str, str] = {
    "database_url": "the database: `sqlite:///PATH` or `postgresql://USER@HOST/DATABASE`",
    "context": "which of the named contexts is meant",
    "config": "the configuration file",
    "schema": "PostgreSQL: the schema that holds the tables",
    "operator": "who asks, for the audit; the user's name where empty",
    "hints": "whether answers bring follow-up hints",
    "log.level": f"the least level that is written: {', '.join(LOG_LEVELS)}",
    "log.format": f"how events are written: {', '.join(LOG_FORMATS)} (text on a terminal)",
    "limits.attempts_max": "attempts of a submission before it fails (`attempts_exhausted`, `never_begun`)",
    "limits.releases_max": "clean releases that give their attempt back",
    "limits.parks_max": "parks of a submission",
    "limits.crashes_in_row_max": "crashes in a row without progress before it fails (`crash_loop`)",
    "limits.provider_errors_max": "attempts that may end by a provider's error (`provider_errors_exhausted`)",
    "limits.redispatches_max": "times an unanswered request is sent again (`uncertain_exhausted`)",
    "limits.grace_s": "seconds that a live runner has to react to an abort, a deadline or a stall",
    "limits.stall_s": "seconds without progress after which a live attempt counts as stalled",
    "limits.leaf_moved_s": "seconds that a submission whose leaf was moved away waits for it to come back",
    "limits.quiet_s": "seconds after which a source that was not written to counts as quiet",
    "limits.overdue_s": "seconds that a submission may be claimable before it shows as overdue",
    "limits.park_s": "seconds that a park lasts where its runner says nothing",
    "limits.lease_s": "seconds that an attempt may write without renewing",
    "limits.beat_s": "seconds between two heartbeats; a lease lasts at least two",
    "limits.backoff_base_s": "seconds of the first backoff after a crash",
    "limits.backoff_factor": "by how much each further backoff is longer",
    "limits.backoff_max_s": "seconds of the longest backoff",
    "limits.backoff_jitter": "share by which a backoff varies",
    "limits.provider_backoff_base_s": "seconds of the first backoff after a provider's error",
    "limits.provider_backoff_max_s": "seconds of the longest one",
    "limits.capability_backoff_s": "seconds that a blocked submission waits for another runner",
    "limits.hold_unlogged": "hold a request that may have run tools without a record, instead of sending it again",
    "limits.hold_unknown_effects": "hold a submission with a started call without a result until somebody resolves it",
    "limits.sub_turn_budget": "retrievals that a submission may buy by its interrupted answers",
    "limits.scan_batch_max": "rows that one transaction of a pass works on",
    "limits.pass_batches_max": "batches of one pass",
    "limits.path_piece_entries": "entries that a pass reads of a path at a time",
    "limits.path_entries_max": "entries that it reads of a path at most",
    "limits.append_entries_max": "entries of one append",
    "limits.append_bytes_max": "bytes of one append",
    "limits.payload_bytes_max": "bytes of one payload",
    "limits.deadline_max_s": "the longest deadline, in seconds from admission",
    "limits.lease_max_s": "the longest lease that a runner may ask for, in seconds",
    "limits.claim_max": "submissions of one claim",
    "limits.page_rows_max": "rows of one page",
    "daemon.pass_interval_s": "seconds between two passes; one runs at the start, and when a wake-up says so",
    "daemon.pass_rows_max": "rows of one pass; where more are due the next one follows at once",
    "daemon.schedule_interval_s": "seconds between two looks at the schedule",
    "daemon.beat_s": "seconds between two signs of life of the daemon",
    "daemon.jitter": "share by which its intervals vary, so that daemons don't move in step",
    "daemon.notify": "PostgreSQL: listen for wake-ups and send them",
    "daemon.watch_runners": "look after runners of this host: what a dead one holds is looked at at once",
    "daemon.reconnect_max_s": "seconds of the longest pause between two tries to reach the database",
    "daemon.stop_s": "seconds that a stop may take before it is cut short",
    "daemon.health_port": "loopback port for `/healthz`, `/readyz` and `/metrics`; 0 for none",
    "daemon.sweep": "when settled work is verified: a cron line in UTC; empty for never",
    "daemon.sweep_rows_max": "rows of one sweep",
    "daemon.prune": "when old work is pruned: a cron line in UTC; empty for never",
    "daemon.keep_completed_days": "days that completed submissions are kept, with attempts and decisions; 0 for ever",
    "daemon.keep_failed_days": "days that failed ones are kept; 0 for ever",
    "daemon.keep_aborted_days": "days that aborted ones are kept; 0 for ever",
    "daemon.keep_unacknowledged_days": "days that outcomes are kept that nobody took note of; 0 for ever",
    "daemon.keep_entries_days": "days that entries of a session are kept of which every submission is gone; 0 for ever",
    "daemon.keep_payloads_days": "days that the texts of settled sessions are kept; 0 for as long as their entries",
    "daemon.keep_decisions_days": "days that decisions are kept; 0 for as long as their submission",
    "daemon.keep_passes_days": "days that passes are kept; 0 for ever",
    "daemon.keep_slots_days": "days that schedule slots are kept; 0 for ever",
    "daemon.keep_instances_days": "days that instances are kept that are gone; 0 for ever",
    "daemon.keep_operations_days": "days that finished bulk operations are kept; 0 for ever",
    "daemon.keep_audit_days": "days that the audit is kept; 0 for ever",
    "daemon.owner": "its name among the instances; the host's name where empty",
}

_CONFIGURATION = """# Configuration

Made from `reconciler/config.py` {made}

A setting comes from a flag, else from a variable, else from the file, else it has its default. The file is TOML: the
one that `--config` or `RECONCILER_CONFIG` names, else `$XDG_CONFIG_HOME/reconciler/config.toml` (without the variable
`~/.config/…`), else `/etc/reconciler/config.toml`. Everything is checked at the start, and every fault is named with
its way out. Keys and `RECONCILER_` variables that aren't known are refused. `reconciler config show` shows what is in
force and where it comes from, without secrets.

Without any database named, it is the SQLite file `$XDG_DATA_HOME/reconciler/reconciler.sqlite3` (without the variable
`~/.local/share/…`); `submit` and `import` make it. No program ever migrates one: that is `reconciler db upgrade`.

```toml
context = "test"

[contexts.test]
url = "sqlite:////var/lib/reconciler/test.sqlite3"

[contexts.prod]
url_env = "PROD_DATABASE_URL"   # the variable that holds the URL, so that no password stands in the file
production = true               # acts ask before they touch it, and need a reason

[limits]
attempts_max = 20

[log]
level = "info"

[daemon]
health_port = 9464

[jobs.nightly]
cron = "30 2 * * *"
zone = "Europe/Vienna"
session = "nightly-{{instant}}"
payload = {{ text = "Write the report of yesterday." }}
```

With more than one context, a verb that changes something needs one named, by a flag or a variable, and says which one
it works on.

`[jobs.NAME]` has {jobs}.

| setting | variable | default | meaning |
| --- | --- | --- | --- |
"""


def configuration_page() -> str:
    """Return the list of settings."""
    head = _CONFIGURATION.format(made=_MADE, jobs=", ".join(f"`{key}`" for key in JOB_KEYS))
    defaults = Settings(database_url="", database_source="")
    variables = environment_variables()
    silent = sorted(set(variables.values()) - set(MEANINGS))
    if silent:
        raise LookupError(f"say in MEANINGS of {__file__} what these settings mean: {', '.join(silent)}")
    rows = [
        f"| `{key}` | `{variable}` | {_default(defaults, key)} | {MEANINGS[key]} |"
        for variable, key in variables.items()
    ]
    return head + "\n".join(rows) + "\n"


def _default(defaults: Settings, key: str) -> str:
    if key in ("database_url", "config", "context", "operator"):
        return ""
    value: Any = defaults
    for name in key.split("."):
        value = getattr(value, name)
    return f"`{json.dumps(value)}`" if value != "" else ""


# --- glossary.md -----------------------------------------------------------------------------------------------------

_GLOSSARY = """# The words

Made from `reconciler/ops/words.py` {made}

The words of code, tables, logs and answers. The same thing has the same name everywhere.

## Things

| word | meaning |
| --- | --- |
| session | one conversation with an agent: a DAG of entries, a leaf, a version that counts entries and leaf moves |
| native, mirrored | our runners write a native session; a mirrored one is imported, and another program owns it |
| entry | a node of a session: a message, a tool's start, a settlement; never changed by runners or daemons |
| leaf, active path | the end of the conversation as it stands, and the way to it from the root by parent links |
| submission | one accepted unit of work (prompt, signal, scheduled trigger); its id is unique in its session |
| canonical input | the message that carries the submission's id: its turn begins there |
| attempt | one try of a submission by one owner; its id is the fence that all its writes name |
| runner | the process that claims submissions and runs the agent |
| lease | until when an attempt may write without renewing, by the database's clock |
| settlement | the terminal outcome (`completed`, `failed`, `aborted`) as an entry; there is at most one |
| inspection | the classifier's answer: a state, the row of its table (detail), and the entries that prove it |
| decision | what the policy does with an inspection and the row's facts; it stands until somebody changes the row |
| pass | one bounded run of scan, inspect, decide, write |
| hold, quarantine | a submission that needs a person; its session is quarantined meanwhile |
| resume plan | how the next attempt goes on: the mode, the calls to close, the partial answer |
| marker | the result that recovery gives a call without one: "never started", or "outcome unknown" |
| write-ahead | a writer that makes a call durable before its tool runs; of others, calls may be missing in the record |
| overdue, blocked | claimable for too long; waiting for a runner that has the capability it needs |
| epoch | one budgeted round of candidate edits in the refine gate |

## States

| state | detail | what the record shows |
| --- | --- | --- |
"""

_MODES: Mapping[ResumeMode, str] = {
    ResumeMode.APPROVED: "runs the calls that a person approved",
    ResumeMode.FRESH: "sends the input to the model, for the first time",
    ResumeMode.REDISPATCH: "sends the same request once more",
    ResumeMode.REPAIR_TOOLS: "finds the open calls closed by markers, and lets the model go on",
    ResumeMode.CONTINUE_PARTIAL: "goes on from a partial answer",
    ResumeMode.CONTINUE: "goes on from what is written",
}


def glossary_page() -> str:
    """Return the words, with the rules behind states, reasons and modes."""
    lines = [_GLOSSARY.format(made=_MADE).rstrip()]
    lines += [f"| `{STATE_OF_DETAIL[detail]}` | `{detail}` | {rule} |" for detail, rule in RULE_OF_DETAIL.items()]
    lines += ["", "## Reasons of decisions", "", "| reason | meaning |", "| --- | --- |"]
    lines += [f"| `{reason}` | {rule} |" for reason, rule in RULE_OF_REASON.items()]
    lines += ["", "## Modes of a resume plan", "", "| mode | the next attempt |", "| --- | --- |"]
    lines += [f"| `{mode}` | {_MODES[mode]} |" for mode in ResumeMode]
    return "\n".join(lines) + "\n"


# --- views.md --------------------------------------------------------------------------------------------------------


def views_page() -> str:
    """Return the views and their columns."""
    lines = [
        "# The SQL views",
        "",
        f"Made from `reconciler/store/views.py` {_MADE}",
        "",
        *_paragraph(
            f"Version {VIEWS_VERSION}. Operators, dashboards and agents read these, on SQLite and on PostgreSQL"
            " (there in the schema `reconciler`, unless set otherwise). Their columns are a promise: within one version"
            " columns are only added, at the end. None of them shows what was said in a session. Instants are UTC:"
            " text of fixed width on SQLite, which sorts as instants do, `timestamptz` on PostgreSQL. Flags are 0 and 1"
            " on SQLite."
        ),
    ]
    for view in PUBLIC_VIEWS.values():
        lines += ["", f"## {view.name}", "", view.meaning, "", "| column | meaning |", "| --- | --- |"]
        lines += [f"| `{column.name}` | {column.meaning} |" for column in view.columns]
    return "\n".join(lines) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "docs/cli.md": cli_page,
    "docs/events.md": events_page,
    "docs/glossary.md": glossary_page,
    "docs/configuration.md": configuration_page,
    "docs/views.md": views_page,
}


if __name__ == "__main__":
    from tests.support import dashboards, json_schemas

    for name, page in (*PAGES.items(), *dashboards.FILES.items()):
        (ROOT / name).write_text(page(), encoding="utf-8")
    json_schemas.write(ROOT)
