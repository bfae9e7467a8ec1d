"""config.json as a read-only mapping, frozen values, and the settings of config.json that several rows read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from minibert.errors import CheckpointError

if TYPE_CHECKING:  # for a type checker a Frozen is a dataclass
    from typing_extensions import dataclass_transform
else:
    dataclass_transform = lambda **_: lambda cls: cls  # noqa: E731

# The largest eps (or other number) that is accepted. LayerNorm computes `variance + eps`, and that sum has to be a
# finite float32; the largest one is 3.4e38.
LARGEST = 1e38
FULL, SLIDING = "full_attention", "sliding_attention"  # types of layers in config.json
F = TypeVar("F", bound="Frozen")


# -- frozen values -----------------------------------------------------------------------------------------------


def frozen(value: Any) -> Any:
    """Return a read-only copy: read-only mappings for dicts, tuples for lists, at every level.

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
    """Base class of steps, parts and families: annotated names are fields, and their values are the defaults.

    It does what a frozen dataclass does. `dataclass` compiles new code for each class at every import: for twenty
    classes that takes 30 to 80 ms, and this 1 ms. A field's value never changes either: see `frozen`.

    Raises TypeError for a field that is unknown or missing, AttributeError if a field is set later.

    >>> class Point(Frozen):
    ...     x: int
    ...     y: int = 0
    >>> Point(x=1), replace(Point(x=1), y=2)
    (Point(x=1), Point(x=1, y=2))
    """

    # name -> default, `...` if it has none; a base's names come first
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
            wrong = f"has no {', '.join(sorted(unknown))}" if unknown else f"needs {', '.join(missing)}"
            raise TypeError(f"a {type(self).__name__} {wrong}; its fields are {', '.join(fields)}")
        vars(self).update({name: frozen(values.get(name, default)) for name, default in fields.items()})

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} never changes, since many layers share it; make another one")

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (type(self), {name: thawed(value) for name, value in vars(self).items()})

    def __repr__(self) -> str:
        changed = {name: thawed(value) for name, value in vars(self).items() if value != self._fields[name]}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"


def replace(value: F, **changes: Any) -> F:
    """Return a copy with some fields changed, as `dataclasses.replace` does for dataclasses."""
    return type(value)(**{**vars(value), **changes})


def _make(kind: type[F], fields: dict[str, Any]) -> F:
    return kind(**fields)


# -- config.json -------------------------------------------------------------------------------------------------


class Config(Mapping[str, Any]):
    """config.json with the family's defaults for missing keys.

    A name is looked up in the file under all names of the same setting (`aliases`: GPT-2 has `n_embd`, BERT
    `hidden_size`), then in the family's defaults. Iteration and `len` show the file alone.

    >>> config = Config({"n_embd": 768}, aliases={"hidden_size": "n_embd"}, defaults={"layer_norm_epsilon": 1e-5})
    >>> config.hidden_size, config["n_embd"], config.layer_norm_epsilon, len(config)
    (768, 768, 1e-05, 1)
    """

    __slots__ = ("_aliases", "_data", "_defaults", "_where", "read")
    read: dict[str, Any]
    """The settings that were looked up and found so far, defaults included."""
    _data: Mapping[str, Any]
    _aliases: Mapping[str, str]
    _defaults: Mapping[str, Any]
    _where: str

    def __init__(
        self,
        data: Mapping[str, Any],
        aliases: Mapping[str, str] = {},
        defaults: Mapping[str, Any] = {},
        where: str = "config.json",
    ) -> None:
        keep = object.__setattr__  # the method below raises
        keep(self, "_where", where)
        keep(self, "read", {})
        try:
            keep(self, "_data", frozen(dict(data)))
        except RecursionError:
            raise self.refused("nested too deeply to be a model's configuration") from None
        keep(self, "_aliases", frozen(dict(aliases)))
        keep(self, "_defaults", frozen(dict(defaults)))

    def __getitem__(self, key: str) -> Any:
        aliases = self._aliases.items()
        names = [key, *(b for a, b in aliases if a == key), *(a for a, b in aliases if b == key)]
        for source in (self._data, self._defaults):
            present = [source[name] for name in names if name in source]
            if present:  # a value under one name is preferred to null under another
                self.read[key] = value = next((value for value in present if value is not None), None)
                return value
        raise KeyError(key)

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):  # copy and pickle ask for such names before the object is built
            raise AttributeError(key)
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"config.json has no {key!r}; it has {', '.join(sorted(self._data))}") from None

    def __setattr__(self, key: str, value: Any) -> NoReturn:
        why = "it says what the tensors are; change config.json, or take a copy, dict(config)"
        raise AttributeError(f"the config is read-only, so {key!r} cannot be set: {why}")

    def __delattr__(self, key: str) -> NoReturn:
        self.__setattr__(key, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Config, (thawed(self._data), thawed(self._aliases), thawed(self._defaults), self._where)

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"Config({thawed(self._data)!r})"

    def refused(self, why: str) -> CheckpointError:
        """Return the error for a config.json from which no layer can be built, with the file's name before `why`."""
        return CheckpointError(f"{self._where}: {why}")

    def integer(self, *keys: str, default: int | None = None, above: float | None = None) -> int:
        """Return a size or an id: like `number`, but an integer."""
        return int(self._number("an integer", keys, default, above))

    def number(self, *keys: str, default: float | None = None, above: float | None = None) -> float:
        """Return the first of `keys` that is not null: a number >= 0 (eps), or greater than `above`.

        Raises CheckpointError if config.json has another value, or has none and there is no default.
        """
        return float(self._number("a number", keys, default, above))

    def _number(self, kind: str, keys: tuple[str, ...], default: float | None, above: float | None) -> Any:
        key = next((key for key in keys if self.get(key) is not None), "")
        value: Any = self[key] if key else default
        whole = kind == "an integer"
        fits = isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST
        if not fits or not (value >= 0 if above is None else value > above) or (whole and value % 1):
            least = ">= 0" if above is None else f"above {above:g}"
            held = "" if whole or value is None else "; float32 has to hold it"
            named = repr(key) if key else " or ".join(map(repr, keys))
            raise self.refused(f"{named} must be {kind} {least}, found {value!r}{held}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """Return true or false; null is false, as in the reference. Raises CheckpointError for anything else."""
        value = self.get(key, default)
        if value is not None and not isinstance(value, bool):
            raise self.refused(f"{key!r} must be true or false, found {value!r}")
        return bool(value)

    def part(self, key: str) -> Config:
        """Return the object under a key as a Config; an empty one for null."""
        inner = self.get(key) or {}
        if not isinstance(inner, Mapping):
            raise self.refused(f"{key!r} must be an object or null, found {inner!r}")
        return Config(inner, where=self._where)


# -- settings that several rows read -----------------------------------------------------------------------------


def decided(config: Config, condition: bool | str | Callable[[Config], bool]) -> bool:
    """Return whether a part is present, as decided by the row, a config key, or a condition on the config."""
    if isinstance(condition, str):
        return config.flag(condition)
    return condition(config) if callable(condition) else condition


def switch(key: str) -> Callable[[Config], bool]:
    """Return the condition "this key of the config is true"."""
    return partial(_is_on, key)  # keywords of a partial could be changed


def _is_on(key: str, config: Config) -> bool:
    return config.flag(key)


def projected(config: Config) -> bool:
    """Return whether the tables are narrower (or wider) than the model."""
    return config.integer("embedding_size") != config.integer("hidden_size")


def typed(config: Config) -> bool:
    """Return whether there are token types: not in DeBERTa v3, nor in gte-base-en-v1.5."""
    return config.integer("type_vocab_size") > 0


def sqrt_width(config: Config) -> float:
    """Return sqrt(hidden size), the factor of word rows in Vaswani et al. 2017."""
    return math.sqrt(config.integer("hidden_size"))


def layer_type(config: Config, i: int, sliding: bool) -> str:
    """Return the type of block i: from the list in config.json, else by `sliding`, whether it has a window."""
    types = of_each_block(config, "layer_types", f"{FULL!r} or {SLIDING!r}", lambda kind: kind in (FULL, SLIDING))
    return str(types[i]) if types else SLIDING if sliding else FULL


def of_each_block(config: Config, key: str, expected: str, right: Callable[[Any], bool]) -> tuple[Any, ...]:
    """Read a list with an entry for each block; () if the config has no such key. Raises CheckpointError."""
    entries = config.get(key)
    if entries is None:
        return ()
    if not isinstance(entries, tuple) or not all(map(right, entries)):
        raise config.refused(f"{key!r} must list {expected} for each block, found {entries!r:.200}")
    if len(entries) != config.integer("num_hidden_layers"):
        raise config.refused(f"{key!r} lists {len(entries)} blocks, 'num_hidden_layers' has another number")
    return entries


def stays_causal(config: Config) -> bool:
    """Read `is_causal` of config.json: in a causal model, false makes every token visible to every other.

    Raises CheckpointError for null too: the reference then masks later tokens only in texts without padding.
    """
    value = config.get("is_causal", True)
    if not isinstance(value, bool):
        raise config.refused(f"'is_causal' must be true or false, found {value!r}")
    return value


def window(config: Config) -> int:
    """Count the visible tokens on each side: in a causal model the config's number counts the token itself."""
    return max(0, config.integer("sliding_window") - 1) if stays_causal(config) else config.integer("sliding_window")
