"""How fast `inspect` and `import` are, against decoding the same bytes alone, and what memory they take.

    python -m tests.bench.bench_import [--megabytes 100] [--files 1] [--database URL]
        [--format claude-code|codex|opencode|...|all]

Prints a table for each format. Each number is of a process of its own; the ratio is to decoding each line, or each
value of a database's rows (with msgpack for LangGraph), in the same run, by one process. ``--files``: so many
transcripts of claude-code in a folder, together of the size. The processor's time is that of all processes. Without a
database URL the import goes into a fresh SQLite file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reconciler.core.canonical import canonical_json_parsed
from reconciler.entrypoints.process import prepare_process
from reconciler.importers.langgraph_values import plain
from reconciler.service.ingest import import_paths
from reconciler.service.inspect_files import inspect_paths
from reconciler.store import migrate
from reconciler.store.engine import make_engine
from tests.bench.foreign_sessions import COLUMNS, MAKERS, values
from tests.bench.measuring import peak_mb

WORDS = ("the", "session", "file", "says", "that", "a", "call", "was", "made", "and", "its", "result", "came", "back")


# Of the bytes in the transcripts that were counted, four tenths stood on lines that are all ASCII, five on lines with
# dashes, arrows or frames (one letter in a hundred), one on lines with letters of Latin-1 or emoji as well.
BEYOND = ((" ", " — ", " é"), (4, 5, 1))


def prose(choice: random.Random, size: int) -> str:
    """Return some text with the usual share of line ends, quotes and letters beyond ASCII."""
    parts: list[str] = []
    length = 0
    (beyond,) = choice.choices(*BEYOND)
    ends = [" ", " ", " ", "\n", ', "', "/x.py:12 "] * 2 + [beyond]
    while length < size:
        word = choice.choice(WORDS)
        parts.append(word + choice.choice(ends))
        length += len(parts[-1])
    return "".join(parts)


def generate(path: Path, megabytes: float, number_of_file: int = 1) -> int:
    """Write a transcript (turns of a few calls, messages on several lines, long results); return its lines."""
    choice = random.Random(6 + number_of_file)
    target = megabytes * 1_000_000
    number = 0
    parent: str | None = None

    with path.open("w", encoding="utf-8") as file:

        def line(kind: str, message: dict[str, object], **fields: object) -> str:
            nonlocal number, parent
            number += 1
            uuid = f"{number:08x}-0000-4000-8000-{choice.getrandbits(48):012x}"
            value: dict[str, object] = {
                "parentUuid": parent,
                "isSidechain": False,
                "userType": "external",
                "cwd": "/srv/agents/shop",
            }
            value |= {
                "sessionId": f"0b5e2d1c-0000-4000-8000-{number_of_file:012}",
                "version": "2.1.332",
                "gitBranch": "main",
            }
            value |= {"type": kind, "message": message, "uuid": uuid, "timestamp": "2026-11-28T09:00:01.000Z", **fields}
            file.write(json.dumps(value, ensure_ascii=False) + "\n")
            parent = uuid
            return uuid

        while file.tell() < target:
            line("user", {"role": "user", "content": prose(choice, 300)})
            for _ in range(choice.randint(2, 12)):
                common = {"id": f"msg_{number}", "role": "assistant", "model": "example", "stop_reason": "tool_use"}
                line("assistant", {**common, "content": [{"type": "text", "text": prose(choice, 400)}]})
                call = f"toolu_{number}"
                block = {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": prose(choice, 120)}}
                line("assistant", {**common, "content": [block]})
                result = {
                    "type": "tool_result",
                    "tool_use_id": call,
                    "content": prose(choice, choice.choice([300, 9000])),
                }
                line("user", {"role": "user", "content": [result]}, toolUseResult={"stdout": prose(choice, 900)})
            end = {"id": f"msg_{number}", "role": "assistant", "model": "example", "stop_reason": "end_turn"}
            line("assistant", {**end, "content": [{"type": "text", "text": prose(choice, 900)}]})
    return number


def decoded(path: Path, format_name: str) -> Iterator[Any]:
    """Yield what decoding alone gives: of each line, or of each value of a database."""
    if format_name in COLUMNS:
        yield from values(path, format_name)
        return
    for one_of_them in sorted(path.iterdir()) if path.is_dir() else [path]:
        with one_of_them.open("rb") as file:
            for data in file:
                yield json.loads(data)


def one(kind: str, path: Path, format_name: str, database: str | None) -> None:
    """Do one thing and print its time, its time on the processor (seconds), and the peak of its memory (MB)."""
    # As a command does.
    prepare_process()
    before, before_cpu = time.perf_counter(), sum(os.times()[:4])
    if kind == "json.loads":
        for _ in decoded(path, format_name):
            pass
    elif kind == "loads and dumps":
        # What storing asks for at least.
        for value in decoded(path, format_name):
            canonical_json_parsed(plain(value) if format_name == "langgraph" else value)
    elif kind == "inspect":
        inspect_paths([str(path)])
    else:
        if database is None:
            raise SystemExit("an import needs a database")
        engine = make_engine(database)
        import_paths(engine, [str(path)])
    seconds, cpu = time.perf_counter() - before, sum(os.times()[:4]) - before_cpu
    print(json.dumps([seconds, cpu, peak_mb()]))


def make(path: Path, format_name: str, megabytes: int, files: int) -> None:
    """Write a store of a format, or *files* transcripts in a folder."""
    if files > 1:
        path.mkdir()
        for number in range(1, files + 1):
            generate(path / f"0b5e2d1c-0000-4000-8000-{number:012}.jsonl", megabytes / files, number)
    elif format_name in MAKERS:
        MAKERS[format_name](path, prose, megabytes * 1_000_000)
    else:
        generate(path, megabytes)


def measure(format_name: str, megabytes: int, database: str | None, files: int) -> None:
    """Measure one format and print its table."""
    script = [sys.executable, "-m", "tests.bench.bench_import", "--megabytes", str(megabytes), "--format", format_name]
    script += ["--files", str(files)]
    with tempfile.TemporaryDirectory() as folder:
        name = "sessions" if files > 1 else "session.db" if format_name in COLUMNS else "session.jsonl"
        path = Path(folder) / name
        # In a process of its own too: a child's peak begins with its parent's.
        subprocess.run([*script, "--generate", str(path)], check=True, capture_output=True)
        size = sum(item.stat().st_size for item in (path.iterdir() if path.is_dir() else [path])) / 1e6
        if database is None:
            database = f"sqlite:///{folder}/bench.sqlite3"
            migrate.upgrade(database)
        print(f"{format_name}: {size:.0f} MB{f' in {files} files' if files > 1 else ''}")
        print(f"{'':18}{'MB/s':>8}{'ratio':>8}{'CPU MB/s':>10}{'ratio':>8}{'peak MB':>9}")
        floor: tuple[float, float] | None = None
        for kind in ("json.loads", "loads and dumps", "inspect", "import", "import again"):
            command = [*script, "--one", kind, str(path), "--database", database]
            seconds, cpu, peak = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            floor = floor or (seconds, cpu)
            print(
                f"{kind:18}{size / seconds:8.0f}{floor[0] / seconds:8.2f}{size / cpu:10.0f}{floor[1] / cpu:8.2f}"
                f"{peak:9.0f}"
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--format", choices=["claude-code", *MAKERS, "all"], default="claude-code")
    parser.add_argument("--database")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--generate", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.files > 1 and options.format != "claude-code":
        parser.error("several files are made of claude-code alone")
    if options.one:
        one(options.one[0], Path(options.one[1]), options.format, options.database)
        return
    if options.generate:
        make(Path(options.generate), options.format, options.megabytes, options.files)
        return
    for format_name in ["claude-code", *MAKERS] if options.format == "all" else [options.format]:
        measure(format_name, options.megabytes, options.database, options.files)


if __name__ == "__main__":
    main()
