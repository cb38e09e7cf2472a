"""The limits' own rules: what a sound configuration is.

Source: the contract, section 3.2 (attempts above crashes and provider errors) and section 4 (leases). This file knows
nothing of where limits come from.
"""

from __future__ import annotations

import math
from typing import Final

from reconciler.core.model import Limits
from reconciler.errors import ConfigurationInvalid, ReconcilerError

# A century: whatever is longer is a slip, and sums of instants stay far from the calendar's end.
_SECONDS_MAX: Final = 100 * 366 * 86400.0
_COUNT_MAX: Final = 2**31 - 1

_SECONDS_ABOVE_ZERO: Final = (
    "stall_s",
    "park_s",
    "lease_s",
    "beat_s",
    "backoff_base_s",
    "backoff_max_s",
    "provider_backoff_base_s",
    "provider_backoff_max_s",
    "capability_backoff_s",
    "deadline_max_s",
    "lease_max_s",
)
_SECONDS_FROM_ZERO: Final = ("grace_s", "leaf_moved_s", "quiet_s", "overdue_s")
_COUNTS_FROM_ONE: Final = (
    "attempts_max",
    "crashes_in_row_max",
    "provider_errors_max",
    "scan_batch_max",
    "pass_batches_max",
    "path_piece_entries",
    "path_entries_max",
    "append_entries_max",
    "append_bytes_max",
    "payload_bytes_max",
    "claim_max",
    "page_rows_max",
)
_COUNTS_FROM_ZERO: Final = ("releases_max", "parks_max", "redispatches_max", "sub_turn_budget")
_SWITCHES: Final = ("hold_unlogged", "hold_unknown_effects")
# (name, lower and upper end): plain numbers.
_RATIOS: Final = (("backoff_factor", 1.0, 100.0), ("backoff_jitter", 0.0, 1.0))


def limit_faults(limits: Limits) -> tuple[str, ...]:
    """Return what is wrong with the limits, one sentence each; empty where nothing is."""
    ranges: list[str] = []
    for name in _SECONDS_ABOVE_ZERO:
        if not _is_number(getattr(limits, name)) or not 0 < getattr(limits, name) <= _SECONDS_MAX:
            ranges.append(f"{name} must be a number of seconds above 0 and at most {_SECONDS_MAX:.0f}")
    for name in _SECONDS_FROM_ZERO:
        if not _is_number(getattr(limits, name)) or not 0 <= getattr(limits, name) <= _SECONDS_MAX:
            ranges.append(f"{name} must be a number of seconds from 0 to {_SECONDS_MAX:.0f}")
    for name, low, high in _RATIOS:
        if not _is_number(getattr(limits, name)) or not low <= getattr(limits, name) <= high:
            ranges.append(f"{name} must be a number from {low:g} to {high:g}")
    for names, low_count in ((_COUNTS_FROM_ONE, 1), (_COUNTS_FROM_ZERO, 0)):
        for name in names:
            if not _is_whole(getattr(limits, name)) or not low_count <= getattr(limits, name) <= _COUNT_MAX:
                ranges.append(f"{name} must be a whole number from {low_count} to {_COUNT_MAX}")
    for name in _SWITCHES:
        if not isinstance(getattr(limits, name), bool):
            ranges.append(f"{name} must be true or false")
    # Relations of values that are none would only repeat the fault.
    return tuple(ranges) or tuple(text for is_broken, text in _relations(limits) if is_broken)


def _relations(limits: Limits) -> tuple[tuple[bool, str], ...]:
    return (
        (
            limits.attempts_max <= limits.crashes_in_row_max,
            f"attempts_max must be above crashes_in_row_max ({limits.crashes_in_row_max}), or that is never reached",
        ),
        (
            limits.attempts_max <= limits.provider_errors_max,
            f"attempts_max must be above provider_errors_max ({limits.provider_errors_max}), or that is never reached",
        ),
        (
            limits.lease_s < 2 * limits.beat_s,
            f"lease_s must be at least twice beat_s ({limits.beat_s:g}), or one late beat ends the lease",
        ),
        (limits.lease_s > limits.lease_max_s, f"lease_s must be at most lease_max_s ({limits.lease_max_s:g})"),
        (limits.stall_s <= limits.lease_s, f"stall_s must be above lease_s ({limits.lease_s:g})"),
        (limits.backoff_base_s > limits.backoff_max_s, "backoff_base_s must be at most backoff_max_s"),
        (limits.capability_backoff_s > limits.backoff_max_s, "capability_backoff_s must be at most backoff_max_s"),
        (
            limits.provider_backoff_base_s > limits.provider_backoff_max_s,
            "provider_backoff_base_s must be at most provider_backoff_max_s",
        ),
    )


def validate_limits(limits: Limits, *, error: type[ReconcilerError] = ConfigurationInvalid) -> Limits:
    """Return the limits as they are, once they are known to be sound.

    Raises:
        ConfigurationInvalid: a number is missing, not finite or out of range, or two of them contradict each other; all
            faults are named. *error* is raised instead where it is given (``InvalidInput`` for a runner's call).
    """
    faults = limit_faults(limits)
    if faults:
        raise error(
            f"the limits are not valid: {'; '.join(faults)}",
            detail={"faults": list(faults)},
            hint="change the values that are named",
        )
    return limits


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    # A whole number of any size: whether it is in range is asked without making it a float.
    return _is_whole(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
