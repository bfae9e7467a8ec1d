"""`minibert serve`: vectors and scores over HTTP."""

from __future__ import annotations

import errno
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from minibert.errors import Option, error_of
from minibert.models.open.options import SENTENCES

from .common import Parser, tell

ABOUT = """For programs in other languages on the same machine. Routes: /v1/embeddings
(OpenAI's form; also "task": "query", "document" or a prompt of the model),
/rerank (Cohere's form, or that of text-embeddings-inference), /embed,
/embed_sparse and /predict (text-embeddings-inference's form), /v1/models,
/health, /info, /metrics (Prometheus' text form). Several models can be named: a
request chooses one by "model". Requests that come together are computed
together, on the CPU.
For a GPU, many machines or the open network a production server such as
text-embeddings-inference (TEI) is the better choice. This server needs the
packages starlette and uvicorn. A variable of the environment can stand for each
option: MINIBERT_SERVE_PORT=9000, MINIBERT_SERVE_NAME='a;b'; by them gunicorn
and uvicorn start several processes of minibert.serve.app:create.
SIGTERM or Ctrl-C ends it after the accepted requests: exit code 0, after Ctrl-C
130, or 1 if the time for them (--max-grace) was too short."""
EXAMPLE = "minibert serve sentence-transformers/all-MiniLM-L6-v2 --port 8000"
ACCEPTED = 32  # connections at once, before the first of them is counted
QUEUE = 1024  # connections that wait to be accepted; of 200 callers at once some were reset where it was 32


def declare(parser: Parser) -> None:
    """Add the arguments; variables of the environment give their defaults once arguments are parsed."""
    from minibert.serve import options

    parser.usual = SENTENCES
    parser.prepare = lambda: parser.set_defaults(**options.from_variables())
    options.declare(parser)


def run(chosen: Any) -> int:
    """Load the models, listen, and answer until the end."""
    from importlib.util import find_spec

    from minibert.serve import options
    from minibert.serve.app import Server

    if chosen.models and chosen.asked:
        raise ValueError(f"--model names a model and {chosen.models[0]!r} is named too; leave one out")
    for name in sorted(chosen.unknown - {chosen.token_env}):
        tell(f"no option has the variable {name}: it is ignored")
    chosen.unnamed = not (chosen.models or chosen.asked or chosen.by_variable or chosen.reranker)
    if not (find_spec("starlette") and find_spec("uvicorn")):
        raise ImportError("serve needs starlette and uvicorn: pip install 'starlette>=0.40' 'uvicorn>=0.36'")
    token = options.read_token(chosen)
    if token is None and chosen.host not in options.LOCAL:
        raise error_of(
            ValueError, f"at {chosen.host} other machines can reach this server: name a token with ",
            Option("token_file"), " or ", Option("token_env"), ", or stay at 127.0.0.1",
        )  # fmt: skip
    with listen(chosen.host, chosen.port) as listening, ExitStack() as opened:
        models, ranks = options.open_models(chosen, opened)
        server = Server(models, token, options.limits_of(chosen), ranks)
        host, port = listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}{server.path}"
        silent = server.path == "/v1/embeddings" and not models[0].encoder.prompts.get("query")
        where = f"{url}; the model has no prompt for queries" if silent else url
        ready = f"{', '.join(model.names[0] for model in models)} at {where}; Ctrl-C ends it"
        return int(answer(server, listening, lambda _: tell(ready), chosen.log_level) > 0)


def listen(host: str, port: int) -> socket.socket:
    """Listen at an address; port 0 takes a free one. Raises OSError that names it, ValueError for no port."""
    if not 0 <= port < 1 << 16:  # the system would take what is left of it by division
        raise error_of(ValueError, Option("port"), f" must be an integer from 0 to 65535, found {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        listening = socket.create_server(address[:2], family=family, backlog=QUEUE)
        # connections inherit it, and asyncio would not set it: a small answer waited 40 ms between head and body
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, UnicodeError) as error:
        # a UnicodeError is Python's word on a name that no host can have
        reason = getattr(error, "strerror", "each part of a host's name has 1 to 63 letters") or str(error)
        reason = reason.partition(" (while ")[0]
        taken = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        advice = ("; another one is chosen by ", Option("port"), ", a free one by ", Option("port", 0)) if taken else ()
        raise error_of(OSError, f"cannot listen at {host}, port {port}: {reason}", *advice) from None


def answer(
    server: Any,
    listening: socket.socket,
    ready: Callable[[Callable[[], None]], object],
    log_level: str = "warning",
) -> int:
    """Answer requests until SIGTERM or Ctrl-C, then finish those accepted: give how many were not done in time.

    ready: called once the server listens, with a function that ends it.
    """
    import uvicorn

    from minibert.serve.gate import connections, patient
    from minibert.serve.metrics import LEVELS, start_logging

    class Announced(uvicorn.Server):  # type: ignore[misc]  # untyped where it is not installed
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            listening.listen(QUEUE)  # asyncio has set it to what it accepts at a time
            ready(lambda: setattr(self, "should_exit", True))

        def handle_exit(self, sig: int, frame: Any) -> None:
            super().handle_exit(sig, frame)
            for task in self.server_state.tasks if self.force_exit else ():
                task.cancel()  # Python 3.12 and later would still wait for them

    most = connections(server.limits.waiting)
    config = uvicorn.Config(
        server.app(), loop="asyncio", http=patient(most), ws="none", lifespan="off",
        log_level=max(log_level, "warning", key=LEVELS.index), use_colors=False, access_log=False, server_header=False,
        proxy_headers=False, backlog=max(min(ACCEPTED, most // 2), 1), timeout_graceful_shutdown=server.limits.grace,
    )  # fmt: skip
    server.record.open()
    start_logging(log_level)  # after uvicorn has set up its own
    before = None
    if threading.current_thread() is threading.main_thread():
        # uvicorn sends itself the signal again at the end, which would be the end without an exit code
        before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        Announced(config).run(sockets=[listening])
    finally:
        server.close()
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    return int(server.undone)
