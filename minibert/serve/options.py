"""The limits and the options of the server: `minibert serve` has an argument and a variable for each option."""

from __future__ import annotations

import os
import re
from argparse import ArgumentError, ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any, NamedTuple

from minibert.errors import Option, error_of
from minibert.http_guard import LOCAL, PATIENCE, REST
from minibert.models.open.options import SENTENCES, add_options


class Limits(NamedTuple):
    """All limits of the server; the first four are options. /info returns them."""

    waiting: int = 256  # requests that wait for an answer
    body: int = 1 << 24  # bytes of a request
    texts: int = 2048  # texts of a request
    grace: int = 60  # seconds for accepted requests after SIGTERM
    characters: int = 200_000  # characters of a text
    query: int = 10_000  # characters of a query, which is tokenized again with each document
    step: int = 16_384  # characters computed at once: 4,096 tokens of English, 0.3 s of MiniLM on two cores
    inline: int = 32  # vectors that the event loop converts to JSON; more would delay other requests
    patience: float = PATIENCE  # seconds for the head of a request, for its body, and for each piece of an answer
    piece: int = 1 << 18  # bytes of a piece
    rest: int = REST  # bytes of a request read after its answer: some clients read only after sending everything
    spare: int = 400  # connections beyond `waiting`
    files: int = 4  # open files of the process for each connection
    accepted: int = 32  # connections accepted per loop iteration
    queue: int = 1024  # connections that wait to be accepted; with 32, some of 200 callers at once were reset


DEFAULTS = Limits()
LEVELS = ("debug", "info", "warning", "error")
# the default of --max-body: each text may have 512 tokens of 16 bytes; JSON writes a character in 12 bytes at most
TEXT_BYTES, ESCAPED = 1 << 13, 12
VARIABLES = "MINIBERT_SERVE_"  # followed by the option's name: MINIBERT_SERVE_PORT
# Kubernetes sets these for a service called minibert-serve: MINIBERT_SERVE_PORT=tcp://10.0.0.9:8000
SERVICE = re.compile(rf"{VARIABLES}(SERVICE_|PORT_|PORT=\w+://)")
MANY = ("--model", "--name", "--prompts")  # a variable has several values between semicolons


def declare(parser: Any) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add(
        "models", nargs="*", metavar="MODEL", help="a folder, or a name on the Hub; requests choose one of several "
        "by `model`; the default is the first",
    )  # fmt: skip
    more = f"as MODEL (default: MINIBERT_MODEL, or {SENTENCES})"
    add("-m", "--model", dest="model_options", action="append", metavar="MODEL", help=more)
    add("--reranker", metavar="MODEL", help="a model for /rerank: a folder, or a name on the Hub")
    add(
        "--name", action="append", metavar="NAME", help="another name of the first model in requests, beside its "
        "folder's name, its name on the Hub and its path; NAME=MODEL for another model; may be repeated",
    )  # fmt: skip
    usual = "(default: %(default)s)"
    add("--host", default=LOCAL[0], help=f"the address; an address that other machines reach needs a token {usual}")
    add("--port", type=int, default=8000, metavar="N", help=f"the port; 0 chooses a free one {usual}")
    add("--token-file", metavar="FILE", help="a file with the token that clients must send")
    add("--token-env", metavar="NAME", help="an environment variable with this token")
    for name, meaning in (
        ("waiting", f"requests at once; the next one is refused (503) {usual}"),
        ("body", f"bytes of a request (default: {TEXT_BYTES} for each of --max-texts)"),
        ("texts", f"texts of a request {usual}"),
        ("grace", f"seconds for accepted requests after SIGTERM or Ctrl-C; then the answer is 503 {usual}"),
    ):
        default = None if name == "body" else getattr(DEFAULTS, name)
        add(f"--max-{name}", type=_count, default=default, metavar="N", help=meaning)
    lines = f"info writes a line for each request {usual}"
    add("--log-level", metavar="LEVEL", choices=LEVELS, default="warning", help=lines)
    add_options(parser, "sentences", "measure", "hub", "threads", "weights", "bits")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected an integer >= 1, found {text!r}")
    return int(text)


def from_variables() -> dict[str, Any]:
    """Read the values of all options from their variables, or return the defaults. Raises ValueError for a wrong value.

    The result also has `by_variable`, the models of the variables, and `unknown`, the variables that belong to no
    option.
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
        words = [f"{name}={word}" for word in (value.split(";") if name in MANY else [value])]
        if action.nargs == 0:
            if value not in ("0", "1"):
                raise ValueError(f"the variable {variable} must be 1 or 0, found {value!r}")
            words = [name] * int(value)
        try:
            parser.parse_args(words, chosen)
        except ArgumentError as error:
            raise ValueError(f"the variable {variable}: {error.message}") from None
    return {
        **vars(chosen),
        "models": None,
        "model_options": None,
        "by_variable": chosen.model_options,
        "unknown": unknown,
    }


def _variable(option: str) -> str:
    return VARIABLES + option.removeprefix("--").replace("-", "_").upper()


def limits_of(chosen: Any) -> Limits:
    """Return the limits of the chosen options. By default a body holds as many texts as a request may have."""
    fits = max(chosen.max_texts * TEXT_BYTES, ESCAPED * DEFAULTS.characters + TEXT_BYTES)
    return Limits(chosen.max_waiting, chosen.max_body or fits, chosen.max_texts, chosen.max_grace)


def read_token(chosen: Any) -> str | None:
    """Read the token from a file or a variable; None if no option names one. No message repeats the option's value.

    Raises ValueError for two sources, for an empty token, and for a token that no header can carry.
    """
    named = {name: value for name in ("token_file", "token_env") if (value := getattr(chosen, name)) is not None}
    if not named:
        return None
    option, *others = map(Option, named)
    if others:
        raise error_of(ValueError, "two tokens are named; leave ", option, " or ", *others, " out")
    (source,), kind = named.values(), "file" if "token_file" in named else "variable"
    try:
        token = (Path(source).read_text("utf-8", "replace") if kind == "file" else os.environ.get(source, "")).strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file can have this name"
        raise error_of(ValueError, "the file that ", option, f" names cannot be read: {reason}") from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        expected = " names must hold a token: printable ASCII without spaces"
        raise error_of(ValueError, f"the {kind} that ", option, expected)
    return token
