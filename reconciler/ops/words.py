"""The rules in words: what each row of the classifier's table, each reason and each action means. Pure.

Tables over the closed vocabularies of the core; a test proves that no word is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from reconciler.core.model import Detail
from reconciler.core.states import Reason

NOTHING_LEFT: Final = "it has its outcome, which never changes"

RULE_OF_DETAIL: Final[Mapping[Detail, str]] = MappingProxyType(
    {
        Detail.SETTLED_ENTRY: "the session holds a canonical settlement entry for it: that decides",
        Detail.INPUT_MISSING: "no canonical input carries its id: it was admitted and never begun",
        Detail.MOVED_ON: "another input stands after it: the conversation moved on",
        Detail.ORPHAN_RESULT: "a tool result after the input belongs to no call that is written: something ran",
        Detail.INPUT_ONLY: "the input is written and nothing real after it: the request may or may not have been sent",
        Detail.EMPTY_RESPONSE: "the last response is finished and empty",
        Detail.RESPONSE_FINISHED: "the last response is a finished answer",
        Detail.TOOL_CALLS_UNRESOLVED: "the last response called tools, and none of the calls has a result",
        Detail.TOOL_BATCH_PARTIAL: "the last response called tools, and only some of the calls have a result",
        Detail.TURN_ENDED_BY_TOOL: "every call of the last response was closed by a result that ends the turn",
        Detail.TOOL_BATCH_RESOLVED: (
            "every call of the last response has a result, and it keeps no stop reason:"
            " the record cannot show that the turn was unfinished"
        ),
        Detail.TOOL_RESULTS_READY: "every call of the last response has a result: the model still owes the answer",
        Detail.PROVIDER_ERROR: "the last response ended with an error of the provider",
        Detail.RESPONSE_ABORTED: "the last response was cut off while it came",
        Detail.RESPONSE_CUT: "the last response was never written to its end",
        Detail.ANSWERED_OFF_PATH: "its input is not on the active path; a branch below it holds the finished answer",
        Detail.ABANDONED_BRANCH: "its input is not on the active path, where another input stands: it was left behind",
        Detail.LEAF_MOVED: "its input is not on the active path, and nothing else was asked since: the leaf was moved",
        Detail.ANSWERED_IN_DAMAGE: "the record is damaged above, but its finished answer was reached before",
        Detail.INTEGRITY_HOLD: "the active path is damaged before its input is reached: the record proves nothing",
    }
)

RULE_OF_REASON: Final[Mapping[Reason, str]] = MappingProxyType(
    {
        Reason.DECISION_STANDS: "its last decision is in force: a runner may claim it when its turn comes",
        Reason.LEASE_LIVE: "its runner holds a live lease",
        Reason.PARKED: "its runner parked it: it waits for an answer",
        Reason.LEAF_MOVED_WAIT: "the leaf was moved away from it: there is time to move it back",
        Reason.SOURCE_NOT_QUIET: "the program that writes the session may still be at it",
        Reason.OWNER_UNJUDGED: "its lease ended; this process has not watched long enough to call its runner gone",
        Reason.HELD: "it is held: a person has to decide",
        Reason.ALREADY_SETTLED: NOTHING_LEFT,
        Reason.SETTLEMENT_FOUND: "the record holds its settlement: the row is made to agree",
        Reason.COMPLETED: "the record proves that the work is done",
        Reason.ABORT_REQUESTED: "somebody asked for its abort",
        Reason.STOPPED_BY_USER: "a person stopped the turn, and nobody asked for it to go on",
        Reason.DEADLINE_EXCEEDED: "its deadline passed",
        Reason.PARK_EXPIRED: "nobody answered while it was parked",
        Reason.LEAF_MOVED: "the leaf was moved away from it and not back",
        Reason.ATTEMPTS_EXHAUSTED: "all its attempts are spent",
        Reason.NEVER_BEGUN: "all its attempts are spent, and none had begun",
        Reason.CRASH_LOOP: "its attempts crashed one after the other without progress",
        Reason.PROVIDER_REJECTED: "the provider refused it, and a retry cannot help",
        Reason.PROVIDER_ERRORS_EXHAUSTED: "the provider failed too many times",
        Reason.UNCERTAIN_EXHAUSTED: "the request was sent again once already, and nothing shows what became of it",
        Reason.SETTLED_BY_RUNNER: "its runner settled it",
        Reason.SETTLED_BY_OPERATOR: "an operator settled it",
        Reason.ADMITTED: "it was admitted",
        Reason.FIRST_TRY: "nothing was begun: a clean first try",
        Reason.RESUME: "the turn goes on from what is written",
        Reason.PROVIDER_RETRY: "the provider failed: it is tried again after a while",
        Reason.REDISPATCH: "the same request is sent once more",
        Reason.CLEAN_RELEASE: "its runner gave it back cleanly before anything was sent",
        Reason.CAPABILITY_MISSING: "its runner lacked what it needs: another one may have it",
        Reason.APPROVED: "a person approved the calls that waited",
        Reason.INTEGRITY_HOLD: "its record is damaged: a person has to look at it",
        Reason.INSPECTION_ERROR: "its record could not be inspected: a person has to look at it",
        Reason.UNLOGGED_CALLS_POSSIBLE: "a tool may have run that the record does not show: a person has to say",
        Reason.UNKNOWN_EFFECT: "a tool was started and its result is unknown: a person has to say what it did",
        Reason.RELEASES_EXHAUSTED: "runners gave it back too many times",
        Reason.WRITE_FAILED: "what was decided could not be written: a person has to look at it",
        Reason.HELD_BY_OPERATOR: "an operator holds it",
    }
)


def rule_of_detail(detail: str) -> str:
    """Return the classifier's row *detail* in words; a word of a newer program as it is."""
    try:
        return RULE_OF_DETAIL[Detail(detail)]
    except ValueError:
        return detail


def rule_of_reason(reason: str) -> str:
    """Return the reason code *reason* in words; a word of a newer program as it is."""
    try:
        return RULE_OF_REASON[Reason(reason)]
    except ValueError:
        return reason
