"""The options of the server: one table makes those of `minibert serve` and the variables MINIBERT_SERVE_..."""

from __future__ import annotations

import os
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from minibert.errors import Load, MinibertError, Option, error_of, nearest_name, parts_of

from .metrics import LEVELS
from .requests import LONGEST_TEXT, Limits

if TYPE_CHECKING:
    from .kinds import Model

VARIABLES = "MINIBERT_SERVE_"  # and the option: MINIBERT_SERVE_PORT
LOCAL = ("127.0.0.1", "localhost", "::1")
USUAL = "sentence-transformers/all-MiniLM-L6-v2"
TEXT_BYTES, ESCAPED = 1 << 13, 12  # of a request for each text, 16 for each of 512 tokens; of a character in JSON
# Kubernetes sets such for each service whose name begins so: MINIBERT_SERVE_PORT=tcp://10.0.0.9:8000, ..._SERVICE_HOST
SERVICE = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")


def _prompt(text: str) -> tuple[str, str]:
    name, equals, prompt = text.partition("=")
    if not (name and equals):
        raise ArgumentTypeError(f"expected NAME=TEXT, found {text!r}")
    return name, prompt


class Row(NamedTuple):
    """An option: its name, what its help calls its value ("": it has none), its help, how it is read.

    many: it can be given again; a variable has several values between semicolons
    """

    name: str
    shown: str
    help: str
    read: Callable[[str], Any] = str
    usual: Any = None
    many: bool = False
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return VARIABLES + self.key.upper()

    def value(self, given: str) -> Any:
        """Read a variable. Raises ValueError."""
        try:
            values = [self.read(each) for each in (given.split(";") if self.many else [given])] if self.shown else []
            if not self.shown and given in ("0", "1"):
                return given == "1"
            if values and (not self.choices or given in self.choices):
                return values if self.many else values[0]
        except (ValueError, ArgumentTypeError):
            pass
        expected = ", ".join(self.choices) or ("an integer" if self.read is int else self.shown or "1 or 0")
        raise ValueError(f"the variable {self.variable} must be {expected}, found {given!r}")


TABLE = (
    Row("model", "MODEL", f"as MODEL (default: MINIBERT_MODEL, or {USUAL})", many=True),
    Row("reranker", "MODEL", "a model for /rerank: a folder, or a name on the Hub"),
    Row("name", "NAME", "what requests may call the first model, beside its folder's name, its name on the Hub and its "
        "path; NAME=MODEL of another one. It can be given again", many=True),
    Row("host", "HOST", "the address; any but this machine's own needs a token", usual=LOCAL[0]),
    Row("port", "N", "0 takes a free one", int, 8000),
    Row("token-file", "FILE", "a file with the token that clients must send"),
    Row("token-env", "NAME", "a variable of the environment with that token"),
    Row("max-waiting", "N", "requests at once; more are refused (503)", int, 256),
    Row("max-body", "N", f"bytes of a request (default: {TEXT_BYTES} for each of --max-texts)", int),
    Row("max-texts", "N", "texts of a request", int, 2048),
    Row("max-grace", "N", "seconds for accepted requests after SIGTERM or Ctrl-C; the rest gets 503", int, 60),
    Row("log-level", "LEVEL", "info writes a line for each request", usual="warning", choices=LEVELS),
    Row("prompts", "NAME=TEXT", 'a prompt of the model in place of its own, as in "query=query: "; may be repeated',
        _prompt, many=True),
    Row("default-prompt-name", "NAME", "the prompt that is put before each text if none is named"),
    Row("truncate-dim", "N", "keep the first N numbers of each vector", int),
    Row("similarity-fn-name", "MEASURE", "how vectors are compared: cosine, dot, euclidean or manhattan"),
    Row("max-seq-length", "N", "truncate a text after N tokens", int),
    Row("revision", "R", "a branch, tag or commit on the Hub"),
    Row("local-files-only", "", "use the cache only; never ask the Hub"),
    Row("threads", "N", "compute on at most N threads (default: MINIBERT_THREADS, or all available cores)", int),
    Row("same-bits", "", "a text has the same vector, to the last bit, in any batch and on any number of threads"),
)  # fmt: skip
OF_ONE = ("revision", "prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name", "max_seq_length")
WITHDRAWN = {
    "workers": "for several processes: gunicorn -w 4 -k uvicorn_worker.UvicornWorker --no-control-socket "
    "'minibert.serve.app:create()', or uvicorn --workers 4 --factory minibert.serve.app:create; options are variables",
    "token-ids": "send the texts: ids of another tokenizer would give wrong vectors",
    "log-format": "for lines of JSON: uvicorn --log-config FILE --factory minibert.serve.app:create",
}


def read(given: Mapping[str, Any]) -> SimpleNamespace:
    """Give each option's value: as given, or else of its variable, or else its default; of names and prompts the values
    of both. Beside them `limits`, and `unknown`: variables of no option. Raises ValueError in words.
    """
    rows, found = {row.variable: row for row in TABLE}, _variables()
    for name, advice in WITHDRAWN.items():
        if (variable := VARIABLES + name.replace("-", "_").upper()) in found:
            raise ValueError(f"the variable {variable} has gone: {advice}")
    chosen = {row.key: row.usual for row in TABLE}
    chosen |= {rows[name].key: rows[name].value(value) for name, value in found.items() if name in rows}
    more = {key: [*(chosen[key] or []), *given[key]] for key in ("name", "prompts") if key in given}
    chosen |= dict(given) | more
    unknown = sorted(found.keys() - rows.keys() - {chosen["token_env"]})
    for name in unknown:
        if near := nearest_name(name, rows, cutoff=0.9):
            raise ValueError(f"no option has the variable {name}; did you mean {near}?")
    if chosen["max_body"] is None:
        chosen["max_body"] = max(chosen["max_texts"] * TEXT_BYTES, ESCAPED * LONGEST_TEXT + TEXT_BYTES)
    for name in Limits._fields:
        if chosen[f"max_{name}"] < 1:
            raise error_of(
                ValueError, Option(f"max_{name}"), f" must be an integer >= 1, found {chosen[f'max_{name}']}"
            )
    return SimpleNamespace(
        **chosen, unknown=unknown, limits=Limits(*(chosen[f"max_{name}"] for name in Limits._fields))
    )


def _variables() -> dict[str, str]:
    """Give the variables of this server, and not those of a service that is called minibert-serve."""
    own = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    for name, value in [*own.items()]:
        address = name.endswith("PORT") and re.match(r"(tcp|udp|sctp)://", value)
        if address or SERVICE.fullmatch(name.removeprefix(VARIABLES)):
            del own[name]
    return own


def read_token(chosen: Any) -> str | None:
    """Read the token from a file or a variable; None if neither is named. No message repeats what was named.

    Raises ValueError for an empty token, one that no header can carry, and for two sources.
    """
    file, variable = chosen.token_file, chosen.token_env
    if file is None and variable is None:
        return None
    if file is not None and variable is not None:
        raise error_of(
            ValueError, "two tokens are named; leave ", Option("token_file"), " or ", Option("token_env"), " out"
        )
    try:
        token = (os.environ.get(variable, "") if file is None else Path(file).read_text("utf-8", "replace")).strip()
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or "no file has such a name"
        raise error_of(ValueError, "the file that ", Option("token_file"), f" names cannot be read: {said}") from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        where = (
            ("the variable that ", Option("token_env")) if file is None else ("the file that ", Option("token_file"))
        )
        raise error_of(ValueError, *where, " names must hold a token: letters, digits and signs of ASCII, no spaces")
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

    from .kinds import model_of, names_of, reranker_of

    names = _names(chosen)
    options = dict(
        local_files_only=bool(chosen.local_files_only), threads=chosen.threads, same_bits=bool(chosen.same_bits)
    )
    models: list[Model] = []
    for typed, given in names.items():
        first = {} if models else {key: value for key in OF_ONE if (value := getattr(chosen, key)) is not None}
        if "prompts" in first:
            first["prompts"] = dict(first["prompts"])
        encoder = opened.enter_context(load_encoder(typed, **first, **options))
        try:
            make = reranker_of if typed == chosen.reranker else model_of
            models.append(make(encoder, names_of(typed, given)))
        except (MinibertError, ValueError) as error:  # it says which model to name instead, and with which option
            option = "reranker" if typed == chosen.reranker else "model"
            parts = (part._replace(option=option) if isinstance(part, Load) else part for part in parts_of(error))
            raise error_of(type(error), *parts) from None
    for i, (model, given) in enumerate(zip(models, names.values(), strict=True)):
        for name in given or model.names[:1]:
            if any(name in other.names for other in models[:i]):
                raise ValueError(f"two models are called {name!r}; give one another name: --name NAME={list(names)[i]}")
    return models, models[-1] if chosen.reranker else None


def _names(chosen: Any) -> dict[str, list[str]]:
    """Give the models in their order, as they were typed, each with its names of --name; raise for names of none."""
    models = chosen.model or ([] if chosen.reranker else [os.environ.get("MINIBERT_MODEL") or USUAL])
    of_one = [key for key in OF_ONE if getattr(chosen, key) is not None]
    if len(models) > 1 and of_one:
        raise error_of(
            ValueError, Option(of_one[0]), f" is of one model, found {len(models)}; leave it out, or serve one"
        )
    found: dict[str, list[str]] = {model: [] for model in [*models, *filter(None, [chosen.reranker])]}
    for given in chosen.name or ():
        name, _, model = given.partition("=")
        if not name or (model and model not in found):
            raise ValueError(f"--name must be NAME or NAME=MODEL, of {', '.join(found)}; found {given!r}")
        found[model or next(iter(found))].append(name)
    return found
