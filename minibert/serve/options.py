"""The options of the server: argparse reads those of `minibert serve`, and a variable MINIBERT_SERVE_... for each."""

from __future__ import annotations

import os
import re
from argparse import ArgumentError, ArgumentParser, ArgumentTypeError
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibert.errors import Option, error_of
from minibert.models.open.options import SENTENCES, add_options, model_named_by, sentence_options

from .metrics import LEVELS
from .requests import LONGEST_TEXT, USUAL, Limits

if TYPE_CHECKING:
    from .kinds import Model

VARIABLES = "MINIBERT_SERVE_"  # and the option: MINIBERT_SERVE_PORT
LOCAL = ("127.0.0.1", "localhost", "::1")
TEXT_BYTES, ESCAPED = 1 << 13, 12  # of a request for each text, 16 for each of 512 tokens; of a character in JSON
# Kubernetes sets such for a service that is called minibert-serve: MINIBERT_SERVE_PORT=tcp://10.0.0.9:8000
SERVICE = re.compile(rf"{VARIABLES}(SERVICE_|PORT_|PORT=\w+://)")
MANY = ("--model", "--name", "--prompts")  # a variable has several values between semicolons


def declare(parser: Any) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add(
        "models", nargs="*", metavar="MODEL", help="a folder, or a name on the Hub; requests choose one of several "
        "by `model`, and get the first without it",
    )  # fmt: skip
    more = f"as MODEL (default: MINIBERT_MODEL, or {SENTENCES})"
    add("-m", "--model", dest="asked", action="append", metavar="MODEL", help=more)
    add("--reranker", metavar="MODEL", help="a model for /rerank: a folder, or a name on the Hub")
    add(
        "--name", action="append", metavar="NAME", help="another name of the first model in requests, beside its "
        "folder's name, its name on the Hub and its path; NAME=MODEL for another model; may be repeated",
    )  # fmt: skip
    usual, body = "(default: %(default)s)", f"bytes of a request (default: {TEXT_BYTES} for each of --max-texts)"
    late = "seconds for accepted requests after SIGTERM or Ctrl-C; the rest gets 503"
    add("--host", default=LOCAL[0], help=f"the address; any but this machine's own needs a token {usual}")
    add("--port", type=int, default=8000, metavar="N", help=f"0 takes a free one {usual}")
    add("--token-file", metavar="FILE", help="a file with the token that clients must send")
    add("--token-env", metavar="NAME", help="a variable of the environment with that token")
    for name, said in (
        ("waiting", f"requests at once; more are refused (503) {usual}"), ("body", body),
        ("texts", f"texts of a request {usual}"), ("grace", f"{late} {usual}"),
    ):  # fmt: skip
        default = None if name == "body" else getattr(USUAL, name)
        add(f"--max-{name}", type=_count, default=default, metavar="N", help=said)
    lines = f"info writes a line for each request {usual}"
    add("--log-level", metavar="LEVEL", choices=LEVELS, default="warning", help=lines)
    add_options(parser, "sentences", "measure", "hub", "threads", "weights", "bits")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected an integer >= 1, found {text!r}")
    return int(text)


def from_variables() -> dict[str, Any]:
    """Give the values of all options, as the variables say, or else the defaults. Raises ValueError for a wrong one.

    Beside them `by_variable`, its models, and `unknown`: variables of no option.
    """
    parser = ArgumentParser(add_help=False, exit_on_error=False)
    declare(parser)
    actions = {_variable(action.option_strings[-1]): action for action in parser._actions if action.option_strings}
    chosen, unknown = parser.parse_args([]), set[str]()
    for variable, value in os.environ.items():
        if not variable.startswith(VARIABLES) or SERVICE.match(f"{variable}={value}"):
            continue
        if (action := actions.get(variable)) is None:
            unknown.add(variable)
            continue
        name = action.option_strings[-1]
        words = [f"{name}={each}" for each in (value.split(";") if name in MANY else [value])]
        if action.nargs == 0:
            if value not in ("0", "1"):
                raise ValueError(f"the variable {variable} must be 1 or 0, found {value!r}")
            words = [name] * int(value)
        try:
            parser.parse_args(words, chosen)
        except ArgumentError as error:
            raise ValueError(f"the variable {variable}: {error.message}") from None
    return {**vars(chosen), "models": None, "asked": None, "by_variable": chosen.asked, "unknown": unknown}


def limits_of(chosen: Any) -> Limits:
    """Give the limits; of bytes as many as the texts of a request can take, unless a number is named."""
    usual = max(chosen.max_texts * TEXT_BYTES, ESCAPED * LONGEST_TEXT + TEXT_BYTES)
    return Limits(chosen.max_waiting, chosen.max_body or usual, chosen.max_texts, chosen.max_grace)


def _variable(option: str) -> str:
    return VARIABLES + option.removeprefix("--").replace("-", "_").upper()


def read_token(chosen: Any) -> str | None:
    """Read the token from a file or a variable; None if neither is named. No message repeats what was named.

    Raises ValueError for an empty token, one that no header can carry, and for two sources.
    """
    named = {name: value for name in ("token_file", "token_env") if (value := getattr(chosen, name)) is not None}
    if not named:
        return None
    option, *others = map(Option, named)
    if others:
        raise error_of(ValueError, "two tokens are named; leave ", option, " or ", *others, " out")
    (place,), kind = named.values(), "file" if "token_file" in named else "variable"
    try:
        token = (Path(place).read_text("utf-8", "replace") if kind == "file" else os.environ.get(place, "")).strip()
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or "no file has such a name"
        raise error_of(ValueError, "the file that ", option, f" names cannot be read: {said}") from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        expected = " names must hold a token: letters, digits and signs of ASCII, no spaces"
        raise error_of(ValueError, f"the {kind} that ", option, expected)
    return token


def is_public(host: str) -> bool:
    """Say whether a Host header has a public name, which its owner could point at this machine (DNS rebinding).

    >>> [is_public(host) for host in ("localhost:8000", "127.0.0.1:8000", "[::1]", "host.docker.internal", "a.com:80")]
    [False, False, False, False, True]
    """
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    last = name.rstrip(".").lower().rpartition(".")[2]
    return not (name.startswith("[") or "." not in name or last.isdigit() or last in ("localhost", "local", "internal"))


def open_models(chosen: Any, opened: ExitStack) -> tuple[list[Model], Model | None]:
    """Open the models: all, and the one of --reranker. Raises ValueError where two have the same name."""
    from minibert.models.open.load_encoder import load_encoder

    from .kinds import model_of, names_of

    typed = chosen.models or chosen.asked or chosen.by_variable or []
    names = _names(typed, chosen)
    options = {name: getattr(chosen, name) for name in ("local_files_only", "threads", "mmap", "same_bits")}
    of_one = sentence_options(chosen) | ({"revision": chosen.revision} if chosen.revision else {})
    if len(typed) > 1 and of_one:
        said = f" is of one model, found {len(typed)}; leave it out, or serve one"
        raise error_of(ValueError, Option(next(iter(of_one))), said)
    models: list[Model] = []
    for name, given in names.items():
        encoder = opened.enter_context(load_encoder(name, **({} if models else of_one), **options))
        with model_named_by("reranker" if name == chosen.reranker else "model"):
            if name == chosen.reranker:
                encoder.rank("", [])  # refuses a model of another use, and one of several labels
            models.append(model_of(encoder, names_of(name, given)))
    for i, (model, given) in enumerate(zip(models, names.values(), strict=True)):
        for name in given or model.names[:1]:
            if any(name in other.names for other in models[:i]):
                raise ValueError(f"two models are called {name!r}; give one another name: --name NAME={list(names)[i]}")
    return models, models[-1] if chosen.reranker else None


def _names(typed: list[str], chosen: Any) -> dict[str, list[str]]:
    """Give the models in their order, as they were typed, each with its names of --name; raise for names of none."""
    models = typed or ([] if chosen.reranker else [os.environ.get("MINIBERT_MODEL") or SENTENCES])
    found: dict[str, list[str]] = {model: [] for model in [*models, *filter(None, [chosen.reranker])]}
    for given in chosen.name or ():
        name, _, model = given.partition("=")
        if not name or (model and model not in found):
            raise ValueError(f"--name must be NAME or NAME=MODEL, of {', '.join(found)}; found {given!r}")
        found[model or next(iter(found))].append(name)
    return found
