"""The exceptions that minibert raises, and messages that carry data.

    Exception
    └── MinibertError
        ├── CheckpointError      a folder, a file or a tensor is absent, damaged or not what the config says
        ├── UnknownFamilyError   the config names a model_type that has no row in `minibert.FAMILIES`
        ├── HubError             a name could not be resolved or fetched
        └── TokenizerError       there is no tokenizer, it cannot be read, or it refuses a text

Misuse of a function raises a builtin error: `TypeError` (a float as an id), `IndexError` (an id past the table),
`ValueError` (shapes that disagree, a sequence too long).

A message says what was expected, what was found, at which place, and what to do. If it names an argument or the number
of a text, the error carries them as data too (`error_of`), since the command line writes both in another form.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar


class MinibertError(Exception):
    """Root of the tree: `except minibert.MinibertError` catches all that minibert itself raises."""


class CheckpointError(MinibertError):
    """A checkpoint's folder, file or tensor is absent, damaged, or disagrees with its config."""


class UnknownFamilyError(MinibertError):
    """No row of `minibert.FAMILIES` describes this model_type."""


class HubError(MinibertError):
    """A model name could not be resolved or its files could not be fetched."""


class TokenizerError(MinibertError):
    """The tokenizer is missing or unreadable, or an input is not valid text."""


# -- messages that carry data --------------------------------------------------------------------------------------


class Option(NamedTuple):
    """An argument in a message, and the value to pass for it, if the message has one.

    >>> str(Option("truncation", True)), str(Option("prompt"))
    ('truncation=True', 'prompt')
    """

    name: str
    value: Any = None

    def __str__(self) -> str:
        value = f'"{self.value}"' if isinstance(self.value, str) else repr(self.value)
        return self.name if self.value is None else f"{self.name}={value}"


class Text(NamedTuple):
    """One of several texts in a message, counted from 0. `argument`: the argument that has the texts, for "texts[3]".

    >>> str(Text(3)), str(Text(3, "texts"))
    ('text 3', 'texts[3]')
    """

    number: int
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.argument}[{self.number}]" if self.argument else f"text {self.number}"


class Load(NamedTuple):
    """The model to load instead, in a message. `option`: the command's option that names a model.

    >>> str(Load("a reranker"))
    'load a reranker'
    """

    model: str
    option: str = "model"

    def __str__(self) -> str:
        return f"load {self.model}"


def some_of(names: Sequence[str], most: int) -> str:
    """Join the first names, `most` of them, and say how many more there are.

    >>> some_of(["sum", "logits"], 2), some_of(["sum", "logits"], 1)
    ('sum, logits', 'sum and 1 more')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


E = TypeVar("E", bound=Exception)


def error_of(kind: type[E], *parts: object, place: str = "") -> E:
    """Return an error whose message is the place, if any, followed by all parts.

    >>> error = error_of(ValueError, Text(3), " is too long; pass ", Option("truncation", True))
    >>> str(error), parts_of(error)[2]
    ('text 3 is too long; pass truncation=True', Option(name='truncation', value=True))
    """
    parts = (place, ": ", *parts) if place else parts
    error = kind("".join(map(str, parts)))
    error.parts = parts  # type: ignore[attr-defined]
    return error


def warn(message: str) -> None:
    """Warn at the line of the caller, outside this package."""
    frame, depth = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("minibert."):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, stacklevel=depth)


def nearest_name(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word that is most similar to this word; None if no word is similar."""
    from difflib import get_close_matches  # needed only for errors

    return next(iter(get_close_matches(word, list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the nearest known word, or "" if none is near."""
    names = {name.lstrip("-"): name for name in known}  # leading dashes do not make two words similar
    near = nearest_name(word.lstrip("-"), names, cutoff=0.7)
    return f"; did you mean {names[near]}?" if near else ""


def parts_of(error: BaseException) -> tuple[object, ...]:
    """Return the parts of an error's message; only the text if `error_of` did not make the error."""
    parts: tuple[object, ...] = getattr(error, "parts", (str(error),))
    return parts
