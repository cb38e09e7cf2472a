"""`refine …` through dispatch and through the command line, on both databases."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.hints import FOLLOWUP_HINT_RULES, check_rules
from reconciler.core.model import Limits
from reconciler.entrypoints import cli
from reconciler.ops import refine
from reconciler.ops.asking import Answer, Desk
from reconciler.ops.dispatch import ask
from reconciler.ops.registry import REGISTRY
from reconciler.ops.render import Style, to_text
from reconciler.store.schema import audit, refine_epochs
from reconciler.store.views import v_refine


@pytest.fixture
def desk(engine: Engine) -> Desk:
    return Desk(make_engine=lambda: engine, name_database=lambda: "the test database", operator="tester")


def valid(value: Any, schema: dict[str, Any]) -> None:
    """Fail where *value* is not what a payload's schema says."""
    kinds = schema.get("type")
    if kinds is None:
        return
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    kind = names.get(type(value)) or ("integer" if isinstance(value, int) else "number")
    allowed = kinds if isinstance(kinds, list) else [kinds]
    assert kind in allowed or (kind == "integer" and "number" in allowed), (value, schema)
    if kind == "object":
        assert set(schema["required"]) <= set(value) <= set(schema["properties"]), value
        for name, inner in value.items():
            valid(inner, schema["properties"][name])
    if kind == "array":
        for item in value:
            valid(item, schema["items"])
    if "enum" in schema:
        assert value in schema["enum"]


def asked(desk: Desk, name: str, **params: Any) -> Answer:
    answer = ask(f"refine {name}", params, desk)
    if answer.error is None:
        payload = {key: value for key, value in answer.payload.items() if key != "followUp"}
        valid(payload, dict(REGISTRY[f"refine {name}"].payload))
        assert to_text(answer, Style(80))
    return answer


# --- dispatch ------------------------------------------------------------------------------------------------------


def test_an_epoch_from_open_to_close_by_way_of_dispatch(desk: Desk) -> None:
    opened = asked(desk, "open", subject="s", baseline=0.5, max=2)
    assert (0, 1, 2, 2, True) == (
        opened.exit_code,
        *(opened.payload[name] for name in ("epoch", "max", "floor", "open")),
    )
    rejected = asked(desk, "gate", subject="s", edit_id="bad", score=-0.25, step_key="k")
    assert {
        "subject": "s",
        "epoch": 1,
        "verdict": "rejected",
        "best_score": 0.5,
        "used": 1,
        "max": 2,
        "floor": 2,
        "may_stop_early": False,
    }.items() <= rejected.payload.items()
    again = asked(desk, "gate", subject="s", edit_id="bad", score=-0.25, step_key="k")
    accepted = asked(desk, "gate", subject="s", edit_id="good", score=0.75)
    spent = asked(desk, "gate", subject="s", edit_id="late", score=1)
    assert [(4, False), (4, True), (0, False), (4, False)] == [
        (answer.exit_code, answer.payload["repeated"]) for answer in (rejected, again, accepted, spent)
    ]
    (row,) = asked(desk, "status").payload["subjects"]
    assert (0.75, 2, 0, 1) == (row["best_score"], row["used"], row["edits_left"], row["rejected"])
    assert [row] == asked(desk, "status", subject="s", epoch=1).payload["subjects"]
    closed = asked(desk, "close", subject="s")
    assert (False, False) == (closed.payload["already_closed"], closed.payload["open"])
    assert asked(desk, "close", subject="s").payload["already_closed"]


def test_a_list_of_candidates_is_accepted_only_as_a_whole(desk: Desk) -> None:
    asked(desk, "open", subject="s", baseline=0.5, max=9)
    better = [{"edit_id": "a", "score": 0.6}, {"edit_id": "b", "score": 0.7, "step_key": "k"}]
    assert (0, ["accepted", "accepted"]) == verdicts(asked(desk, "gate", subject="s", candidates=better))
    mixed = [{"edit_id": "c", "score": 0.8}, {"edit_id": "d", "score": 0.1}]
    assert (4, ["accepted", "rejected"]) == verdicts(asked(desk, "gate", subject="s", candidates=mixed))


def verdicts(answer: Answer) -> tuple[int, list[str]]:
    return answer.exit_code, [item["verdict"] for item in answer.payload["answers"]]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"edit_id": "e"},
        {"score": 0.5},
        {"edit_id": "e", "score": 0.5, "candidates": [{"edit_id": "e", "score": 0.5}]},
        {"step_key": "k", "candidates": [{"edit_id": "e", "score": 0.5}]},
        {"candidates": []},
        {"candidates": {}},
        {"candidates": ["e"]},
        {"candidates": [{"edit_id": "e"}]},
        {"candidates": [{"edit_id": "e", "score": 0.5, "other": 1}]},
        {"candidates": [{"edit_id": "e", "score": "0.5"}]},
        {"candidates": [{"edit_id": "e", "score": 0.25}, {"edit_id": "", "score": 0.5}]},
        {"edit_id": "e", "score": float("nan")},
        {"edit_id": "e", "score": 0.5, "epoch": 0},
    ],
    ids=str,
)
def test_a_call_that_makes_no_sense_is_refused_and_spends_nothing(desk: Desk, params: dict[str, Any]) -> None:
    asked(desk, "open", subject="s", baseline=0.5)
    answer = asked(desk, "gate", subject="s", **params)
    assert answer.error is not None
    assert ("invalid_input", 1) == (answer.error["code"], answer.exit_code)
    assert 0 == asked(desk, "status", subject="s").payload["subjects"][0]["steps"]


@pytest.mark.parametrize(
    ("name", "params", "code"),
    [
        ("gate", {"subject": "unknown", "edit_id": "e", "score": 0.5}, "not_found"),
        ("gate", {"subject": "closed", "edit_id": "e", "score": 0.5}, "epoch_closed"),
        ("gate", {"subject": "s", "edit_id": "e", "score": 0.5, "step_key": "used"}, "conflict"),
        ("open", {"subject": "s"}, "epoch_open"),
        ("open", {"subject": "new"}, "invalid_input"),
        ("open", {"subject": "new", "baseline": 0.5, "max": 1, "floor": 2}, "invalid_input"),
        ("status", {"epoch": 1}, "invalid_input"),
        ("status", {"subject": "s", "epoch": 9}, "not_found"),
        ("history", {"subject": "s", "page": "x"}, "invalid_input"),
        ("history", {"subject": "s", "page": "9" * 19 + ".1"}, "invalid_input"),
        ("forgive", {"subject": "unknown", "edit_ids": ["e"]}, "not_found"),
    ],
    ids=str,
)
def test_each_fault_has_its_code_and_a_way_out(desk: Desk, name: str, params: dict[str, Any], code: str) -> None:
    asked(desk, "open", subject="s", baseline=0.5)
    asked(desk, "gate", subject="s", edit_id="other", score=0.5, step_key="used")
    asked(desk, "open", subject="closed", baseline=0.5)
    asked(desk, "close", subject="closed")
    answer = asked(desk, name, **params)
    assert answer.error is not None
    needs_person = code in ("conflict", "epoch_open")
    assert (code, 3 if needs_person else 1) == (answer.error["code"], answer.exit_code)
    assert answer.error["hint"]


def test_a_dry_run_of_every_act_writes_nothing(desk: Desk, engine: Engine) -> None:
    asked(desk, "open", subject="s", baseline=0.5)
    asked(desk, "gate", subject="s", edit_id="bad", score=0.25)

    def rows() -> Any:
        with engine.connect() as conn:
            return conn.execute(sa.select(refine_epochs)).all(), conn.execute(sa.select(audit)).all()

    before = rows()
    for name, params in (
        ("open", {"subject": "t", "baseline": 0.5}),
        ("gate", {"subject": "s", "edit_id": "e", "score": 0.25}),
        ("close", {"subject": "s"}),
        ("forgive", {"subject": "s", "edit_ids": ["bad"]}),
    ):
        assert True is asked(desk, name, **params, dry_run=True).payload["dry_run"]
        assert before == rows()


def test_history_is_paged_and_rejected_edits_are_listed(desk: Desk) -> None:
    asked(desk, "open", subject="s", baseline=0.5, max=9)
    for number in range(4):
        asked(desk, "gate", subject="s", edit_id=f"e{number}", score=number / 10)
    first = asked(desk, "history", subject="s", limit=3).payload
    second = asked(desk, "history", subject="s", limit=3, page=first["next_page"]).payload
    assert [1, 2, 3, 4] == [step["number"] for step in (*first["steps"], *second["steps"])]
    assert None is second["next_page"]
    done = asked(desk, "forgive", subject="s", edit_ids=["e1", "x"], reason="broken set").payload
    assert (["e1"], ["x"]) == (done["forgiven"], done["not_rejected"])
    page = asked(desk, "history", subject="s", rejected=True, limit=2).payload
    assert ["e0", "e2"] == [edit["edit_id"] for edit in page["rejected_edits"]]
    rest = asked(desk, "history", subject="s", rejected=True, forgiven=True, page="e0").payload
    assert ["e1", "e2", "e3"] == [edit["edit_id"] for edit in rest["rejected_edits"]]
    assert [] == asked(desk, "history", subject="s", rejected=True, page="e3").payload["rejected_edits"]


def test_subjects_are_paged(desk: Desk) -> None:
    assert [] == asked(desk, "status").payload["subjects"]
    for subject in ("a", "b", "c"):
        asked(desk, "open", subject=subject, baseline=0.5)
    first = asked(desk, "status", limit=2).payload
    assert ("b", ["c"]) == (
        first["next_page"],
        [row["subject"] for row in asked(desk, "status", limit=2, page="b").payload["subjects"]],
    )


def test_forgiving_on_a_production_database_needs_a_reason_and_names_the_operator(desk: Desk, engine: Engine) -> None:
    desk.production = True
    asked(desk, "open", subject="s", baseline=0.5)
    asked(desk, "gate", subject="s", edit_id="bad", score=0.25)
    assert None is not asked(desk, "forgive", subject="s", edit_ids=["bad"]).error
    asked(desk, "forgive", subject="s", edit_ids=["bad"], reason="why")
    with engine.connect() as conn:
        assert [("tester", "refine forgive", "why")] == [
            tuple(row) for row in conn.execute(sa.select(audit.c.operator, audit.c.verb, audit.c.reason))
        ]


def test_the_view_shows_operators_what_the_verbs_show(desk: Desk, engine: Engine) -> None:
    asked(desk, "open", subject="s", baseline=0.5, max=3, floor=1, buffer_max=1)
    asked(desk, "gate", subject="s", edit_id="a", score=0.25)
    asked(desk, "gate", subject="s", edit_id="b", score=0.125)
    (row,) = asked(desk, "status").payload["subjects"]
    with engine.connect() as conn:
        seen = conn.execute(sa.select(v_refine)).one()
    assert (row["subject"], row["epoch"], row["best_score"], row["used"], row["edits_left"], row["rejected"], 1, 1) == (
        seen.subject,
        seen.epoch,
        seen.best_score,
        seen.used,
        seen.edits_left,
        seen.rejected_edits,
        seen.evicted,
        row["evicted"],
    )
    assert (True, True, 1) == (seen.is_open, seen.may_stop_early, seen.buffer_max)


def test_hints_of_the_gate_read_fields_that_its_payloads_have() -> None:
    fields = {name: entry.payload_fields() for name, entry in REGISTRY.items()}
    rules = [rule for rule in FOLLOWUP_HINT_RULES if rule.for_tool.startswith("refine ")]
    assert len(rules) >= 4
    assert () == check_rules(fields, rules)


def test_a_spent_epoch_and_a_known_bad_edit_hint_at_what_follows(desk: Desk) -> None:
    asked(desk, "open", subject="s", baseline=0.5, max=1)
    asked(desk, "gate", subject="s", edit_id="bad", score=0.25)
    spent = asked(desk, "gate", subject="s", edit_id="e", score=0.75).payload["followUp"]
    assert {"field": "verdict", "value": "budget_exhausted"} == spent[0]["trigger"]
    assert {"field": "subjects.used", "value": 1} == asked(desk, "status").payload["followUp"][0]["trigger"]


def test_every_entry_has_a_renderer_and_a_reader_that_is_there() -> None:
    for entry in refine.ENTRIES:
        assert entry.name in refine.RENDERERS
        assert callable(getattr(refine, entry.reader.partition(":")[2]))


# --- the command line ----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _away_from_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.delenv("RECONCILER_DATABASE_URL", raising=False)


def run(capsys: pytest.CaptureFixture[str], url: str, *args: str) -> tuple[int, Any]:
    code = cli.main(["--database", url, *args, "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out)


def test_a_shell_loop_tells_accepted_from_rejected_by_the_exit_code(
    capsys: pytest.CaptureFixture[str], database_url: str
) -> None:
    assert 0 == run(capsys, database_url, "refine", "open", "s", "--baseline", "-0.5", "--max", "3", "--floor", "1")[0]
    codes = [
        run(capsys, database_url, "refine", "gate", "s", edit, score)[0]
        for edit, score in (("a", "-0.75"), ("b", "-.25"), ("a", "1"), ("c", "0.1"), ("d", "0.2"))
    ]
    assert [4, 0, 4, 0, 4] == codes


def test_a_file_of_json_lines_is_gated_in_order(
    capsys: pytest.CaptureFixture[str], database_url: str, tmp_path: Path
) -> None:
    run(capsys, database_url, "refine", "open", "s", "--baseline", "0.5")
    lines = tmp_path / "scored.jsonl"
    lines.write_text('{"edit_id": "a", "score": 0.6, "step_key": "1"}\n\n{"edit_id": "b", "score": 0.7}\r\n')
    code, payload = run(capsys, database_url, "refine", "gate", "s", "--candidates", str(lines))
    assert (0, ["accepted", "accepted"], 2) == (code, [a["verdict"] for a in payload["answers"]], payload["used"])


@pytest.mark.parametrize(
    ("content", "code"), [("{", "invalid_input"), ('{"edit_id": "a"}', "invalid_input"), (None, "source_unreadable")]
)
def test_a_file_that_cannot_be_read_spends_nothing(
    capsys: pytest.CaptureFixture[str], sqlite_url: str, tmp_path: Path, content: str | None, code: str
) -> None:
    run(capsys, sqlite_url, "refine", "open", "s", "--baseline", "0.5")
    lines = tmp_path / "scored.jsonl"
    if content is not None:
        lines.write_text(f'{{"edit_id": "e", "score": 0.6}}\n{content}\n')
    found, payload = run(capsys, sqlite_url, "refine", "gate", "s", "--candidates", str(lines))
    assert (1, code) == (found, payload["error"]["code"])
    assert 0 == run(capsys, sqlite_url, "refine", "status", "s")[1]["subjects"][0]["steps"]


def test_the_history_is_drawn_into_a_file_over_all_pages(
    capsys: pytest.CaptureFixture[str], sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reconciler.entrypoints.commands import refine as command

    monkeypatch.setattr(command, "_PICTURE_PAGE", 2)
    run(capsys, sqlite_url, "refine", "open", "s", "--baseline", "0.5", "--max", "9")
    for number in range(5):
        run(capsys, sqlite_url, "refine", "gate", "s", f"e{number}", "0.25")
    target = tmp_path / "history.svg"
    assert 0 == cli.main(["--database", sqlite_url, "refine", "history", "s", "--svg", str(target)])
    root = ET.fromstring(target.read_text(encoding="utf-8"))
    assert 5 == len(root.findall("{http://www.w3.org/2000/svg}circle"))
    capsys.readouterr()
    assert 0 == cli.main(["--database", sqlite_url, "refine", "history", "s", "--svg", "-"])
    assert target.read_text(encoding="utf-8") == capsys.readouterr().out
    assert 1 == cli.main(["--database", sqlite_url, "refine", "history", "unknown", "--svg", str(target)])
    assert 1 == cli.main(["--database", sqlite_url, "refine", "history", "s", "--svg", str(tmp_path / "no" / "x.svg")])
    monkeypatch.setattr(command, "_PICTURE_PAGES_MAX", 1)
    assert 0 == cli.main(["--database", sqlite_url, "refine", "history", "s", "--svg", str(target)])
    assert "drawn are the first 2 steps" in capsys.readouterr().err


def test_candidates_come_from_standard_input_too_and_have_a_limit(
    capsys: pytest.CaptureFixture[str], sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, sqlite_url, "refine", "open", "s", "--baseline", "0.5")
    line = b'{"edit_id": "a", "score": 0.6}\n'
    for most, expected in ((len(line) - 1, (1, None)), (len(line), (0, 0.6))):
        monkeypatch.setattr("reconciler.entrypoints.commands.refine.DEFAULT_LIMITS", Limits(payload_bytes_max=most))
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line)))
        code, payload = run(capsys, sqlite_url, "refine", "gate", "s", "--candidates", "-")
        assert expected == (code, payload.get("best_score"))


@pytest.mark.parametrize(
    ("candidates", "fault"),
    [
        ([], "there are no candidates in the list"),
        ({"edit_id": "a", "score": 1}, "the candidates are no list"),
        ([[1]], "cannot gate candidate 1: it is no object"),
        ([{"edit_id": "a", "score": 1}, {"edit_id": "b"}], "cannot gate candidate 2: it has no score"),
        ([{}], "cannot gate candidate 1: it has no edit_id and no score"),
        ([{"edit_id": "a", "score": 1, "stepkey": "k"}], 'an unknown field "stepkey" (did you mean "step_key"?)'),
        ([{"edit_id": "a", "score": "high"}], "cannot gate candidate 1: its score is no finite number: 'high'"),
        ([{"edit_id": "a", "score": True}], "its score is no finite number: True"),
    ],
)
def test_a_candidate_that_cannot_be_gated_is_named_with_its_fault(desk: Desk, candidates: Any, fault: str) -> None:
    asked(desk, "open", subject="s", baseline=0.5)
    error = asked(desk, "gate", subject="s", candidates=candidates).error
    assert error is not None
    assert fault in error["message"]
    assert "edit_id" in error["hint"]
