"""`reconciler run`: the daemon as a process, with its signals, its port and its exit codes.

Signals are waited for, not handled: the main thread does nothing else, so that no handler ever runs inside other code.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from typing import Any, Final

import click

from reconciler import log
from reconciler.bootstrap import daemon_configuration, open_daemon
from reconciler.config import Settings, load
from reconciler.entrypoints.commands import terminal
from reconciler.entrypoints.commands.verbs import Globals, global_options, globals_of
from reconciler.entrypoints.health import HealthServer
from reconciler.errors import ReconcilerError
from reconciler.ops.asking import Answer
from reconciler.ops.dispatch import redact
from reconciler.ops.exits import exit_of_error
from reconciler.service.daemon import Daemon
from reconciler.service.notify import Notify
from reconciler.service.settings import NEEDS_RESTART

EXIT_STOPPED: Final = 0
# A second signal, or a stop that took too long: the transaction at hand was rolled back by the database. 128 + SIGTERM.
EXIT_HURRIED: Final = 143

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK_S: Final = 0.5
_HURRY_S: Final = 1.0
# Some programs signal a process and its group in one go: that is one wish.
_SAME_WISH_S: Final = 0.25


def _callback(**given: Any) -> None:
    ctx = click.get_current_context()
    globals_ = globals_of(ctx)
    globals_.take(given)
    ctx.exit(run(globals_, given))


command = click.Command(
    name="run",
    callback=_callback,
    params=[
        click.Option(
            ["--health-port"], type=click.IntRange(0, 65535), help="Loopback port for /healthz, /readyz and /metrics."
        ),
        click.Option(["--owner"], help="Its name among the instances [default: the host's name]."),
        *global_options(),
    ],
    help=(
        "Run the daemon: passes, schedule, signs of life, until it is stopped.\n\n"
        "SIGTERM and SIGINT stop it after the batch at hand; a second one hurries. SIGHUP reads the configuration"
        " anew.\n\nExit codes: 0 stopped, 1 it cannot go on (another schema, an invalid configuration), 2 usage,"
        " 143 a stop that was cut short; the database has rolled back what was being written."
    ),
    short_help="Run the daemon: passes, schedule, signs of life",
    epilog="\b\nExamples:\n  reconciler run\n      on the default database, in the foreground\n"
    "  reconciler run --health-port 9464\n      with /healthz, /readyz and /metrics",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def run(globals_: Globals, given: dict[str, Any]) -> int:
    """Run the daemon and return the exit code."""
    # Before any thread is made: all of them inherit the mask, and only the main thread waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    notify = Notify()
    try:
        settings = _settings(globals_, given)
        log.configure(level=settings.log.level, style=settings.log.format)
        daemon = open_daemon(settings, notify=notify)
    except ReconcilerError as error:
        notify.status(f"cannot start: {error.message}")
        return _refused(error, globals_)
    health = _open_health(daemon, settings)
    found: list[BaseException] = []

    def work() -> None:
        try:
            daemon.run()
        except BaseException as error:  # noqa: BLE001 - carried to the main thread, which ends the process with it
            found.append(error)

    worker = threading.Thread(target=work, name="reconciler-passes")
    worker.start()
    code = _attend(daemon, worker, settings, lambda: _settings(globals_, given), notify)
    if health is not None:
        health.close()
    if code is not None:
        return code
    if found:
        return _failed(found[0], globals_)
    return EXIT_STOPPED


def _settings(globals_: Globals, given: dict[str, Any]) -> Settings:
    settings = load(globals_.flags())
    changes = {name: value for name in ("health_port", "owner") if (value := given.get(name)) is not None}
    return replace(settings, daemon=replace(settings.daemon, **changes)) if changes else settings


def _open_health(daemon: Daemon, settings: Settings) -> HealthServer | None:
    port = settings.daemon.health_port
    if not port:
        return None
    try:
        return HealthServer(daemon, port)
    except OSError as error:
        # Passes are what it is for; who watches the port will see that it is closed.
        log.emit("health.failed", error=f"port {port}: {error.strerror or error}")
        return None


# --- signals ---------------------------------------------------------------------------------------------------------


def _attend(daemon: Daemon, worker: threading.Thread, settings: Settings, reread: Any, notify: Notify) -> int | None:
    """Wait for signals until the daemon has ended; return the exit code of a stop that was cut short, else None."""
    stopped_at: float | None = None
    while worker.is_alive():
        got = signal.sigtimedwait(_SIGNALS, _LOOK_S)
        if got is None:
            if stopped_at is not None and time.monotonic() - stopped_at > settings.daemon.stop_s:
                return _cut_short(daemon, worker, f"the stop took longer than {settings.daemon.stop_s:g} s")
            continue
        if got.si_signo == signal.SIGHUP:
            if stopped_at is None:
                settings = _reload(daemon, settings, reread, notify)
        elif stopped_at is None:
            stopped_at = time.monotonic()
            daemon.stop(signal.Signals(got.si_signo).name)
        elif worker.is_alive() and time.monotonic() - stopped_at > _SAME_WISH_S:
            return _cut_short(daemon, worker, "a second signal")
    return None


def _cut_short(daemon: Daemon, worker: threading.Thread, why: str) -> int | None:
    log.emit("daemon.hurried", why=why)
    daemon.hurry()
    worker.join(timeout=_HURRY_S)
    if not worker.is_alive():
        return None
    # Whatever thread hangs on whatever statement: the process's end is what makes the database roll back.
    sys.stderr.flush()
    os._exit(EXIT_HURRIED)


def _reload(daemon: Daemon, before: Settings, reread: Any, notify: Notify) -> Settings:
    notify.reloading()
    try:
        after: Settings = reread()
        daemon.reload(daemon_configuration(after))
    except ReconcilerError as error:
        log.emit("config.refused", error=error.message, hint=error.hint)
        notify.ready("the new configuration was refused: " + error.message)
        return before
    log.configure(level=after.log.level, style=after.log.format)
    changed, needs_restart = _differences(before, after)
    log.emit("config.reloaded", changed=changed, needs_restart=needs_restart)
    notify.ready("the configuration was read anew")
    return after


def _differences(before: Settings, after: Settings) -> tuple[list[str], list[str]]:
    changed: list[str] = []
    needs_restart: list[str] = []
    for group in ("daemon", "limits", "log"):
        old, new = getattr(before, group), getattr(after, group)
        for name in type(old).__dataclass_fields__:
            if getattr(old, name) != getattr(new, name):
                where = needs_restart if group == "daemon" and name in NEEDS_RESTART else changed
                where.append(f"{group}.{name}")
    if before.jobs != after.jobs:
        changed.append("jobs")
    needs_restart += [name for name in ("database_url", "schema") if getattr(before, name) != getattr(after, name)]
    return changed, needs_restart


# --- ends ------------------------------------------------------------------------------------------------------------


def _failed(error: BaseException, globals_: Globals) -> int:
    if not isinstance(error, ReconcilerError):
        log.emit("daemon.failed", error=f"{type(error).__name__}: {error}", code="error", hint=None)
        raise error
    log.emit("daemon.failed", error=redact(error.message), code=error.code, hint=error.hint)
    return _refused(error, globals_)


def _refused(error: ReconcilerError, globals_: Globals) -> int:
    code = exit_of_error(error)
    answer = Answer("run", redact({"error": error.as_dict()}), code, 0.0)
    terminal.show(answer, as_json=globals_.as_json)
    return code
