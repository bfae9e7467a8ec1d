"""The pictures that `minibert plot` draws, by name, and which arrays of a layer each one shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.similarity import cosine_similarity
from minibert.errors import Option, error_of
from minibert.families.parts.attention_schemes import AttentionPosition, RelativeBias, Rotary
from minibert.families.parts.layer_plan import layer_plan
from minibert.families.parts.steps import Positions
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.patching import patching_map

from . import plot
from .attention import PARTS, addend_keys, shares_of, terms_of
from .explain import first_of_text, name_of
from .prediction import token_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from minibert.models.encoder import Encoder

Scheme = TypeVar("Scheme", bound=AttentionPosition)

SEEN = 64  # tokens of a text that the pictures of attention show


class Asked(NamedTuple):
    """The choices of a picture, beside the model: one text or two, and a token, block or head, counted from 0."""

    text: str | None = None
    token: int | None = None
    block: int | None = None
    head: int | None = None
    other: str | None = None


def picture(
    kind: str,
    layer: EmbeddingLayer | Encoder,
    text: str | None = None,
    token: int | None = None,
    model: str | None = None,
    block: int | None = None,
    head: int | None = None,
    other: str | None = None,
) -> Figure:
    """Draw one of `PICTURES` from a layer, and from a text if it needs one: the figure, in pyplot.

    rows, similarity, table       the position table; rows also shows a token of the text, if one is given
    sum                           how a token's vector is computed
    relative-bias, rotary         the position scheme inside attention
    attention                     of a whole model (`load_encoder`): all heads, or one (`block` and `head`, default 0)
    patching                      of a whole model and two texts: which hidden states carry the prediction of `text`
    terms                         of a whole model: which of block 0's nine terms its scores are made of, head by head

    `token` chooses another token for rows and sum, counted from 0 as `explain` does; default: the text's first, after
    the special ones. For patching it says whose prediction it is: see `patching_map`. `model` is the name above the
    picture; default: the family's.

    Raises ValueError for an unknown kind, for one that the layer has no numbers for, for a text that is missing.
    """
    if kind not in PICTURES:
        raise ValueError(f"kind must be one of {', '.join(PICTURES)}; found {kind!r}")
    if token is not None and kind not in OF_ONE_TOKEN:
        raise ValueError(f"the picture {kind!r} cannot show a single token; only {', '.join(OF_ONE_TOKEN)} take one")
    if (block is not None or head is not None) and kind not in OF_ONE_HEAD:
        only = " and ".join(OF_ONE_HEAD)
        raise ValueError(f"the picture {kind!r} shows no single block or head; block and head apply only to {only}")
    if (other is not None) != (kind == "patching"):
        asks = "compares two texts; give the second as " if other is None else "is not about two texts; leave out "
        raise error_of(ValueError, f"the picture {kind!r} {asks}", Option("other"))
    if kind in OF_BLOCKS and isinstance(layer, EmbeddingLayer):
        raise ValueError(f"the picture {kind!r} needs blocks; pass a whole model, minibert.load_encoder(...)")
    drawn = PICTURES[kind][0](layer, Asked(text, token, block, head, other))
    layer = layer if isinstance(layer, EmbeddingLayer) else layer.embeddings
    figure: Figure = (drawn[0] if isinstance(drawn, list) else drawn).figure
    family = layer.family.model_type
    named = f"{model} ({family})" if model and model != family else family
    figure.suptitle(named, x=0.01, ha="left", fontsize="small", color="0.35", parse_math=False)
    return figure


def position_table(layer: EmbeddingLayer) -> Array:
    """Give the rows that are added at positions 0, 1, 2, ... Raises ValueError if the layer adds none."""
    for step, module in layer.steps:
        if isinstance(step, Positions):
            rows: Array = module.weight[step.extra + step.first(layer.config) :]
            return rows
    raise ValueError(f"{layer.family.model_type} adds no positions in its input layer, so it has no table of them")


def _needed(text: str | None, kind: str) -> str:
    if text is None:
        raise error_of(ValueError, f"the picture {kind!r} is about a text; give one as ", Option("text"))
    return text


def _encoded(layer: EmbeddingLayer, text: str, token: int | None = None) -> tuple[dict[str, Any], list[str], int]:
    """Give the batch of one text, its tokens, and the position of one: `token`, or the text's first, after the special
    ones."""
    batch = layer.tokenize(text)
    (ids,) = batch["input_ids"]
    if token is None:
        token = first_of_text(layer, ids)
        if token is None:
            raise ValueError("the text has no tokens beside the special ones; give another one")
    if not 0 <= token < len(ids):
        raise IndexError(f"token is {token}, but the text has the tokens 0..{len(ids) - 1}; `explain` lists them")
    return batch, layer.tokens(ids), token


def _rows(layer: EmbeddingLayer, asked: Asked) -> Any:
    text, token, *_ = asked
    table = position_table(layer)
    if text is None:
        if token is not None:
            raise error_of(ValueError, "a token is one of a text; give a text too, as ", Option("text"))
        return plot.position_rows(table)
    batch, tokens, first = _encoded(layer, text, token)
    word = layer.steps[0].module(batch["input_ids"][0, first])
    if word.shape != table.shape[1:]:
        raise ValueError(f"word rows are {word.shape}, position rows {table.shape[1:]}: no common axis; give no text")
    return plot.position_rows(table, word, token=tokens[first])


def _sum(layer: EmbeddingLayer, asked: Asked) -> Any:
    batch, tokens, first = _encoded(layer, _needed(asked.text, "sum"), asked.token)
    trace = layer.trace(**batch)
    plan = layer_plan(layer.steps, layer.config)
    addends = {name_of(key): trace[key][0, first] for key in addend_keys(plan) if key in trace}
    norm = next((step.key for step in plan.values() if step.kind == "norm"), None)
    normed = None if norm is None else trace[norm][0, first]
    ax = plot.sum_steps(addends, normed)
    ax.set_title(f"token {tokens[first]!r} at position {first}", loc="left", parse_math=False)
    return ax


def _batch(encoder: Encoder, text: str | None, kind: str) -> dict[str, Any]:
    batch: dict[str, Any] = encoder.tokenize(_needed(text, kind))
    if not batch["input_ids"].size:
        raise ValueError("the text has no tokens; give another one")
    return batch


def _terms(encoder: Encoder, asked: Asked) -> Any:
    terms = terms_of(encoder, _batch(encoder, asked.text, "terms"))
    if terms.shape[-1] == 1:
        raise ValueError("one token has no scores to compare; give a longer text")
    ax = plot.term_shares(shares_of(encoder, terms), PARTS)
    ax.set_title("block 0: query with key", loc="left")
    return ax


def _attention(encoder: Encoder, asked: Asked) -> Any:
    batch = _batch(encoder, asked.text, "attention")
    blocks, heads = len(encoder.stack.blocks), encoder.stack.heads
    if not blocks:
        raise ValueError("a static model has no blocks, and so no attention; name a whole model")
    block, head = (None, None) if asked.block is asked.head is None else (asked.block or 0, asked.head or 0)
    for name, number, count in (("block", block, blocks), ("head", head, heads)):
        if number is not None and not 0 <= number < count:
            raise IndexError(f"{name} is {number}, but this model has {name}s 0..{count - 1}; choose one of them")
    trace = encoder.trace(**batch)
    if block is None:
        return plot.attention_heads(np.stack([trace[f"attentions.{i}"][0] for i in range(blocks)]))
    tokens = encoder.embeddings.tokenizer.tokens(batch["input_ids"][0])
    ax = plot.attention_grid(trace[f"attentions.{block}"][0, head], [token or "?" for token in tokens])
    ax.set_title(f"block {block}, head {head}", loc="left")
    return ax


def _patching(encoder: Encoder, asked: Asked) -> Any:
    assert asked.other is not None  # `picture` has seen to it
    found = patching_map(encoder, _needed(asked.text, "patching"), asked.other, asked.token)
    pairs = zip(*(encoder.embeddings.tokenizer.tokens(ids) for ids in found.ids), strict=True)
    ax = plot.patching_grid(found.shares, [one if one == two else f"{one} | {two}" for one, two in pairs])
    chances = f"probability {np.exp(found.clean):.3g}, in the other text {np.exp(found.corrupted):.3g}"
    title = f"{token_name(encoder, found.label)!r} at token {found.token}: {chances}"
    ax.set_title(title, loc="left", parse_math=False)
    return ax


def _scheme(layer: EmbeddingLayer, wanted: type[Scheme]) -> Scheme:
    scheme = layer.attention_position
    if not isinstance(scheme, wanted):
        found = "no positions" if scheme is None else scheme.offers
        raise ValueError(f"{layer.family.model_type} has {found} in attention; this picture is of {wanted.offers}")
    return scheme


def _rotary(layer: EmbeddingLayer, _: Asked) -> Any:
    frequencies = next(iter(_scheme(layer, Rotary).frequencies.values()))  # of the first kind of attention layer
    return plot.rotary(np.outer(np.arange(2 * SEEN), frequencies))


OF_ONE_TOKEN = ("rows", "sum", "patching")
OF_ONE_HEAD = ("attention",)
OF_BLOCKS = (*OF_ONE_HEAD, "terms", "patching")  # of a whole model, not of its input layer
# kind -> its function, from a layer or a whole model and the choices, and its line in the help
PICTURES: dict[str, tuple[Callable[[Any, Asked], Any], str]] = {
    "rows": (_rows, "Some rows of the position table, over a token's row"),
    "similarity": (
        lambda layer, _: plot.similarity_matrix(cosine_similarity(position_table(layer))),
        "The similarity of each two positions",
    ),
    "table": (lambda layer, _: plot.table_image(position_table(layer)), "The whole position table"),
    "sum": (_sum, "The steps from one token to its vector"),
    "attention": (_attention, "The attention weights of each token: all heads, or one"),
    "terms": (_terms, "The terms of block 0's scores: word, position, rest, by head"),
    "patching": (_patching, "A prediction's change by each state of the text in the other"),
    "relative-bias": (
        lambda layer, _: plot.relative_bias(_scheme(layer, RelativeBias).relative_bias(SEEN, SEEN)),
        "The bias of each head by distance, as in T5",
    ),
    "rotary": (_rotary, "The angle of each pair of dimensions by position, as in Llama"),
}
