"""Attributes that can be set, and those that can't: a mistyped name is an error and not a setting without effect."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

G = TypeVar("G", bound="OfModules")


class Guarded:
    """Refuses to set an attribute that is not in `settable`; names that begin with _ are a class's own.

    `__init__` writes what can only be read straight into `vars(self)`.

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

    _words: ClassVar[tuple[str, str]]  # for messages: what this is, and what its modules are

    @property
    def modules(self) -> dict[str, Any]:
        """The modules by their path in the reference's base model."""
        raise NotImplementedError

    def __getitem__(self, path: str) -> Any:
        try:
            return self.modules[path]
        except KeyError:
            own, parts = self._words
            raise KeyError(f"this {own} has no {path!r}; its {parts} are {', '.join(self.modules)}") from None

    def close(self) -> None:
        """Drop what it holds."""
        raise NotImplementedError

    def __enter__(self: G) -> G:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
