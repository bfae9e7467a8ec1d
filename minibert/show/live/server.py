"""The server of a page that computes (`minibert explain --live`): it serves the page and answers its script.

Only who has the URL may ask: its token opens the page, and the script sends it with each question. A request to a name
that is not this machine's is refused, and one that a page of another origin sends; no answer lets such a page read it.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Semaphore
from typing import Any
from urllib.parse import parse_qs, urlsplit

from minibert.errors import MinibertError

LOCAL = ("127.0.0.1", "localhost", "::1")
PATIENCE = 30  # seconds that a client has to send a request
LONGEST, REST = 1 << 18, 1 << 24  # bytes of a question that are taken, and that are read and dropped after a refusal
MOST = 16  # connections at a time; a browser opens six
HEADERS = {
    "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY", "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip


class LiveServer(ThreadingHTTPServer):
    """Serve the page at a listening socket.

    page     gives the page, as HTML
    answers  name of a question -> its answer: an object of JSON to another; misuse is a ValueError in words
    """

    daemon_threads, block_on_close = True, False  # a client that keeps its connection does not keep the server

    def __init__(
        self, listening: socket.socket, page: Callable[[], str], answers: Mapping[str, Callable[[Any], Any]]
    ) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.page, self.answers = page, answers
        self.token = secrets.token_urlsafe(16)
        self.one = Lock()  # computes at a time: each takes all cores
        self.free = Semaphore(MOST)

    @property
    def url(self) -> str:
        """The address that opens the page."""
        return f"http://127.0.0.1:{self.server_address[1]}/?token={self.token}"

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection once one is free; until then it waits in the listening socket's queue."""
        if not self.free.acquire(timeout=0.5):
            raise TimeoutError  # the loop goes on, and may end
        try:
            return super().get_request()
        except OSError:
            self.free.release()
            raise

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        super().shutdown_request(request)
        self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error of a connection, unless its client has left: a browser does that at any time."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Refusal(Exception):  # noqa: N818
    """Status and message for a client: no fault of this program."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version, timeout, server_version, sys_version = "HTTP/1.1", PATIENCE, "minibert", ""
    server: LiveServer

    def do_GET(self) -> None:
        self._answer(self._opened)

    def do_POST(self) -> None:
        self._answer(self._asked)

    def _opened(self) -> str:
        address = urlsplit(self.path)
        if address.path != "/":
            raise _Refusal(404, "this server serves its page alone")
        if not self._has(parse_qs(address.query).get("token", [""])[0]):
            raise _Refusal(401, "open this page by the whole address that `minibert explain --live` has printed")
        with self.server.one:
            return self.server.page()

    def _asked(self) -> str:
        if not self._has(self.headers.get("authorization", "").removeprefix("Bearer ")):
            raise _Refusal(401, "a question needs the token of the page's address: Authorization: Bearer TOKEN")
        answer = self.server.answers.get(self.path.removeprefix("/"))
        if answer is None:
            raise _Refusal(404, "this server serves its page alone")
        length = self.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= LONGEST):
            raise _Refusal(413, f"the question has more than {LONGEST} bytes; shorten it")
        try:
            given = json.loads(self.rfile.read(int(length)))
        except ValueError:
            raise _Refusal(400, "the question must be JSON") from None
        with self.server.one:
            return json.dumps(answer(given), allow_nan=False, separators=(",", ":"))

    def _has(self, token: str) -> bool:
        return secrets.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode())

    def _answer(self, make: Callable[[], str]) -> None:
        try:
            self._check_name()
            body, status = make(), 200
        except _Refusal as error:
            return self.send_error(*error.args)
        except (MinibertError, ValueError, IndexError) as error:
            return self.send_error(400, str(error))
        except RecursionError:
            return self.send_error(400, "the question is nested too deeply")
        except OSError:  # the client has left, or is silent
            self.close_connection = True
            return None
        except Exception as error:  # noqa: BLE001  the page is told
            return self.send_error(500, f"an error of the server: {type(error).__name__}")
        return self._send(status, "text/html; charset=utf-8" if make == self._opened else "application/json", body)

    def _check_name(self) -> None:
        """Reject foreign Host headers (DNS rebinding) and foreign origins."""
        host, origin = self.headers.get("host", ""), self.headers.get("origin")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name.strip("[]").lower() not in LOCAL:
            raise _Refusal(403, f"this page answers at 127.0.0.1 and localhost alone, found {host!r:.80}")
        if origin is not None and origin != f"http://{host}":
            raise _Refusal(403, f"another page asks, of {origin!r:.80}; this server answers its own page alone")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with a refusal, and close the connection, so that unread bytes are no second request.

        They are read and dropped: at a connection that is closed before, the client may lose the answer.
        """
        self.close_connection = True
        self._send(code, "application/json", json.dumps({"error": {"message": message or "not answered here"}}))
        self.connection.shutdown(socket.SHUT_WR)
        left = REST
        while left > 0 and (dropped := len(self.connection.recv(1 << 16))):
            left -= dropped

    def _send(self, status: int, kind: str, body: str) -> None:
        written = body.encode("utf-8", "backslashreplace")
        self.send_response(status)
        closing = {"Connection": "close"} if self.close_connection else {}
        own = {"Content-Type": kind, "Content-Length": str(len(written))}
        for name, value in (own | HEADERS | closing).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(written)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the standard library's name
        """Write no line for each request."""
