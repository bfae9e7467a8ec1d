"""`minibert serve`: vectors and scores over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .common import SENTENCES, Parser, add_model, add_same_bits, load_model, tell

ABOUT = """a small server: /v1/embeddings as OpenAI's, and /rerank
For programs in other languages on the same machine. Routes: /v1/embeddings
(OpenAI's form; also "task": "query", "document" or a prompt of the model),
/rerank (Cohere's answers, or text-embeddings-inference's), /health, /info. A
model of late interaction (ColBERT) answers /rerank itself, and no embeddings.
Requests that come together are computed together, on the CPU.
For a GPU, many machines or the open network a production server such as
text-embeddings-inference (TEI) is the better choice. This server needs the
packages starlette and uvicorn. SIGTERM or Ctrl-C ends it after the accepted
requests: exit code 0, or 1 if the time for them (--max-grace) was too short."""
EXAMPLE = "minibert serve sentence-transformers/all-MiniLM-L6-v2 --port 8000"


def declare(parser: Parser) -> None:
    """Add the arguments."""
    from minibert.serve.requests import Limits

    usual = Limits()
    parser.add_argument("--reranker", metavar="MODEL", help="a model for /rerank: a folder, or a name on the Hub")
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address; any but this machine's own needs a token (default: 127.0.0.1)"
    )
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="0 takes a free one (default: 8000)")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="a file with the token that clients must send")
    parser.add_argument("--token-env", metavar="NAME", help="a variable of the environment with that token")
    limited = {
        "waiting": "requests at once; more are refused (503)",
        "body": "bytes of a request",
        "texts": "texts of a request",
        "grace": "seconds for accepted requests after SIGTERM or Ctrl-C; the rest gets 503",
    }
    for name, what in limited.items():
        number = getattr(usual, name)
        parser.add_argument(
            f"--max-{name}", type=int, default=number, metavar="N", help=f"at most N {what} (default: {number})"
        )
    add_model(parser, side=False, argument=True, usual=SENTENCES, threads=True)
    add_same_bits(parser)


def run(arguments: Any) -> int:
    """Load the models, listen, and answer until the end."""
    from minibert.models.open.load_encoder import load_encoder
    from minibert.serve.app import Server
    from minibert.serve.requests import Limits
    from minibert.serve.run import check_packages, listen, read_token
    from minibert.serve.run import run as answer

    limits = Limits(*(getattr(arguments, f"max_{name}") for name in Limits._fields))
    for name, number in limits._asdict().items():
        if number < 1:
            raise ValueError(f"--max-{name} must be an integer >= 1, found {number}")
    check_packages()
    token = read_token(arguments.host, arguments.token_file, arguments.token_env)
    with listen(arguments.host, arguments.port) as listening, load_model(arguments) as encoder:
        options = dict(local_files_only=arguments.local_files_only, threads=arguments.threads)
        options["same_bits"], reranker = arguments.same_bits, None
        if (name := arguments.reranker) is not None:
            reranker = load_encoder(name, **options), name
        server = Server((encoder, arguments.model), reranker, token, limits, arguments.version)
        host, port = listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        ready = f"{server.model.names[1]} at {url}/v1/embeddings; Ctrl-C ends it"
        return int(answer(server, listening, lambda _: tell(ready)) > 0)
