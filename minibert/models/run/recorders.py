"""Hooks called with each named intermediate of a run: one records it for a trace, one replaces it.

`hooked` and its kin put a hook behind a formula. They are called where formulas are bound, so that a run without a hook
knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array

from .packing import Group, Packed

# what becomes of the values of one name: a function of them, or the values to go on with
Change = Callable[[Array], ArrayLike] | ArrayLike


F = TypeVar("F", bound=Callable[..., Any])


class Hook(Protocol):
    """Is handed each named intermediate; the run goes on with what it leaves there."""

    def rows(self, name: str, x: Array) -> None:
        """One row a token."""

    def pairs(self, name: str, x: Array, group: Group) -> None:
        """One number for each head, query and key of some sequences."""


def hooked(hook: Hook | None, name: str, work: F, pairs: bool = False) -> F:
    """Put a hook behind what gives one row a token, or with `pairs` numbers for all pairs of a piece of attention."""

    def then(*given: Any) -> Array:
        x: Array = work(*given)
        assert hook is not None
        if pairs:
            hook.pairs(name, x, given[0].group)
        else:
            hook.rows(name, x)
        return x

    return work if hook is None else then  # type: ignore[return-value]


def hooked_halves(hook: Hook | None, name: str, first: F, second: F) -> tuple[F, F]:
    """The same behind one map that is computed as two, the second one later: the hook sees what both give together."""
    later: list[Array] = []

    def both(*given: Any) -> Array:
        x = np.concatenate([first(*given), second(*given)], axis=1)
        assert hook is not None
        hook.rows(name, x)
        one, other = np.split(x, 2, axis=1)
        later.append(other)
        return one.copy()  # without gaps

    return (first, second) if hook is None else (both, lambda *given: later.pop())  # type: ignore[return-value]


class Recorder:
    """Puts packed rows back into (batch, seq, ...) with zeros for padding, and keeps them under their name."""

    def __init__(self, trace: dict[str, Array], tile: Packed, shape: tuple[int, int]) -> None:
        self.trace, self.shape, self.where = trace, shape, tile.where()

    def rows(self, name: str, x: Array) -> None:
        y = self._kept(name, (*self.shape, *x.shape[1:]), x.dtype)
        y[self.where] = x[: len(self.where[0])]  # without the rows that fill up

    def pairs(self, name: str, x: Array, group: Group) -> None:
        batch, seq = self.shape
        y = self._kept(name, (batch, x.shape[1], seq, seq), x.dtype)
        for text, own, pairs in zip(group.texts, group.of(self.where[1]), x, strict=True):
            y[text][:, own[:, None], own] = pairs

    def _kept(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if name not in self.trace:
            self.trace[name] = np.zeros(shape, dtype)
        return self.trace[name]


class Patcher:
    """Writes the changed values of a name over what a run has computed; the run goes on with them.

    `tile` holds sequences of one length alone, so its values are (texts, length, ...) and (texts, heads, length,
    length), without padding. `seen` collects the names that the run comes by. `recorder` is handed all values after.
    """

    def __init__(
        self,
        change: Mapping[str, Change],
        tile: Packed,
        shape: tuple[int, int],
        seen: set[str],
        recorder: Recorder | None,
    ) -> None:
        self.change, self.shape, self.seen, self.recorder = change, shape, seen, recorder
        self.texts, self.where = len(tile.texts), tile.where()

    def rows(self, name: str, x: Array) -> None:
        self.seen.add(name)
        x = x[: len(self.where[0])]  # without the rows that fill up
        if name in self.change and len(x):
            y = x.reshape(self.texts, len(x) // self.texts, *x.shape[1:])  # a view in every memory order
            whole = (*self.shape, *x.shape[1:])
            y[...] = self._changed(name, y, whole, lambda all_: all_[self.where].reshape(y.shape))
        if self.recorder is not None:
            self.recorder.rows(name, x)

    def pairs(self, name: str, x: Array, group: Group) -> None:
        self.seen.add(name)
        if name in self.change and x.size:

            def part(whole: Array) -> Array:
                each = zip(group.texts, group.of(self.where[1]), strict=True)
                return np.stack([whole[text][:, own[:, None], own] for text, own in each])

            batch, seq = self.shape
            x[...] = self._changed(name, x, (batch, x.shape[1], seq, seq), part)
        if self.recorder is not None:
            self.recorder.pairs(name, x, group)

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
