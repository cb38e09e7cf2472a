"""A persistent session reconciliation daemon.

The public names, loaded when they are first used: a cold start pays for what it uses. Everything that isn't in
``__all__`` is inside and may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

# The same names for type checkers; a test keeps the two lists one.
if TYPE_CHECKING:
    from reconciler.core.classifier import (
        classify_submission_state as classify_submission_state,
        find_submission_input_index as find_submission_input_index,
        has_submission_settled_entry as has_submission_settled_entry,
        inspect_session as inspect_session,
        inspect_submission as inspect_submission,
        submission_settlement_entry_id as submission_settlement_entry_id,
    )
    from reconciler.core.hints import (
        FOLLOWUP_HINT_RULES as FOLLOWUP_HINT_RULES,
        MAX_FOLLOWUP_HINTS as MAX_FOLLOWUP_HINTS,
        FollowupHint as FollowupHint,
        FollowupHintRule as FollowupHintRule,
        followup_hints as followup_hints,
        with_followup_hints as with_followup_hints,
    )
    from reconciler.core.model import (
        DEFAULT_LIMITS as DEFAULT_LIMITS,
        AttemptFacts as AttemptFacts,
        CallDispatch as CallDispatch,
        Decision as Decision,
        Detail as Detail,
        Inspection as Inspection,
        Limits as Limits,
        NewEntry as NewEntry,
        SessionEntry as SessionEntry,
        SubmissionFacts as SubmissionFacts,
        SubmissionInspection as SubmissionInspection,
        SyntheticResult as SyntheticResult,
        ValidPath as ValidPath,
    )
    from reconciler.core.policy import (
        decide as decide,
    )
    from reconciler.core.refine import (
        DEFAULT_EDIT_BUDGET as DEFAULT_EDIT_BUDGET,
        EditBudget as EditBudget,
        EditCandidate as EditCandidate,
        RefineOutcome as RefineOutcome,
        RefineStep as RefineStep,
        RejectedEditBuffer as RejectedEditBuffer,
        accept_edit as accept_edit,
        edits_remaining as edits_remaining,
        may_stop_early as may_stop_early,
        run_refine_gate as run_refine_gate,
    )
    from reconciler.core.states import (
        AttemptEnd as AttemptEnd,
        DecisionAction as DecisionAction,
        Directive as Directive,
        Outcome as Outcome,
        Reason as Reason,
        ResumeMode as ResumeMode,
        SessionOrigin as SessionOrigin,
        SubmissionStatus as SubmissionStatus,
    )
    from reconciler.core.subturn import (
        SUB_TURN_LOOP_DEFAULT_BUDGET as SUB_TURN_LOOP_DEFAULT_BUDGET,
        SUB_TURN_LOOP_MAX_PROPOSED_HINTS as SUB_TURN_LOOP_MAX_PROPOSED_HINTS,
        SUB_TURN_LOOP_MAX_RESCORE_TOKENS as SUB_TURN_LOOP_MAX_RESCORE_TOKENS,
        SUB_TURN_LOOP_MIN_PARTIAL_LENGTH as SUB_TURN_LOOP_MIN_PARTIAL_LENGTH,
        SUB_TURN_LOOP_MIN_TOKEN_LENGTH as SUB_TURN_LOOP_MIN_TOKEN_LENGTH,
        ResumePlan as ResumePlan,
        SubTurnLoopPlan as SubTurnLoopPlan,
        plan_resume as plan_resume,
        plan_sub_turn_loop as plan_sub_turn_loop,
    )
    from reconciler.errors import (
        AlreadySettled as AlreadySettled,
        AmbiguousId as AmbiguousId,
        AttemptLost as AttemptLost,
        ConfigurationInvalid as ConfigurationInvalid,
        Conflict as Conflict,
        DatabaseFull as DatabaseFull,
        DatabaseInvalid as DatabaseInvalid,
        DatabaseIoError as DatabaseIoError,
        DatabaseReadOnly as DatabaseReadOnly,
        DatabaseUnavailable as DatabaseUnavailable,
        EpochClosed as EpochClosed,
        EpochOpen as EpochOpen,
        IllegalTransition as IllegalTransition,
        InvalidInput as InvalidInput,
        LimitExceeded as LimitExceeded,
        NotBegun as NotBegun,
        NotFound as NotFound,
        NothingSelected as NothingSelected,
        OperatorFault as OperatorFault,
        ReconcilerError as ReconcilerError,
        ReservedId as ReservedId,
        RowUnreadable as RowUnreadable,
        RunnerClosed as RunnerClosed,
        RunnerFault as RunnerFault,
        SchemaMismatch as SchemaMismatch,
        SessionDamaged as SessionDamaged,
        SessionMirrored as SessionMirrored,
        SourceConflict as SourceConflict,
        SourceNotQuiet as SourceNotQuiet,
        SourceOwned as SourceOwned,
        SourceUnreadable as SourceUnreadable,
        SourceVersionUnknown as SourceVersionUnknown,
        StoreConflict as StoreConflict,
        StoreFault as StoreFault,
        UnknownFormat as UnknownFormat,
        UnsupportedOnDialect as UnsupportedOnDialect,
    )
    from reconciler.service.refine import (
        RefineGate as RefineGate,
    )
    from reconciler.service.runner import (
        Attempt as Attempt,
        Runner as Runner,
        Submission as Submission,
    )

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
        "DatabaseIoError",
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
        "RowUnreadable",
        "RunnerClosed",
        "RunnerFault",
        "SchemaMismatch",
        "SessionDamaged",
        "SessionMirrored",
        "SourceConflict",
        "SourceNotQuiet",
        "SourceOwned",
        "SourceUnreadable",
        "SourceVersionUnknown",
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
