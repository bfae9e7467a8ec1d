"""`minibert serve`: vectors and scores over HTTP."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from minibert.errors import Option, error_of
from minibert.http_guard import LOCAL
from minibert.models.open.options import SENTENCES
from minibert.serve.options import DEFAULTS, LEVELS, Limits

from .common import Parser, tell

ABOUT = """For programs in other languages on the same machine. Routes: /v1/embeddings
(OpenAI's form; also "task": "query", "document" or a prompt of the model),
/rerank (Cohere's form, or that of text-embeddings-inference), /embed,
/embed_sparse and /predict (text-embeddings-inference's form), /v1/models,
/health, /info, /metrics (Prometheus' text form). With several models a request
chooses one by "model". Requests that wait are computed together, on the CPU.
For a GPU, many machines or the open network a production server such as
text-embeddings-inference (TEI) is the better choice. This server needs the
packages starlette and uvicorn. Each option has an environment variable:
MINIBERT_SERVE_PORT=9000, MINIBERT_SERVE_NAME='a;b'. With these variables
gunicorn and uvicorn start several processes of minibert.serve.app:create.
SIGTERM or Ctrl-C ends the server after the accepted requests: exit code 0, 130
after Ctrl-C, or 1 if --max-grace was too short for them."""
EXAMPLE = "minibert serve sentence-transformers/all-MiniLM-L6-v2 --port 8000"


def declare(parser: Parser) -> None:
    """Add the arguments. Their environment variables are read before arguments are parsed."""
    from minibert.serve import options

    parser.usual = SENTENCES
    parser.prepare = lambda: parser.set_defaults(**options.from_variables())
    options.declare(parser)


def run(chosen: Any) -> int:
    """Load the models, listen, and answer until the end."""
    from importlib.util import find_spec

    from minibert.serve import options
    from minibert.serve.app import Server
    from minibert.serve.worker import open_models

    if chosen.models and chosen.model_options:
        raise ValueError(f"--model names a model and {chosen.models[0]!r} is named too; leave one out")
    for name in sorted(chosen.unknown - {chosen.token_env}):
        tell(f"no option has the variable {name}: it is ignored")
    chosen.unnamed = not (chosen.models or chosen.model_options or chosen.by_variable or chosen.reranker)
    if not (find_spec("starlette") and find_spec("uvicorn")):
        raise ImportError("serve needs starlette and uvicorn: pip install 'starlette>=0.40' 'uvicorn>=0.36'")
    token = options.read_token(chosen)
    if token is None and chosen.host not in LOCAL:
        reached = f"at {chosen.host} other machines can reach this server: name a token with "
        stay = ", or stay at 127.0.0.1"
        raise error_of(ValueError, reached, Option("token_file"), " or ", Option("token_env"), stay)
    with listen(chosen.host, chosen.port) as listening, ExitStack() as opened:
        models, reranker = open_models(chosen, opened)
        server = Server(models, token, options.limits_of(chosen), reranker)
        host, port = listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}{server.path}"
        silent = server.path == "/v1/embeddings" and not models[0].encoder.prompts.get("query")
        where = f"{url}; the model has no prompt for queries" if silent else url
        ready = f"{', '.join(model.names[0] for model in models)} at {where}; Ctrl-C ends it"
        return int(answer(server, listening, lambda _: tell(ready), chosen.log_level) > 0)


def listen(host: str, port: int) -> socket.socket:
    """Listen at an address; port 0 chooses a free one. Raises OSError with the address, ValueError for a wrong port."""
    if not 0 <= port < 1 << 16:  # the system would listen at the remainder of 65536
        raise error_of(ValueError, Option("port"), f" must be an integer from 0 to 65535, found {port}")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(addresses, key=lambda entry: entry[0] != socket.AF_INET)
        listening = socket.create_server(address[:2], family=family, backlog=DEFAULTS.queue)
        # connections inherit this option, and asyncio does not set it: a small answer waited 40 ms for its body
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, UnicodeError) as error:
        # Python raises UnicodeError for a name that no host can have
        reason = getattr(error, "strerror", "each part of a host's name has 1 to 63 letters") or str(error)
        reason = reason.partition(" (while ")[0]
        port_taken = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        advice = (
            ("; choose another port by ", Option("port"), ", a free one by ", Option("port", 0)) if port_taken else ()
        )
        raise error_of(OSError, f"cannot listen at {host}, port {port}: {reason}", *advice) from None


def answer(
    server: Any, listening: socket.socket, ready: Callable[[Callable[[], None]], object], log_level: str = "warning"
) -> int:
    """Answer requests until SIGTERM or Ctrl-C, then the accepted ones; return how many got no answer in time.

    ready: called once the server listens, with a function that ends it.
    """
    import uvicorn

    from minibert.serve.app import start_logging

    class Announced(uvicorn.Server):  # type: ignore[misc]  # untyped if uvicorn is not installed
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            listening.listen(server.limits.queue)  # asyncio has set the queue to what it accepts at a time
            ready(lambda: setattr(self, "should_exit", True))

        def handle_exit(self, sig: int, frame: Any) -> None:
            super().handle_exit(sig, frame)
            for task in self.server_state.tasks if self.force_exit else ():
                task.cancel()  # Python 3.12 and later would still wait for them

    most = connections(server.limits)
    accepted = max(min(server.limits.accepted, most // 2), 1)
    config = uvicorn.Config(
        server, loop="asyncio", http=client_timeouts(server.limits, most), ws="none", lifespan="off",
        log_level=max(log_level, "warning", key=LEVELS.index), use_colors=False, access_log=False, server_header=False,
        proxy_headers=False, backlog=accepted, timeout_graceful_shutdown=server.limits.grace,
    )  # fmt: skip
    server.record.open()
    start_logging(log_level)  # after uvicorn has set up its logging
    before = None
    if threading.current_thread() is threading.main_thread():
        # uvicorn sends itself the signal again at the end, which would end the process without our exit code
        before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        Announced(config).run(sockets=[listening])
    finally:
        server.close()
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    return int(server.unanswered)


def connections(limits: Limits) -> int:
    """Return the limit of connections: well under the number of files that the process may open."""
    files, most = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else -1, limits.waiting + limits.spare
    return most if files < 0 else max(min(most, files // limits.files), 1)


def client_timeouts(limits: Limits, most: int) -> Any:
    """Return uvicorn's protocol with bounds on clients; uvicorn itself bounds only requests.

    The bounds: the time to send a head or to read a piece of an answer, the connections, the bytes after an answer.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    waiting: dict[Any, Any] = {}  # connections that wait for their client -> their timers, the oldest first
    warned = False

    class ClientTimeouts(H11Protocol):  # type: ignore[misc]  # untyped if uvicorn is not installed
        surplus = 0  # bytes after an answer

        def connection_made(self, transport: Any) -> None:
            nonlocal warned
            super().connection_made(transport)
            self._update()
            if len(self.connections) > most:
                longest = next(iter(waiting))
                longest.stop_timer()
                longest.transport.abort()
                if not warned:
                    warned = True
                    self.logger.warning(f"more than {most} connections: those with a silent client are closed")

        def connection_lost(self, exc: Any) -> None:
            super().connection_lost(exc)
            self.stop_timer()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._update()
            self.surplus = self.surplus + len(data) if self in waiting else 0
            if self.surplus > limits.rest:
                self.transport.abort()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._update()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._update()

        def resume_writing(self) -> None:
            super().resume_writing()
            self.stop_timer()
            self._update()

        def _update(self) -> None:
            """Start the timer if the connection waits for its client, else stop it."""
            answering = self.cycle is not None and not self.cycle.response_complete
            if answering and not self.flow.write_paused:
                self.stop_timer()
            elif self not in waiting:
                waiting[self] = self.loop.call_later(limits.patience, self.transport.abort)

        def stop_timer(self) -> None:
            if self in waiting:
                waiting.pop(self).cancel()

    return ClientTimeouts
