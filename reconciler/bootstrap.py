"""The composition root: settings in, a desk to ask questions at out. The only place that wires parts together.

What is heavy (the database toolkit, its drivers) is loaded by the first question that needs it.
"""

from __future__ import annotations

import dataclasses
import getpass
from typing import TYPE_CHECKING, Any

from reconciler.config import Settings
from reconciler.core.jobs import Job, jobs_by_name
from reconciler.ops.asking import Desk, Progress, no_progress
from reconciler.service.settings import system_jobs, work_settings
from reconciler.service.system_work import available_work

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from reconciler.service.daemon import Configuration, Daemon
    from reconciler.service.notify import Notify


def open_desk(
    settings: Settings,
    *,
    operator: str | None = None,
    show_texts: bool = True,
    application_name: str = "reconciler",
    progress: Progress = no_progress,
    read_only: bool = False,
) -> Desk:
    """Return a desk for *settings*; nothing is connected and no file is made yet.

    *operator* is who asks, where a flag says so; *show_texts* False keeps what was said in sessions inside; *read_only*
    has the database itself refuse every write.
    """

    def make_engine(*, create: bool = False) -> Engine:
        from reconciler.log import quiet_libraries
        from reconciler.store import engine as engines

        if create and settings.is_default_database:
            path = engines.sqlite_path(settings.database_url)
            if path is not None:
                engines.make_private_folder(path.parent)
        quiet_libraries()
        return engines.make_engine(
            settings.database_url,
            settings=engines.EngineSettings(
                schema=settings.schema, application_name=application_name, create=create, read_only=read_only
            ),
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
        jobs=_jobs(settings),
        work_settings=work_settings(settings.daemon),
        configuration=configuration(settings),
    )


def _jobs(settings: Settings) -> dict[str, Job]:
    return dict(jobs_by_name(system_jobs(settings.daemon, available_work()), settings.jobs))


def open_daemon(settings: Settings, *, notify: Notify | None = None) -> Daemon:
    """Return a daemon for *settings*; nothing is connected yet."""
    from reconciler.metrics import Metrics
    from reconciler.service.daemon import LINK_TIMEOUT_S, Daemon
    from reconciler.service.system_work import load_work
    from reconciler.store import engine as engines

    shared = engines.EngineSettings(schema=settings.schema, application_name="reconciler-daemon", connect_timeout_s=5)
    link = dataclasses.replace(
        shared,
        application_name="reconciler-link",
        pool_size=1,
        pool_overflow=0,
        statement_timeout_s=LINK_TIMEOUT_S,
        busy_timeout_s=LINK_TIMEOUT_S,
    )
    metrics = Metrics()
    if settings.daemon.health_port:
        metrics.enable()
    return Daemon(
        engines.make_engine(settings.database_url, settings=shared),
        engines.make_engine(settings.database_url, settings=link),
        daemon_configuration(settings),
        work=load_work(),
        notify=notify,
        metrics=metrics,
    )


def daemon_configuration(settings: Settings) -> Configuration:
    """Return what a daemon needs of *settings*, at its start and at a reload."""
    from reconciler.service.daemon import Configuration

    return Configuration(settings.daemon, settings.limits, settings.jobs)


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
        **{f"daemon.{name}": value for name, value in dataclasses.asdict(settings.daemon).items()},
        "jobs": [job.name for job in settings.jobs],
    }
    sources = {**settings.sources, "database_url": settings.database_source}
    if settings.jobs:
        sources["jobs"] = f'the file "{settings.config_file}"'
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
