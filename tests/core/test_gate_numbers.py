"""The gate that a decision names is the one that took it: `explain` shows it, and people look it up in the contract."""

from __future__ import annotations

from hypothesis import given, settings

from reconciler.core import policy
from reconciler.core.model import Inspection, Limits, SubmissionFacts, TurnEvidence
from tests.core.test_policy_properties import evidences, inspections, limits_, rows
from tests.support.policy import NOW


@settings(max_examples=400, deadline=None)
@given(inspection=inspections, facts=rows(), limits=limits_, evidence=evidences)
def test_a_decision_names_the_first_gate_that_answers(
    inspection: Inspection, facts: SubmissionFacts, limits: Limits, evidence: TurnEvidence | None
) -> None:
    case = policy._case(inspection, facts, NOW, limits, 0.0, evidence)
    answering = (number for number, gate in enumerate(policy.GATES) if gate(case) is not None)
    assert next(answering, len(policy.GATES)) == policy.decide(inspection, facts, NOW, limits, evidence=evidence).gate
