"""The server of a page that computes (`minibert explain --live`): it serves the page and answers its script.

Only a caller who has the URL may ask: its token opens the page, and the script sends the token with each question. The
server refuses a request to a name that is not this machine's, and a request from a page of another origin.
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
from minibert.http_guard import LOCAL, PATIENCE, REST, Refusal, has_token, host_name, read_json

LONGEST = 1 << 18  # bytes of a question
MOST = 16  # connections at a time; a browser opens six
HEADERS = {
    "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY", "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip


class LiveServer(ThreadingHTTPServer):
    """Serve the page at a listening socket.

    page     returns the page, as HTML
    answers  name of a question -> the function that answers it: JSON to JSON; it raises ValueError for misuse
    """

    daemon_threads, block_on_close = True, False  # an open connection does not keep the server running

    def __init__(
        self, listening: socket.socket, page: Callable[[], str], answers: Mapping[str, Callable[[Any], Any]]
    ) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.page, self.answers = page, answers
        self.token = secrets.token_urlsafe(16)
        self.one = Lock()  # for one computation at a time: each takes all cores
        self.free = Semaphore(MOST)

    @property
    def url(self) -> str:
        """The address that opens the page."""
        return f"http://127.0.0.1:{self.server_address[1]}/?token={self.token}"

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection once one is free; until then it waits in the listening socket's queue."""
        if not self.free.acquire(timeout=0.5):
            raise TimeoutError  # the loop continues, and can end
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


class _Handler(BaseHTTPRequestHandler):
    protocol_version, timeout, server_version, sys_version = "HTTP/1.1", PATIENCE, "minibert", ""
    server: LiveServer

    def do_GET(self) -> None:
        self._answer(self._page, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        self._answer(self._answered, "application/json")

    def _page(self) -> str:
        address = urlsplit(self.path)
        if address.path != "/":
            raise Refusal(404, "this server serves only its page")
        if not has_token(f"Bearer {parse_qs(address.query).get('token', [''])[0]}", self.server.token):
            raise Refusal(401, "open this page by the whole address that `minibert explain --live` has printed")
        with self.server.one:
            return self.server.page()

    def _answered(self) -> str:
        if not has_token(self.headers.get("authorization", ""), self.server.token):
            raise Refusal(401, "a question needs the token of the page's address: Authorization: Bearer TOKEN")
        answer = self.server.answers.get(self.path.removeprefix("/"))
        if answer is None:
            raise Refusal(404, "this server serves only its page")
        length = self.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= LONGEST):
            raise Refusal(413, f"the question has more than {LONGEST} bytes; shorten it")
        question = read_json(self.rfile.read(int(length)))
        with self.server.one:
            return json.dumps(answer(question), allow_nan=False, separators=(",", ":"))

    def _answer(self, make: Callable[[], str], kind: str) -> None:
        try:
            self._check_host()
            body = make()
        except Refusal as error:
            return self.send_error(error.status, str(error))
        except (MinibertError, ValueError, IndexError, RecursionError) as error:
            return self.send_error(400, str(error))
        except OSError:  # the client has left, or is silent
            self.close_connection = True
            return None
        except Exception as error:  # noqa: BLE001  the page shows it
            return self.send_error(500, f"an error of the server: {type(error).__name__}")
        return self._send(200, kind, body)

    def _check_host(self) -> None:
        """Refuse foreign Host headers (DNS rebinding) and foreign origins."""
        host, origin = self.headers.get("host", ""), self.headers.get("origin")
        if host_name(host) not in LOCAL:
            raise Refusal(403, f"this page answers only at 127.0.0.1 and localhost, found {host!r:.80}")
        if origin is not None and origin != f"http://{host}":
            raise Refusal(403, f"this server answers only its own page, found a page of {origin!r:.80}")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with a refusal, and close the connection, so that unread bytes are not read as a second request.

        The rest of the request is read and dropped: if the connection closed before, the client might lose the answer.
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
        content = {"Content-Type": kind, "Content-Length": str(len(written))}
        for name, value in (content | HEADERS | closing).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(written)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the standard library's name
        """Write no line for each request."""
