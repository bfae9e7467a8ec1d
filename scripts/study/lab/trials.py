"""The exercises of the lab as trials: random inputs from a seed, their right values, and values of known mistakes.

The mistakes of a model's step come from the list `minibert.verify.mistakes`, made in a random model. The mistakes of
other exercises are here, in `more`, or in `trials_by_hand.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from drawn_models import EPS, Way, drawn
from judge import Trial
from study import plain_block
from trials_by_hand import BY_HAND

from minibert.equations.activations import erf, gelu, gelu_tanh
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import layer_norm

WORDS, POSITIONS, TYPES = (f"embeddings.{name}_embeddings" for name in ("word", "position", "token_type"))
NORM, SELF, OUTPUT = "embeddings.LayerNorm", "encoder.layer.0.attention.self", "encoder.layer.0.attention.output"
HEAD = "cls.predictions"
RENAMED = {  # mistakes of the list in the terms of the exercises: name, why
    "gamma and beta exchanged": ("weight and bias exchanged", "The weight multiplies, the bias is added."),
    "eps 1e-12": ("eps missing, or 1e-12", "The given eps is added to the variance."),
}
More = Sequence[tuple[str, str, Any]]  # mistakes that no step of a model makes: name, why, value


class Norm(NamedTuple):
    """A norm's weight, bias and eps."""

    weight: np.ndarray
    bias: np.ndarray
    eps: float


def by_plan(
    way: Way, arguments: tuple[Any, ...], key: str, of: Sequence[str] = (),
    part: Callable[[np.ndarray], np.ndarray] = lambda x: x, more: Callable[[], More] = lambda: (), **options: Any,
) -> list[Trial]:  # fmt: skip
    """Make one trial of the intermediate `key`, or a part of it, computed from `of`, with the mistakes of the list."""

    def wrong() -> Iterator[tuple[str, str, Any]]:
        for name, why, x in way.wrong(key, of):
            # an exercise is given its eps, so an eps that a port writes down has no name here
            if x.shape == way[key].shape and ", with eps " not in name:
                yield *RENAMED.get(name, (name, why)), part(x)
        yield from more()

    return [Trial(arguments, part(way[key]), wrong, **options)]


# -- notebook 1 --------------------------------------------------------------------------------------------------


def tables(way: Way) -> tuple[np.ndarray, ...]:
    return tuple(way.encoder.embeddings[path].weight for path in (WORDS, POSITIONS, TYPES))


def word_rows(seed: int) -> list[Trial]:
    way = drawn("bert", seed)
    return by_plan(way, (tables(way)[0], way.ids), WORDS)


BY_IDS = ("positions[ids], rows of the ids", "Positions are counted from 0, whatever the ids are.")


def position_rows(seed: int) -> list[Trial]:
    way = drawn("bert", seed)
    return by_plan(way, (tables(way)[1], way.ids), POSITIONS, more=lambda: [(*BY_IDS, tables(way)[1][way.ids])])


def total(seed: int) -> list[Trial]:
    way = drawn("bert", seed)
    return by_plan(way, (way[WORDS], way[POSITIONS], tables(way)[2]), "sum", more=lambda: [
        ("both type rows added", "A single text has type 0 everywhere.", way["sum"] + tables(way)[2][1]),
    ])  # fmt: skip


WITHOUT_EPS = ("variance divided by dim - 1, eps missing", "x.var rightly divides by dim; then add eps to it.")


def even(seed: int) -> list[Trial]:
    way = drawn("bert", seed, plain_norms=True)
    x = way["sum"]
    return by_plan(way, (x, EPS), NORM, ["sum"], more=lambda: [
        (*WITHOUT_EPS, (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True, ddof=1)),
        ("norm over the axis before the last", "Each row is normalised by itself, over the last axis.",
         (x - x.mean(0)) / np.sqrt(x.var(0) + EPS)),
        ("norm over all numbers", "Compute mean and variance for each row by itself: axis=-1.",
         (x - x.mean()) / np.sqrt(x.var() + EPS)),
        ("the mean alone is divided", "x - mean needs brackets.",
         x - x.mean(-1, keepdims=True) / np.sqrt(x.var(-1, keepdims=True) + EPS)),
        ("eps added to the result", "eps belongs under the root, added to the variance.",
         (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) + EPS),
        ("divided by the variance, not by its root", "The root makes the variance 1.",
         (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + EPS)),
    ])  # fmt: skip


def output(seed: int) -> list[Trial]:
    way = drawn("bert", seed)
    norm = way.encoder.embeddings[NORM]
    x = way["sum"]
    row = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPS)
    return by_plan(way, (row, norm.weight, norm.bias), NORM, ["sum"], more=lambda: [
        ("bias added before the weight", "The bias comes after the weight.", (row + norm.bias) * norm.weight),
    ])  # fmt: skip


def input_layer(seed: int) -> list[Trial]:
    way = drawn("bert", seed)
    norm = way.encoder.embeddings[NORM]
    x = way["sum"] + tables(way)[1][way.ids] - way[POSITIONS]
    return by_plan(way, (way.ids, *tables(way), Norm(norm.weight, norm.bias, norm.eps)), NORM, more=lambda: [
        (*BY_IDS, layer_norm(x, norm.weight, norm.bias, norm.eps)),
        (*WITHOUT_EPS, layer_norm(way["sum"], norm.weight, 0, 0) * (1 - 1 / x.shape[-1]) ** 0.5 + norm.bias),
    ])  # fmt: skip


# -- notebook 2 --------------------------------------------------------------------------------------------------


def first_head(x: np.ndarray) -> np.ndarray:
    return x[0]


def scores(seed: int) -> list[Trial]:
    way = drawn("bert", seed)
    q, k = way[".0.q"][0], way[".0.k"][0]
    given = [f"{SELF}.query", f"{SELF}.key"]
    return by_plan(way, (q, k), f"{SELF}.scores", given, first_head, more=lambda: [
        ("division by head_dim", "Scores are divided by its root.", q @ k.T / q.shape[-1]),
        ("division by sqrt(seq)", "The products have head_dim terms.", q @ k.T / np.sqrt(len(q))),
        ("times sqrt(head_dim)", "Scores are divided by it.", q @ k.T * np.sqrt(q.shape[-1])),
        ("weights, not scores", "softmax is the next exercise.", softmax(q @ k.T / np.sqrt(q.shape[-1]))),
    ])  # fmt: skip


def weights(seed: int) -> list[Trial]:
    way = drawn("bert", seed)
    x = way[f"{SELF}.scores"][0]
    return by_plan(way, (x,), "attentions.0", [f"{SELF}.scores"], first_head, more=lambda: [
        ("not divided by the sum of the row", "The weights of a token have the sum 1.", np.exp(x)),
        ("divided by the sums of other rows", "keepdims=True keeps the axis: without it column j is divided by sum j.",
         np.exp(x) / np.exp(x).sum(axis=-1)),
        ("sigmoid for softmax", "Each query's weights sum to 1.", 1 / (1 + np.exp(-x))),
        ("exp forgotten", "Weights are positive, scores need not be.", x / x.sum(axis=-1, keepdims=True)),
        ("softmax over queries and keys", "Each query's weights sum to 1, not all together.",
         np.exp(x) / np.exp(x).sum()),
    ])  # fmt: skip


def context(seed: int) -> list[Trial]:
    way = drawn("bert", seed)
    weights, v = way["attentions.0"][0], way[".0.v"][0]
    return by_plan(way, (weights, v), ".0.gathered", ["attentions.0", ".0.v"], first_head, more=lambda: [
        ("probabilities transposed", "Rows are queries, columns keys.", weights.T @ v),
    ])  # fmt: skip


def parted(seed: int) -> list[Trial]:
    way = drawn("bert", seed)
    query, heads = f"{SELF}.query", way.encoder.stack.heads
    return by_plan(way, (way[query], heads), ".0.q", [query], more=lambda: [
        ("heads interleaved", "A head's numbers stand side by side in a row; the axes are (heads, head_dim).",
         np.stack([way[query][:, i::heads] for i in range(heads)])),
    ])  # fmt: skip


def causal(seed: int) -> list[Trial]:
    way = drawn("gpt2", seed)
    scores = "h.0.attn.scores"
    return by_plan(way, (way[scores][0],), ".0.masked", [scores], first_head, used=softmax, more=lambda: [
        ("earlier tokens hidden", "A token sees itself and earlier tokens.",
         np.where(np.tri(len(way.ids), k=-1, dtype=bool), -1e9, way[scores][0])),
    ])  # fmt: skip


def added(seed: int) -> list[Trial]:
    way = drawn("bert", seed)
    given = ("hidden_states.0", f"{SELF}.context")
    arguments = (*(way[name] for name in given), plain_block(way.encoder.stack.blocks[0]).output)
    return by_plan(way, arguments, f"{OUTPUT}.sum", given)


def attend(seed: int) -> list[Trial]:
    way = drawn("bert", seed)
    given, stack = "hidden_states.0", way.encoder.stack
    return by_plan(
        way, (way[given], plain_block(stack.blocks[0]), stack.heads), f"{OUTPUT}.dense", [given], may=(softmax,),
        more=lambda: [
            ("the output map left out", "The heads' contexts go through one more map.", way[f"{SELF}.context"]),
            ("x added", "The sum comes later; return the result of the output map.", way[f"{OUTPUT}.sum"]),
        ],
    )  # fmt: skip


def whole_model(seed: int) -> list[Trial]:
    way = drawn("bert", seed)
    given, stack = "hidden_states.0", way.encoder.stack
    blocks = [plain_block(block) for block in stack.blocks]
    return by_plan(
        way, (way[given], blocks, stack.heads, EPS), f"hidden_states.{len(blocks)}", [given],
        may=(softmax, gelu, gelu_tanh, erf, layer_norm),
    )  # fmt: skip


# -- notebook 3 --------------------------------------------------------------------------------------------------


def last_state(way: Way) -> str:
    return f"hidden_states.{len(way.encoder.stack.blocks)}"


def logits(seed: int) -> list[Trial]:
    way = drawn("gpt2", seed)
    given, table = last_state(way), way.encoder.embeddings.wte.weight
    return by_plan(way, (way[given], table), "logits", [given], more=lambda: [
        ("probabilities, not logits", "Logits are the plain products.", softmax(way["logits"])),
    ])  # fmt: skip


def lens(seed: int) -> list[Trial]:
    way = drawn("gpt2", seed)
    last = way.encoder.stack.last_norm
    before, norm = way.plan[last].of[0], way.encoder[last]
    arguments = (way[before], Norm(norm.weight, norm.bias, norm.eps), way.encoder.embeddings.wte.weight)
    return by_plan(way, arguments, "logits", [before], may=(layer_norm,))


# -- notebook 4 --------------------------------------------------------------------------------------------------


def masked_word(seed: int) -> list[Trial]:
    way = drawn("bert", seed)
    works, place = dict(way.encoder.head("masked_word").works), seed % len(way.ids)
    dense, norm = works[f"{HEAD}.transform.dense"], works[f"{HEAD}.transform.LayerNorm"]
    last = way.encoder.head("masked_word").last
    arguments = (
        way[last_state(way)], place, dense, Norm(norm.weight, norm.bias, norm.eps), last.weight, last.bias,
    )  # fmt: skip
    return by_plan(
        way, arguments, "logits", [last_state(way)], lambda x: x[place], may=(gelu, gelu_tanh, erf, layer_norm),
        more=lambda: [("another token's logits", "The token at `place` is asked for.", row) for row in way["logits"]],
    )  # fmt: skip


def gpt2_block(seed: int) -> list[Trial]:
    way = drawn("gpt2", seed)
    given, stack = "hidden_states.0", way.encoder.stack
    arguments = (way[given], plain_block(stack.blocks[0]), stack.heads, EPS)
    return by_plan(way, arguments, "hidden_states.1", [given], may=(softmax, gelu, gelu_tanh, erf, layer_norm))


TRIALS: dict[str, Callable[[int], list[Trial]]] = {
    each.__name__: each
    for each in (
        word_rows, position_rows, total, even, output, input_layer,
        scores, weights, context, parted, causal, added, attend, whole_model,
        logits, lens, masked_word, gpt2_block, *BY_HAND,
    )
}  # fmt: skip
