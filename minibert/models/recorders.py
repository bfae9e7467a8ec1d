"""What is handed each named intermediate of a run: one keeps them for a trace, the other puts changed values there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array

from .packing import Group, Tile

# what becomes of the values of one name: a function of them, or the values to go on with
Change = Callable[[Array], ArrayLike] | ArrayLike


class Keeper:
    """Puts packed rows back into (batch, seq, ...) with zeros for padding, and keeps them under their name."""

    def __init__(self, trace: dict[str, Array], tile: Tile, shape: tuple[int, int]) -> None:
        self.trace, self.tile, self.shape = trace, tile, shape

    def rows(self, name: str, x: Array) -> None:
        y = self._kept(name, (*self.shape, *x.shape[1:]), x.dtype)
        y[self.tile.rows, self.tile.places] = x

    def pairs(self, name: str, x: Array, group: Group) -> None:
        batch, seq = self.shape
        y = self._kept(name, (batch, x.shape[1], seq, seq), x.dtype)
        places = self.tile.places[group.tokens].reshape(len(group.texts), group.length)
        for text, own, pairs in zip(group.texts, places, x, strict=True):
            y[text][:, own[:, None], own] = pairs

    def _kept(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if name not in self.trace:
            self.trace[name] = np.zeros(shape, dtype)
        return self.trace[name]


class Changer:
    """Writes the changed values of a name over what a run has computed; the run goes on with them.

    `tile` holds sequences of one length alone, so its values are (texts, length, ...) and (texts, heads, length,
    length), without padding. `seen` collects the names that the run comes by. `keeper` is handed all values afterwards.
    """

    def __init__(
        self, change: Mapping[str, Change], tile: Tile, shape: tuple[int, int], seen: set[str], keeper: Keeper | None
    ) -> None:
        self.change, self.tile, self.shape, self.seen, self.keeper = change, tile, shape, seen, keeper

    def rows(self, name: str, x: Array) -> None:
        self.seen.add(name)
        if name in self.change and len(x):
            texts = len(self.tile.groups[0].texts)
            y = x.reshape(texts, len(x) // texts, *x.shape[1:])  # a view in every memory order: one axis is parted
            whole = (*self.shape, *x.shape[1:])
            y[...] = self._changed(name, y, whole, lambda all_: all_[self.tile.rows, self.tile.places].reshape(y.shape))
        if self.keeper is not None:
            self.keeper.rows(name, x)

    def pairs(self, name: str, x: Array, group: Group) -> None:
        self.seen.add(name)
        if name in self.change and x.size:
            places = self.tile.places[group.tokens].reshape(len(group.texts), group.length)

            def part(whole: Array) -> Array:
                own = zip(group.texts, places, strict=True)
                return np.stack([whole[text][:, places[:, None], places] for text, places in own])

            batch, seq = self.shape
            x[...] = self._changed(name, x, (batch, x.shape[1], seq, seq), part)
        if self.keeper is not None:
            self.keeper.pairs(name, x, group)

    def _changed(self, name: str, x: Array, whole: tuple[int, ...], part: Callable[[Array], Array]) -> Array:
        """Give the values to go on with, checked. `whole`: the batch's shape; `part` takes this tile's out of such."""
        asked = self.change[name]
        if callable(asked):  # a copy: what the function keeps, or writes into, is its own
            found = _numbers(name, asked(x.copy()), x.dtype)
            if found.shape != x.shape:
                raise ValueError(
                    f"change[{name!r}] was given values of shape {x.shape} and must return that shape, found "
                    f"{found.shape}"
                )
            return found
        found = _numbers(name, asked, x.dtype)
        if found.shape not in (whole, (1, *whole[1:])):
            raise ValueError(f"change[{name!r}] must have shape {whole}, as trace has it, found {found.shape}")
        return part(np.broadcast_to(found, whole))


def _numbers(name: str, values: ArrayLike | None, dtype: np.dtype[Any]) -> Array:
    """Give values in the dtype that is computed in. Raises TypeError and ValueError for what no run can go on with."""
    try:
        found = np.asarray(values)
    except ValueError:
        raise ValueError(f"change[{name!r}] has rows of different lengths; it must be one array") from None
    if found.dtype.kind != "f":
        what = "None" if values is None else f"{type(values).__name__} of {found.dtype}"
        raise TypeError(
            f"change[{name!r}] must be an array of floating-point numbers, or a function that returns one; found {what}"
        )
    with np.errstate(over="ignore"):  # beyond float32 it is infinity, which is refused
        found = found.astype(dtype, copy=False)
    if not np.isfinite(found).all():
        raise ValueError(
            f"change[{name!r}] has NaN, infinity or a number beyond {dtype}; every number after it would be NaN. To "
            "hide a token from attention change the weights to 0, or the scores to -1e9"
        )
    return found
