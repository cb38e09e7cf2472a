"""The scripted operations that the crash injector kills: each prepares a scene, then acts once.

What is done here is everything that writes: a test holds the table against the Runner API, the operator's registry and
the refine gate, so that a new verb can't be forgotten. Knows nothing of deaths.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from reconciler.core.jobs import Admits, Job
from reconciler.core.model import NewEntry
from reconciler.core.refine import EditBudget
from reconciler.core.slots import parse_cron
from reconciler.ops.asking import Desk
from reconciler.ops.dispatch import ask
from reconciler.service.ingest import IngestOptions, import_paths
from reconciler.service.schedule import Schedule
from reconciler.store import schema
from reconciler.store.engine import begin, read
from reconciler.store.migrate import upgrade
from tests.proof import driver
from tests.proof.hands import LIMITS, Hands
from tests.support.session_files import Claude, Pi, write


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. ``covers``: the verbs that it does. ``prepare`` returns what ``act`` gets; both in own processes.

    ``act`` returns what the caller was told; with ``same_answer`` a repeat must be told the same (I13). ``empty``: it
    starts on a database without tables.
    """

    name: str
    covers: tuple[str, ...]
    prepare: Callable[[Hands], Any]
    act: Callable[[Hands, Any], Any]
    same_answer: bool = True
    empty: bool = False
    # False: it is no single call, and a dead process's successor does not make it again.
    repeats: bool = True


OPERATIONS: list[Operation] = []
# Sessions whose record scenes break on purpose.
DAMAGED = frozenset({"damaged", "held"})


def _operation(
    name: str,
    *covers: str,
    prepare: Callable[[Hands], Any],
    same_answer: bool = True,
    empty: bool = False,
    repeats: bool = True,
) -> Callable[[Callable[[Hands, Any], Any]], Callable[[Hands, Any], Any]]:
    def enter(act: Callable[[Hands, Any], Any]) -> Callable[[Hands, Any], Any]:
        OPERATIONS.append(Operation(name, covers, prepare, act, same_answer, empty, repeats))
        return act

    return enter


def _nothing(hands: Hands) -> None:
    """Prepare nothing."""


# --- entries ---------------------------------------------------------------------------------------------------------


def _asks(entry_id: str, *calls: str, text: str = "let me see", **more: Any) -> NewEntry:
    more.setdefault("starts_logged", True)
    return NewEntry("assistant", {"text": text}, id=entry_id, stop_reason="tool_use", tool_call_ids=calls, **more)


def _result(entry_id: str, call: str, **more: Any) -> NewEntry:
    return NewEntry("tool_result", {"ok": True}, id=entry_id, tool_call_id=call, **more)


def _answer(entry_id: str, stop: str = "stop", **more: Any) -> NewEntry:
    return NewEntry("assistant", {"text": "the answer is 42"}, id=entry_id, stop_reason=stop, **more)


# --- the runner's verbs ----------------------------------------------------------------------------------------------


@_operation("submit, a new session", "Runner.submit", prepare=_nothing)
def _(hands: Hands, _: Any) -> Any:
    return replace(
        hands.runner.submit("s", "a", {"text": "hello"}, entity_hints=["person/ada"], deadline_s=3600.0),
        created=True,
    )


def _one_queued(hands: Hands) -> None:
    hands.runner.submit("s", "a", {"text": "first"})


@_operation("submit, behind another", "Runner.submit", prepare=_one_queued)
def _(hands: Hands, _: Any) -> Any:
    return replace(hands.runner.submit("s", "b", {"text": "second"}), created=True)


def _three_queued(hands: Hands) -> None:
    for session in ("s", "t", "u"):
        hands.runner.submit(session, "a", {"text": "go"})
    hands.runner.submit("s", "b", {"text": "later"})


@_operation("claim two of three", "Runner.claim", prepare=_three_queued)
def _(hands: Hands, _: Any) -> Any:
    return [(claimed.ref, claimed.number, claimed.payload) for claimed in hands.claim(2)]


def _claimed(hands: Hands) -> Any:
    hands.runner.submit("s", "a", {"text": "go"})
    return hands.claim()[0]


@_operation("begin, fresh", "Attempt.begin", prepare=_claimed)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).begin()


def _resumed(hands: Hands) -> Any:
    # Interior and trailing calls without results, a start, and a text that a second retrieval can be planned from.
    attempt = hands.attempt(hands.begun("s", "a", entity_hints=["person/ada"]))
    attempt.append([_asks("x1", "c1", "c2", starts_logged=False)])
    attempt.append([_result("r1", "c1"), _asks("x2", "c3", "c4")])
    attempt.start("c3")
    attempt.append([_answer("cut", "aborted", content="text")])
    attempt.release("a deploy")
    hands.reconcile()
    return hands.claim()[0]


@_operation("begin, resumed with markers", "Attempt.begin", prepare=_resumed)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).begin()


def _redispatched(hands: Hands) -> Any:
    hands.begun("s", "a")
    hands.ask("settle", submission="s/a", outcome="failed", dry_run=True)
    _own_nobody(hands)
    hands.reconcile()
    return hands.claim()[0]


def _own_nobody(hands: Hands) -> None:
    # The owner is another, dead process: this one's attempts are not proven dead while it lives.
    with begin(hands.engine) as conn:
        conn.execute(sa.update(schema.attempts).values(pid=2**30, process_start="1"))
        conn.execute(
            sa.update(schema.submissions)
            .where(schema.submissions.c.status == "running")
            .values(reconcile_at=schema.submissions.c.admitted_at)
        )


@_operation("begin, a second time for an unanswered request", "Attempt.begin", prepare=_redispatched)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).begin()


def _damaged_claimed(hands: Hands) -> Any:
    hands.runner.submit("s", "a", {"text": "go"})
    claimed = hands.claim()[0]
    with begin(hands.engine) as conn:
        conn.execute(
            schema.entries.insert().values(
                session_id="s",
                seq=1,
                id="torn",
                parent_id="gone",
                kind="message",
                role="assistant",
                stop_reason="stop",
                created_at=claimed.claimed_at,
            )
        )
        conn.execute(sa.insert(schema.entry_payloads).values(session_id="s", entry_id="torn", payload="{}"))
        conn.execute(sa.update(schema.sessions).values(version=1, last_seq=1, leaf_entry_id="torn"))
    return claimed


@_operation("begin, in a damaged session", "Attempt.begin", prepare=_damaged_claimed)
def _(hands: Hands, claimed: Any) -> Any:
    try:
        return hands.attempt(claimed).begin()
    except Exception as error:
        return type(error).__name__


def _begun(hands: Hands) -> Any:
    return hands.begun("s", "a")


@_operation("append three", "Attempt.append", prepare=_begun)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).append([_asks("x", "c1"), _result("r", "c1"), _answer("y")])


def _with_calls(hands: Hands) -> Any:
    claimed = hands.begun("s", "a")
    hands.attempt(claimed).append([_asks("x", "c1", "c2")])
    return claimed


@_operation("append at an earlier entry", "Attempt.append", prepare=_with_calls)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).append([_answer("other")], at="submission-input:a")


@_operation("start", "Attempt.start", prepare=_with_calls)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).start("c1")


@_operation("heartbeat", "Runner.heartbeat", "Attempt.heartbeat", prepare=_with_calls)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).heartbeat()


@_operation("park with calls that wait for approval", "Attempt.park", prepare=_with_calls)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).park("may I?", pending_calls=["c2"])


def _parked(hands: Hands) -> Any:
    hands.attempt(_with_calls(hands)).park("may I?", pending_calls=["c2"])


@_operation("unpark", "Runner.unpark", prepare=_parked)
def _(hands: Hands, _: Any) -> Any:
    return hands.runner.unpark("s", "a")


@_operation("unpark before the park", "Runner.unpark", prepare=_with_calls)
def _(hands: Hands, _: Any) -> Any:
    return hands.runner.unpark("s", "a")


def _answered_park(hands: Hands) -> Any:
    claimed = _with_calls(hands)
    hands.runner.unpark("s", "a")
    return claimed


@_operation("park that was answered before", "Attempt.park", prepare=_answered_park)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).park("may I?", pending_calls=["c1"])


def _approved(hands: Hands) -> Any:
    _parked(hands)
    hands.runner.unpark("s", "a")
    hands.reconcile()
    return hands.claim()[0]


@_operation("begin, with an approved call", "Attempt.begin", prepare=_approved)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).begin()


@_operation("fail", "Attempt.fail", prepare=_with_calls)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).fail({"code": 529}, retryable=True)


@_operation("fail for good", "Attempt.fail", prepare=_begun)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).fail("no such model", retryable=False)


@_operation("release", "Attempt.release", prepare=_begun)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).release("a deploy")


def _answered(hands: Hands) -> Any:
    claimed = hands.begun("s", "a")
    hands.attempt(claimed).append([_asks("x", "c1"), _result("r", "c1"), _answer("y")])
    hands.runner.submit("s", "b", {"text": "next"})
    return claimed


@_operation("settle completed", "Attempt.settle", prepare=_answered)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).settle("completed")


@_operation("settle failed, with open calls", "Attempt.settle", prepare=_with_calls)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).settle("failed", error={"message": "gave up"})


def _sub_turn(hands: Hands) -> Any:
    claimed = _resumed(hands)
    attempt = hands.attempt(claimed)
    attempt.begin()
    assert attempt.resume.sub_turn is not None
    return claimed


def _partial(hands: Hands) -> Any:
    attempt = hands.attempt(hands.begun("s", "a"))
    text = "The migration of person/grace touches the scheduler tables and the invoice exporter, so first"
    attempt.append([NewEntry("assistant", {"text": text}, id="cut", stop_reason="aborted", content="text")])
    attempt.release("a deploy")
    hands.reconcile()
    claimed = hands.claim()[0]
    attempt = hands.attempt(claimed)
    attempt.begin()
    assert attempt.resume.sub_turn is not None
    assert attempt.resume.sub_turn.attempted
    return claimed


@_operation("report of a second retrieval", "Attempt.report_sub_turn", prepare=_partial)
def _(hands: Hands, claimed: Any) -> Any:
    return hands.attempt(claimed).report_sub_turn(3)


@_operation("abort of a queued one", "Runner.request_abort", prepare=_three_queued)
def _(hands: Hands, _: Any) -> Any:
    return hands.runner.request_abort("s", "a", "not needed")


@_operation("abort of a running one", "Runner.request_abort", prepare=_with_calls)
def _(hands: Hands, _: Any) -> Any:
    return hands.runner.request_abort("s", "a", "not needed")


def _settled_by_pass(hands: Hands) -> None:
    hands.runner.submit("s", "a", {"text": "go"})
    hands.runner.request_abort("s", "a")
    hands.reconcile()


@_operation("acknowledge", "Runner.acknowledge", prepare=_settled_by_pass, same_answer=False)
def _(hands: Hands, _: Any) -> Any:
    return hands.runner.acknowledge("s", "a")


def _two_held(hands: Hands) -> None:
    _three_queued(hands)
    for claimed in hands.claim(2):
        hands.attempt(claimed).begin()


@_operation("close, giving back", "Runner.close", prepare=_three_queued, repeats=False)
def _(hands: Hands, _: Any) -> Any:
    # Claims and gives back: what a deploy does.
    hands.runner.claim(2)
    hands.runner.close()


def _settlement_entry(hands: Hands, session_id: str, submission_id: str, parent_id: str) -> None:
    entries, sessions = schema.entries, schema.sessions
    entry_id = f"submission-settled:{submission_id}"
    payload = {"outcome": "completed", "reason": "settled_by_runner", "recovered": False, "evidence": [parent_id]}
    with begin(hands.engine) as conn:
        seq = conn.execute(sa.select(sessions.c.last_seq).where(sessions.c.id == session_id)).scalar_one() + 1
        conn.execute(
            entries.insert().values(
                session_id=session_id,
                seq=seq,
                id=entry_id,
                parent_id=parent_id,
                kind="submission_settled",
                submission_id=submission_id,
                content="none",
                created_at=datetime.now(UTC),
            )
        )
        conn.execute(
            schema.entry_payloads.insert().values(session_id=session_id, entry_id=entry_id, payload=json.dumps(payload))
        )
        conn.execute(
            sa.update(sessions)
            .where(sessions.c.id == session_id)
            .values(version=sessions.c.version + 1, last_seq=seq, leaf_entry_id=entry_id)
        )


# --- passes ----------------------------------------------------------------------------------------------------------


def _everything(hands: Hands) -> None:
    """Sessions in every state that a crash of their runner may leave."""
    runner = hands.runner

    def begun(session_id: str, **more: Any) -> Any:
        return hands.attempt(hands.begun(session_id, "a", **more))

    begun("answered").append([_asks("x", "c1"), _result("r", "c1"), _answer("y")])
    attempt = begun("calls")
    attempt.append([_asks("x", "c1", "c2")])
    attempt.start("c1")
    begun("input only")
    begun("provider error").append([_answer("y", "error", content="none")])
    begun("rejected").append([_answer("y", "error", content="none", error_retryable=False)])
    attempt = begun("cut")
    attempt.append([NewEntry("assistant", {"text": "The exporter of invoice/77 needs the scheduler tables and then"},
                             id="cut", stop_reason="aborted")])  # fmt: skip
    attempt = begun("aborted")
    attempt.append([_asks("x", "c1", "c2"), _result("r", "c2")])
    runner.request_abort("aborted", "a", "wrong customer")
    begun("failed").fail("overloaded")
    begun("parked").park(until_s=0.001)
    begun("two").append([_answer("y")])
    runner.submit("two", "b", {"text": "next"})
    runner.request_abort("two", "b")
    runner.submit("late", "a", {"text": "go"}, deadline_s=0.001)
    begun("looping", attempts_max=3, crashes_in_row_max=1, provider_errors_max=1)
    begun("damaged").append([_asks("x", "c1")])
    begun("adopted").append([_answer("y")])
    begun("moved").append([_answer("y")])
    _own_nobody(hands)
    with begin(hands.engine) as conn:
        sessions = schema.sessions
        conn.execute(sa.update(sessions).where(sessions.c.id == "damaged").values(leaf_entry_id="gone"))
    # A ledger restored beside newer entries: the settlement is there, the row knows nothing of it.
    _settlement_entry(hands, "adopted", "a", "y")
    import_paths(hands.engine, [str(_files(hands)[0]), str(_files(hands)[1])], IngestOptions(all_prompts=True))


@_operation("a pass over everything", "reconcile_once", "once", prepare=_everything, same_answer=False)
def _(hands: Hands, _: Any) -> Any:
    hands.reconcile()


# --- imports ---------------------------------------------------------------------------------------------------------


def _files(hands: Hands) -> tuple[Path, Path]:
    pi = Pi().user("u1").assistant("a1", calls=["c1", "c2"]).result("r1", "c1").result("r2", "c2")
    pi.assistant("a2", "all done").user("u2", "and now?").assistant("a3", calls=["c3"], stop="toolUse")
    claude = Claude().user("u1").call("a1", "m1", "c1").result("r1", "c1").text("a2", "m2")
    claude.user("u2", "go on").call("a3", "m3", "c2")
    return write(hands.folder / "pi.jsonl", pi.lines), write(hands.folder / "claude.jsonl", claude.lines)


@_operation("import", "import", prepare=_nothing, same_answer=False)
def _(hands: Hands, _: Any) -> Any:
    import_paths(hands.engine, [str(path) for path in _files(hands)], IngestOptions(all_prompts=True))


def _imported(hands: Hands) -> None:
    import_paths(hands.engine, [str(path) for path in _files(hands)], IngestOptions(all_prompts=True))


@_operation("import of grown and rewritten files", "import", prepare=_imported, same_answer=False)
def _(hands: Hands, _: Any) -> Any:
    pi = Pi().user("u1").assistant("a1", "another text", calls=["c1", "c2"]).result("r1", "c1").result("r2", "c2")
    pi.assistant("a2", "all done").user("u2", "and now?").assistant("a3", calls=["c3"], stop="toolUse")
    pi.result("r3", "c3").assistant("a4", "finished").user("u3").assistant("a5", "yes").assistant("a6", "more")
    import_paths(hands.engine, [str(write(hands.folder / "pi.jsonl", pi.lines))], IngestOptions(all_prompts=True))


@_operation("import --own", "import", prepare=_nothing, same_answer=False)
def _(hands: Hands, _: Any) -> Any:
    options = IngestOptions(all_prompts=True, own=True, force=True)
    try:
        import_paths(hands.engine, [str(_files(hands)[0])], options)
    except Exception as error:
        # A repeat finds the session taken over.
        return type(error).__name__


# --- operators -------------------------------------------------------------------------------------------------------


def _told(hands: Hands, verb: str, **params: Any) -> Any:
    answer = hands.ask(verb, reason="proof", **params)
    return (answer.exit_code, answer.error["code"] if answer.error else None)


def _act(name: str, verb: str, prepare: Callable[[Hands], Any], **params: Any) -> None:
    def act(hands: Hands, _: Any) -> Any:
        return _told(hands, verb, **params)

    OPERATIONS.append(Operation(f"operator: {name}", (verb,), prepare, act, same_answer=False))


def _backing_off(hands: Hands) -> None:
    hands.attempt(hands.begun("s", "a")).fail("overloaded")
    hands.reconcile(replace(LIMITS, provider_backoff_base_s=900.0, provider_backoff_max_s=900.0))


def _held(hands: Hands) -> None:
    hands.attempt(hands.begun("held", "a")).append([_asks("x", "c1"), _answer("y")])
    _own_nobody(hands)
    with begin(hands.engine) as conn:
        conn.execute(sa.update(schema.sessions).values(leaf_entry_id="gone"))
    hands.reconcile()


def _released_calls(hands: Hands) -> None:
    claimed = _with_calls(hands)
    hands.attempt(claimed).release("a deploy")
    hands.reconcile()


_act("submit", "submit", _one_queued, session="s", submission="b", payload={"text": "x"})
_act("submit --again", "submit", _settled_by_pass, again="s/a")
_act("abort", "abort", _three_queued, submission="t/a")
_act("retry", "retry", _backing_off, submission="s/a")
_act("settle", "settle", _released_calls, submission="s/a", outcome="failed")
_act("settle --fence", "settle", _with_calls, submission="s/a", outcome="aborted", fence=True)
_act("release --repair-leaf", "release", _held, submission="held/a", repair_leaf="x")
_act("resolve", "resolve", _released_calls, **{"session": "s", "call": "c1", "as": "happened"})
_act("resolve, to a hold", "resolve", _released_calls, **{"session": "s", "call": "c1", "as": "diverged"})
_act("move-leaf", "move-leaf", _released_calls, session="s", entry="submission-input:a")


# --- bulk acts: what is left of one is resumed, not called again


def _many(hands: Hands) -> None:
    for session in ("s", "t", "u"):
        hands.runner.submit(session, "a", {"text": "go"})


def _abort_all(hands: Hands, _: Any) -> Any:
    return _told(hands, "abort", status="queued")


# Another call would be another operation; what is left of this one is resumed, which has a scene of its own.
OPERATIONS.append(Operation("operator: a bulk abort", ("abort",), _many, _abort_all, same_answer=False, repeats=False))


class _Interrupted(BaseException):
    pass


def _interrupted(hands: Hands) -> str:
    _many(hands)
    commits = 0

    def stop(point: str) -> None:
        nonlocal commits
        commits += point == "after COMMIT"
        if commits == 4:
            raise _Interrupted

    hands.connect()
    driver.watch(driver.Watch(listen=stop))
    try:
        _abort_all(hands, None)
    except _Interrupted:
        pass
    finally:
        driver.watch(None)
    hands.engine.dispose()
    with read(hands.engine) as conn:
        operation_id: str = conn.execute(sa.select(schema.operations.c.id)).scalar_one()
    return operation_id


@_operation("operator: operations resume", "operations resume", prepare=_interrupted, same_answer=False)
def _(hands: Hands, operation_id: Any) -> Any:
    return hands.ask("operations resume", operation=operation_id).exit_code


@_operation("operator: operations cancel", "operations cancel", prepare=_interrupted, same_answer=False)
def _(hands: Hands, operation_id: Any) -> Any:
    return hands.ask("operations cancel", operation=operation_id).exit_code


# --- keeping house ---------------------------------------------------------------------------------------------------


def _old(hands: Hands) -> None:
    for session in ("s", "t", "u"):
        attempt = hands.attempt(hands.begun(session, "a"))
        attempt.append([_asks("x", "c1"), _result("r", "c1"), _answer("y")])
        attempt.settle("completed")
    hands.runner.submit("u", "b", {"text": "still to do"})
    long_ago = datetime.now(UTC) - timedelta(days=400)
    with begin(hands.engine) as conn:
        settled = schema.submissions.c.status == "settled"
        times = dict.fromkeys(("admitted_at", "settled_at"), long_ago)
        conn.execute(sa.update(schema.submissions).where(settled).values(times))
        conn.execute(sa.update(schema.attempts).values(claimed_at=long_ago, ended_at=long_ago))
        conn.execute(sa.update(schema.entries).values(created_at=long_ago))
        conn.execute(sa.update(schema.decisions).values(decided_at=long_ago))
        conn.execute(sa.update(schema.sessions).values(created_at=long_ago, updated_at=long_ago))


_KEPT = {"keep_completed_days": 1, "keep_entries_days": 1, "keep_payloads_days": 1, "keep_decisions_days": 1}


@_operation("operator: prune", "prune", prepare=_old, same_answer=False)
def _(hands: Hands, _: Any) -> Any:
    return _told(hands, "prune", **_KEPT)


def _pruned(hands: Hands) -> None:
    _old(hands)
    _told(hands, "prune", **_KEPT)


_act("prune forget", "prune forget", _pruned, submission="s/a")


def _restored(hands: Hands) -> None:
    # A ledger restored beside newer entries.
    attempt = hands.attempt(hands.begun("s", "a"))
    attempt.append([_answer("y")])
    attempt.release("a deploy")
    _settlement_entry(hands, "s", "a", "y")


_act("fsck --repair", "fsck", _restored, repair=True)

# --- the refine gate -------------------------------------------------------------------------------------------------


def _epoch(hands: Hands) -> None:
    gate = hands.gate()
    gate.open("skill", baseline_score=0.5, budget=EditBudget(4, 2), buffer_max=2)
    gate.gate("skill", "e1", 0.4, step_key="k1")
    gate.gate("skill", "e2", 0.3, step_key="k2")


@_operation("refine open", "RefineGate.open", "refine open", prepare=_nothing, same_answer=False)
def _(hands: Hands, _: Any) -> Any:
    try:
        hands.gate().open("skill", baseline_score=0.5)
    except Exception as error:
        return type(error).__name__


@_operation("refine gate, accepted", "RefineGate.gate", "refine gate", prepare=_epoch)
def _(hands: Hands, _: Any) -> Any:
    return hands.gate().gate("skill", "e3", 0.9, step_key="k3")


@_operation("refine gate, rejected and another one evicted", "RefineGate.gate", "refine gate", prepare=_epoch)
def _(hands: Hands, _: Any) -> Any:
    return hands.gate().gate("skill", "e3", 0.1, step_key="k3")


@_operation("refine gate, a sequence", "RefineGate.gate_many", "refine gate", prepare=_epoch)
def _(hands: Hands, _: Any) -> Any:
    from reconciler.core.refine import EditCandidate

    candidates = [EditCandidate("e1", 0.9), EditCandidate("e3", 0.6), EditCandidate("e4", 0.2), EditCandidate("e5", 1)]
    return hands.gate().gate_many("skill", candidates, step_keys=["k3", "k4", "k5", "k6"])


@_operation("refine forgive", "RefineGate.forgive", "refine forgive", prepare=_epoch, same_answer=False)
def _(hands: Hands, _: Any) -> Any:
    return hands.gate().forgive("skill", ["e1", "e2"], reason="another model")


@_operation("refine close", "RefineGate.close", "refine close", prepare=_epoch, same_answer=False)
def _(hands: Hands, _: Any) -> Any:
    return hands.gate().close("skill")


def _epoch_to_bound(hands: Hands) -> None:
    gate = hands.gate()
    gate.open("skill", baseline_score=0.5, budget=EditBudget(9, 2))
    for number in range(6):
        gate.gate("skill", f"e{number}", 0.1 * number / 2, step_key=f"k{number}")
    gate.close("skill")


@_operation("refine open, to a smaller buffer", "RefineGate.open", prepare=_epoch_to_bound, same_answer=False)
def _(hands: Hands, _: Any) -> Any:
    try:
        hands.gate().open("skill", buffer_max=2)
    except Exception as error:
        return type(error).__name__


# --- the schedule ----------------------------------------------------------------------------------------------------

_JOBS = {
    "nightly": Job(
        "nightly",
        parse_cron("0 0 1 1 *"),
        ZoneInfo("UTC"),
        window_s=366 * 86400.0,
        admits=Admits("nightly", {"text": "the nightly run"}),
    )
}


def _looked_at(hands: Hands) -> None:
    Schedule(hands.engine, _JOBS, instance_id="i", limits=LIMITS).look()
    with begin(hands.engine) as conn:
        jobs = schema.schedule_jobs
        conn.execute(sa.update(jobs).values(looked_until=datetime.now(UTC) - timedelta(days=366)))


@_operation("schedule, a slot that fires", "schedule look", prepare=_looked_at, same_answer=False)
def _(hands: Hands, _: Any) -> Any:
    return Schedule(hands.engine, _JOBS, instance_id="i", limits=LIMITS).look()


def _schedule_act(verb: str, prepare: Callable[[Hands], Any], **params: Any) -> None:
    def act(hands: Hands, _: Any) -> Any:
        desk = Desk(
            make_engine=lambda **_: hands.engine,
            name_database=lambda: "the database",
            operator="tess",
            limits=LIMITS,
            jobs=_JOBS,
        )
        return ask(verb, {"job": "nightly", "reason": "proof", **params}, desk).exit_code

    OPERATIONS.append(Operation(f"operator: {verb}", (verb,), prepare, act, same_answer=False))


def _paused(hands: Hands) -> None:
    desk = Desk(make_engine=lambda **_: hands.engine, name_database=lambda: "the database", operator="tess", jobs=_JOBS)
    ask("schedule pause", {"job": "nightly", "reason": "proof"}, desk)


_schedule_act("schedule pause", _looked_at)
_schedule_act("schedule resume", _paused)

# --- migrations ------------------------------------------------------------------------------------------------------


@_operation("migration from empty", "db upgrade", prepare=_nothing, same_answer=False, empty=True)
def _(hands: Hands, _: Any) -> Any:
    return upgrade(hands.url).after


# --- what is left to read --------------------------------------------------------------------------------------------

# Verbs that write nothing, or only by what is in the table already; each with the reason.
NOT_SCRIPTED = {
    "Runner.unacknowledged": "reads",
    "Attempt.path": "reads",
    "Attempt.abandon": "writes nothing: the lease ends",
    "Runner.path": "reads",
    "RefineGate.over": "makes a gate over an engine",
    "RefineGate.dispose": "writes nothing",
    "RefineGate.status": "reads",
    "RefineGate.subjects": "reads",
    "RefineGate.epochs": "reads",
    "RefineGate.history": "reads",
    "RefineGate.rejected": "reads",
    "RefineGate.rejection": "reads",
    "RefineGate.outcome": "reads",
    "schedule run": "fires a new slot at each call: a repeat is another run, by its meaning; its slot and what it"
    " admits are the transaction of a slot that fires",
}

__all__ = ["NOT_SCRIPTED", "OPERATIONS", "Operation", "read"]
