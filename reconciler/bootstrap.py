"""The composition root: settings in, a desk to ask questions at out. The only place that wires parts together.

What is heavy (the database toolkit, its drivers) is loaded by the first question that needs it.
"""

from __future__ import annotations

import dataclasses
import getpass
from typing import TYPE_CHECKING, Any

from reconciler.config import Settings
from reconciler.ops.asking import Desk, Progress, no_progress

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine


def open_desk(
    settings: Settings,
    *,
    operator: str | None = None,
    show_texts: bool = True,
    application_name: str = "reconciler",
    progress: Progress = no_progress,
) -> Desk:
    """Return a desk for *settings*; nothing is connected and no file is made yet.

    *operator* is who asks, where a flag says so; *show_texts* False keeps what was said in sessions inside.
    """

    def make_engine(*, create: bool = False) -> Engine:
        from reconciler.store import engine as engines

        if create and settings.is_default_database:
            path = engines.sqlite_path(settings.database_url)
            if path is not None:
                engines.make_private_folder(path.parent)
        return engines.make_engine(
            settings.database_url,
            settings=engines.EngineSettings(schema=settings.schema, application_name=application_name, create=create),
        )

    def name_database() -> str:
        from reconciler.store.engine import database_name

        return database_name(settings.database_url)

    def may_create() -> bool:
        from reconciler.store.engine import sqlite_path

        # A production database is made by `db upgrade`, on purpose.
        path = sqlite_path(settings.database_url)
        return path is not None and not path.exists() and not settings.production

    return Desk(
        make_engine=make_engine,
        name_database=name_database,
        may_create=may_create,
        limits=settings.limits,
        operator=operator or settings.operator or _user(),
        production=settings.production,
        show_texts=show_texts,
        hints=settings.hints,
        progress=progress,
        configuration=configuration(settings),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        # A container's user without a name.
        return "unknown"


def configuration(settings: Settings) -> dict[str, Any]:
    """Return the payload of `config show`: every setting, its value and where it comes from."""
    values: dict[str, Any] = {
        "database_url": settings.database_url,
        "context": settings.context,
        "production": settings.production,
        "schema": settings.schema,
        "operator": settings.operator or _user(),
        "hints": settings.hints,
        "log.level": settings.log.level,
        "log.format": settings.log.format,
        **{f"limits.{name}": value for name, value in dataclasses.asdict(settings.limits).items()},
    }
    sources = {**settings.sources, "database_url": settings.database_source}
    return {
        "config_file": None if settings.config_file is None else str(settings.config_file),
        "settings": [
            {"name": name, "value": value, "source": sources.get(name, "the default")} for name, value in values.items()
        ],
        "contexts": [
            {
                "name": context.name,
                "url": context.url,
                "url_env": context.url_env,
                "production": context.production,
                "current": context.name == settings.context,
            }
            for context in settings.contexts.values()
        ],
    }
