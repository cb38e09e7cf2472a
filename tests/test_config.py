"""Settings: precedence, refusals with their way out, contexts, and the embedded default."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from reconciler.config import (
    Flags,
    Settings,
    default_database_file,
    environment_variables,
    limit_conflicts,
    load,
)
from reconciler.core.model import DEFAULT_LIMITS
from reconciler.errors import ConfigurationInvalid


def _load(tmp_path: Path, text: str | None = None, flags: Flags | None = None, **variables: str) -> Settings:
    environ = {"HOME": str(tmp_path), **variables}
    if text is not None:
        folder = tmp_path / ".config" / "reconciler"
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(text, encoding="utf-8")
    return load(flags, environ)


def test_without_any_setting_the_database_is_a_file_in_the_data_folder(tmp_path: Path) -> None:
    settings = _load(tmp_path)
    assert f"sqlite:///{tmp_path}/.local/share/reconciler/reconciler.sqlite3" == settings.database_url
    assert settings.is_default_database
    assert None is settings.config_file
    assert DEFAULT_LIMITS == settings.limits


def test_the_data_folder_follows_xdg_and_ignores_a_relative_one(tmp_path: Path) -> None:
    assert Path("/data/reconciler/reconciler.sqlite3") == default_database_file({"XDG_DATA_HOME": "/data"})
    assert tmp_path / ".local/share/reconciler/reconciler.sqlite3" == default_database_file(
        {"XDG_DATA_HOME": "data", "HOME": str(tmp_path)}
    )


def test_flags_go_before_the_environment_and_the_environment_before_the_file(tmp_path: Path) -> None:
    text = 'database_url = "sqlite:///file.db"\n'
    assert "sqlite:///file.db" == _load(tmp_path, text).database_url
    environ = {"RECONCILER_DATABASE_URL": "sqlite:///env.db"}
    assert "sqlite:///env.db" == _load(tmp_path, None, None, **environ).database_url
    assert "sqlite:///flag.db" == _load(tmp_path, None, Flags(database="sqlite:///flag.db"), **environ).database_url


def test_a_context_named_by_a_flag_goes_before_the_url_of_the_environment(tmp_path: Path) -> None:
    text = '[contexts.prod]\nurl = "postgresql://db/prod"\nproduction = true\n'
    settings = _load(tmp_path, text, Flags(context="prod"), RECONCILER_DATABASE_URL="sqlite:///env.db")
    assert ("postgresql://db/prod", "prod", True) == (settings.database_url, settings.context, settings.production)


def test_a_production_database_named_by_its_bare_url_stays_one(tmp_path: Path) -> None:
    text = '[contexts.prod]\nurl = "postgresql://db/prod"\nproduction = true\n'
    assert _load(tmp_path, text, Flags(database="postgresql://db/prod")).production


def test_a_context_may_take_its_url_from_a_variable(tmp_path: Path) -> None:
    text = 'context = "prod"\n[contexts.prod]\nurl_env = "RECONCILER_PROD_URL"\n'
    settings = _load(tmp_path, text, None, RECONCILER_PROD_URL="postgresql://db/prod")
    assert "postgresql://db/prod" == settings.database_url


@pytest.mark.parametrize(
    ("text", "variables", "message", "hint"),
    [
        ('databse_url = "x"', {}, 'unknown key "databse_url"', 'did you mean "database_url"?'),
        ("[limits]\natempts_max = 3", {}, 'unknown limit "atempts_max"', 'did you mean "attempts_max"?'),
        ("[log]\nlevle = 'info'", {}, 'unknown key of [log] "levle"', 'did you mean "level"?'),
        ("[log]\nlevel = 'loud'", {}, 'cannot use log.level = "loud"', "one of: debug, info, warning, error"),
        ("limits = 3", {}, '"limits" in the file', "write [limits]"),
        ("[limits]\nattempts_max = 'many'", {}, "is no whole number", "write a number"),
        ("[limits]\nattempts_max = true", {}, "is no whole number", "write a number"),
        ("[limits]\nlease_s = nan", {}, "is out of range", "between"),
        ("[limits]\ngrace_s = -1", {}, "is out of range", "between 0"),
        ("[limits]\nattempts_max = 5", {}, "attempts_max = 5 is not above crashes_in_row_max = 5", "raise limits"),
        ("[limits]\nlease_s = 6", {}, "under two beats", "raise limits.lease_s"),
        ("[contexts.a]\nproduction = true", {}, 'must have either "url" or "url_env"', "url_env names"),
        ('[contexts."a b"]\nurl = "x"', {}, "as the name of a context", "letters"),
        ("x = ", {}, "cannot read the configuration file", "TOML"),
        (
            None,
            {"RECONCILER_DATABASE_ULR": "x"},
            'unknown variable "RECONCILER_DATABASE_ULR"',
            "RECONCILER_DATABASE_URL",
        ),
        (None, {"RECONCILER_LIMITS_ATTEMPTS_MAX": "many"}, "is no whole number", "write a number"),
        (None, {"RECONCILER_HINTS": "maybe"}, "neither true nor false", "write true or false"),
        (None, {"RECONCILER_CONTEXT": "prod"}, 'unknown context "prod"', "[contexts.NAME]"),
        (None, {"RECONCILER_CONFIG": "/nowhere/x.toml"}, "there is no configuration file", "mend RECONCILER_CONFIG"),
        (
            None,
            {"RECONCILER_CONTEXT": "a", "RECONCILER_DATABASE_URL": "sqlite:///x"},
            "both name a database",
            "leave one of them out",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_way_out(
    tmp_path: Path, text: str | None, variables: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        _load(tmp_path, text, None, **variables)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_an_unset_variable_of_a_context_is_named(tmp_path: Path) -> None:
    text = 'context = "prod"\n[contexts.prod]\nurl_env = "PROD_URL"\n'
    with pytest.raises(ConfigurationInvalid, match="PROD_URL, which is not set"):
        _load(tmp_path, text)


def test_several_faults_come_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        _load(tmp_path, "a = 1\nb = 2\n")
    assert "(and 1 more)" in caught.value.message
    assert isinstance(caught.value.detail, dict)
    assert 2 == len(caught.value.detail["faults"])


def test_every_limit_can_be_set_by_its_variable(tmp_path: Path) -> None:
    variables = {name: key for name, key in environment_variables().items() if key.startswith("limits.")}
    assert {f"limits.{item.name}" for item in dataclasses.fields(DEFAULT_LIMITS)} == set(variables.values())
    given = {
        variable: "true" if (value := getattr(DEFAULT_LIMITS, key.removeprefix("limits."))) is False else repr(value)
        for variable, key in variables.items()
    }
    settings = _load(tmp_path, None, None, **given)
    assert dataclasses.replace(DEFAULT_LIMITS, hold_unlogged=True, hold_unknown_effects=True) == settings.limits


def test_the_default_limits_do_not_contradict_each_other() -> None:
    assert [] == limit_conflicts(DEFAULT_LIMITS)


def test_variables_of_tests_and_empty_ones_are_left_alone(tmp_path: Path) -> None:
    settings = _load(tmp_path, None, None, RECONCILER_TEST_URL="x", RECONCILER_OPERATOR="")
    assert None is settings.operator
