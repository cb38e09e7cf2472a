"""A network that cuts connections: a proxy before a server that closes each one after so many bytes in one direction.

For what a program makes of a connection that ends anywhere: in the middle of a question, between two answers, after a
COMMIT went out and before its answer came. Loopback only.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class CuttingProxy:
    """Listens on a port of its own and passes bytes on to *upstream*, as many as *allowed* says for each connection.

    *allowed* is asked at each connection and returns how many bytes may go to the server and how many back; None: all.
    """

    def __init__(self, upstream: tuple[str, int], allowed: Callable[[], tuple[int | None, int | None]]) -> None:
        self._upstream = upstream
        self._allowed = allowed
        self.connections = 0
        self.cuts = 0
        self._closed = False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._closed = True
        self._listening.close()

    def _accept(self) -> None:
        while not self._closed:
            with suppress(OSError):
                there, _ = self._listening.accept()
                back = socket.create_connection(self._upstream)
                self.connections += 1
                for source, target, left in zip((there, back), (back, there), self._allowed(), strict=True):
                    threading.Thread(target=self._pump, args=(source, target, left), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, left: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if left is not None and len(data) >= left:
                    target.sendall(data[:left])
                    self.cuts += 1
                    break
                target.sendall(data)
                left = None if left is None else left - len(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
