"""This file bounds how long a client may take and how many connections there may be; uvicorn bounds requests.

A client has PATIENCE seconds for a request's head, then for its body, and to read each piece of the answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from .requests import Refusal

PATIENCE = 30  # seconds
PIECE = 1 << 18  # bytes of an answer that are sent at a time
SPARE = 400  # connections beyond those of accepted requests
FILES = 4  # of how many files that the process may open one is a connection
REST = 1 << 24  # bytes of a request that are read after its answer: some clients read it only after sending all


async def read_body(request: Any, most: int) -> bytes:
    """Read the body, up to a number of bytes; a length announced is believed. Raises Refusal."""
    advice = "send fewer or shorter texts at once, or start the server with another --max-body"
    large = Refusal(413, f"the request has more than {most} bytes; {advice}")

    async def read() -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise large
        return bytes(body)

    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > most:
        raise large
    try:
        return await asyncio.wait_for(read(), PATIENCE)
    except asyncio.TimeoutError:
        raise Refusal(408, f"the request did not come within {PATIENCE} s") from None


async def send_pieces(response: Any, send: Callable[[dict[str, Any]], Any]) -> None:
    """Send an answer in pieces, each after the client has read the one before."""
    body = response.body
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    for start in range(0, len(body), PIECE):
        piece, more = body[start : start + PIECE], start + PIECE < len(body)
        await send({"type": "http.response.body", "body": piece, "more_body": more})


def connections(waiting: int) -> int:
    """Say how many connections there may be: well under the number of files that the process may open."""
    files = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else -1
    return waiting + SPARE if files < 0 else max(min(waiting + SPARE, files // FILES), 1)


def patient(most: int) -> Any:
    """Give uvicorn's protocol with more bounds: the time to send a head or to read a piece of an answer, the number of
    connections, and the bytes read after an answer.
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
                    self.logger.warning(f"more than {most} connections: those with a silent client are closed")

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
