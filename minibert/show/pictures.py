"""The pictures that `minibert plot` draws, by name, and the arrays of a model that each picture shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.similarity import cosine_similarity
from minibert.errors import Option, error_of
from minibert.families.parts.attention_schemes import AttentionPosition, RelativeBias, Rotary
from minibert.families.parts.plan import layer_plan
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

LENGTH = 64  # tokens of a text that the pictures of attention's positions show


class Picture(NamedTuple):
    """One picture: what draws it from a model, a text and its choices; its line in the help; the choices it takes."""

    draw: Callable[..., Any]
    about: str
    choices: tuple[str, ...] = ()
    needs_blocks: bool = False


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
    pairs                         of a whole model and two texts: what each pair of tokens adds to their similarity
    terms                         of a whole model: the share of each of the nine terms in block 0's scores, by head

    `token` chooses another token for rows and sum, counted from 0 as `explain` does; default: the text's first, after
    the special tokens. For patching it chooses the predicting token: see `patching_map`. `model` is the name above the
    picture; default: the family's.

    Raises ValueError for an unknown kind, for a choice that the kind does not take, for a kind that the layer has no
    numbers for, for a missing text; IndexError for a token, block or head that is not there.
    """
    if kind not in PICTURES:
        raise ValueError(f"kind must be one of {', '.join(PICTURES)}; found {kind!r}")
    drawing = PICTURES[kind]
    choices = {"token": token, "block": block, "head": head, "other": other}
    for name in choices:
        if choices[name] is not None and name not in drawing.choices:
            able = " or ".join(kind_name for kind_name, row in PICTURES.items() if name in row.choices)
            advice = f"; leave it out, or draw {able}"
            raise error_of(ValueError, f"the picture {kind!r} has no use for ", Option(name), advice)
    if drawing.needs_blocks and isinstance(layer, EmbeddingLayer):
        raise ValueError(f"the picture {kind!r} needs blocks; pass a whole model, minibert.load_encoder(...)")
    axes = drawing.draw(layer, text, **{name: choices[name] for name in drawing.choices})
    layer = layer if isinstance(layer, EmbeddingLayer) else layer.embeddings
    figure: Figure = (axes[0] if isinstance(axes, list) else axes).figure
    family = layer.family.model_type
    title = f"{model} ({family})" if model and model != family else family
    figure.suptitle(title, x=0.01, ha="left", fontsize="small", color="0.35", parse_math=False)
    return figure


# -- of an input layer -------------------------------------------------------------------------------------------


def position_table(layer: EmbeddingLayer) -> Array:
    """Return the rows that are added at positions 0, 1, 2, ... Raises ValueError if the layer adds none."""
    for step, module in layer.steps:
        if isinstance(step, Positions):
            rows: Array = module.weight[step.extra + step.first(layer.config) :]
            return rows
    raise ValueError(f"{layer.family.model_type} adds no positions in its input layer, so it has no table of them")


def _needed(text: str | None, kind: str) -> str:
    if text is None:
        raise error_of(ValueError, f"the picture {kind!r} is about a text; give one as ", Option("text"))
    return text


def _tokenized(layer: EmbeddingLayer, text: str, token: int | None) -> tuple[dict[str, Any], list[str], int]:
    """Return the batch of one text, its tokens, and the position of `token`; None: the first after special tokens."""
    batch = layer.tokenize(text)
    (ids,) = batch["input_ids"]
    if token is None:
        token = first_of_text(layer, ids)
        if token is None:
            raise ValueError("the text has no tokens beside the special ones; give another one")
    if not 0 <= token < len(ids):
        raise IndexError(f"token is {token}, but the text has the tokens 0..{len(ids) - 1}; `explain` lists them")
    return batch, layer.tokens(ids), token


def _rows(layer: EmbeddingLayer, text: str | None, token: int | None) -> Any:
    table = position_table(layer)
    if text is None:
        if token is not None:
            raise error_of(ValueError, "a token needs a text; give one as ", Option("text"))
        return plot.position_rows(table)
    batch, tokens, first = _tokenized(layer, text, token)
    word = layer.steps[0].module(batch["input_ids"][0, first])
    if word.shape != table.shape[1:]:
        raise ValueError(f"word rows are {word.shape}, position rows {table.shape[1:]}: no common axis; give no text")
    return plot.position_rows(table, word, token=tokens[first])


def _sum(layer: EmbeddingLayer, text: str | None, token: int | None) -> Any:
    batch, tokens, first = _tokenized(layer, _needed(text, "sum"), token)
    trace = layer.trace(**batch)
    plan = layer_plan(layer.steps, layer.config)
    addends = {name_of(key): trace[key][0, first] for key in addend_keys(plan) if key in trace}
    norm = next((step.key for step in plan.values() if step.kind == "norm"), None)
    ax = plot.sum_steps(addends, None if norm is None else trace[norm][0, first])
    ax.set_title(f"token {tokens[first]!r} at position {first}", loc="left", parse_math=False)
    return ax


def _scheme(layer: EmbeddingLayer, wanted: type[Scheme]) -> Scheme:
    scheme = layer.attention_position
    if not isinstance(scheme, wanted):
        offers = "no positions" if scheme is None else scheme.offers
        raise ValueError(f"{layer.family.model_type} has {offers} in attention; this picture is of {wanted.offers}")
    return scheme


def _rotary(layer: EmbeddingLayer, _: str | None) -> Any:
    frequencies = next(iter(_scheme(layer, Rotary).frequencies.values()))  # the first kind of attention layer
    return plot.rotary(np.outer(np.arange(2 * LENGTH), frequencies))


# -- of a whole model --------------------------------------------------------------------------------------------


def _batch(encoder: Encoder, text: str | None, kind: str) -> dict[str, Any]:
    batch: dict[str, Any] = encoder.tokenize(_needed(text, kind))
    if not batch["input_ids"].size:
        raise ValueError("the text has no tokens; give another one")
    return batch


def _terms(encoder: Encoder, text: str | None) -> Any:
    terms = terms_of(encoder, _batch(encoder, text, "terms"))
    if terms.shape[-1] == 1:
        raise ValueError("one token has no scores to compare; give a longer text")
    ax = plot.term_shares(shares_of(encoder, terms), PARTS)
    ax.set_title("block 0: query with key", loc="left")
    return ax


def _attention(encoder: Encoder, text: str | None, block: int | None, head: int | None) -> Any:
    batch = _batch(encoder, text, "attention")
    blocks, heads = len(encoder.stack.blocks), encoder.stack.heads
    if not blocks:
        raise ValueError("a static model has no blocks, and so no attention; name a whole model")
    for name, number, count in (("block", block, blocks), ("head", head, heads)):
        if number is not None and not 0 <= number < count:
            raise IndexError(f"{name} is {number}, but this model has {name}s 0..{count - 1}; choose one of them")
    trace = encoder.trace(**batch)
    if block is head is None:
        return plot.attention_heads(np.stack([trace[f"attentions.{i}"][0] for i in range(blocks)]))
    block, head = block or 0, head or 0
    tokens = encoder.embeddings.tokenizer.tokens(batch["input_ids"][0])
    ax = plot.attention_grid(trace[f"attentions.{block}"][0, head], [token or "?" for token in tokens])
    ax.set_title(f"block {block}, head {head}", loc="left")
    return ax


def _two_texts(text: str | None, other: str | None, kind: str) -> tuple[str, str]:
    if other is None:
        raise error_of(ValueError, f"the picture {kind!r} compares two texts; give the second as ", Option("other"))
    return _needed(text, kind), other


def _pairs(encoder: Encoder, text: str | None, other: str | None) -> Any:
    tokens, others, pairs = encoder.similarity_pairs(*_two_texts(text, other, "pairs"))
    measure = encoder.sentence_config.measure
    ax = plot.token_pairs(pairs, tokens, others, of=measure)
    ax.figure.supxlabel(f"{measure} {pairs.sum():.4f}, the sum over all pairs", fontsize="small")
    return ax


def _patching(encoder: Encoder, text: str | None, token: int | None, other: str | None) -> Any:
    patched = patching_map(encoder, *_two_texts(text, other, "patching"), token)
    pairs = zip(*(encoder.embeddings.tokenizer.tokens(ids) for ids in patched.ids), strict=True)
    ax = plot.patching_grid(patched.shares, [one if one == two else f"{one} | {two}" for one, two in pairs])
    chances = f"probability {np.exp(patched.clean):.3g}, in the other text {np.exp(patched.corrupted):.3g}"
    title = f"{token_name(encoder, patched.label)!r} at token {patched.token}: {chances}"
    ax.set_title(title, loc="left", parse_math=False)
    return ax


PICTURES = {
    "rows": Picture(_rows, "Some rows of the position table, over a token's row", ("token",)),
    "similarity": Picture(
        lambda layer, _: plot.similarity_matrix(cosine_similarity(position_table(layer))),
        "The similarity of each two positions",
    ),
    "table": Picture(lambda layer, _: plot.table_image(position_table(layer)), "The whole position table"),
    "sum": Picture(_sum, "The steps from one token to its vector", ("token",)),
    "attention": Picture(
        _attention, "The attention weights of each token: all heads, or one", ("block", "head"), needs_blocks=True
    ),
    "terms": Picture(_terms, "The terms of block 0's scores: word, position, rest, by head", needs_blocks=True),
    "patching": Picture(
        _patching, "Which hidden states carry a prediction into another text", ("token", "other"), needs_blocks=True
    ),
    "pairs": Picture(_pairs, "What each pair of tokens adds to the similarity of two texts", ("other",), True),
    "relative-bias": Picture(
        lambda layer, _: plot.relative_bias(_scheme(layer, RelativeBias).relative_bias(LENGTH, LENGTH)),
        "The bias of each head by distance, as in T5",
    ),
    "rotary": Picture(_rotary, "The angle of each pair of dimensions by position, as in Llama"),
}
