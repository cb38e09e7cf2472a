"""What a filter of a bulk act may be, and what operations look like in answers. Data only, for declarations."""

from __future__ import annotations

from typing import Final

from reconciler.core.states import Reason
from reconciler.ops.entry import Kind, Parameter
from reconciler.ops.payloads import ACT
from reconciler.ops.shapes import ANY, COUNT, FLAG, INSTANT, TEXT, Shape, listing, maybe, shape, with_optional, words

# Items that an answer lists beside its counts.
ITEMS_SHOWN: Final = 20

# Not "unsettled": that is everything, and everything is never what is meant.
BULK_STATUS: Final = ("queued", "running", "waiting", "held", "overdue", "stuck")

BULK_PARAMETERS: Final = (
    Parameter("status", Kind.TEXT, "instead of a submission: all that are so", choices=BULK_STATUS),
    Parameter(
        "with_reason",
        Kind.TEXT,
        "all whose hold or last decision has this reason",
        choices=tuple(word.value for word in Reason),
    ),
    Parameter("origin", Kind.TEXT, "all of such sessions", choices=("native", "mirrored")),
    Parameter("owner", Kind.TEXT, "all that this runner holds"),
    Parameter("since", Kind.INSTANT, "all admitted not before: an instant, or 2h, 7d ago"),
    Parameter("until", Kind.INSTANT, "all admitted before: the same"),
)
BULK_FILTERS: Final = ("session", *(parameter.name for parameter in BULK_PARAMETERS))

ITEM: Final = shape(
    number=COUNT,
    session_id=TEXT,
    submission_id=TEXT,
    status=words("pending", "done", "already", "refused", "would"),
    message=maybe(TEXT),
    # Of the error that refused it.
    code=maybe(TEXT),
)
_STATUS: Final = words("open", "done", "cancelled", "preparing")
_COUNTS: Final[dict[str, Shape]] = {
    "total": COUNT,
    "pending": COUNT,
    "done": COUNT,
    "already": COUNT,
    "refused": COUNT,
}
# Beside the answer of an act that was given a filter.
BULK: Final = shape(
    operation_id=maybe(TEXT),
    status=maybe(_STATUS),
    filter=ANY,
    **_COUNTS,
    items=listing(ITEM),
)
BULK_ACT: Final = with_optional(
    {
        **ACT,
        "properties": {**ACT["properties"], "session_id": maybe(TEXT)},
    },
    # With a filter instead of a submission.
    operation=BULK,
)
_ROW: Final[dict[str, Shape]] = {
    "operation_id": TEXT,
    "verb": TEXT,
    "status": _STATUS,
    "parameters": ANY,
    "filter": ANY,
    "operator": maybe(TEXT),
    "reason": maybe(TEXT),
    "created_at": maybe(INSTANT),
    "finished_at": maybe(INSTANT),
    **_COUNTS,
}
OPERATION_LIST: Final = shape(operations=listing(shape(**_ROW)))
OPERATION: Final = shape(
    **_ROW,
    result=words("shown", "done", "already", "would"),
    dry_run=FLAG,
    items=listing(ITEM),
)
