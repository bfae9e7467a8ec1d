"""Listens at an address and runs the server until SIGTERM or Ctrl-C; accepted requests are still answered."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minibert.errors import Option, error_of

from .app import Server
from .gate import LOCAL, PATIENCE
from .live import LiveServer
from .record import LEVELS, start_logging

SPARE = 400  # connections beyond those of accepted requests, if the system allows that many files
ACCEPTED = 32  # connections at once, before the first of them is counted
QUEUE = 1024  # connections that wait to be accepted; of 200 callers at once some were reset where it was 32
REST = 1 << 24  # bytes of a request that are read after its answer: some clients read it only after sending all
NEEDS = "serve needs starlette and uvicorn: pip install 'starlette>=0.40' 'uvicorn>=0.30'"


def check_packages() -> None:
    """Raises ImportError that says how to install what is missing."""
    from importlib.util import find_spec

    if not (find_spec("starlette") and find_spec("uvicorn")):
        raise ImportError(NEEDS)


def read_token(host: str, file: Path | None, variable: str | None) -> str | None:
    """Read the token from a file or a variable of the environment; None if neither is named.

    Raises ValueError for an empty token, one that no header can carry, two sources, and for no token at an address
    that other machines can reach.
    """
    if file is not None and variable is not None:
        raise error_of(
            ValueError, "two tokens are named; leave ", Option("token_file"), " or ", Option("token_env"), " out"
        )
    if file is None and variable is None:
        if host not in LOCAL:
            raise error_of(
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
        raise error_of(ValueError, Option("port"), f" must be an integer from 0 to 65535, found {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        listening = socket.create_server(address[:2], family=family, backlog=128)
        # connections inherit it, and asyncio would not set it: a small answer waited 40 ms between head and body
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, UnicodeError) as error:
        # a UnicodeError is Python's word on a name that no host can have
        reason = getattr(error, "strerror", "each part of a host's name has 1 to 63 letters") or error
        raise OSError(f"cannot listen at {host}, port {port}: {reason}") from None


def run(
    server: Server | LiveServer,
    listening: socket.socket,
    ready: Callable[[Callable[[], None]], object],
    log_level: str = "warning",
    log_format: str = "text",
) -> int:
    """Answer requests until SIGTERM or Ctrl-C, then finish those accepted: give how many were not done in time.

    `ready` is called once the server listens, with a function that ends it. With the level info, or debug, there is a
    line for each request on stderr.
    """
    import uvicorn

    class Announced(uvicorn.Server):  # type: ignore[misc]  # untyped where it is not installed
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            listening.listen(QUEUE)  # asyncio has set it to what it accepts at a time
            ready(self.end)

        def end(self) -> None:
            self.should_exit = True

        def handle_exit(self, sig: int, frame: Any) -> None:
            super().handle_exit(sig, frame)
            for task in self.server_state.tasks if self.force_exit else ():
                task.cancel()  # Python 3.12 and later would still wait for them

    files = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else -1
    wanted = server.limits.waiting + SPARE
    least = max(log_level, "warning", key=LEVELS.index)
    config = uvicorn.Config(
        server.app(), loop="asyncio", http=_patient(wanted if files < 0 else min(wanted, files // 2)), ws="none",
        lifespan="off", log_level=least, access_log=False, server_header=False, proxy_headers=False,
        backlog=ACCEPTED, timeout_graceful_shutdown=server.limits.grace,
    )  # fmt: skip
    start_logging(log_level, log_format)  # after uvicorn has set up its own
    before = None
    if threading.current_thread() is threading.main_thread():
        # uvicorn sends itself the signal again at the end, which would be the end without an exit code
        before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        Announced(config).run(sockets=[listening])
    finally:
        server.gate.worker.close()
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    return server.gate.undone


def _patient(most: int) -> Any:
    """uvicorn's protocol with more bounds: the time to send a head or to read a piece of an answer, the number of
    connections, and the bytes read after an answer. uvicorn bounds the time between requests and the size of a head.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    waiting: dict[Any, Any] = {}  # connections that wait for their client -> their timers, the oldest first
    told: list[int] = []

    class Patient(H11Protocol):  # type: ignore[misc]  # untyped where it is not installed
        rest = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._note()
            if len(self.connections) > most:
                longest = next(iter(waiting))
                longest.forget()
                longest.transport.abort()
                if not told:
                    told.append(most)
                    self.logger.warning(f"more than {most} connections: those that wait for their client are closed")

        def connection_lost(self, exc: Any) -> None:
            super().connection_lost(exc)
            self.forget()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._note()
            self.rest = self.rest + len(data) if self in waiting else 0
            if self.rest > REST:
                self.transport.abort()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._note()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._note()

        def resume_writing(self) -> None:
            super().resume_writing()
            self.forget()
            self._note()

        def _note(self) -> None:
            under_way = self.cycle is not None and not self.cycle.response_complete
            if under_way and not self.flow.write_paused:
                self.forget()
            elif self not in waiting:
                waiting[self] = self.loop.call_later(PATIENCE, self.transport.abort)

        def forget(self) -> None:
            if self in waiting:
                waiting.pop(self).cancel()

    return Patient
