"""Proofs: a kill at every statement, random histories, an exhaustive model, state machines. See docs/reliability.md."""
