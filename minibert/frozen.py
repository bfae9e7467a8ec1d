"""Values that are made from keywords and never change: steps and families.

What a frozen dataclass is, except that `dataclass` writes and compiles new code for each class at every import: for the
steps and families alone that took longer than opening a checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

if TYPE_CHECKING:  # a type checker reads the fields as those of a dataclass
    from typing_extensions import dataclass_transform
else:
    dataclass_transform = lambda **_: lambda cls: cls  # noqa: E731


F = TypeVar("F", bound="Frozen")


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False)
class Frozen:
    """Annotated names are fields, what they are set to is their default.

    Raises TypeError for a field that is not known or not given, AttributeError when a field is set later.

    >>> class Point(Frozen):
    ...     x: int
    ...     y: int = 0
    >>> Point(x=1), replace(Point(x=1), y=2)
    (Point(x=1), Point(x=1, y=2))
    """

    _fields: ClassVar[dict[str, Any]] = {}  # name -> default, `...` where there is none; a base's names come first

    def __init_subclass__(cls) -> None:
        cls._fields = {name: getattr(cls, name, ...) for name in (*cls._fields, *cls.__annotations__)}

    def __init__(self, **values: Any) -> None:
        fields = self._fields
        made = {**fields, **values}
        wrong = [name for name, value in made.items() if value is ... or name not in fields]
        if wrong:
            known = ", ".join(name if value is not ... else f"{name} (required)" for name, value in fields.items())
            raise TypeError(f"{type(self).__name__}: {', '.join(wrong)} missing or unknown; its fields are {known}")
        vars(self).update(made)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} never changes, since many layers share it; make another one")

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)

    def __repr__(self) -> str:
        defaults = self._fields
        set_here = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if value != defaults[name])
        return f"{type(self).__name__}({set_here})"


def replace(value: F, **changes: Any) -> F:
    """Make another one with some fields changed."""
    return type(value)(**{**vars(value), **changes})
