"""config.json as a read-only mapping that also answers by attribute and by the reference's other names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from minibert.errors import CheckpointError

LARGEST = 1e38  # what a variance is added to has to stay within float32


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


class Config(Mapping[str, Any]):
    """What config.json says, with the family's defaults for what it leaves out.

    A name is looked up in the file under all words that mean the same (`aliases`: GPT-2 says `n_embd` where BERT
    says `hidden_size`), then in the family's defaults. Iteration and `len` show the file alone.

    >>> config = Config({"n_embd": 768}, aliases={"hidden_size": "n_embd"}, defaults={"layer_norm_epsilon": 1e-5})
    >>> config.hidden_size, config["n_embd"], config.layer_norm_epsilon, len(config)
    (768, 768, 1e-05, 1)
    """

    __slots__ = (
        "_aliases",
        "_data",
        "_defaults",
        "_where",
    )  # so that no attribute can be set: a config is read, never written

    def __init__(
        self,
        data: Mapping[str, Any],
        aliases: Mapping[str, str] = {},
        defaults: Mapping[str, Any] = {},
        where: str = "config.json",
    ) -> None:
        self._where = where
        try:
            self._data = {key: _frozen(value) for key, value in data.items()}
        except RecursionError:
            raise self.refused("nested too deeply to be a model's configuration") from None
        self._aliases = dict(aliases)
        self._defaults = dict(defaults)

    def __getitem__(self, key: str) -> Any:
        words = [
            key,
            *(b for a, b in self._aliases.items() if a == key),
            *(a for a, b in self._aliases.items() if b == key),
        ]
        for source in (self._data, self._defaults):
            present = [source[word] for word in words if word in source]
            if present:  # null under one word gives way to a value under another
                return next((value for value in present if value is not None), None)
        raise KeyError(key)

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):  # also keeps copy and pickle from asking an object that is not yet built
            raise AttributeError(key)
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"config.json has no {key!r}; it has {', '.join(sorted(self._data))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"Config({dict(self._data)!r})"

    def refused(self, why: str) -> CheckpointError:
        """Make the error for a config.json that no layer can be made of: it says whose file it is."""
        return CheckpointError(f"{self._where}: {why}")

    def integer(self, key: str) -> int:
        """Give a size or an id, or raise CheckpointError where config.json has none or something else."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.refused(f"{key!r} must be an integer >= 0, found {value!r}")
        return value

    def number(self, key: str) -> float:
        """Give a number >= 0 such as eps, or raise CheckpointError where config.json has something else."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
            raise self.refused(f"{key!r} must be a number >= 0, found {value!r}; float32 has to hold it")
        return float(value)
