"""A persistent session reconciliation daemon.

The public names, loaded when they are first used: a cold start pays for what it uses. Everything that isn't in
``__all__`` is inside and may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

__version__ = "0.1.0"

_EXPORTS: Final[dict[str, tuple[str, ...]]] = {
    "reconciler.errors": (
        "AlreadySettled",
        "AmbiguousId",
        "AttemptLost",
        "ConfigurationInvalid",
        "Conflict",
        "DatabaseFull",
        "DatabaseInvalid",
        "DatabaseReadOnly",
        "DatabaseUnavailable",
        "EpochClosed",
        "EpochOpen",
        "IllegalTransition",
        "InvalidInput",
        "LimitExceeded",
        "NotBegun",
        "NotFound",
        "NothingSelected",
        "OperatorFault",
        "ReconcilerError",
        "ReservedId",
        "RunnerFault",
        "SchemaMismatch",
        "SessionDamaged",
        "SessionMirrored",
        "SourceConflict",
        "SourceNotQuiet",
        "SourceOwned",
        "SourceUnreadable",
        "StoreConflict",
        "StoreFault",
        "UnknownFormat",
        "UnsupportedOnDialect",
    ),
    "reconciler.core.states": (
        "AttemptEnd",
        "DecisionAction",
        "Directive",
        "Outcome",
        "Reason",
        "ResumeMode",
        "SessionOrigin",
        "SubmissionStatus",
    ),
    "reconciler.core.model": (
        "AttemptFacts",
        "CallDispatch",
        "DEFAULT_LIMITS",
        "Decision",
        "Detail",
        "Inspection",
        "Limits",
        "NewEntry",
        "SessionEntry",
        "SubmissionFacts",
        "SubmissionInspection",
        "SyntheticResult",
        "ValidPath",
    ),
    "reconciler.core.classifier": (
        "classify_submission_state",
        "find_submission_input_index",
        "has_submission_settled_entry",
        "inspect_session",
        "inspect_submission",
        "submission_settlement_entry_id",
    ),
    "reconciler.core.policy": ("decide",),
    "reconciler.core.refine": (
        "DEFAULT_EDIT_BUDGET",
        "EditBudget",
        "EditCandidate",
        "RefineOutcome",
        "RefineStep",
        "RejectedEditBuffer",
        "accept_edit",
        "edits_remaining",
        "may_stop_early",
        "run_refine_gate",
    ),
    "reconciler.core.subturn": (
        "ResumePlan",
        "SUB_TURN_LOOP_DEFAULT_BUDGET",
        "SUB_TURN_LOOP_MAX_PROPOSED_HINTS",
        "SUB_TURN_LOOP_MAX_RESCORE_TOKENS",
        "SUB_TURN_LOOP_MIN_PARTIAL_LENGTH",
        "SUB_TURN_LOOP_MIN_TOKEN_LENGTH",
        "SubTurnLoopPlan",
        "plan_resume",
        "plan_sub_turn_loop",
    ),
    "reconciler.core.hints": (
        "FOLLOWUP_HINT_RULES",
        "FollowupHint",
        "FollowupHintRule",
        "MAX_FOLLOWUP_HINTS",
        "followup_hints",
        "with_followup_hints",
    ),
    "reconciler.service.runner": ("Attempt", "Runner", "Submission"),
    "reconciler.service.refine": ("RefineGate",),
}
_MODULE_OF: Final = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it (PEP 562)."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
