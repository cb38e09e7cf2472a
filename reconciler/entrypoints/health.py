"""/healthz, /readyz and /metrics on a loopback port, for whoever asks from the same machine.

Answers from what the daemon knows already: a question costs no query and can't hang on the database.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final

from reconciler.service.daemon import Daemon

HOST: Final = "127.0.0.1"
# More at once are turned away by the listening socket.
_REQUEST_TIMEOUT_S: Final = 5.0
_AT_ONCE_MAX: Final = 8


class HealthServer:
    """Serves until it is closed. The port is taken when it is made.

    Raises:
        OSError: the port is in use, or may not be opened.
    """

    def __init__(self, daemon: Daemon, port: int) -> None:
        handler = type("Handler", (_Handler,), {"daemon": daemon, "slots": threading.BoundedSemaphore(_AT_ONCE_MAX)})
        self._server = _Server((HOST, port), handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="reconciler-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give the port back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that went away is its own affair."""


class _Handler(BaseHTTPRequestHandler):
    daemon: ClassVar[Daemon]
    slots: ClassVar[threading.BoundedSemaphore]
    timeout = _REQUEST_TIMEOUT_S
    server_version = "reconciler"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one question."""
        if not self.slots.acquire(blocking=False):
            self._send(503, {"status": "busy"})
            return
        try:
            self._answer()
        finally:
            self.slots.release()

    do_HEAD = do_GET  # noqa: N815 - the base class's names

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._write(200, "text/plain; version=0.0.4; charset=utf-8", self.daemon.metrics.render())
            return
        if path not in ("/healthz", "/readyz"):
            self._send(404, {"status": "unknown", "known": ["/healthz", "/readyz", "/metrics"]})
            return
        health = self.daemon.health()
        good = health.alive if path == "/healthz" else health.ready
        self._send(
            200 if good else 503,
            {"status": "ok" if good else "failing", "reasons": list(health.reasons), **health.facts},
        )

    def _send(self, code: int, answer: dict[str, Any]) -> None:
        self._write(code, "application/json", json.dumps(answer).encode() + b"\n")

    def _write(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Write nothing: who asks every second is no event."""
