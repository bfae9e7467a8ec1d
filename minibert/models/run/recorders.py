"""The hook that is called with each named intermediate of a run: it records it for a trace, or changes it.

`hooked` and its kin put a hook behind a formula. They are called where formulas are bound, so that a run without a hook
knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array

from .packing import Group, Packed

# what becomes of the values of one name: a function of them, or the values to go on with
Change = Callable[[Array], ArrayLike] | ArrayLike


F = TypeVar("F", bound=Callable[..., Any])


def hooked(hook: Recorder | None, name: str, work: F, pairs: bool = False) -> F:
    """Put a hook behind what gives one row a token, or with `pairs` numbers for all pairs of a piece of attention."""

    if hook is None:
        return work

    def then(*given: Any) -> Array:
        x: Array = work(*given)
        if pairs:
            hook.pairs(name, x, given[0].group)
        else:
            hook.rows(name, x)
        return x

    return then  # type: ignore[return-value]


def hooked_halves(hook: Recorder | None, name: str, first: F, second: F) -> tuple[F, F]:
    """The same behind one map that is computed as two, the second one later: the hook sees what both give together."""
    if hook is None:
        return first, second
    later: list[Array] = []

    def both(*given: Any) -> Array:
        x = np.concatenate([first(*given), second(*given)], axis=1)
        hook.rows(name, x)
        one, other = np.split(x, 2, axis=1)
        later.append(other)
        return one.copy()  # without gaps

    return both, lambda *given: later.pop()  # type: ignore[return-value]


class Recorder:
    """Is handed each named intermediate of a tile's run: writes changed values over it, and records it for a trace.

    A trace has (batch, seq, ...), with zeros for padding. With a `change` the tile holds sequences of one length alone,
    so its values are (texts, length, ...) and (texts, heads, length, length), without padding. `seen` collects the
    names that the run comes by.
    """

    def __init__(
        self,
        tile: Packed,
        shape: tuple[int, int],
        trace: dict[str, Array] | None = None,
        change: Mapping[str, Change] = {},
    ) -> None:
        self.shape, self.trace, self.change, self.seen = shape, trace, change, set[str]()
        self.texts, self.where = len(tile.texts), tile.where()

    def rows(self, name: str, x: Array) -> None:
        """Take one row a token."""
        self.seen.add(name)
        x = x[: len(self.where[0])]  # without the rows that fill up
        whole = (*self.shape, *x.shape[1:])
        if name in self.change and len(x):
            y = x.reshape(self.texts, len(x) // self.texts, *x.shape[1:])  # a view in every memory order
            y[...] = self._changed(name, y, whole, lambda all_: all_[self.where].reshape(y.shape))
        if self.trace is not None:
            self._kept(name, whole, x)[self.where] = x

    def pairs(self, name: str, x: Array, group: Group) -> None:
        """Take one number for each head, query and key of some sequences."""
        self.seen.add(name)
        batch, seq = self.shape
        whole = (batch, x.shape[1], seq, seq)
        places = [*zip(group.texts, group.of(self.where[1]), strict=True)]
        if name in self.change and x.size:

            def part(all_: Array) -> Array:
                return np.stack([all_[text][:, own[:, None], own] for text, own in places])

            x[...] = self._changed(name, x, whole, part)
        if self.trace is not None:
            y = self._kept(name, whole, x)
            for (text, own), pairs in zip(places, x, strict=True):
                if len(own) and own[-1] - own[0] + 1 == len(own):  # no padding between tokens: no index for each pair
                    y[text][:, own[0] : own[-1] + 1, own[0] : own[-1] + 1] = pairs
                else:
                    y[text][:, own[:, None], own] = pairs

    def _kept(self, name: str, shape: tuple[int, ...], x: Array) -> Array:
        assert self.trace is not None
        if name not in self.trace:
            self.trace[name] = np.zeros(shape, x.dtype)
        return self.trace[name]

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
