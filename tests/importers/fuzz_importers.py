"""A coverage-guided fuzz target for every importer of lines: any bytes get an answer, within bounds.

    make fuzz FUZZ_RUNS=1000000

Needs atheris, in an environment of its own (requirements/fuzz.in). What it finds is written beside it by libFuzzer as
``crash-*``; put the smallest one into tests/importers/test_fuzz.py as a test.
"""

from __future__ import annotations

import sys
import time
from io import BytesIO

try:
    import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:  # pragma: no cover - only the fuzzing environment has it
    sys.exit("atheris is not installed: run `make fuzz`")

with atheris.instrument_imports(include=["reconciler"]):
    from reconciler.core.classifier import inspect_session
    from reconciler.errors import ReconcilerError
    from reconciler.importers.base import ImportResult, Source
    from reconciler.importers.detect import IMPORTERS, detect, importer_for

ANSWER_S = 10.0


def check(result: ImportResult) -> None:
    """Hold what every result promises, whatever was read."""
    for session in result.sessions:
        ids = [item.entry.id for item in session.entries]
        assert len(ids) == len(set(ids)), "an id occurs twice"
        for submission in session.submissions:
            inspect_session(
                [item.entry for item in session.entries],
                session.leaf_entry_id,
                submission.submission_id,
                leaf_known_empty=session.leaf_known_empty,
            )


def one_input(data: bytes) -> None:
    """Read *data* as the format that a first byte below their number names, else as what it looks like."""
    names = list(IMPORTERS)
    name = names[data[0]] if data and data[0] < len(names) else None
    content = data if name is None else data[1:]
    started = time.monotonic()
    try:
        if name is None:
            name = detect(BytesIO(content), "file.jsonl").format
        check(importer_for(name).read(Source(BytesIO(content), "file")))
    except ReconcilerError:
        pass
    assert time.monotonic() - started < ANSWER_S, "the answer took too long"


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
