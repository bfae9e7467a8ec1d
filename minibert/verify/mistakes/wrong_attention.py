"""Mistakes of attention: projections, scores and their terms, heads, masks, softmax. Rotation: `wrong_rotations`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.blocks import additive_mask, softmax, split_heads
from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import BoundAttention, scored, visibility_mask
from minibert.families.parts.config import replace
from minibert.families.parts.modules import Linear
from minibert.families.parts.plan import IDS, REAL, PositionTerm, RelativeTerm, Step

from .mistake import At, Mistake, Wrong, by_part, curried, on, then


@curried
def reconfigured(at: At, change: Callable[[BoundAttention], BoundAttention | None], *kinds: str) -> Iterable[Step]:
    """Replace the steps of these kinds by those of an attention with other fields, as from another config.json."""
    other = change(at.block.attention) if at.block else None
    steps = other.plan("", at.i or 0, at.block.modules, at.stack) if at.block and other else ()
    return (step for step in steps if step.kind in kinds)


# -- projections -------------------------------------------------------------------------------------------------


@curried
def exchanged(at: At, projections: Mapping[str, str]) -> Iterator[Step]:
    """Use other projections as query, key or value: {"q": "k"} uses the key as the query."""
    splits = {step.key[-1]: step for step in at.steps("split")}
    for letter, other in projections.items() if splits else ():
        if splits["q"].part.key_heads == splits["q"].part.heads:
            yield splits[letter]._replace(of=splits[other].of)


def projections_in_order(order: tuple[int, ...], at: At) -> Iterator[Step]:
    """Exchange query, key and value: the weights of three maps, or the thirds of one.

    A query is exchanged only if it is as wide as a key.
    """
    bound = at.block and at.block.attention
    if bound and (order[0] == 0 or bound.key_heads == bound.heads):
        projections = [at.plan[path] for path in bound.maps] if len(bound.maps) == 3 else at.steps("cut")[:3]
        for projection, i in zip(projections, order, strict=True):
            if projections[i] is not projection:
                yield projection._replace(formula=projections[i].formula)


def cut_by_head(at: At) -> Iterator[Step]:
    """Read a row as each key head's queries, key and value side by side; three maps are joined first."""
    bound = at.block and at.block.attention
    if not bound or bound.heads == 1 or any(bound.norms):
        return
    groups, dim, one = bound.key_heads, bound.head_dim, len(bound.maps) == 1

    def third(number: int, *projections: Array) -> Array:
        x = np.concatenate(projections, -1)
        parts = np.split(x.reshape(*x.shape[:-1], groups, -1), [-2 * dim, -dim], axis=-1)
        x = parts[number].reshape(*x.shape[:-1], -1)
        return x if one else split_heads(x, x.shape[-1] // dim)

    for number, step in enumerate(at.steps("cut")[:3] if one else at.steps("split")):
        yield step._replace(formula=partial(third, number), of=bound.maps)


def biases_exchanged(at: At) -> Iterator[Step]:
    """Add the bias of the keys to the queries, and that of the queries to the keys."""
    bound = at.block and at.block.attention
    if bound and len(bound.maps) == 3 and bound.key_heads == bound.heads:
        q, k = (at.plan[path] for path in bound.maps[:2])
        for step, other in ((q, k), (k, q)) if q.part.bias is not None and k.part.bias is not None else ():
            yield step._replace(formula=Linear(step.part.weight, other.part.bias, step.part.transposed))


# -- scores and their terms --------------------------------------------------------------------------------------


def by_root(bound: BoundAttention) -> bool:
    """Return whether scores are divided by sqrt(head_dim): Gemma has another number, T5 and some GPT-2 none."""
    return math.isclose(bound.scale, 1 / math.sqrt(bound.head_dim))


def scaled(scale: Callable[[BoundAttention], float], when: Callable[[BoundAttention], Any]) -> Wrong:
    """Multiply the scores by another factor."""
    return reconfigured(lambda bound: bound._replace(scale=scale(bound)) if when(bound) else None, "scores")


def scale_by_block(at: At) -> Iterable[Step]:
    """Divide the scores of block i by i + 1 too."""
    i = at.i or 0
    return scaled(lambda bound: bound.scale / (i + 1), lambda bound: i)(at)


def scale_of_one_term(bound: BoundAttention) -> Callable[..., Array] | None:
    """Divide scores and terms, which share a factor, by sqrt(head_dim) only."""
    if not bound.terms or by_root(bound):
        return None
    more = 1 / (bound.scale * math.sqrt(bound.head_dim))
    return lambda q, k, *terms: scored(bound.scale, q, k, *terms) * q.dtype.type(more)


def term(name: str, change: Callable[[Array], Array]) -> Wrong:
    """Change the numbers of one term of the scores."""
    return on("term", lambda step: then(step, change) if step.part.name == name else None)


def other_term(kind: type[Any], change: Callable[[Any], Any]) -> Wrong:
    """Compute terms of one kind by a change of the bound term; None keeps the right one."""
    return by_part("term", lambda bound: (other := change(bound) if isinstance(bound, kind) else None) and other.plain)


def with_scheme(bound: Any, **changes: Any) -> Any:
    """Return the term with changed fields in its scheme."""
    return bound._replace(scheme=replace(bound.scheme, **changes))


# -- heads -------------------------------------------------------------------------------------------------------


def other_heads(change: Callable[[int], int]) -> Wrong:
    """Split rows into another number of heads, which are then wider or narrower."""

    def other(bound: BoundAttention) -> BoundAttention | None:
        many, dim = change(bound.heads), bound.heads * bound.head_dim
        if bound.rotated or bound.terms or any(bound.norms) or bound.key_heads != bound.heads or many < 1 or dim % many:
            return None
        scale = math.sqrt(many / dim) if by_root(bound) else bound.scale
        return bound._replace(heads=many, key_heads=many, head_dim=dim // many, scale=scale)

    return reconfigured(other, "split", "scores")


def split_without_transposing(at: At) -> Iterator[Step]:
    """Read rows (batch, seq, dim) as (batch, heads, seq, head_dim)."""
    for step in at.steps("split"):
        heads = step.part.heads if step.key[-1] == "q" else step.part.key_heads
        if step.part.heads > 1:
            yield step._replace(formula=lambda x, heads=heads: x.reshape(x.shape[0], heads, x.shape[1], -1))


def join_without_transposing(x: Array) -> Array:
    """Read (batch, heads, seq, head_dim) as (batch, seq, dim)."""
    batch, heads, seq, head_dim = x.shape
    return x.reshape(batch, seq, heads * head_dim)


def without_head_norms(at: At) -> Iterator[Step]:
    """Leave out the norm of queries and keys in each head."""
    for step in at.steps("view"):
        if (before := at.plan[step.of[0]]).kind == "norm":
            yield step._replace(of=before.of)


# -- masks and softmax -------------------------------------------------------------------------------------------


@curried
def causal(at: At, right: bool, wrong: bool, ahead: int = 0) -> Iterator[Step]:
    """Use another causal mask in models whose mask is `right`; each token also sees `ahead` later tokens."""
    for step in at.steps("keep"):
        if at.stack.causal == right:
            yield step._replace(formula=partial(visibility_mask, wrong, step.part.window, ahead=ahead))


def attention_of_other_type(at: At) -> Iterable[Step]:
    """Use the window and the rotation of another layer type whose heads are as wide."""

    def other(bound: BoundAttention) -> BoundAttention | None:
        known = (block.attention for block in at.stack.blocks)
        found = (x for x in known if x.layer_type != bound.layer_type and x.head_dim == bound.head_dim)
        return next((bound._replace(window=x.window, layer_type=x.layer_type) for x in found), None)

    return reconfigured(other, "rotation", "keep")(at)


def window(change: Callable[[int], int | None]) -> Wrong:
    """Use another window in the blocks that have one."""
    return reconfigured(lambda x: None if x.window is None else x._replace(window=change(x.window)), "keep")


def open_at_one_end(ahead: bool) -> Wrong:
    """Limit how far a token sees on one side only: before it, or with `ahead` after it."""

    def seen(width: int, real: Array) -> Array:
        back = np.subtract.outer(*[np.arange(real.shape[1])] * 2)  # how far the key is before the query
        return real[:, None, None, :] & (back >= -width if ahead else back <= width)

    return lambda at: [step._replace(formula=partial(seen, step.part.window)) for step in at.steps("keep")
                       if step.part.window is not None and not at.stack.causal]  # fmt: skip


def other_padding(change: Callable[[Array], Array]) -> Wrong:
    """Compute the visible keys from another mask of tokens that are not padding."""
    return on("keep", lambda step: step._replace(formula=lambda real: step.formula(change(real))))


def padding_seen(at: At) -> Iterable[Step]:
    """Let tokens attend to padding, in models that are causal or have a window; elsewhere that is "mask ignored"."""
    hides = at.block and (at.stack.causal or any(block.attention.window is not None for block in at.stack.blocks))
    return other_padding(np.ones_like)(at) if hides else ()


def mask_from_ids(at: At) -> Iterator[Step]:
    """Mask the tokens with the padding id, 0 if config.json has none; without ids the mask stays."""
    named = at.model.config.get("pad_token_id")
    pad_id = named if type(named) is int else 0

    def visible(right: Callable[[Array], Array], real: Array, ids: Array | None) -> Array:
        return right(real if ids is None else ids != pad_id)

    for step in at.steps("keep"):
        yield step._replace(formula=partial(visible, step.formula), of=(REAL, IDS))


def masked(formula: Callable[[Array, Any], Array]) -> Wrong:
    """Compute the mask that is added to the scores from the visible keys and a dtype."""
    return by_part("mask", lambda bound: lambda visible, scores: formula(visible, scores.dtype))


def no_mask(visible: Array, dtype: Any) -> Array:
    """Use no mask."""
    return np.zeros((), dtype)


def times_mask(at: At) -> Iterator[Step]:
    """Multiply the scores by the mask instead of adding one."""
    visible = [step.key for step in at.steps("keep")]
    for step in at.steps("masked"):
        yield step._replace(of=(step.of[0], *visible), formula=lambda scores, seen: np.asarray(scores * seen))


def mask_after_softmax(at: At) -> Iterator[Step]:
    """Multiply the probabilities by the mask."""
    yield from masked(no_mask)(at)
    visible = [step.key for step in at.steps("keep")]
    for step in at.steps("softmax"):
        yield step._replace(of=(*step.of, *visible), formula=lambda scores, seen: np.asarray(softmax(scores) * seen))


def softmax_over(axis: int, scores: Array) -> Array:
    """Compute softmax along another axis of (batch, heads, query, key)."""
    return np.swapaxes(softmax(np.swapaxes(scores, axis, -1)), axis, -1)


# -- the list ----------------------------------------------------------------------------------------------------

LETTERS = "Scores are made of queries and keys; the weighted sum is made of values."
TERM = "It is added to the scores of each pair, scaled."
HEADS = "config.json names the number of heads."
HEADS_KEYS = ("num_attention_heads",)
WINDOW = "A causal window of w tokens counts the token itself; ModernBERT's has w // 2 tokens on each side."
WINDOWS = ("sliding_window", "local_attention")
MASK = "A mask that is added is 0 for kept tokens, the most negative number for others."
SEES = "A token of a causal model sees itself and those before it."
ONE_SUM = "Each query's probabilities sum to 1: softmax is over the keys, the last axis."

# fmt: off
ATTENTION: tuple[Mistake, ...] = (
    # scores
    Mistake("no division by sqrt(head_dim)", "Scores grow with head_dim, and softmax then keeps only the largest.",
            scaled(lambda bound: bound.scale * math.sqrt(bound.head_dim), by_root), on_vectors=True),
    Mistake("division by sqrt(dim)", "Each head's product has head_dim terms, not dim.",
            scaled(lambda bound: bound.scale / math.sqrt(bound.heads),
                   lambda bound: by_root(bound) and bound.heads > 1), on_vectors=True),
    *(Mistake(f"scores divided by the root of {size}", "The size of a head is the model's, not written down.",
              scaled(lambda bound, size=size: size**-0.5,  # type: ignore[misc]
                     lambda bound, size=size: by_root(bound) and bound.head_dim != size),  # type: ignore[misc]
              on_vectors=True) for size in (64, 128)),
    Mistake("scores divided by block + 1", "GPT-2 does so only if its config says scale_attn_by_inverse_layer_idx.",
            scale_by_block, on_vectors=True),
    Mistake("division by sqrt(dim / heads)", "config.json names head_dim, which is another number here.",
            lambda at: scaled(
                lambda bound: math.sqrt(bound.heads / at.layer.dim),
                lambda bound: by_root(bound) and bound.heads * bound.head_dim != at.layer.dim)(at),
            on_vectors=True, keys=("head_dim",)),
    Mistake("scale by head_dim", "This model's config names the scale of the scores.",
            scaled(lambda bound: 1 / math.sqrt(bound.head_dim),
                   lambda bound: bound.scale != 1 and not by_root(bound)), on_vectors=True),
    Mistake("division by sqrt(head_dim)", "T5's scores are not divided, nor GPT-2's if its config says so.",
            scaled(lambda bound: bound.head_dim**-0.5, lambda bound: bound.scale == 1 and bound.head_dim > 1),
            on_vectors=True),
    *(Mistake(f"scores of {q} and {k}", LETTERS, exchanged({"q": q, "k": k}), "local") for q, k in ("kq", "qq")),
    Mistake("k gathered in place of v", LETTERS, exchanged({"v": "k"}), "local"),
    *(Mistake(f"q k v in another order: {' '.join('qkv'[i] for i in order)}", "The order is query, key, value.",
              partial(projections_in_order, order), on_vectors=True) for order in [(1, 0, 2), (0, 2, 1)]),
    Mistake("biases of queries and keys exchanged", LETTERS, biases_exchanged, on_vectors=True),
    # terms of the scores
    *(Mistake(f"{name} missing", TERM, term(name, lambda x: x * 0), on_vectors=True)
      for name in ("relative bias", "content to position", "position to content")),
    Mistake("relative bias transposed", "The bias of query i and key j is that of the distance j - i.",
            term("relative bias", lambda x: np.swapaxes(x, -1, -2)), on_vectors=True),
    Mistake("position to content not transposed", "Keys look at positions: rows are keys until they are transposed.",
            term("position to content", lambda x: np.swapaxes(x, -1, -2))),
    Mistake("relative bias of the other direction", "Keys after the query have separate buckets, if they are seen.",
            other_term(RelativeTerm, lambda bound: with_scheme(bound, bidirectional=not bound.scheme.bidirectional)),
            on_vectors=True),
    Mistake("relative bias to a distance of 64", "config.json says from which distance on all share a bucket: "
            "relative_attention_max_distance.",
            other_term(RelativeTerm, lambda bound: with_scheme(bound, max_distance=64)
                       if bound.scheme.buckets < 64 != bound.scheme.max_distance else None),
            on_vectors=True, keys=("relative_attention_max_distance",)),
    Mistake("relative bias in the first block alone", "One table serves all blocks of this model.",
            other_term(RelativeTerm, lambda bound: with_scheme(bound, table=bound.scheme.table * 0)
                       if bound.block and not bound.first else None), on_vectors=True),
    Mistake("relative bias of the first block", "Each block of this model has its own table.",
            other_term(RelativeTerm, lambda bound: with_scheme(bound, table=bound.first.table)
                       if bound.block and bound.first else None), on_vectors=True),
    Mistake("distances in the wrong direction", "A distance is the query's position less the key's, in both terms.",
            other_term(PositionTerm, lambda bound: bound._replace(backward=True))),
    Mistake("position to content in the wrong direction", "Both terms have the query's position less the key's.",
            other_term(PositionTerm, lambda bound: bound._replace(backward=True) if bound.of_keys else None)),
    Mistake("distances without log buckets", "Far distances share rows, by their logarithm; only near ones have a row "
            "each.", other_term(PositionTerm, lambda bound: with_scheme(
                bound, buckets=-1, max_positions=bound.scheme.buckets) if bound.scheme.buckets > 0 else None)),
    Mistake("terms not counted in the scale", "The factor is 1 / sqrt(s * head_dim), s = 1 + DeBERTa's terms.",
            by_part("scores", scale_of_one_term)),
    # heads
    Mistake("queries, keys and values side by side for each head", "All queries stand in a row, then all keys, then "
            "all values; GPT-NeoX has them head by head.", cut_by_head, on_vectors=True),
    Mistake("twice as many heads", HEADS, other_heads(lambda count: 2 * count), on_vectors=True, keys=HEADS_KEYS),
    Mistake("half as many heads", HEADS, other_heads(lambda count: count // 2), on_vectors=True, keys=HEADS_KEYS),
    Mistake("heads split without transposing", "Split rows into (heads, head_dim), then exchange seq and heads.",
            split_without_transposing, on_vectors=True),
    Mistake("heads joined without transposing", "Exchange heads and seq before heads are joined into rows.",
            by_part("join", lambda bound: join_without_transposing if bound.heads > 1 else None), on_vectors=True),
    Mistake("norm of queries and keys not applied", "Queries and keys are normed in each head before they are rotated.",
            without_head_norms, on_vectors=True),
    Mistake("key head taken modulo", "Query head h uses key head h // (heads / key_heads), not h % key_heads.",
            by_part("share", lambda bound: (lambda x: x[:, np.arange(bound.heads) % x.shape[1]])
                    if bound.key_heads > 1 else None), on_vectors=True),
    # visible tokens
    Mistake("causal mask one token too far", SEES, causal(True, True, 1)),
    Mistake("causal mask hides the token itself", SEES, causal(True, True, -1)),
    Mistake("causal mask forgotten", "No token of this model sees a later one.", causal(True, False), on_vectors=True),
    Mistake("causal mask where there is none", "Every token of this model sees all others.", causal(False, True),
            on_vectors=True),
    Mistake("window one token too wide", WINDOW, window(lambda width: width + 1), keys=WINDOWS),
    Mistake("window one token too narrow", WINDOW, window(lambda width: width - 1), keys=WINDOWS),
    *(Mistake("window twice as wide", WINDOW, window(change), keys=WINDOWS)
      for change in (lambda width: 2 * width, lambda width: 2 * width + 1)),
    *(Mistake("window half as wide", WINDOW, window(change), keys=WINDOWS)
      for change in (lambda width: width // 2, lambda width: (width + 1) // 2)),
    *(Mistake("window open at one end", WINDOW, open_at_one_end(ahead), keys=WINDOWS) for ahead in (False, True)),
    Mistake("window forgotten", "Some blocks of this model see only near tokens.", window(lambda width: None),
            keys=WINDOWS),
    Mistake("attention of the other layer type", "config.json says which blocks have a window, and their rope_theta.",
            attention_of_other_type, on_vectors=True, keys=("layer_types", "global_attn_every_n_layers")),
    Mistake("padding seen", "Padding is not seen, by tokens before it or after it.", padding_seen),
    Mistake("mask taken as a length", "Padding may stand before the text or inside it.",
            other_padding(lambda real: np.arange(real.shape[1]) < real.sum(1, keepdims=True))),
    Mistake("mask from the ids", "The attention mask says which tokens are padding, not the ids.", mask_from_ids),
    # masking
    Mistake("mask ignored", "Padding and hidden tokens get attention weights.", masked(no_mask)),
    Mistake("mask added as 0 and 1", MASK, masked(lambda visible, dtype: visible.astype(dtype))),
    *(Mistake("mask inverted", MASK, masked(formula)) for formula in (
        lambda visible, dtype: additive_mask(~visible, dtype),
        lambda visible, dtype: np.asarray(visible * dtype.type(-1e4)))),
    Mistake("scores times the mask", "A score of 0, or of 1e-9, hides nothing: softmax makes exp(0) = 1 of it.",
            times_mask),
    Mistake("mask after softmax", "Hidden scores must not count in the sum by which softmax divides.",
            mask_after_softmax),
    # softmax
    Mistake("softmax over the queries", ONE_SUM, by_part("softmax", lambda bound: partial(softmax_over, -2))),
    Mistake("softmax over the heads", ONE_SUM,
            by_part("softmax", lambda bound: partial(softmax_over, -3) if bound.heads > 1 else None)),
)
# fmt: on
