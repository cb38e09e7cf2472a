"""No two transactions of the product wait for each other in a circle (I15).

The order of locks is read off the statements that the operations really send to PostgreSQL, so that a new transaction
is judged by itself. Then every interleaving of every two of the orders found is walked through, over the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

# Tables in the order in which a transaction locks their rows; "?" behind one that it skips where another holds it.
Order = tuple[str, ...]
SKIPS = "?"

_RANKED = ("sessions", "submissions", "attempts")
_TABLE = re.compile(r"\b(?:(?<!FOR )(?<!KEY )UPDATE|DELETE FROM)\s+(?:ONLY\s+)?\"?(\w+)\"?", re.IGNORECASE)
_LOCKING = re.compile(r"\bFOR (?:NO KEY )?UPDATE(?: OF (\w+(?:, *\w+)*))?( SKIP LOCKED)?", re.IGNORECASE)
_FROM = re.compile(
    r"\b(?:FROM|JOIN)\s+\"?(\w+)\"?(?:\s+(?:AS\s+)?(?!(?:JOIN|ON|WHERE|CROSS|LEFT|ORDER|FOR|LIMIT|SET)\b)(\w+))?",
    re.IGNORECASE,
)


def locks_of(statement: str) -> list[str]:
    """Return the ranked tables that a statement locks rows of, session first, as the store writes its statements."""
    aliases = {alias or table: table for table, alias in _FROM.findall(statement)}
    aliases |= {table: table for table, _ in _FROM.findall(statement)}
    named: dict[str, str] = {}
    for match in _LOCKING.finditer(statement):
        names = [name.strip() for name in match.group(1).split(",")] if match.group(1) else list(aliases)
        for name in names:
            table = aliases.get(name, name)
            named.setdefault(table, table + (SKIPS if match.group(2) else ""))
    for table in _TABLE.findall(statement):
        named.setdefault(table, table)
    return [named[table] for table in _RANKED if table in named]


def orders(points: Iterable[str]) -> Iterator[Order]:
    """Yield, for each transaction in the points of an operation, its locks in the order in which they come."""
    taken: list[str] = []
    for point in points:
        moment, _, statement = point.partition(" ")
        if moment != "before":
            continue
        if statement in ("COMMIT", "ROLLBACK"):
            if taken:
                yield tuple(taken)
            taken = []
            continue
        held = {lock.removesuffix(SKIPS) for lock in taken}
        taken += [lock for lock in locks_of(statement) if lock.removesuffix(SKIPS) not in held]
    if taken:
        yield tuple(taken)


def deadlocks(found: Sequence[Order]) -> list[tuple[Order, Order]]:
    """Return every pair of orders for which some interleaving ends in a circle of waits."""
    return [(one, other) for one in found for other in found if _can_deadlock(one, other)]


def _can_deadlock(*pair: Order) -> bool:
    """Walk through every interleaving of two transactions over one session, submission and attempt."""
    seen: set[tuple[int, int]] = set()
    todo = [(0, 0)]
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        waiting = []
        for mine in (0, 1):
            if at[mine] == len(pair[mine]):
                continue
            lock = pair[mine][at[mine]]
            other = pair[1 - mine]
            # One that is done has committed, and holds nothing.
            held = other[: at[1 - mine]] if at[1 - mine] < len(other) else ()
            is_held = lock.removesuffix(SKIPS) in {name.removesuffix(SKIPS) for name in held}
            if is_held and not lock.endswith(SKIPS):
                waiting.append(mine)
                continue
            # What it skips is not its work: it comes to its end.
            step = len(pair[mine]) if is_held else at[mine] + 1
            todo.append((step, at[1]) if mine == 0 else (at[0], step))
        if len(waiting) == 2:
            return True
    return False
