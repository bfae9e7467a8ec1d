"""Runs a layer's steps over tiles, on one thread or several.

Each row of the result depends on its own ids alone, and no equation looks across rows. Therefore the bits are the
same for every tile size, thread count and batch. Tiles make it faster: the nine passes of a BERT layer find their
rows in a cache instead of in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.steps import Inputs, Norm, Project, Record, Step
from minibert.threads.pool import spread, usable_threads

# Numbers in a tile: 1024 rows of BERT's, the fastest of the sizes from 32 to 4096 rows. Smaller tiles fit into a faster
# cache, but need more calls, and threads then wait more often for the interpreter's lock.
TILE_NUMBERS = 1024 * 768
NORM_TO_SUM_WORK = 4  # a layer of sums alone has a quarter of the work for each number that one with a norm has


class Bound(NamedTuple):
    """A step and what it found in the checkpoint: a module, a factor, or nothing."""

    step: Step
    module: Any


def run_steps(steps: tuple[Bound, ...], inputs: Inputs, out: Array, width: int, record: Record = None) -> Array:
    """Take one tile through all steps. `out` (batch, seq, dim) receives the result; `width` is the words' width."""
    x = out if width == out.shape[-1] else np.empty((*out.shape[:-1], width), out.dtype)
    for step, module in steps:
        # a user's own step may give rows of another dtype, or in a memory order in which sums have other bits
        x = np.asarray(step.apply(module, inputs, x, record), out.dtype, order="C")
    if x is not out:
        out[...] = x
    return out


def cut(batch: int, seq: int, rows: int) -> Iterator[tuple[slice, slice]]:
    """Cut (batch, seq) into blocks of about `rows` tokens: whole sequences, or parts of one where it is long.

    >>> [(batch.start, batch.stop, seq.start, seq.stop) for batch, seq in cut(1, 5, 2)]
    [(0, 1, 0, 2), (0, 1, 2, 4), (0, 1, 4, 5)]
    >>> [(batch.start, batch.stop, seq.start, seq.stop) for batch, seq in cut(3, 2, 4)]
    [(0, 2, 0, 2), (2, 3, 0, 2)]
    """
    tall = max(1, rows // seq) if seq else 1
    for top in range(0, batch, tall):
        for left in range(0, seq, rows):
            yield slice(top, min(top + tall, batch)), slice(left, min(left + rows, seq))


def run(
    steps: tuple[Bound, ...], inputs: Inputs, out: Array, width: int, threads: int | None = None, rows: int = 0
) -> Array:
    """Fill `out` (batch, seq, dim) tile by tile. `rows`: tokens a tile, 0 for as many as is fast."""
    count = usable_threads(out.size, threads)
    if count > 1 and not any(isinstance(step, (Norm, Project)) for step, _ in steps):
        count = usable_threads(out.size // NORM_TO_SUM_WORK, threads)
    tokens = inputs.batch * inputs.seq
    rows = rows or max(1, min(TILE_NUMBERS // max(width, out.shape[-1]), -(-tokens // count)))
    if tokens <= rows:
        return run_steps(steps, inputs, out, width)

    def work(block: tuple[slice, slice]) -> None:
        run_steps(steps, inputs.tile(*block), out[block], width)

    spread(work, cut(inputs.batch, inputs.seq, rows), count)
    return out
