"""config.json as a read-only mapping that also answers by attribute and by the reference's other names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from minibert.errors import CheckpointError

from .frozen import frozen, thawed

# The largest eps (or other number) that is accepted. LayerNorm computes `variance + eps`, and that sum has to be a
# finite float32; the largest one is 3.4e38.
LARGEST = 1e38


class Config(Mapping[str, Any]):
    """config.json with the family's defaults for missing keys.

    A name is looked up in the file under all words that mean the same (`aliases`: GPT-2 says `n_embd` where BERT
    says `hidden_size`), then in the family's defaults. Iteration and `len` show the file alone.

    >>> config = Config({"n_embd": 768}, aliases={"hidden_size": "n_embd"}, defaults={"layer_norm_epsilon": 1e-5})
    >>> config.hidden_size, config["n_embd"], config.layer_norm_epsilon, len(config)
    (768, 768, 1e-05, 1)
    """

    __slots__ = ("_aliases", "_data", "_defaults", "_where")
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
        try:
            keep(self, "_data", frozen(dict(data)))
        except RecursionError:
            raise self.refused("nested too deeply to be a model's configuration") from None
        keep(self, "_aliases", frozen(dict(aliases)))
        keep(self, "_defaults", frozen(dict(defaults)))

    def __getitem__(self, key: str) -> Any:
        words = [
            key,
            *(b for a, b in self._aliases.items() if a == key),
            *(a for a, b in self._aliases.items() if b == key),
        ]
        for source in (self._data, self._defaults):
            present = [source[word] for word in words if word in source]
            if present:  # a value under one name is preferred to null under another
                return next((value for value in present if value is not None), None)
        raise KeyError(key)

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):  # copy and pickle ask for such names before the object is built
            raise AttributeError(key)
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"config.json has no {key!r}; it has {', '.join(sorted(self._data))}") from None

    def __setattr__(self, key: str, value: Any) -> NoReturn:
        raise AttributeError(
            f"the config is read-only, so {key!r} cannot be set: it says what the tensors are; change config.json, or "
            "take a copy, dict(config)"
        )

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
        """Make the error for a config.json from which no layer can be made; it says which file that is."""
        return CheckpointError(f"{self._where}: {why}")

    def integer(self, *keys: str, default: int | None = None, above: float | None = None) -> int:
        """Give a size or an id: as `number`, without a fraction."""
        return int(self._number("an integer", keys, default, above))

    def number(self, *keys: str, default: float | None = None, above: float | None = None) -> float:
        """Give a number >= 0 such as eps, or one greater than `above`: of the first of `keys` that is not null.

        Raises CheckpointError where config.json has something else, or nothing and there is no default.
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
        """Give true or false; null is false, as where the reference asks. Raises CheckpointError for anything else."""
        value = self.get(key, default)
        if value is not None and not isinstance(value, bool):
            raise self.refused(f"{key!r} must be true or false, found {value!r}")
        return bool(value)

    def part(self, key: str) -> Config:
        """Give the object under a key, to be read in the same way; an empty one for null."""
        inner = self.get(key) or {}
        if not isinstance(inner, Mapping):
            raise self.refused(f"{key!r} must be an object or null, found {inner!r}")
        return Config(inner, where=self._where)


def decided(config: Config, condition: bool | str | Callable[[Config], bool]) -> bool:
    """Whether something is there: the row says it, a config key, or a condition on the config."""
    if isinstance(condition, str):
        return config.flag(condition)
    return condition(config) if callable(condition) else condition
