"""The contract's section 3.1, read a second time: slow, backwards, by the letter, and sharing no code with the product.

Only the vocabulary is shared. Paths are lists of entries; a call is (index of its message, position).
"""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.core.model import STATE_OF_DETAIL, Detail, SessionEntry, SubmissionInspection

Call = tuple[int, int]
KNOWN = ("stop", "length", "tool_use", "error", "aborted")


def _says(e: SessionEntry, *roles: str) -> bool:
    return e.kind == "message" and not e.is_sidechain and e.role in roles


def _model(e: SessionEntry) -> bool:
    return _says(e, "assistant") and not e.is_synthetic


def _stop(e: SessionEntry) -> str | None:
    if e.stop_reason in KNOWN:
        return e.stop_reason
    return "tool_use" if e.stop_reason is not None and e.tool_call_ids else None


def _bare(e: SessionEntry) -> bool:
    return e.content == "none" and not e.tool_call_ids


def _real(e: SessionEntry) -> bool:
    return _model(e) and (not _bare(e) or _stop(e) in ("stop", "length", "tool_use"))


def canonical(e: SessionEntry, sid: str) -> bool:
    return _says(e, "user", "signal") and e.submission_id == sid and not e.is_synthetic


def foreign(e: SessionEntry, sid: str) -> bool:
    if e.is_synthetic:
        return False
    return (_says(e, "user") and e.submission_id != sid) or (_says(e, "signal") and e.submission_id not in (None, sid))


def closing(path: Sequence[SessionEntry]) -> dict[Call, int]:
    """R2: which result closes which call. Calls of fillers take what no other call wants."""
    closed: dict[Call, int] = {}
    for at, e in enumerate(path):
        if not _says(e, "tool_result"):
            continue
        before = [
            (i, p)
            for i in range(at)
            if _says(path[i], "assistant")
            for p, call in enumerate(path[i].tool_call_ids)
            if call == e.tool_call_id and (i, p) not in closed
        ]
        before.sort(key=lambda c: (not path[c[0]].is_synthetic, c))
        if before:
            closed[before[-1]] = at
    return closed


def open_calls(path: Sequence[SessionEntry], closed: set[Call]) -> list[Call]:
    return [
        (i, p) for i, e in enumerate(path) if _model(e) for p in range(len(e.tool_call_ids)) if (i, p) not in closed
    ]


def table(
    path: Sequence[SessionEntry], sid: str, elsewhere: dict[Call, SessionEntry] | None = None
) -> tuple[Detail, list[Call]]:
    """The table, and the trailing batch's open calls where the state is continuable. *elsewhere*: closed by R7."""
    closers = {**(elsewhere or {}), **{call: path[at] for call, at in closing(path).items()}}
    detail, batch = _row(path, sid, closers)
    if STATE_OF_DETAIL[detail] is not SubmissionInspection.CONTINUABLE:
        return detail, []
    return detail, [call for call in batch if call not in closers]


def _row(path: Sequence[SessionEntry], sid: str, closers: dict[Call, SessionEntry]) -> tuple[Detail, list[Call]]:
    if any(e.kind == "submission_settled" and e.submission_id == sid for e in path):
        return Detail.SETTLED_ENTRY, []
    inputs = [i for i, e in enumerate(path) if canonical(e, sid)]
    if not inputs:
        return Detail.INPUT_MISSING, []
    start = inputs[-1]
    after = list(range(start + 1, len(path)))
    if any(foreign(path[i], sid) for i in after):
        return Detail.MOVED_ON, []
    real = [i for i in after if _real(path[i])]
    if not real:
        for i in after:
            if _says(path[i], "tool_result") and not any(
                _model(path[j]) and path[i].tool_call_id in path[j].tool_call_ids for j in range(i)
            ):
                return Detail.ORPHAN_RESULT, []
        return Detail.INPUT_ONLY, []
    last = path[real[-1]]
    stop = _stop(last)
    if not last.tool_call_ids and (stop in ("stop", "length") or (stop is None and last.content == "text")):
        return (Detail.EMPTY_RESPONSE if last.content == "none" else Detail.RESPONSE_FINISHED), []
    batch = _batch(path, after)
    unresolved = [call for call in batch if call not in closers]
    if unresolved:
        some = len(unresolved) < len(batch)
        return (Detail.TOOL_BATCH_PARTIAL if some else Detail.TOOL_CALLS_UNRESOLVED), batch
    if last.tool_call_ids:
        if all(closers[call].ends_turn for call in batch):
            return Detail.TURN_ENDED_BY_TOOL, batch
        failed = any(
            _model(path[i]) and _bare(path[i]) and _stop(path[i]) in ("error", "aborted") for i in after if i > real[-1]
        )
        return (Detail.TOOL_BATCH_RESOLVED if stop is None and not failed else Detail.TOOL_RESULTS_READY), batch
    return {"error": Detail.PROVIDER_ERROR, "aborted": Detail.RESPONSE_ABORTED}.get(
        stop or "", Detail.RESPONSE_CUT
    ), batch


def _batch(path: Sequence[SessionEntry], after: Sequence[int]) -> list[Call]:
    """R4, going back from the last message with calls."""
    found: list[int] = []
    for i in reversed(after):
        e = path[i]
        if _says(e, "tool_result"):
            if found:
                break
        elif _model(e) and not (_bare(e) and _stop(e) is None):
            if found and _stop(e) in ("stop", "length", "error", "aborted"):
                break
            if found or e.tool_call_ids:
                found.append(i)
    return [(i, p) for i in sorted(found) for p in range(len(path[i].tool_call_ids))]


# --- a sound session -------------------------------------------------------------------------------------------------


def chain(entries: Sequence[SessionEntry], leaf: str) -> list[SessionEntry]:
    by_id = {e.id: e for e in entries}
    upward = []
    step: str | None = leaf
    while step is not None:
        upward.append(by_id[step])
        step = by_id[step].parent_id
    return upward[::-1]


def closed_by_branches(entries: Sequence[SessionEntry], path: Sequence[SessionEntry]) -> dict[Call, SessionEntry]:
    """R7: results off the path that pair, on their own path, with a call of *path*. Of several one that goes on."""
    place = {e.id: i for i, e in enumerate(path)}
    found: dict[Call, SessionEntry] = {}
    for e in entries:
        if e.id in place or not _says(e, "tool_result"):
            continue
        own = chain(entries, e.id)
        for (i, p), at in closing(own).items():
            if at == len(own) - 1 and own[i].id in place:
                call = (place[own[i].id], p)
                if call not in found or not e.ends_turn:
                    found[call] = e
    return found


def session(entries: Sequence[SessionEntry], leaf: str, sid: str) -> tuple[Detail, list[Call]]:
    """A sound session without ``unreadable``: R9, the table with R7, R6."""
    if any(e.kind == "submission_settled" and e.submission_id == sid for e in entries):
        return Detail.SETTLED_ENTRY, []
    path = chain(entries, leaf)
    detail, unresolved = table(path, sid, closed_by_branches(entries, path))
    if detail is not Detail.INPUT_MISSING:
        return detail, unresolved
    inputs = [e for e in entries if canonical(e, sid)]
    if not inputs:
        return Detail.INPUT_MISSING, []
    parents = {e.parent_id for e in entries}
    for given in inputs:
        for tip in entries:
            branch = chain(entries, tip.id)
            ids = [e.id for e in branch]
            if tip.id in parents or given.id not in ids:
                continue
            start = ids.index(given.id)
            cut = next((i for i in range(start, len(branch)) if foreign(branch[i], sid)), len(branch))
            branch = branch[:cut]
            row, _ = table(branch, sid, closed_by_branches(entries, branch))
            if STATE_OF_DETAIL[row] is SubmissionInspection.COMPLETED:
                return Detail.ANSWERED_OFF_PATH, []
    ancestors = {e.id for given in inputs for e in chain(entries, given.id)}
    if any(foreign(e, sid) and e.id not in ancestors for e in path):
        return Detail.ABANDONED_BRANCH, []
    return Detail.LEAF_MOVED, []
