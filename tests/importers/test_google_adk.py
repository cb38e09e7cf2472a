"""Google ADK's tables, event by event, in schema versions 0 and 1."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from reconciler.errors import SourceVersionUnknown
from reconciler.importers.base import ImportedSession
from tests.support.foreign_stores import GoogleAdk, adk_call, adk_result, adk_text, read_database, session_of
from tests.support.verdicts import chain, inspected, verdict


@pytest.fixture
def store(tmp_path: Path) -> GoogleAdk:
    return GoogleAdk(tmp_path / "adk.db").session()


def look(store: GoogleAdk) -> ImportedSession:
    return session_of(store.name, "google-adk")


def test_an_invocation_is_a_submission(store: GoogleAdk) -> None:
    store.event("e1", "i1", "user", adk_text("hi")).event("e2", "i1", "root", adk_text("x"), adk_call("c1"))
    store.event("e3", "i1", "root", adk_result("c1")).event("e4", "i1", "root", adk_text("done"))
    session = look(store)
    assert "shop/ann/s1" == session.session_id
    assert ["e1", "e2", "e3", "e4"] == chain(session)
    assert ("completed", "response_finished") == verdict(session, "i1")
    assert {True} == {imported.write_ahead for imported in session.entries}


def test_ids_of_different_users_never_meet(store: GoogleAdk) -> None:
    store.session("s1", user="bob/x").session("s1", app="shop/bob", user="x")
    ids = {result.sessions[0].session_id for result in read_database(store.name, "google-adk")}
    assert {"shop/ann/s1", "shop/bob%2Fx/s1", "shop%2Fbob/x/s1"} == ids


def test_a_crash_in_a_batch_loses_all_its_results(store: GoogleAdk) -> None:
    store.event("e1", "i1", "user", adk_text("hi")).event("e2", "i1", "root", adk_call("c1"), adk_call("c2"))
    assert ("continuable", "tool_calls_unresolved") == verdict(look(store))


def test_the_results_of_a_batch_come_in_one_event(store: GoogleAdk) -> None:
    store.event("e1", "i1", "user", adk_text("hi")).event("e2", "i1", "root", adk_call("c1"), adk_call("c2"))
    session = look(store.event("e3", "i1", "root", adk_result("c1"), adk_result("c2")))
    assert ["e1", "e2", "e3", "e3:1"] == chain(session)
    assert ("continuable", "tool_results_ready") == verdict(session)


def test_a_result_that_is_not_summarised_ends_the_turn(store: GoogleAdk) -> None:
    store.event("e1", "i1", "user", adk_text("hi")).event("e2", "i1", "root", adk_call("c1"))
    store.event("e3", "i1", "root", adk_result("c1"), actions={"skip_summarization": True})
    assert ("completed", "turn_ended_by_tool") == verdict(look(store))


@pytest.mark.parametrize(("code", "retryable"), [("400", False), ("429", None), ("RuntimeError", None)])
def test_an_error_is_bare_and_says_whether_a_retry_can_help(
    store: GoogleAdk, code: str, retryable: bool | None
) -> None:
    store.event("e1", "i1", "user", adk_text("hi")).event("e2", "i1", "root", error_code=code, error_message="x")
    session = look(store)
    assert ("uncertain", "input_only") == verdict(session)
    assert ("error", retryable) == (session.entries[-1].entry.stop_reason, session.entries[-1].entry.error_retryable)


def test_a_long_running_call_waits_and_a_persons_answer_goes_on_with_its_turn(store: GoogleAdk) -> None:
    store.event("e1", "i1", "user", adk_text("hi"))
    store.event("e2", "i1", "root", adk_call("L1", "ask"), long_running_tool_ids=["L1"])
    assert "an answer to the call L1" == look(store).waits_for
    store.event("e3", "i2", "user", adk_result("L1"))
    session = look(store)
    assert (None, ["i1"]) == (session.waits_for, [s.submission_id for s in session.submissions])
    assert ("continuable", "tool_results_ready") == verdict(session, "i1")
    assert ("completed", "response_finished") == verdict(look(store.event("e4", "i2", "root", adk_text("ok"))), "i1")


def test_a_confirmation_is_waited_for(store: GoogleAdk) -> None:
    store.event("e1", "i1", "user", adk_text("hi")).event(
        "e2", "i1", "root", adk_call("a1", "adk_request_confirmation")
    )
    assert "an answer to the call a1" == look(store).waits_for


def test_a_rewind_takes_an_invocation_off_the_path(store: GoogleAdk) -> None:
    store.event("e1", "i1", "user", adk_text("hi")).event("e2", "i1", "root", adk_text("1"))
    store.event("e3", "i2", "user", adk_text("bad")).event("e4", "i2", "root", adk_text("2"))
    store.event("e5", "i3", "user", actions={"rewind_before_invocation_id": "i2"})
    session = look(store)
    assert ["e1", "e2", "e5"] == chain(session)
    assert ("completed", "response_finished") == verdict(session)
    assert ("completed", "answered_off_path") == verdict(session, "i2")


def test_a_finished_parallel_agent_does_not_answer_for_one_that_is_not(store: GoogleAdk) -> None:
    store.event("e1", "i1", "user", adk_text("hi")).event("e2", "i1", "a", adk_call("c1"), branch="p.a")
    store.event("e3", "i1", "b", adk_text("b is done"), branch="p.b")
    assert ("continuable", "tool_calls_unresolved") == verdict(look(store))
    store.event("e4", "i1", "a", adk_result("c1"), branch="p.a").event("e5", "i1", "a", adk_text("a too"), branch="p.a")
    assert ("completed", "response_finished") == verdict(look(store))


def test_a_barge_in_is_the_persons(store: GoogleAdk) -> None:
    store.event("e1", "i1", "user", adk_text("hi")).event("e2", "i1", "root", adk_text("well"), interrupted=True)
    found = inspected(look(store))
    assert ("response_aborted", "user") == (found.detail.value, found.stopped_by)


def test_events_are_in_the_order_of_their_own_time(store: GoogleAdk) -> None:
    store.event("e2", "i1", "root", adk_text("done"), timestamp=2.0)
    store.event("e1", "i1", "user", adk_text("hi"), timestamp=1.0)
    assert ["e1", "e2"] == chain(look(store))


def test_a_compaction_answers_nothing(store: GoogleAdk) -> None:
    store.event("e1", "i1", "user", adk_text("hi"))
    store.event("e2", "i1", "user", actions={"compaction": {"compacted_content": {"parts": [{"text": "x"}]}}})
    assert ("uncertain", "input_only") == verdict(look(store))


class Bomb:
    """Says when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("a column was unpickled",))


def test_version_0_is_read_without_unpickling(tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb())
    store = GoogleAdk(tmp_path / "adk.db", version="0").session()
    store.old_event("e1", "i1", "user", adk_text("hi"), actions=bomb)
    store.old_event("e2", "i1", "root", adk_call("c1"), actions=bomb, long_running='["c1"]')
    session = look(store)
    assert ("continuable", "tool_calls_unresolved") == verdict(session)
    assert "an answer to the call c1" == session.waits_for
    assert ("continuable", "tool_results_ready") == verdict(look(store.old_event("e3", "i1", "root", adk_result("c1"))))


@pytest.mark.parametrize("version", ["2", "one"])
def test_a_version_that_is_not_known_is_refused(tmp_path: Path, version: str) -> None:
    store = GoogleAdk(tmp_path / "adk.db", version=version).session()
    with pytest.raises(SourceVersionUnknown, match=f"found schema_version {version}, needed 0 or 1"):
        look(store)


def test_half_of_each_version_is_refused(tmp_path: Path) -> None:
    store = GoogleAdk(tmp_path / "adk.db", version="0").session()
    store.run("ALTER TABLE events ADD COLUMN event_data TEXT")
    with pytest.raises(SourceVersionUnknown, match="version 0 and of version 1"):
        look(store)


def test_an_event_that_is_no_json_holds_its_place(store: GoogleAdk) -> None:
    store.event("e1", "i1", "user", adk_text("hi")).event("e2", "i1", "root", adk_text("x"))
    store.run("UPDATE events SET event_data = '{oops' WHERE id = 'e2'")
    (result,) = read_database(store.name, "google-adk")
    assert [("events/e2", "not_json")] == [(problem.place, problem.code) for problem in result.problems]
    assert None is next(i.write_ahead for i in result.sessions[0].entries if i.entry.id == "e2")
