"""The registry is whole: everything declared can be read, drawn, explained and followed up."""

from __future__ import annotations

from importlib import import_module

import pytest

from reconciler.core.hints import FOLLOWUP_HINT_RULES, check_rules
from reconciler.core.model import Detail
from reconciler.core.states import Reason
from reconciler.errors import InvalidInput
from reconciler.ops.entry import Audit, Database, Entry, Kind
from reconciler.ops.registry import REGISTRY, entry_of
from reconciler.ops.render_answers import RENDERERS
from reconciler.ops.words import RULE_OF_DETAIL, RULE_OF_REASON

# Verbs that hints lead to and that are not built yet: each has to leave this list with the commit that brings it.
NOT_YET: set[str] = set()

ENTRIES = [pytest.param(entry, id=name) for name, entry in REGISTRY.items()]


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_says_what_it_is_for_and_shows_how(entry: Entry) -> None:
    assert entry.summary
    assert not entry.summary.endswith(".")
    assert entry.examples
    assert all(example.command.count(f"reconciler {entry.name}") for example in entry.examples)
    assert all(parameter.help for parameter in entry.parameters)


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_reader_can_be_loaded(entry: Entry) -> None:
    module, _, function = entry.reader.partition(":")
    assert callable(getattr(import_module(module), function))


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_has_a_renderer_and_schemas(entry: Entry) -> None:
    assert entry.name in RENDERERS
    assert "object" == entry.payload["type"]
    schema = entry.input_schema()
    assert set(schema["required"]) <= set(schema["properties"])


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_act_can_be_tried_without_doing_it(entry: Entry) -> None:
    if not entry.acts:
        assert entry.audit is Audit.NONE
        assert entry.database in (Database.NONE, Database.READ, Database.ANY)
        return
    assert entry.dry_run
    parameter = entry.parameter("dry_run")
    assert parameter is not None
    assert parameter.kind is Kind.BOOLEAN


def test_the_table_of_hints_is_closed_over_the_registry() -> None:
    assert not NOT_YET & set(REGISTRY)
    fields = {name: entry.payload_fields() for name, entry in REGISTRY.items()}
    rules = [rule for rule in FOLLOWUP_HINT_RULES if not {rule.tool, rule.for_tool} & NOT_YET]
    assert () == check_rules(fields, rules)


def test_every_row_of_the_classifier_and_every_reason_has_its_words() -> None:
    assert set(Detail) == set(RULE_OF_DETAIL)
    assert set(Reason) == set(RULE_OF_REASON)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidInput) as caught:
        entry_of("staus")
    assert 'did you mean "status"?' == caught.value.hint
