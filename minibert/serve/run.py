"""Listens at an address and runs the server until SIGTERM or Ctrl-C; what it took by then is answered."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minibert.errors import Option, worded

from .app import READING, Server

LOCAL = ("127.0.0.1", "localhost", "::1")
ENDING = 60  # seconds that are left for requests under way at the end
NEEDS = "serve needs starlette and uvicorn: pip install 'starlette>=0.40' 'uvicorn>=0.30'"


def check_packages() -> None:
    """Raises ImportError that says how to install what is missing."""
    from importlib.util import find_spec

    if not (find_spec("starlette") and find_spec("uvicorn")):
        raise ImportError(NEEDS)


def read_token(host: str, file: Path | None, variable: str | None) -> str | None:
    """Read the token from a file or a variable of the environment; None where none is named.

    Raises ValueError for an empty token, one that no header can carry, two sources, and for none at all where the
    address is not of this machine alone.
    """
    if file is not None and variable is not None:
        raise worded(
            ValueError, "two tokens are named; leave ", Option("token_file"), " or ", Option("token_env"), " out"
        )
    if file is None and variable is None:
        if host not in LOCAL:
            raise worded(
                ValueError, f"at {host} other machines can reach this server: name a token with ", Option("token_file"),
                " or ", Option("token_env"), ", or stay at 127.0.0.1",
            )  # fmt: skip
        return None
    if file is not None:
        token, where = file.read_text("utf-8", "replace").strip(), str(file)
    else:
        token, where = os.environ.get(variable or "", "").strip(), f"the variable {variable}"
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"{where} must hold a token: letters, digits and signs of ASCII, no spaces; found none")
    return token


def listen(host: str, port: int) -> socket.socket:
    """Listen at an address; port 0 takes a free one. Raises OSError that names it, ValueError for no port."""
    if not 0 <= port < 1 << 16:  # the system would take what is left of it by division
        raise worded(ValueError, Option("port"), f" must be an integer from 0 to 65535, found {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"cannot listen at {host}, port {port}: {reason}") from None


def run(server: Server, listening: socket.socket, ready: Callable[[Callable[[], None]], object]) -> None:
    """Answer requests until SIGTERM or Ctrl-C. `ready` is called when the first can come, with what ends the server."""
    import uvicorn

    class Told(uvicorn.Server):  # type: ignore[misc]  # untyped where it is not installed
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            ready(self.end)

        def end(self) -> None:
            self.should_exit = True

    config = uvicorn.Config(
        server.app(), loop="asyncio", http=_patient(), ws="none", lifespan="off", log_level="warning", access_log=False,
        server_header=False, proxy_headers=False, timeout_graceful_shutdown=ENDING,
    )  # fmt: skip
    before = None
    if threading.current_thread() is threading.main_thread():
        # uvicorn sends itself the signal again at the end, which would be the end without an exit code
        before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        Told(config).run(sockets=[listening])
    finally:
        server.worker.close()
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _patient() -> Any:
    """The protocol of uvicorn, which bounds the time between requests, with a bound for the head of one as well."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Patient(H11Protocol):  # type: ignore[misc]  # untyped where it is not installed
        head: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._bound()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._bound()

        def _bound(self) -> None:
            comes = self.cycle is None or self.cycle.response_complete
            if comes and self.head is None:
                self.head = self.loop.call_later(READING, self.transport.abort)
            elif not comes and self.head is not None:
                self.head.cancel()
                self.head = None

    return Patient
