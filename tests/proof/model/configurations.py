"""The constants of the explorations: small ones for every run of the tests, and the full ones of a target of their own.

Each configuration looks at one part of the protocol with as many processes as that part needs.
"""

from __future__ import annotations

from dataclasses import replace

from reconciler.core.model import Limits
from tests.proof.model.machine import Configuration

_TINY = Limits(
    attempts_max=2, crashes_in_row_max=1, provider_errors_max=1, redispatches_max=1, releases_max=1, parks_max=1
)
_SMALL = replace(_TINY, attempts_max=3, crashes_in_row_max=2, provider_errors_max=2)

CONFIGURATIONS = {
    configuration.name: configuration
    for configuration in (
        Configuration("two runners", runners=2, limits=_TINY, acts=frozenset({"releases"}), meddling=0),
        Configuration("two daemons", daemons=2, limits=_TINY, acts=frozenset({"aborts"})),
        Configuration("lost answers", runners=1, limits=_TINY, acts=frozenset({"lost_answers"}), meddling=0),
        Configuration("order", sessions=(0, 0), runners=2, daemons=1, limits=_TINY, meddling=0),
        Configuration("tools", limits=_TINY, acts=frozenset({"tools", "aborts"})),
        Configuration("provider", limits=_SMALL, acts=frozenset({"errors"}), meddling=0),
        Configuration("parks", limits=_TINY, acts=frozenset({"tools", "parks"})),
        Configuration("operators", limits=_TINY, acts=frozenset({"aborts", "retries", "settles"}), meddling=2),
        Configuration("deadline", limits=_TINY, acts=frozenset({"aborts"}), deadline=True),
        Configuration("damage", limits=_TINY, acts=frozenset({"damage", "releases_holds"}), meddling=2),
        Configuration("restored", limits=_TINY, acts=frozenset({"restores"}), meddling=1),
        Configuration("moved leaf", sessions=(0, 0), limits=_TINY, acts=frozenset({"moves"}), meddling=1),
        Configuration("prune", limits=_TINY, acts=frozenset({"prune"}), meddling=0),
    )
}

# The constants of the plan: two runners, two daemons, two submissions in one session and one in another, up to three
# attempts, crashes anywhere. More than fits into a test run; the target stops at a number of states and says so.
FULL = {
    configuration.name: configuration
    for configuration in (
        *(
            replace(
                configuration,
                name=f"full: {name}",
                runners=2,
                daemons=2,
                limits=replace(_SMALL, releases_max=2, parks_max=2),
                meddling=2,
            )
            for name, configuration in CONFIGURATIONS.items()
        ),
        Configuration(
            "full: everything",
            sessions=(0, 0, 1),
            runners=2,
            daemons=2,
            limits=_SMALL,
            acts=frozenset({act for configuration in CONFIGURATIONS.values() for act in configuration.acts}),
            meddling=2,
        ),
    )
}
