"""`minibert serve`: vectors and scores over HTTP."""

from __future__ import annotations

import argparse
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from minibert.errors import nearest_name

from .common import (
    SENTENCES,
    Parser,
    add_model,
    add_same_bits,
    add_sentence_options,
    model_named_by,
    sentence_options,
    tell,
)

ABOUT = """a small server for clients of OpenAI, Cohere, Jina and TEI
For programs in other languages on the same machine. Routes: /v1/embeddings
(OpenAI's form; also "task": "query", "document" or a prompt of the model),
/rerank (Cohere's form, or that of text-embeddings-inference), /embed,
/embed_sparse, /similarity and /predict (text-embeddings-inference's form),
/v1/models, /health, /info, /metrics (Prometheus' text form). Several models can
be named: a request chooses one by "model". Requests that come together are
computed together, on the CPU.
For a GPU, many machines or the open network a production server such as
text-embeddings-inference (TEI) is the better choice. This server needs the
packages starlette and uvicorn. A variable of the environment can stand for each
option: MINIBERT_SERVE_PORT=9000, MINIBERT_SERVE_NAME='a;b'.
SIGTERM or Ctrl-C ends it after the accepted requests: exit code 0, after Ctrl-C
130, or 1 if the time for them (--max-grace) was too short."""
VARIABLES = "MINIBERT_SERVE_"  # and the option: MINIBERT_SERVE_PORT
# Kubernetes sets such for each service whose name begins so: MINIBERT_SERVE_PORT=tcp://10.0.0.9:8000, ..._SERVICE_HOST
SERVICE = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")  # what ..._PORT holds then
FLAGS = {"1": True, "0": False}  # what a variable of an option without a value holds
EXAMPLE = "minibert serve sentence-transformers/all-MiniLM-L6-v2 --port 8000"


def declare(parser: Parser) -> None:
    """Add the arguments."""
    from minibert.serve.fields import TEXT_BYTES, Limits
    from minibert.serve.record import FORMATS, LEVELS

    usual = Limits()
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="as --model; several, which requests choose by `model`: the first "
        "is the one for requests without it",
    )  # fmt: skip
    parser.add_argument("--reranker", metavar="MODEL", help="a model for /rerank: a folder, or a name on the Hub")
    parser.add_argument(
        "--name", action="append", default=[], metavar="NAME", help="what requests may call the first model, beside "
        "its folder's name, its name on the Hub and its path; NAME=MODEL of another one. It can be given again",
    )  # fmt: skip
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address; any but this machine's own needs a token (default: 127.0.0.1)"
    )
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="0 takes a free one (default: 8000)")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="a file with the token that clients must send")
    parser.add_argument("--token-env", metavar="NAME", help="a variable of the environment with that token")
    parser.add_argument(
        "--token-ids", action="store_true", help="take lists of token ids too as the input of /v1/embeddings: of the "
        "model's own tokenizer, with its special tokens and the prompt; others give wrong vectors without a sign",
    )  # fmt: skip
    limited = {
        "waiting": "requests at once; more are refused (503)",
        "body": "bytes of a request",
        "texts": "texts of a request",
        "grace": "seconds for accepted requests after SIGTERM or Ctrl-C; the rest gets 503",
    }
    for name, what in limited.items():
        number = None if name == "body" else getattr(usual, name)
        default = number or f"{TEXT_BYTES} for each of --max-texts"
        parser.add_argument(
            f"--max-{name}", type=int, default=number, metavar="N", help=f"at most N {what} (default: {default})"
        )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="N processes that share the weights, the port and the "
        "cores; of use with many small requests (Linux; default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--log-level", choices=LEVELS, default="warning", help="info writes a line for each request (default: warning)"
    )
    parser.add_argument("--log-format", choices=FORMATS, default="text", help="of those lines (default: text)")
    add_sentence_options(parser)
    add_model(parser, side=False, usual=SENTENCES, threads=True)
    add_same_bits(parser)
    parser.prepare = lambda: _take_variables(parser)


def _take_variables(parser: Parser) -> None:
    """Take defaults from the environment: --port from MINIBERT_SERVE_PORT. Raises ValueError for a wrong value.

    `unknown` of the arguments: the variables of no option, each with that of the nearest option or None.
    """
    options = {_variable(action): action for action in parser._actions if action.dest not in ("help", "models")}
    found = _variables()
    parser.set_defaults(unknown={name: nearest_name(name, options, cutoff=0.9) for name in found.keys() - options})
    for variable in found.keys() & options:
        action, given = options[variable], found[variable]
        try:
            action.default = _value(action, given)
        except (KeyError, ValueError, argparse.ArgumentTypeError):
            expected = ", ".join(action.choices or ()) or ("an integer" if action.type is int else action.metavar)
            expected = " or ".join(FLAGS) if action.nargs == 0 else expected
            raise ValueError(f"the variable {variable} must be {expected}, found {given!r}") from None


def _variable(action: argparse.Action) -> str:
    option = next(name for name in action.option_strings if name.startswith("--"))
    return VARIABLES + option[2:].replace("-", "_").upper()


def _variables() -> dict[str, str]:
    """Give the variables of this command, and not those of a service that is called minibert-serve."""
    own = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    for name, value in [*own.items()]:
        address = name.endswith("PORT") and SERVICE_ADDRESS.match(value)
        if address or SERVICE.fullmatch(name.removeprefix(VARIABLES)):
            del own[name]
    return own


def _value(action: argparse.Action, given: str) -> Any:
    """Read a variable as argparse would read the option; several values are separated by semicolons."""
    if action.nargs == 0:
        return FLAGS[given]
    read: Any = action.type or str
    if isinstance(action, argparse._AppendAction):
        return [read(each) for each in given.split(";")]
    value = read(given)
    if action.choices and value not in action.choices:
        raise ValueError(value)
    return value


def run(arguments: Any) -> int:
    """Load the models, listen, and answer until the end."""
    from minibert.serve.app import Server
    from minibert.serve.fields import Limits, body_for
    from minibert.serve.run import check_packages, listen, read_token
    from minibert.serve.run import run as answer
    from minibert.serve.workers import check_workers, run_workers

    _check_variables(arguments)
    check_workers(arguments.workers)
    if arguments.max_body is None:
        arguments.max_body = body_for(arguments.max_texts)
    limits = Limits(*(getattr(arguments, f"max_{name}") for name in Limits._fields))
    for name, number in limits._asdict().items():
        if number < 1:
            raise ValueError(f"--max-{name} must be an integer >= 1, found {number}")
    names = _names(arguments)
    check_packages()
    token = read_token(arguments.host, arguments.token_file, arguments.token_env)
    with listen(arguments.host, arguments.port) as listening, ExitStack() as opened:
        models, more = _models(arguments, names, opened), (arguments.workers, arguments.token_ids)
        server = Server(models, token, limits, arguments.version, *more)
        host, port = listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        named = ", ".join(model.names[0] for model in server.models)
        first, without = server.models[0], ""
        if first.path == "/v1/embeddings" and not first.encoder.prompts.get("query"):
            without = "; the model has no prompt for queries"
        ready = f"{named} at {url}{first.path}{without}; Ctrl-C ends it"
        logs = arguments.log_level, arguments.log_format
        if arguments.workers > 1:
            several = arguments.workers, arguments.threads
            return int(not run_workers(server, listening, lambda: tell(ready), *several, *logs))
        return int(answer(server, listening, lambda _: tell(ready), *logs) > 0)


def _check_variables(arguments: Any) -> None:
    """Name variables that no option has. Raises ValueError where one is almost that of an option."""
    for name, near in sorted(arguments.unknown.items()):
        if name == arguments.token_env:
            continue
        if near:
            raise ValueError(f"no option has the variable {name}; did you mean {near}?")
        tell(f"no option has the variable {name}: it is ignored")


def _names(arguments: Any) -> dict[str, list[str]]:
    """Give the models in their order, as they were typed, each with its names of --name; raise for names of none."""
    if arguments.models and arguments.named not in (None, os.environ.get(f"{VARIABLES}MODEL")):
        raise ValueError(f"--model names {arguments.named!r} and {arguments.models[0]!r} is named too; leave one out")
    models = arguments.models or [arguments.model]
    if arguments.unnamed and (arguments.models or arguments.reranker):
        models, arguments.unnamed = arguments.models, False  # a reranker alone needs no default model beside it
    one = ["revision"] * (arguments.revision is not None) + [*sentence_options(arguments)]
    if len(models) > 1 and one:
        option = one[0].replace("_", "-")
        raise ValueError(f"--{option} is of one model, found {len(models)}; leave it out, or serve one")
    found: dict[str, list[str]] = {model: [] for model in [*models, *filter(None, [arguments.reranker])]}
    for given in arguments.name:
        name, _, model = given.partition("=")
        if not name or (model and model not in found):
            raise ValueError(f"--name must be NAME or NAME=MODEL, of {', '.join(found)}; found {given!r}")
        found[model or next(iter(found))].append(name)
    return found


def _models(arguments: Any, names: dict[str, list[str]], opened: ExitStack) -> list[Any]:
    """Open the models. Raises ValueError where two have the same name."""
    from minibert.models.open.load_encoder import load_encoder
    from minibert.serve.kinds import model_of, names_of, reranker_of

    threads = arguments.threads if arguments.workers == 1 else None  # several have their share of them
    options = dict(local_files_only=arguments.local_files_only, threads=threads, same_bits=arguments.same_bits)
    models: list[Any] = []
    for typed, given in names.items():
        first: dict[str, Any] = {} if models else {"revision": arguments.revision, **sentence_options(arguments)}
        encoder = opened.enter_context(load_encoder(typed, **first, **options))
        option, make = ("reranker", reranker_of) if typed == arguments.reranker else ("model", model_of)
        with model_named_by(option):
            models.append(make(encoder, names_of(typed, given)))
    for i, (model, given) in enumerate(zip(models, names.values(), strict=True)):
        for name in given or model.names[:1]:
            if any(name in other.names for other in models[:i]):
                both = f"two models are called {name!r}"
                raise ValueError(f"{both}; give one another name: --name NAME={list(names)[i]}")
    return models
