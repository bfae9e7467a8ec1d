"""Errors for unknown attributes and keywords, which say what to use instead, and for counts below 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np

from minibert.errors import Option, did_you_mean, error_of

F = TypeVar("F", bound=Callable[..., Any])
G = TypeVar("G", bound="OfModules")
# names of torch and sentence-transformers that are not here -> advice; a page of the site lists all of them
INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("to", "cuda", "cpu", "compile"), "leave it out: minibert computes on the CPU"),
    **dict.fromkeys(("eval", "train", "fit"), "leave it out: minibert does not train"),
    "half": "pass low_memory=True to load_encoder, which keeps narrow weights narrow",
    **dict.fromkeys(
        ("encode_multi_process", "start_multi_process_pool", "stop_multi_process_pool", "pool", "chunk_size"),
        "encode and predict use all cores, and minibert bulk encodes files of texts",
    ),
    **dict.fromkeys(("save", "save_pretrained", "push_to_hub"), "a folder is read and never changed; copy it"),
    "encode": "minibert.load_encoder opens the whole model, which has it",
    "model_name_or_path": "pass it first, or as name",
}


def advice(name: str, known: Iterable[str]) -> str:
    """Return the replacement for an unknown name, or "" if no known name is near."""
    return f"; {INSTEAD[name]}" if name in INSTEAD else did_you_mean(name, known)


def unexpected(call: Callable[..., Any], name: str) -> TypeError:
    """Return the error for a keyword that a call does not take."""
    parameters = signature(call).parameters.items()
    named = [name for name, parameter in parameters if name != "self" and parameter.kind is not Parameter.VAR_KEYWORD]
    hint = advice(name, named) or f"; known are {', '.join(named)}"
    return TypeError(f"{call.__name__}: got an unexpected keyword argument {name!r}{hint}")


def hinted(call: F) -> F:
    """Raise a TypeError that suggests a keyword, if a call gets one that it does not take."""

    @wraps(call)
    def with_hint(*args: Any, **named: Any) -> Any:
        try:
            return call(*args, **named)
        except TypeError as error:
            wrong = [name for name in named if name not in signature(call).parameters]
            if wrong and error.__traceback__ and not error.__traceback__.tb_next:  # the call did not begin
                raise unexpected(call, wrong[0]) from None
            raise

    return cast("F", with_hint)


def check_positive(name: str, value: Any, or_none: bool = False) -> None:
    """Refuse anything but an integer from 1 on, or None if `or_none`. Raises ValueError."""
    if or_none and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise error_of(ValueError, Option(name), f" must be an integer >= 1, found {value!r}")


class Guarded:
    """A class whose attributes cannot be set, apart from private ones and the names in `settable`.

    `__init__` writes read-only attributes into `vars(self)`.

    >>> class Cup(Guarded):
    ...     settable = ("colour",)
    >>> Cup().color = "red"
    Traceback (most recent call last):
    AttributeError: 'color' cannot be set on a Cup; what can be set: colour
    """

    settable: ClassVar[tuple[str, ...]] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in self.settable:
            able = f"what can be set: {', '.join(self.settable)}" if self.settable else "none of its attributes can"
            kind = type(self).__name__
            raise AttributeError(f"{name!r} cannot be set on {'an' if kind[0] in 'AEIOU' else 'a'} {kind}; {able}")
        super().__setattr__(name, value)


class OfModules(Guarded):
    """A context manager whose modules are found by their path."""

    _words: ClassVar[tuple[str, str]]  # the names of this object and its modules in messages

    @property
    def modules(self) -> dict[str, Any]:
        """The modules by their path in the reference's base model."""
        raise NotImplementedError

    if not TYPE_CHECKING:  # otherwise mypy would accept any name

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"this {self._words[0]} has no {name!r}{self._hint(name)}")

    def _hint(self, name: str) -> str:
        return advice(name, (known for known in dir(self) if not known.startswith("_")))

    def __getitem__(self, path: str) -> Any:
        try:
            return self.modules[path]
        except KeyError:
            kind, parts = self._words
            hint = did_you_mean(path, self.modules) or f"; its {parts} are {', '.join(self.modules)}"
            raise KeyError(f"this {kind} has no {path!r}{hint}") from None

    def close(self) -> None:
        """Drop all weights."""
        raise NotImplementedError

    def __enter__(self: G) -> G:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
