"""The path as a model provider takes it (R14): every call answered exactly once, in call order, behind its message.

Nothing of the record is changed by it: what had to be made up or left out is listed. This file knows nothing of states,
and nothing of what any provider's messages look like.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconciler.core.model import KIND_MESSAGE, SessionEntry, SyntheticResult, ValidPath
from reconciler.core.pairing import CallRef, Pairing, describe_open_calls, pair_path
from reconciler.core.subturn import marker_text
from reconciler.core.terms import is_assistant, is_tool_result


def valid_path(path: Sequence[SessionEntry]) -> ValidPath:
    """Return the path in the order and completeness that providers ask for.

    Results move directly behind the message of their call; an open call, an interior one too, gets a synthetic result;
    the first result of a call stands. Left out are further results, results without a call, and a sub-agent's messages:
    its talk was never the main model's. Calls of a runtime's filler are answered too. Entries of other kinds keep their
    place. Same input, same output; a path that is valid comes back as it is.
    """
    pairing = pair_path(path)
    answers = _answers(pairing)
    items: list[SessionEntry | SyntheticResult] = []
    added: list[SyntheticResult] = []
    left_out: list[str] = []
    for node, entry in enumerate(path):
        if is_tool_result(entry):
            if node not in pairing.call_of:
                left_out.append(entry.id)
        elif entry.kind == KIND_MESSAGE and entry.is_sidechain:
            left_out.append(entry.id)
        else:
            items.append(entry)
            for answer in answers.get(node, ()):
                items.append(answer)
                if isinstance(answer, SyntheticResult):
                    added.append(answer)
    return ValidPath(tuple(items), tuple(added), tuple(left_out))


def _answers(pairing: Pairing) -> dict[int, list[SessionEntry | SyntheticResult]]:
    """Return the results of each message with calls, in call order."""
    refs: list[CallRef] = [
        (node, position)
        for node, entry in enumerate(pairing.path)
        if entry.tool_call_ids and is_assistant(entry)
        for position in range(len(entry.tool_call_ids))
    ]
    made_up = iter(describe_open_calls(pairing, [ref for ref in refs if ref not in pairing.closers]))
    recorded = _recorded(pairing, refs)
    answers: dict[int, list[SessionEntry | SyntheticResult]] = {}
    for node, position in refs:
        behind = answers.setdefault(node, [])
        if (node, position) in pairing.closers:
            behind.append(next(recorded[(node, pairing.nodes[node].tool_call_ids[position])]))
        else:
            call = next(made_up)
            text = marker_text(call.dispatch)
            behind.append(SyntheticResult(call.call_id, call.entry_id, call.position, call.dispatch, text))
    return answers


def _recorded(pairing: Pairing, refs: list[CallRef]) -> dict[tuple[int, str], Iterator[SessionEntry]]:
    """Return the recorded results for each message and call id, in the order of the path.

    Calls of one id in one message can't be told apart by a result, and the pairing closes the last of them first. Taken
    in the order of the path they come out the same when the outcome is paired again.
    """
    found: dict[tuple[int, str], list[int]] = {}
    for node, position in refs:
        for closer in pairing.closers.get((node, position), ()):
            found.setdefault((node, pairing.nodes[node].tool_call_ids[position]), []).append(closer)
    return {key: (pairing.nodes[closer] for closer in sorted(closers)) for key, closers in found.items()}
