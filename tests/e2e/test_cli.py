"""The command line as people and programs meet it: verbs, flags, exit codes, payloads, refusals."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from reconciler import __version__
from reconciler.entrypoints.cli import main, make_cli
from reconciler.ops.entry import Database
from reconciler.ops.registry import REGISTRY
from tests.ops.schema_check import faults
from tests.support.databases import PostgreSQLDatabases

SESSIONS = Path(__file__).parents[2] / "examples" / "sessions"


@dataclass(frozen=True)
class Ran:
    """What a call of the command line left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on standard output."""
        (line,) = self.out.splitlines()
        found: dict[str, Any] = json.loads(line)
        return found


Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process, at home in an empty folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def run_cli(*args: str, stdin: bytes | None = None) -> Ran:
        if stdin is not None:
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main(list(args))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run_cli


def test_the_embedded_default_needs_no_set_up(run: Run, tmp_path: Path) -> None:
    database = tmp_path / ".local/share/reconciler/reconciler.sqlite3"
    refused = run("status")
    assert (1, True) == (refused.code, "no such file" in refused.err)
    assert 0 == run("submit", "s", "p", '{"text": "hi"}', "--dry-run").code
    assert not database.exists()
    assert 0 == run("submit", "s", "p", '{"text": "hi"}').code
    assert 0o600 == database.stat().st_mode & 0o777
    assert 1 == run("status", "--json").json["submissions"]["queued"]


@pytest.mark.parametrize(
    "call",
    [
        ["import", str(SESSIONS)],
        ["import", str(SESSIONS), "--own", "--force"],
        ["submit", "s", "p", '{"text": "hi"}'],
        ["refine", "open", "skill", "--baseline", "0.5"],
    ],
    ids=" ".join,
)
def test_what_makes_the_database_can_be_tried_without_one_and_writes_no_file(
    run: Run, tmp_path: Path, call: list[str]
) -> None:
    tried = run(*call, "--dry-run", "--json")
    assert [] == list(tmp_path.iterdir())
    done = run(*call, "--json")
    assert tried.code == done.code

    def told(ran: Ran) -> dict[str, Any]:
        # What only the real call can know.
        return {name: value for name, value in ran.json.items() if name not in ("admitted_at", "opened_at", "dry_run")}

    assert told(done) == told(tried)


def test_every_verb_that_makes_the_database_is_tried_above() -> None:
    makes = {name for name, entry in REGISTRY.items() if entry.database is Database.CREATE}
    assert {"import", "submit", "refine open"} == makes


def test_a_database_with_another_schema_is_never_made_over(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite3"
    with sqlite3.connect(path) as conn:
        conn.execute("CREATE TABLE theirs (x)")
    for verb in (("submit", "s", "p", "1"), ("import", str(SESSIONS)), ("once",), ("status",)):
        ran = run(*verb, "--database", f"sqlite:///{path}", "--json")
        assert (1, "schema_mismatch") == (ran.code, ran.json["error"]["code"])
    with sqlite3.connect(path) as conn:
        assert [("theirs",)] == conn.execute("SELECT name FROM sqlite_schema").fetchall()


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"not a database, certainly not one, it is only text" * 50, "database_invalid"), (b"", "schema_mismatch")],
)
def test_a_file_that_is_no_database_is_said_to_be_none(run: Run, tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "x.sqlite3"
    path.write_bytes(content)
    ran = run("status", "--database", f"sqlite:///{path}", "--json")
    assert (1, code) == (ran.code, ran.json["error"]["code"])
    assert ran.json["error"]["hint"]


def test_an_unreachable_database_is_exit_code_75(run: Run) -> None:
    ran = run("status", "--database", "postgresql://nobody@127.0.0.1:1/none", "--json")
    assert (75, "database_unavailable") == (ran.code, ran.json["error"]["code"])


def test_passwords_are_never_shown(run: Run) -> None:
    url = "postgresql://me:hunter2@127.0.0.1:1/none?sslpassword=hunter3"
    for args in (("status",), ("config", "show"), ("once", "--dry-run")):
        for extra in ((), ("--json",)):
            ran = run(*args, "--database", url, *extra)
            assert "hunter" not in ran.out + ran.err
    assert "hunter" not in run("status", "--database", "postgresql//me:hunter2@host/none").err.replace(
        "postgresql//me:hunter2@host/none", ""
    )


def test_flags_may_stand_before_the_verb_and_after_it(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.sqlite3'}"
    assert 0 == run("--database", url, "--json", "db", "upgrade").code
    before = run("--database", url, "--json", "list")
    after = run("list", "--json", "--database", url)
    assert (before.json, 0) == (after.json, after.code)
    assert 0 == run("--database", "sqlite:///nowhere.sqlite3", "list", "--database", url).code


def test_an_answer_that_cannot_be_written_is_told_without_a_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        ran = run("config", "show")
    assert (1, "") == (ran.code, ran.out)
    assert ran.err.startswith("error: could not write the answer to standard output: No space left on device")
    assert "what was asked for was done" in ran.err


def test_usage_errors_are_exit_code_2_in_words_and_in_json(run: Run) -> None:
    for args in (("staus",), ("list", "--limit", "many"), ("list", "--nope"), ("show",), ("db", "nope")):
        assert 2 == run(*args).code
        assert "usage" == run(*args, "--json").json["error"]["code"]
    assert "Did you mean 'status'?" in run("staus").err
    for few in ((), ("db",)):
        bare = run(*few)
        assert (2, "", True) == (bare.code, bare.out, bare.err.startswith("Usage: reconciler"))


def test_the_help_of_every_verb_has_its_examples(run: Run) -> None:
    whole = run("--help")
    assert 0 == whole.code
    for name, entry in REGISTRY.items():
        ran = run(*name.split(), "--help")
        assert 0 == ran.code
        assert entry.examples[0].command in ran.out
        assert name.split()[0] in whole.out
    assert f"reconciler {__version__}" == run("--version").out.strip()


def test_the_help_says_of_every_verb_what_the_verb_says_of_itself() -> None:
    cli = make_cli()
    with click.Context(cli, info_name="reconciler") as ctx:
        for name in cli.list_commands(ctx):
            command = cli.get_command(ctx, name)
            assert command is not None
            formatter = click.HelpFormatter(width=200)
            cli.format_commands(ctx, formatter)
            assert command.get_short_help_str(200) in formatter.getvalue()
            assert name != command.get_short_help_str(200)


def test_the_whole_incident_in_commands(run: Run) -> None:
    imported = run("import", str(SESSIONS), "--own", "--force", "--json")
    assert 3 == imported.code
    assert [] == faults({k: v for k, v in imported.json.items() if k != "followUp"}, REGISTRY["import"].payload)
    assert 11 == imported.json["imported"]["sessions"]
    done = run("once", "--json")
    assert (3, {"completed": 3, "failed": 0, "aborted": 1}) == (done.code, done.json["settled"])
    assert (0, 0) == (run("once").code, run("once", "--json").json["scanned"])
    listed = run("list")
    assert "integrity_hold" in listed.out
    assert "hint:" in listed.err
    assert "hint:" not in run("list", "--no-hints").err
    assert "followUp" in run("list", "--json").json
    assert "followUp" not in run("list", "--json", "--no-hints").json
    explained = run("explain", "6fb18002")
    assert "tool_calls_unresolved" in explained.out
    assert "repair_tools" in explained.out
    shown = run("show", "d0674fdb-b444-764b-855a-309b2e7d7b37")
    assert "| o " in shown.out
    assert 3 == run("explain", "e781b1bd-eaab-4954-9feb-dc0e61f7f897").code
    again = run("import", str(SESSIONS / "pi-answered.jsonl"), "--json")
    assert (0, "owned") == (again.code, again.json["files"][0]["imported"]["unchanged"])
    assert 3 == run("import", str(SESSIONS), "--own").code, "a damaged record stays one"
    assert "nothing new in 11 files: native here already 11" in run("import", str(SESSIONS), "--own").out


def test_what_cannot_be_inspected_is_named_with_the_reason_and_the_way_out(run: Run, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    text = tmp_path / "words.txt"
    text.write_text("no session\n")
    empty = run("inspect", str(tmp_path / "folder"))
    assert (0, True) == (empty.code, "no session files there" in empty.out)
    mixed = run("inspect", str(SESSIONS / "pi-answered.jsonl"), str(text), "missing.jsonl")
    assert 1 == mixed.code
    assert 'not read: cannot tell the format of "' in mixed.out
    assert 'not read: could not read "missing.jsonl": No such file or directory (source_unreadable)' in mixed.out
    assert 2 == mixed.out.count("way out: ")
    assert "no prompt that waits" not in mixed.out
    # Read as a format that it isn't: nothing of it could be taken.
    wrong = run("inspect", str(text), "--format", "pi")
    assert (1, True) == (wrong.code, "no session in it" in wrong.out)
    blank = tmp_path / "blank.jsonl"
    blank.touch()
    assert (1, "unknown_format") == (
        run("inspect", str(blank), "--json").code,
        _code(run("inspect", str(blank), "--json")),
    )


def _code(ran: Ran) -> str:
    found: str = ran.json["error"]["code"]
    return found


def test_files_are_inspected_without_any_database(run: Run, tmp_path: Path) -> None:
    ran = run("inspect", str(SESSIONS / "pi-killed-in-parallel-tools.jsonl"), "--json")
    (submission,) = ran.json["files"][0]["submissions"]
    assert ("continuable", "tool_calls_unresolved") == (submission["state"], submission["detail"])
    assert 3 == run("inspect", str(SESSIONS / "claude-lost-lines.jsonl")).code
    assert [] == list(tmp_path.iterdir())
    refused = run("inspect", "nowhere.jsonl", "--json")
    assert (1, "source_unreadable") == (refused.code, refused.json["error"]["code"])


def test_the_same_verbs_work_on_postgresql(run: Run, postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECONCILER_DATABASE_URL", postgresql_url)
    assert 3 == run("import", str(SESSIONS), "--own", "--force").code
    done = run("once", "--json")
    assert (3, {"completed": 3, "failed": 0, "aborted": 1}) == (done.code, done.json["settled"])
    assert "repair_tools" in run("explain", "6fb18002").out
    assert "| o " in run("show", "d0674fdb-b444-764b-855a-309b2e7d7b37").out
    assert 0 == run("abort", "6fb18002", "--reason", "asked for").code
    assert {"completed": 0, "failed": 0, "aborted": 1} == run("once", "--json").json["settled"]
    assert [] == run("db", "check", "--json").json["differences"]


def test_what_has_no_schema_on_postgresql_is_made_on_purpose(
    run: Run, postgresql_databases: PostgreSQLDatabases
) -> None:
    url = postgresql_databases.empty()
    refused = run("submit", "s", "p", "1", "--database", url, "--json")
    assert (1, "schema_mismatch") == (refused.code, refused.json["error"]["code"])
    assert "db upgrade" in refused.json["error"]["hint"]
    assert 0 == run("db", "upgrade", "--database", url).code
    assert 0 == run("submit", "s", "p", "1", "--database", url).code


def test_a_database_that_stays_locked_is_exit_code_75(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.sqlite3'}"
    assert 0 == run("submit", "s", "p", "1", "--database", url).code
    other = sqlite3.connect(tmp_path / "x.sqlite3", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        # Reading goes on; writing waits a while, then says so.
        assert 0 == run("status", "--database", url).code
        locked = run("abort", "p", "--database", url, "--json")
    finally:
        other.close()
    assert (75, "database_unavailable") == (locked.code, locked.json["error"]["code"])
    assert 0 == run("abort", "p", "--database", url).code


# --- payloads --------------------------------------------------------------------------------------------------------


def test_a_payload_is_json_text_a_file_or_standard_input(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"text": "from a file"}')
    assert 0 == run("submit", "s", "a", '"text"').code
    assert 0 == run("submit", "s", "b", "@p.json").code
    assert 0 == run("submit", "s", "c", "p.json").code
    assert 0 == run("submit", "s", "d", "-", stdin=b"[1, 2]").code
    assert 0 == run("submit", "s", "e", "null").code
    assert 5 == run("status", "--json").json["submissions"]["queued"]
    # The same content by another way is the same submission.
    assert not run("submit", "s", "b", '{"text": "from a file"}', "--json").json["created"]


@pytest.mark.parametrize(
    ("typed", "stdin", "code"),
    [
        ("just words", None, "invalid_input"),
        ("{", None, "invalid_input"),
        ("@nowhere.json", None, "source_unreadable"),
        ("-", b"\xff\xfe", "invalid_input"),
        ("-", b"", "invalid_input"),
        ("[" * 100_000, None, "invalid_input"),
        ("NaN", None, "invalid_input"),
        ("1e999", None, "invalid_input"),
    ],
)
def test_a_payload_that_cannot_be_read_is_refused(run: Run, typed: str, stdin: bytes | None, code: str) -> None:
    ran = run("submit", "s", "p", typed, "--json", stdin=stdin)
    assert (1, code) == (ran.code, ran.json["error"]["code"])


def test_what_no_database_can_keep_is_refused_or_kept_whole(run: Run) -> None:
    assert 0 == run("submit", "s", "nul", '"a\\u0000b"').code
    assert 0 == run("submit", "s", "surrogate", '"\\ud800"').code
    assert 0 == run("submit", "s", "big", str(2**70)).code
    for name in ("", "x" * 10_000, "a\nb", "\x1b[31m"):
        assert "invalid_input" == run("submit", "s", name, "1", "--json").json["error"]["code"]


# --- contexts --------------------------------------------------------------------------------------------------------


def _contexts(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "reconciler"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        'context = "test"\n'
        f'[contexts.test]\nurl = "sqlite:///{tmp_path}/test.sqlite3"\n'
        f'[contexts.prod]\nurl = "sqlite:///{tmp_path}/prod.sqlite3"\nproduction = true\n'
    )


def test_with_several_contexts_an_act_names_its_target(run: Run, tmp_path: Path) -> None:
    _contexts(tmp_path)
    ran = run("submit", "s", "p", "1")
    assert (1, True) == (ran.code, "--context: prod, test" in ran.err)
    done = run("submit", "s", "p", "1", "--context", "test")
    assert (0, True) == (done.code, 'submit on context "test"' in done.err)
    # Questions may go to the one that the file names.
    assert 0 == run("status").code


def test_a_production_database_is_made_and_touched_on_purpose(run: Run, tmp_path: Path) -> None:
    _contexts(tmp_path)
    refused = run("submit", "s", "p", "1", "--context", "prod", "--yes")
    assert (1, False) == (refused.code, (tmp_path / "prod.sqlite3").exists())
    assert "nobody can be asked" in run("db", "upgrade", "--context", "prod", stdin=b"").err
    assert 0 == run("db", "upgrade", "--context", "prod", "--yes").code
    assert 0 == run("submit", "s", "p", "1", "--context", "prod", "--yes").code
    refused = run("abort", "p", "--context", "prod", "--yes")
    assert "no reason was given" in refused.err
    assert 0 == run("abort", "p", "--context", "prod", "--dry-run").code
    assert 0 == run("abort", "p", "--context", "prod", "--yes", "--reason", "asked for").code


def test_a_configuration_that_is_wrong_is_refused_before_anything(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[limits]\nattempts_max = 0\n")
    ran = run("submit", "s", "p", "1", "--config", "c.toml", "--json")
    assert (1, "configuration_invalid") == (ran.code, ran.json["error"]["code"])
    assert "there is no configuration file" in run("status", "--config", "nowhere.toml").err
    (tmp_path / "d.toml").write_text('[contexts.prod]\nurl = "sqlite:///x"\n')
    assert 'did you mean "prod"?' in run("status", "--context", "prud", "--config", "d.toml").err


# --- hostile texts ---------------------------------------------------------------------------------------------------


def test_stored_texts_cannot_command_a_terminal(run: Run, tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    lines = [
        {"type": "session", "version": 3, "id": "evil", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/"},
        {
            "type": "message",
            "id": "m1",
            "parentId": None,
            "timestamp": "2026-01-01T00:00:01.000Z",
            "message": {"role": "user", "content": [{"type": "text", "text": evil}], "timestamp": 1},
        },
    ]
    (tmp_path / "evil.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert 0 == run("import", "evil.jsonl").code
    for args in (("show", "evil"), ("list",), ("explain", "m1"), ("inspect", "evil.jsonl"), ("show", "\x1b[2J")):
        for extra in ((), ("--json",)):
            ran = run(*args, *extra)
            assert not set("\x1b\x07\u202e") & set(ran.out + ran.err)
    assert "\\x1b]0;owned" in run("show", "evil").out


def test_the_completion_of_each_shell_is_printed(run: Run) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_RECONCILER_COMPLETE" in run("completion", shell).out
