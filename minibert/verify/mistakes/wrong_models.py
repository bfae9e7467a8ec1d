"""What makes the mistakes of a whole model that vectors alone show: blocks, the number of heads, biases, token rows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from typing import Any

import numpy as np

from minibert.equations.blocks import split_heads
from minibert.equations.input_layer import Array
from minibert.equations.sentences import normalized
from minibert.families.parts.bound_blocks import scored
from minibert.families.parts.plan import Step
from minibert.models.encoder import Encoder
from minibert.verify.sides.traces import INPUT_LAYER

from .mistake import At, Mistake, Wrong, given_place
from .wrong_attention import by_root
from .wrong_norms import rebound
from .wrong_steps import biased, biases, sums


def without_first_norm(at: At) -> list[Step]:
    """The input layer without its norm."""
    return [step._replace(formula=np.asarray) for step in at.of("norm")] if at.part == INPUT_LAYER else []


@given_place
def without_block(at: At, which: int) -> Iterator[Step]:
    """One block hands on what enters it; -1 is the last one."""
    depth = len(at.stack.blocks)
    for step in at.of("state") if depth > 1 and at.i == which % depth else ():
        end = at.plan.get(step.of[0], step)
        last = end if end.key == at.stack.last_norm else step
        yield last._replace(of=(f"hidden_states.{at.i}",))


@given_place
def blocks_by(at: At, order: Callable[[int, int], int]) -> Iterator[Step]:
    """Other blocks in the place of some: from a block's number, and how many there are."""
    if at.i is not None and (other := order(at.i, len(at.stack.blocks))) != at.i:
        yield from at.stack.blocks[other].plan(at.i, at.stack).values()


def exchanged(one: int, other: int) -> Callable[[int, int], int]:
    """Two blocks exchanged."""
    return lambda i, depth: {one: other, other: one}.get(i, i)


def always(which: int, i: int, depth: int) -> int:
    """One block in every place."""
    return which


@given_place
def last_state(at: At, change: Callable[..., Array], others: Iterable[int] = ()) -> Iterator[Step]:
    """Other token rows in the end: from the last hidden state, and from those with some other numbers."""
    for step in at.of("state") if at.i == len(at.stack.blocks) - 1 else ():
        yield step._replace(of=(*step.of, *(f"hidden_states.{i}" for i in others)), formula=change)


def mean_of_states(*states: Array) -> Array:
    """The mean of several hidden states."""
    return np.asarray(reduce(np.add, states) / states[0].dtype.type(len(states)))


def unit_rows(x: Array) -> Array:
    """Each token's row divided by its length."""
    return normalized(x.reshape(-1, x.shape[-1])).reshape(x.shape)


@given_place
def heads(at: At, many: int) -> Iterator[Step]:
    """Rows cut into another number of heads, which are then as much wider or narrower."""
    own = at.block and at.block.attention
    if own is None or own.rotated or own.terms or any(own.norms) or own.key_heads != own.heads != many:
        return
    for step in at.of("split"):
        yield step._replace(formula=partial(split_heads, heads=many))
    for step in at.of("scores") if by_root(own) else ():
        yield step._replace(formula=partial(scored, 1 / math.sqrt(own.heads * own.head_dim / many)))


@given_place
def without_biases(at: At, where: Callable[[At, Step], Any]) -> Iterator[Step]:
    """Linear maps or norms without their bias."""
    for bare in (biases(lambda bias: None), rebound(lambda own: (own.weight, None, own.eps), biased)):
        yield from (step for step in bare(at) if where(at, step))


def of_maps(at: At, step: Step) -> bool:
    """Those of linear maps."""
    return step.kind == "dense"


def of_norms(at: At, step: Step) -> bool:
    """Those of norms."""
    return step.kind == "norm"


def of_looks(at: At, step: Step) -> bool:
    """Those of queries, keys and values."""
    return at.block is not None and step.key in at.block.attention.maps


def of_feed_forward(at: At, step: Step) -> bool:
    """Those of the feed-forward."""
    return at.block is not None and step.kind == "dense" and step.key in at.block.feed_forward.keys


def of_each_map(encoder: Encoder) -> Iterator[tuple[str, Callable[[At, Step], bool]]]:
    """Those of one map in all blocks, by its path in a block; a map of queries, keys and values has a name already."""
    for block in encoder.stack.blocks[:1]:
        for key, step in block.plan(0, encoder.stack).items():
            if step.kind == "dense" and (key,) != block.attention.maps:
                path = _in_block(key)
                yield f"biases of {path} missing", partial(_is_in_block, path)


def of_each_norm(encoder: Encoder) -> Iterator[tuple[str, Callable[[At, Step], bool]]]:
    """Those of the input layer's norm, and of one norm in all blocks."""
    yield "bias of the input layer's norm missing", lambda at, step: at.part == INPUT_LAYER and step.kind == "norm"
    for block in encoder.stack.blocks[:1]:
        for path in (_in_block(key) for key, step in block.plan(0, encoder.stack).items() if step.kind == "norm"):
            yield f"biases of {path} missing", partial(_is_norm_in_block, path)


@given_place
def in_block(at: At, wrong: Wrong, which: int | None) -> Iterator[Step]:
    """A mistake in one block alone."""
    if at.i == which:
        yield from wrong(at)


def of_one_block(encoder: Encoder) -> Iterator[Mistake]:
    """What is wrong in one block by one path: a bias that is missing, a sum without one of its parts."""
    for block in encoder.stack.blocks[:1]:
        for key, step in block.plan(0, encoder.stack).items():
            path = _in_block(key)
            if step.kind in ("dense", "norm"):
                where = _is_in_block if step.kind == "dense" else _is_norm_in_block
                yield Mistake(f"bias of {path} missing", "", without_biases(partial(where, path)))
            if step.kind == "sum":
                added, where = _in_block(step.of[1]), partial(_adds, _in_block(step.of[1]))
                yield Mistake(f"residual beside {added} missing", "", without_residual(where))
                yield Mistake(f"{added} not added", "", without_added(where))
                if step.part.after:
                    yield Mistake(f"{added} and its norm left out", "", without_part(where))


def each_residual(encoder: Encoder) -> Iterator[tuple[str, Callable[[At, Step], bool]]]:
    """That of one sum in all blocks, by the path in a block of what is added to it."""
    for block in encoder.stack.blocks[:1]:
        paths = [_in_block(step.of[1]) for step in block.plan(0, encoder.stack).values() if step.kind == "sum"]
        for path in paths if len(paths) > 1 else ():
            yield f"residual beside {path} missing", partial(_adds, path)


@given_place
def without_residual(at: At, where: Callable[[At, Step], bool]) -> Iterator[Step]:
    """Sums that are what is added alone."""
    yield from (step for step in sums(0, 1)(at) if where(at, step))


@given_place
def without_added(at: At, where: Callable[[At, Step], bool]) -> Iterator[Step]:
    """Sums that are the residual alone."""
    yield from (step for step in sums(1, 0)(at) if where(at, step))


@given_place
def without_part(at: At, where: Callable[[At, Step], bool]) -> Iterator[Step]:
    """What enters a sum goes on in the place of its norm."""
    for step in at.of("sum"):
        if step.part.after and where(at, step):
            yield at.plan[step.part.after]._replace(of=step.of[:1], formula=np.asarray)


def _adds(path: str, at: At, step: Step) -> bool:
    return step.kind == "sum" and _in_block(step.of[1]) == path


def _in_block(key: str) -> str:
    return re.split(r"\d\]?\.", key)[-1]


def _is_norm_in_block(path: str, at: At, step: Step) -> bool:
    return at.i is not None and step.kind == "norm" and _in_block(step.key) == path


def _is_in_block(path: str, at: At, step: Step) -> bool:
    return step.kind == "dense" and _in_block(step.key) == path
