"""A live page's settings become an encoder's `change`: parts switched off, values of another text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import BoundAttention, BoundFeedForward
from minibert.models.encoder import Encoder
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.knock_out import Function, knock_out
from minibert.show.terms import terms_of

from .state import ATTENTION, STREAM, Patch, State


def change_of(
    encoder: Encoder, state: State, other: Mapping[str, Array] | None, batch: Mapping[str, Array]
) -> dict[str, Function]:
    """Turn a state into an encoder's `change`; `other` is the trace of the text beside, `batch` the text's ids.

    A feed-forward that is switched off adds 0; heads and blocks: see `knock_out`. A term is taken off block 0's scores:
    that of the text's own rows, also where others are put in. Raises ValueError for a part that is not there.
    """
    change: dict[str, Function] = dict(knock_out(encoder, heads=state.heads, blocks=state.blocks))
    for block in state.feed_forwards:
        _then(change, added(encoder, False, block), np.zeros_like)
    if state.terms:
        terms = terms_of(encoder, batch)
        left_out = sum(terms[pair] for pair in set(state.terms)).astype(encoder.dtype)
        _then(change, encoder.stack.blocks[0].attention.scores, lambda scores: scores - left_out)
    for patch in state.patches:
        if other is None:
            raise ValueError("values can be put in from a second text; give one")
        name = patched_name(encoder, patch)
        _check_places(patch, batch["input_ids"].shape[1], other["hidden_states.0"].shape[1])
        _then(change, name, _put(other[name], patch))
    return change


def patched_name(encoder: Encoder, patch: Patch) -> str:
    """Name the traced values that a patch replaces."""
    if patch.what == STREAM:
        blocks = len(encoder.stack.blocks)
        if patch.block > blocks:
            raise ValueError(f"block {patch.block} is not there: this model's stream has states 0..{blocks}")
        return f"hidden_states.{patch.block}"
    return added(encoder, patch.what == ATTENTION, patch.block)


def added(encoder: Encoder, attention: bool, block: int) -> str:
    """Name the traced values that a block's attention, or its feed-forward, adds."""
    knock_out(encoder, blocks=[block])  # which refuses a block that is not there
    kind = BoundAttention if attention else BoundFeedForward
    part = next(part for part in encoder.stack.blocks[block].parts if isinstance(part.work, kind))
    return part.within or part.work.output


def _then(change: dict[str, Function], name: str, function: Function) -> None:
    before = change.get(name)
    change[name] = function if before is None else lambda values: function(before(values))


def _put(theirs: Array, patch: Patch) -> Function:
    def put(values: Array) -> Array:
        if patch.place is None:
            return theirs
        values[0, patch.place] = theirs[0, patch.source]
        return values

    return put


def _check_places(patch: Patch, own: int, theirs: int) -> None:
    if patch.place is None and own != theirs:
        raise ValueError(f"every token can get the value of its place where both texts have as many; found {own} and "
                         f"{theirs}; choose one token")  # fmt: skip
    for place, count in ((patch.place, own), (patch.source, theirs)):
        if place is not None and place >= count:
            raise ValueError(f"token {place} is not there: the text has {count}; choose another one")


def with_replaced(layer: EmbeddingLayer, input_ids: Array, replaced: Iterable[tuple[int, str]]) -> Array:
    """Put other tokens into ids (1, seq). Raises ValueError for a text that is no single token."""
    ids = input_ids.copy()
    for place, token in replaced:
        if place >= ids.shape[1]:
            raise ValueError(f"token {place} is not there: the text has {ids.shape[1]}; choose another one")
        ids[0, place] = _id_of(layer, token, layer.tokens(ids[0, place : place + 1])[0] or "")
    return ids


def _id_of(layer: EmbeddingLayer, typed: str, before: str) -> int:
    """Find the id of a typed token: its name, or a word that is one token; with a space if the one before has one."""
    tokenizer, spaced = layer.tokenizer, before[:1] in ("Ġ", "▁")
    named = tokenizer.id_of(typed)
    texts = [f" {typed}", typed] if spaced else [typed, f" {typed}"]
    ways = [[] if named is None else [named], *map(tokenizer.pieces, texts)]
    for ids in ways[1:] + ways[:1] if spaced else ways:
        if len(ids) == 1:
            return ids[0]
    names = ", ".join(map(repr, layer.tokens(np.array(tokenizer.pieces(typed), np.int64)))) if typed else "no token"
    raise ValueError(f"{typed!r:.40} must be one token of this tokenizer, found {names:.200}; write another word")
