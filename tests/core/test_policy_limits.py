"""What a sound configuration is."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from reconciler.core.limits import limit_faults, validate_limits
from reconciler.core.model import DEFAULT_LIMITS, Limits
from reconciler.errors import ConfigurationInvalid, InvalidInput


def test_the_defaults_are_sound() -> None:
    assert validate_limits(DEFAULT_LIMITS) is DEFAULT_LIMITS
    assert limit_faults(DEFAULT_LIMITS) == ()


def changed(**changes: Any) -> Limits:
    return replace(DEFAULT_LIMITS, **changes)


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
def test_every_limit_refuses_what_is_no_value_of_its_kind(name: str) -> None:
    for value in (None, "5", math.nan, math.inf, -1, 1e300):
        faults = limit_faults(changed(**{name: value}))
        assert len(faults) == 1, (name, value)
        assert faults[0].startswith(name)


@pytest.mark.parametrize("name", [field.name for field in fields(Limits) if not field.name.startswith("hold_")])
def test_no_number_is_true_or_false(name: str) -> None:
    assert limit_faults(changed(**{name: True})) != ()


@pytest.mark.parametrize(
    "changes",
    [
        {"attempts_max": 8},
        {"attempts_max": 9, "crashes_in_row_max": 9},
        {"attempts_max": 5, "provider_errors_max": 2},
        {"beat_s": 7.6},
        {"lease_s": 4000.0},
        {"stall_s": 15.0},
        {"backoff_base_s": 301.0},
        {"capability_backoff_s": 301.0},
        {"provider_backoff_base_s": 901.0},
        {"backoff_factor": 0.9},
        {"backoff_jitter": 1.1},
        {"attempts_max": 1.5},
        {"stall_s": 0},
        {"crashes_in_row_max": 0},
        {"provider_errors_max": 0},
    ],
)
def test_limits_that_contradict_each_other_or_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    faults = limit_faults(changed(**changes))
    assert len(faults) == 1
    with pytest.raises(ConfigurationInvalid) as raised:
        validate_limits(changed(**changes))
    assert raised.value.detail == {"faults": list(faults)}


@pytest.mark.parametrize(
    "changes",
    [
        {"attempts_max": 9},
        {"beat_s": 7.5},
        {"grace_s": 0, "leaf_moved_s": 0, "quiet_s": 0},
        {"releases_max": 0, "parks_max": 0, "redispatches_max": 0, "sub_turn_budget": 0},
        {"backoff_factor": 1, "backoff_jitter": 0},
    ],
)
def test_limits_at_their_edges_are_sound(changes: dict[str, Any]) -> None:
    assert limit_faults(changed(**changes)) == ()


def test_all_faults_are_named_at_once_and_in_the_callers_words() -> None:
    with pytest.raises(InvalidInput, match=r"stall_s.*attempts_max"):
        validate_limits(changed(stall_s=-1, attempts_max=0), error=InvalidInput)
