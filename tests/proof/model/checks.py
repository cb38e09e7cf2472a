"""What must hold in every state of the model, and along every step. The names stand in the table of mutants."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from reconciler.core.model import Detail
from reconciler.core.states import DecisionAction, SubmissionStatus
from tests.proof.model.machine import Model, Row, State, entries_of

Status = SubmissionStatus
DRAIN_ROUNDS_MAX = 60

# Beside the ones of states (below) and the ones that steps name themselves.
STEP_CHECKS = frozenset(
    {
        "AdoptBeatsAll",
        "AnswersAreKept",
        "CompletedNeverRequeued",
        "FenceMonotone",
        "FencedWrites",
        "HeadOfLine",
        "LeaseOfTheCurrentOnly",
        "NoClaimFromStaleCandidate",
        "NoDecisionFromStaleInspection",
        "RepeatsGetTheFirstAnswer",
        "SettledForEver",
        "TerminateBeforeStale",
    }
)
STATE_CHECKS = frozenset(
    {
        "RunningOwned",
        "OneLiveInASession",
        "WaitingHasAnEnd",
        "AtMostOneSettlement",
        "OneCallerTold",
        "RowMatchesEntry",
        "BudgetsAddUp",
        "BudgetsBounded",
        "NobodyWaitsForEver",
    }
)
END_CHECKS = frozenset({"Liveness", "RecoveryConfluence"})


def broken_in(model: Model, state: State) -> Iterator[str]:
    """Yield what does not hold in *state*."""
    limits = model.limits
    live: dict[int, int] = {}
    for sub, row in enumerate(state.rows):
        if row.status is None:
            continue
        if (row.status is Status.RUNNING) != (row.cur is not None):
            yield "RunningOwned"
        if row.status in (Status.RUNNING, Status.WAITING):
            place = model.c.sessions[sub]
            live[place] = live.get(place, 0) + 1
        if (row.status is Status.WAITING) != (row.park > 0):
            yield "WaitingHasAnEnd"
        settlements = sum(
            entry.kind == "submission_settled" and entry.submission_id == model.names[sub]
            for entry in entries_of(model.session(state, sub))
        )
        if state.settlements[sub] > 1 or settlements > 1:
            yield "AtMostOneSettlement"
        if state.told[sub] > int(row.status is Status.SETTLED):
            yield "OneCallerTold"
        if model.mutant != "retry_resets_fence" and row.spent != row.claims - row.releases - row.parks:
            yield "BudgetsAddUp"
        if row.status is Status.SETTLED and settlements == 0:
            yield "RowMatchesEntry"
        if row.status is not Status.SETTLED and settlements and "restores" not in model.c.acts:
            yield "RowMatchesEntry"
        bounds = (
            (row.spent, limits.attempts_max + row.granted),
            (row.redispatches, limits.redispatches_max),
            (row.errors, limits.provider_errors_max),
            (row.releases, limits.releases_max),
            (row.parks, limits.parks_max),
        )
        if any(not 0 <= value <= bound for value, bound in bounds):
            yield "BudgetsBounded"
        if not _moves(model, state, sub, row):
            yield "NobodyWaitsForEver"
    if any(number > 1 for number in live.values()):
        yield "OneLiveInASession"


def _moves(model: Model, state: State, sub: int, row: Row) -> bool:
    if row.status in (Status.SETTLED, Status.RUNNING, Status.WAITING) or row.held is not None or row.ready:
        return True
    if model.is_due(state, sub) or not model.is_head(state, sub):
        return True
    # A wait that is not written has an instant to which it is put off.
    decision = model.decision(state, sub)
    return decision.reconcile_at is not None or (model.c.mirrored and decision.action is DecisionAction.ADVISE) or (
        model.c.mirrored and row.decision is not None and row.decision.action is DecisionAction.ADVISE
    )  # fmt: skip


def at_rest(state: State) -> State:
    """Return the state with every process dead, and without ghosts."""
    return state._replace(
        runners=(None,) * len(state.runners),
        daemons=(None,) * len(state.daemons),
        settlements=(0,) * len(state.settlements),
        told=(0,) * len(state.told),
        written_by=frozenset(),
    )


def drained(model: Model, state: State) -> tuple[State, bool]:
    """Let everybody be dead, time pass, passes run and one sound runner work; return the end, and whether it is one."""
    for round_number in count():
        before = state
        for sub in range(len(state.rows)):
            row = state.rows[sub]
            if row.status in (None, Status.SETTLED):
                continue
            if row.cur is not None and not row.cur.over:
                state = model.touch(state, sub, cur=row.cur._replace(over=True))
            if state.rows[sub].park == 1:
                state = model.touch(state, sub, park=2)
            if state.rows[sub].abort == 1:
                state = model.touch(state, sub, abort=2)
            for _ in range(DRAIN_ROUNDS_MAX):
                if not model.is_due(state, sub):
                    break
                state, _ = model.written(state, sub, model.decision(state, sub))
            else:
                return state, False
        for sub in range(len(state.rows)):
            if model.claimable(state, sub):
                state = _worked(model, state, sub)
        if at_rest(state) == at_rest(before):
            break
        if round_number > DRAIN_ROUNDS_MAX:
            return state, False
    ends = all(
        row.status in (None, Status.SETTLED)
        or row.held is not None
        or (model.c.mirrored and row.decision is not None and row.decision.action is DecisionAction.ADVISE)
        or not model.is_head(state, sub)
        or (model.c.mirrored and model.inspect(state, sub)[0].detail is Detail.LEAF_MOVED)
        for sub, row in enumerate(state.rows)
    )
    return state, ends


def _worked(model: Model, state: State, sub: int) -> State:
    state = state._replace(runners=(("found", sub, 0), *state.runners[1:]))
    for _ in range(20):
        if state.runners[0] is None:
            return state
        nexts = [
            step
            for step in model._runner(state, 0)
            if not any(word in step.label for word in ("dies", "lost", "ends it", "error", ".call"))
        ]
        if not nexts:
            return state._replace(runners=(None, *state.runners[1:]))
        state = nexts[0].state
    return state
