"""Values that are made from keywords and never change: steps and families.

They work as frozen dataclasses do. `dataclass` itself writes and compiles new code for each class at every import: for
the steps and families alone that took longer than opening a checkpoint.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

if TYPE_CHECKING:  # a type checker reads the fields as those of a dataclass
    from typing_extensions import dataclass_transform
else:
    dataclass_transform = lambda **_: lambda cls: cls  # noqa: E731


F = TypeVar("F", bound="Frozen")


def frozen(value: Any) -> Any:
    """Give a read-only copy: read-only mappings for dicts, tuples for lists, at every level.

    >>> frozen({"a": [1, {"b": 2}]})
    mappingproxy({'a': (1, mappingproxy({'b': 2}))})
    """
    if isinstance(value, dict | MappingProxyType):
        return MappingProxyType({key: frozen(item) for key, item in value.items()})
    if type(value) in (list, tuple):
        return tuple(frozen(item) for item in value)
    return frozenset(value) if isinstance(value, set) else value


def thawed(value: Any) -> Any:
    """Undo `frozen` for pickle, which cannot write read-only mappings: they become dicts again."""
    if isinstance(value, MappingProxyType):
        return {key: thawed(item) for key, item in value.items()}
    return tuple(thawed(item) for item in value) if type(value) is tuple else value


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False)
class Frozen:
    """Annotated names are fields, and the values they are set to are the defaults. A subclass needs no decorator.

    Raises TypeError for a field that is unknown or missing, AttributeError when a field is set later. A field's value
    never changes either: see `frozen`.

    >>> class Point(Frozen):
    ...     x: int
    ...     y: int = 0
    >>> Point(x=1), replace(Point(x=1), y=2)
    (Point(x=1), Point(x=1, y=2))
    """

    # name -> default, `...` where there is none; a base's names come first
    _fields: ClassVar[MappingProxyType[str, Any]] = MappingProxyType({})

    def __init_subclass__(cls) -> None:
        annotated = [one for base in reversed(cls.__mro__) for one in getattr(base, "__annotations__", {}).items()]
        fields = {name: frozen(getattr(cls, name, ...)) for name, kind in annotated if "ClassVar" not in str(kind)}
        for name in fields.keys() & vars(cls).keys():
            setattr(cls, name, fields[name])  # a default can be reached through the class too
        cls._fields = MappingProxyType(fields)

    def __init__(self, **values: Any) -> None:
        fields = self._fields
        unknown = values.keys() - fields.keys()
        missing = [name for name, value in fields.items() if value is ... and name not in values]
        if unknown or missing:
            found = f"has no {', '.join(sorted(unknown))}" if unknown else f"needs {', '.join(missing)}"
            raise TypeError(f"a {type(self).__name__} {found}; its fields are {', '.join(fields)}")
        vars(self).update({name: frozen(values.get(name, default)) for name, default in fields.items()})

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} never changes, since many layers share it; make another one")

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (type(self), {name: thawed(value) for name, value in vars(self).items()})

    def __repr__(self) -> str:
        defaults = self._fields
        set_here = {name: thawed(value) for name, value in vars(self).items() if value != defaults[name]}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in set_here.items())})"


def replace(value: F, **changes: Any) -> F:
    """Make another one with some fields changed: what `dataclasses.replace` is for dataclasses."""
    return type(value)(**{**vars(value), **changes})


def _make(kind: type[F], fields: dict[str, Any]) -> F:
    return kind(**fields)
