"""The program as it was one head ago, as it is, and as it will be one head on: each in a process of its own.

    python -m tests.migrations.other_heads older|present|next VERB ...

runs the command line with that program, ``... next each JSON`` several lines of it one after the other, ``... next
work-off`` a runner that finishes whatever can be claimed. The chain
of migrations is made up around the real baseline, in a folder of the process's own: "0000" is the baseline without one
index, "0001" brings that index, so that it is what the real "0001" makes, and "0002" adds a column, an index and a
table. A program knows the revisions up to its own head. The next program's migration notes what stood in each table
when it took the database over: whatever an older program wrote after that shows.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENGINE = "reconciler.store.engine"
REVISIONS = {"older": ("0000",), "present": ("0000", "0001"), "next": ("0000", "0001", "0002")}
# Who upgraded stands in the audit, by the program that did it.
NOT_NOTED = ("audit", "alembic_version")

_HEAD = '''"""Made up for the tests of versions."""

import importlib.util

import sqlalchemy as sa
from alembic import op

from tests.migrations.other_heads import note_rows

revision = {revision!r}
down_revision = {before!r}
'''
_BODIES = {
    "0000": """
spec = importlib.util.spec_from_file_location("baseline", {baseline!r})
baseline = importlib.util.module_from_spec(spec)
spec.loader.exec_module(baseline)
downgrade, would_lose = baseline.downgrade, baseline.would_lose

def upgrade():
    baseline.upgrade()
    op.drop_index("ix_audit_at", table_name="audit")
""",
    "0001": """
def upgrade():
    op.create_index("ix_audit_at", "audit", ["at"])

def downgrade():
    op.drop_index("ix_audit_at", table_name="audit")

def would_lose(conn):
    return []
""",
    "0002": """
def upgrade():
    op.create_table("made_up_notes", sa.Column("name", sa.Text(), primary_key=True), sa.Column("rows", sa.Text()))
    note_rows(op.get_bind())
    op.add_column("submissions", sa.Column("made_up", sa.Text(), nullable=True))
    op.create_index("ix_submissions_made_up", "submissions", ["made_up"])

def downgrade():
    op.drop_index("ix_submissions_made_up", table_name="submissions")
    op.drop_column("submissions", "made_up")
    op.drop_table("made_up_notes")

def would_lose(conn):
    there = conn.execute(sa.text("SELECT count(*) FROM submissions WHERE made_up IS NOT NULL")).scalar()
    return [f"submissions.made_up ({there} rows)"] if there else []
""",
}


def digest(rows: Iterable[Sequence[Any]]) -> str:
    """Return the same text for the same rows, in whatever order they come."""
    return hashlib.sha256("\n".join(sorted(repr(tuple(row)) for row in rows)).encode()).hexdigest()


def note_rows(conn: Any) -> None:
    """Note what stands in each table now, by its columns of now."""
    import sqlalchemy as sa

    for table, columns, found in _tables(conn):
        text = json.dumps([columns, found])
        conn.execute(sa.text("INSERT INTO made_up_notes VALUES (:name, :rows)"), {"name": table, "rows": text})


def changed_since_noted(conn: Any) -> list[str]:
    """Return the tables that hold other rows than at the upgrade."""
    import sqlalchemy as sa

    noted = {name: json.loads(text) for name, text in conn.execute(sa.text("SELECT name, rows FROM made_up_notes"))}
    now = {table: found for table, _, found in _tables(conn, {name: columns for name, (columns, _) in noted.items()})}
    return [table for table, (_, found) in sorted(noted.items()) if now[table] != found]


def _tables(conn: Any, known: dict[str, list[str]] | None = None) -> Iterable[tuple[str, list[str], str]]:
    import sqlalchemy as sa

    from reconciler.store.schema import metadata

    for table in metadata.sorted_tables:
        if table.name not in NOT_NOTED:
            columns = known[table.name] if known else [column.name for column in table.columns]
            names = ", ".join(f'"{name}"' for name in columns)
            # As texts: a driver's types are not the same in every connection.
            rows = conn.execute(sa.text(f"SELECT {names} FROM {table.name}")).all()
            yield table.name, columns, digest([str(value) for value in row] for row in rows)


def folder_of(program: str, target: Path) -> Path:
    """Write the migrations that *program* ships to *target*."""
    versions = target / "versions"
    versions.mkdir(parents=True)
    shutil.copyfile(ROOT / "migrations" / "env.py", target / "env.py")
    (baseline,) = (ROOT / "migrations" / "versions").glob("0001_*.py")
    before = None
    for revision in REVISIONS[program]:
        body = _BODIES[revision].replace("{baseline!r}", repr(str(baseline)))
        (versions / f"{revision}_made_up.py").write_text(_HEAD.format(revision=revision, before=before) + body)
        before = revision
    return target


def become(program: str, folder: Path) -> None:
    """Make this process one of *program*: before anything of ours is imported that reads a version."""
    assert ENGINE not in sys.modules, "too late: the engine's version was read already"
    path = ROOT / "reconciler" / "store" / "engine.py"
    source = path.read_text(encoding="utf-8")
    known = 'SCHEMA_REVISIONS: Final = ("0001",)'
    assert source.count(known) == 1, "the program knows more than one revision by now: put the real chain in here"
    code = compile(source.replace(known, f"SCHEMA_REVISIONS: Final = {REVISIONS[program]!r}"), str(path), "exec")

    class Loader(SourceFileLoader):
        def get_code(self, fullname: str) -> Any:
            return code

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: object) -> ModuleSpec | None:
            if name != ENGINE:
                return None
            return importlib.util.spec_from_file_location(name, path, loader=Loader(name, str(path)))

    sys.meta_path.insert(0, Finder())
    from reconciler.store import migrate

    migrations = folder_of(program, folder)
    migrate.migrations_dir = lambda: migrations


def work_off(url: str) -> int:
    """Finish whatever can be claimed, until all is settled or a quarter of a minute has gone by without work."""
    import sqlalchemy as sa

    from reconciler.core.model import NewEntry
    from reconciler.service.runner import Runner
    from reconciler.store.engine import make_engine, read

    engine = make_engine(url)
    quiet = time.monotonic()
    with Runner(url, owner="the next program's", notify=False) as runner:
        while time.monotonic() - quiet < 15:
            with read(engine) as conn:
                if not conn.execute(sa.text("SELECT count(*) FROM submissions WHERE status <> 'settled'")).scalar():
                    break
            while claimed := runner.claim(1, wait_s=0.5):
                (attempt,) = claimed
                attempt.begin()
                attempt.append([NewEntry("assistant", {"text": "done by the next program"}, stop_reason="stop")])
                attempt.settle("completed")
                print(f"{attempt.session_id}/{attempt.submission_id}", flush=True)
                quiet = time.monotonic()
    engine.dispose()
    return 0


def each(lines: Iterable[Sequence[str]]) -> int:
    """Run one command line after the other; print a JSON line for each: its exit code and what it printed."""
    from reconciler.entrypoints.cli import main as command_line

    for line in lines:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = command_line(line)
        print(json.dumps([code, printed.getvalue()]), flush=True)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Be a program and do what it is asked."""
    program, *rest = arguments
    with tempfile.TemporaryDirectory(prefix="reconciler-heads-") as name:
        become(program, Path(name) / "migrations")
        if rest[0] == "work-off":
            return work_off(os.environ["RECONCILER_DATABASE_URL"])
        if rest[0] == "each":
            return each(json.loads(rest[1]))
        from reconciler.entrypoints.cli import main as command_line

        return command_line(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
