"""The list of mistakes: each a name, one reason, and the steps that it puts in the place of a bound model's own.

Whole traces, local checks, heads and vectors all try it. A mistake that changes no step of a place is not tried there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations

import numpy as np

from minibert.equations.blocks import additive_mask
from minibert.equations.input_layer import Array
from minibert.equations.rotary import rotate
from minibert.families.parts.activations import ACTIVATIONS
from minibert.families.parts.bound_blocks import BoundAttention, Dense
from minibert.families.parts.plan import Step
from minibert.models.encoder import Encoder
from minibert.models.input_layer import EmbeddingLayer

from . import wrong_attention as attend
from . import wrong_formulas as wrong
from . import wrong_steps as make
from .mistake import At, Mistake, by_part, on
from .wrong_formulas import LAYER_NORMS, RMS_NORMS, ROUNDINGS
from .wrong_rows import OF_ROWS

HEADS_SPLIT = "Cut rows into (heads, head_dim), then exchange seq and heads."
ONE_SUM = "Each query's probabilities sum to 1: softmax is over the keys, the last axis."
LETTERS = "Scores are of queries and keys; what is gathered are the values."
SCALE = "Scores are divided by sqrt(head_dim), or by what config.json says, no more and no less."
WINDOW = "A causal window of w tokens counts the token itself; ModernBERT's has w // 2 tokens on each side."
MASK = "A mask that is added is 0 for kept tokens, the most negative number for others."
SEES = "A token of a causal model sees itself and those before it."
ADDED = "Each part adds what it makes to what entered it, once."
CONVOLVED = "After block 0 comes a convolution of what entered it, which is added, and a norm."
TAKES = "A head that takes one token of a text takes the first in BERT and its kin, the last in GPT-2."
BIAS = "A linear map adds its bias once, a norm after the weight."
ROUNDED = "The weights are narrower than the model's."
ROTATED = "In each block queries and keys, and nothing else, are rotated by their token's position."
PADDING_SEEN = "padding seen"
EPS = (0.0, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3)
FLOATS = ("float16", "bfloat16")
THETAS = (1e4, 1.6e5, 5e5, 1e6)
ORDERS = [order for order in permutations(range(3)) if order != (0, 1, 2)]
# what a port may have in place of the right activation; a rare one would be no more than a guess
FORMULAS = {ACTIVATIONS[word][0]: word for word in ("tanh", "mish", "quick_gelu", "silu", "relu", "gelu_new", "gelu")}

# fmt: off
MISTAKES: tuple[Mistake, ...] = (
    # linear maps
    Mistake("bias missing", BIAS, make.biases(lambda bias: None)),
    Mistake("bias added twice", BIAS, make.biases(lambda bias: bias * 2)),
    Mistake("bias subtracted", BIAS, make.biases(np.negative)),
    Mistake("weight transposed", "GPT-2 stores (in, out), others (out, in); square ones fit both ways.",
            make.dense(lambda own: Dense(own.weight, own.bias, not own.transposed), make.is_square)),
    Mistake("weight transposed, bias missing", "GPT-2 stores (in, out), others (out, in); square ones fit both ways.",
            make.dense(lambda own: Dense(own.weight, None, not own.transposed), make.is_square_and_biased)),
    *(Mistake(f"weight in {name}", ROUNDED, make.dense(partial(make.rounded_weight, rounding=rounding)),
              on_vectors=name not in FLOATS, rounding=name if name in FLOATS else "int8")
      for name, rounding in ROUNDINGS.items()),
    *(Mistake(f"parameters in {name}", ROUNDED, make.rounded(ROUNDINGS[name]), on_vectors=True, rounding=name)
      for name in FLOATS),
    *(Mistake(f"parameters and rotary frequencies in {name}", ROUNDED, make.with_frequencies(ROUNDINGS[name]),
              on_vectors=True, rounding=name) for name in FLOATS),
    # norms
    *(Mistake(f"eps {eps:g}", "config.json names it: BERT has 1e-12, RoBERTa 1e-5 as torch, Llama and its kin 1e-6.",
              partial(make.other_eps, eps), on_vectors=True) for eps in EPS),
    *(Mistake(name, why, make.norm(formula, False)) for name, (formula, why) in LAYER_NORMS.items()),
    *(Mistake(name, why, make.norm(formula, True)) for name, (formula, why) in RMS_NORMS.items()),
    Mistake("weight without 1 +", "Gemma's RMSNorm multiplies by 1 + weight.",
            by_part("norm", lambda own: make.plain(own) if getattr(own, "plus", 0) else None)),
    Mistake("1 + weight for weight", "Only Gemma's files hold the weight less 1.",
            by_part("norm", lambda own: make.plain(own) if getattr(own, "plus", 1) == 0 else None)),
    Mistake("weight ignored", "Each number of a row is multiplied by its weight.",
            make.norm_of_one(lambda own: not make.biased(own))),
    Mistake("weight and bias ignored", "Old files call them gamma and beta, and readers miss them.",
            make.norm_of_one(make.biased)),
    Mistake("bias missing", BIAS, make.rebound(lambda own: (own.weight, None, own.eps), make.biased)),
    Mistake("bias added before the weight", BIAS,
            make.rebound(lambda own: (own.weight, own.weight * own.bias, own.eps), make.biased)),
    Mistake("norm not applied", "This norm is there.", by_part("norm", lambda own: np.asarray)),
    # activations
    *(Mistake(f"activation {word}", "This activation is what config.json names, or one that the head fixes.",
              by_part("activation", partial(make.other_than, formula)), on_vectors=True)
      for formula, word in FORMULAS.items()),
    Mistake("activation left out", "An activation stands between the two maps.",
            by_part("activation", lambda own: np.asarray), on_vectors=True),
    # scores
    Mistake("no division by sqrt(head_dim)", "Scores grow with head_dim, and softmax then keeps only the largest.",
            attend.scaled(lambda own: own.scale * math.sqrt(own.head_dim), attend.by_root)),
    Mistake("division by sqrt(dim)", "Each head's product has head_dim terms, not dim.",
            attend.scaled(lambda own: own.scale / math.sqrt(own.heads),
                          lambda own: attend.by_root(own) and own.heads > 1)),
    Mistake("scale by head_dim", "This model's config has a number of its own for the scale of the scores.",
            attend.scaled(lambda own: 1 / math.sqrt(own.head_dim),
                          lambda own: own.scale != 1 and not attend.by_root(own))),
    Mistake("division by sqrt(head_dim)", "T5's scores are not divided, nor GPT-2's where its config says so.",
            attend.scaled(lambda own: own.head_dim**-0.5, lambda own: own.scale == 1 and own.head_dim > 1)),
    Mistake("division by head_dim", SCALE, attend.scaled(lambda own: 1 / own.head_dim)),
    Mistake("division by the fourth root of head_dim", SCALE, attend.scaled(lambda own: own.head_dim**-0.25)),
    Mistake("division by sqrt(dim of the keys)", SCALE,
            attend.scaled(lambda own: (own.head_dim * own.key_heads) ** -0.5, lambda own: own.key_heads < own.heads)),
    Mistake("terms not counted in the scale", "The factor is 1 / sqrt(s * head_dim), s = 1 + DeBERTa's terms.",
            by_part("scores", attend.scale_of_one_term)),
    *(Mistake(f"scores of {q} and {k}", LETTERS, attend.looks(q=q, k=k), "local")
      for q, k in ("kq", "qq", "kk", "qv", "vk", "vq", "kv")),
    *(Mistake(f"q k v in another order: {' '.join('qkv'[i] for i in order)}", "The order is query, key, value.",
              attend.in_order(order), "whole") for order in ORDERS),
    # positions
    Mistake("neighbours rotated instead of halves", "A rotation is of pairs (x[i], x[i + n]), not (x[2i], x[2i + 1]).",
            attend.rotation(attend.neighbours)),
    Mistake("queries and keys not rotated", ROTATED, attend.rotation(lambda rotary, x, cos, sin: x)),
    Mistake("queries not rotated", ROTATED, attend.rotation(lambda rotary, x, cos, sin: x, "q")),
    Mistake("keys not rotated", ROTATED, attend.rotation(lambda rotary, x, cos, sin: x, "k")),
    Mistake("rotated the other way", ROTATED,
            attend.rotation(lambda rotary, x, cos, sin: rotate(x, cos, -sin, rotary.pairing))),
    Mistake("rotation of the other layer type", "Blocks with a window have a rope_theta of their own.",
            attend.other_layer_type),
    Mistake("rotary frequencies not scaled", "config.json names a rule that slows them down for longer texts.",
            attend.unscaled),
    *(Mistake(f"rotary frequencies in {name}", "Angles are computed in float32, whatever the weights are stored in.",
              make.rounded_frequencies(ROUNDINGS[name])) for name in FLOATS),
    *(Mistake(f"theta {theta:g}", "config.json names rope_theta.", attend.rotation(partial(attend.by_theta, theta)))
      for theta in THETAS),
    # heads of attention
    Mistake("norm of queries and keys not applied", "Queries and keys are normed in each head before they are rotated.",
            attend.without_head_norms),
    Mistake("heads split without transposing", HEADS_SPLIT, attend.split(wrong.split_without_transposing)),
    Mistake("heads interleaved", "A head's numbers stand side by side in a row; the axes are (heads, head_dim).",
            attend.split(wrong.split_interleaved)),
    Mistake("heads joined without transposing", "Exchange heads and seq before rows are made of them again.",
            attend.attention("join", wrong.join_without_transposing, attend.several_heads)),
    Mistake("key head taken modulo", "Query head h uses key head h // (heads / key_heads), not h % key_heads.",
            by_part("share", lambda own: (lambda x: x[:, np.arange(own.heads) % x.shape[1]])
                     if own.key_heads > 1 else None)),
    # what a token sees
    Mistake("causal mask one token too far", SEES, attend.causal(True, True, 1)),
    Mistake("causal mask hides the token itself", SEES, attend.causal(True, True, -1)),
    Mistake("causal mask forgotten", "No token of this model sees those after it.", attend.causal(True, False),
            on_vectors=True),
    Mistake("causal mask where there is none", "Every token of this model sees all others.", attend.causal(False, True),
            on_vectors=True),
    Mistake("window one token too wide", WINDOW, attend.window(lambda window: window + 1)),
    Mistake("window one token too narrow", WINDOW, attend.window(lambda window: window - 1)),
    Mistake("window forgotten", "Some blocks of this model see near tokens alone.", attend.window(lambda window: None)),
    Mistake("window twice as wide", WINDOW, attend.window(lambda window: 2 * window)),
    Mistake("window half as wide", WINDOW, attend.window(lambda window: window // 2)),
    Mistake(PADDING_SEEN, "Padding is not seen, by tokens before it or after it.", on("keep", attend.padding_seen)),
    Mistake("mask from the ids", "What is padding is what the attention mask says, not what the ids are.",
            attend.by_ids),
    Mistake("mask ignored", "Padding and what a token does not see get attention weights.",
            attend.masked(attend.no_mask)),
    Mistake("mask added as 0 and 1", MASK, attend.masked(lambda kept, dtype: kept.astype(dtype))),
    Mistake("mask added as 1 and 0", MASK, attend.masked(lambda kept, dtype: (~kept).astype(dtype))),
    Mistake("mask inverted", MASK, attend.masked(lambda kept, dtype: additive_mask(~kept, dtype))),
    Mistake("mask inverted, by -1e4", MASK, attend.masked(lambda kept, dtype: np.asarray(kept * dtype.type(-1e4)))),
    Mistake("mask after softmax", "Hidden scores must not count in the sum by which softmax divides.",
            attend.mask_after_softmax),
    Mistake("mask along the queries", "Keys are hidden, the last axis.",
            attend.masked(lambda kept, dtype: additive_mask(kept.swapaxes(-1, -2), dtype))),
    Mistake("the first text's mask for all", "Each text has padding of its own.",
            attend.masked(lambda kept, dtype: additive_mask(kept[:1], dtype)), "local"),
    # softmax, and what is gathered
    Mistake("softmax over the queries", ONE_SUM, attend.attention("softmax", partial(wrong.softmax_over, -2))),
    Mistake("softmax over the heads", ONE_SUM,
            attend.attention("softmax", partial(wrong.softmax_over, -3), attend.several_heads)),
    Mistake("softmax over queries and keys", ONE_SUM, attend.attention("softmax", wrong.softmax_over_both)),
    Mistake("sigmoid for softmax", ONE_SUM, attend.attention("softmax", wrong.sigmoid)),
    Mistake("scores scaled after they are kept", SCALE,
            attend.softmax_scaled(lambda own: own.scale), "local"),
    Mistake("scale taken back after the scores are kept", SCALE,
            attend.softmax_scaled(lambda own: 1 / own.scale), "local"),
    Mistake("probabilities transposed", "Rows are queries, columns keys.",
            attend.attention("gather", lambda weights, v: np.matmul(weights.swapaxes(-1, -2), v))),
    *(Mistake(f"{letter} gathered in place of v", LETTERS, attend.looks(v=letter), "local") for letter in "qk"),
    # feed-forward, sums, and norms around them
    Mistake("gate and up exchanged", "The activation is of the gate; what `up` gives multiplies it.", make.gate_for_up),
    Mistake("norm before instead of after", "BERT normalises each sum, GPT-2 what enters attention and feed-forward.",
            make.parts(lambda part: part._replace(before=part.after, after="") if part.after else part)),
    Mistake("norm after instead of before", "GPT-2 normalises what enters attention and feed-forward, BERT each sum.",
            make.parts(lambda part: part._replace(before="", after=part.before) if part.before else part)),
    Mistake("norm before the sum not applied", "What attention and feed-forward give is normed before it is added.",
            make.parts(lambda part: part._replace(within=""))),
    Mistake("last norm not applied", "After the last block comes one more norm, which GPT-2 calls ln_f.",
            make.without_last_norm, on_vectors=True),
    Mistake("residual from the normed x", "In GPT-2 x itself is not normalised between blocks, only what is added.",
            make.residual_normed),
    Mistake("residual from before the norm", "In BERT the second sum begins with the first norm's output.",
            make.residual_before_norm),
    Mistake("residual missing", ADDED, make.sums(0, 1)),
    Mistake("residual added twice", ADDED, make.sums(2, 1)),
    Mistake("convolution of what leaves the block", CONVOLVED, make.convolution_of_what_leaves),
    Mistake("convolution backwards", "Its weight's first numbers are of the token before, the last of the one after.",
            by_part("windows", make.windows_reversed)),
    Mistake("convolution left out", CONVOLVED, make.without_convolution, on_vectors=True),
    Mistake("nothing added to the residual", ADDED, make.sums(1, 0)),
    Mistake("subtracted from the residual", ADDED, make.sums(1, -1)),
    Mistake("added twice to the residual", ADDED, make.sums(1, 2)),
    # a model's head
    Mistake("word table where the head has its own", "This file holds a table of the head's own; only a tied head uses "
            "the word table.", make.last(make.by_the_word_table)),
    Mistake("word table times its factor", "The factor is of the input layer's rows; logits are products with the rows "
            "as they are stored.", make.last(make.by_scaled_words)),
    Mistake("norm before the activation", "The order in a head is map, activation, norm.", make.works(make.norm_first)),
    Mistake("pooler forgotten", "The classes are not computed from the hidden state itself: a map and an activation "
            "come before.", make.works(make.without_pooler)),
    Mistake("first token instead of the last", TAKES, make.takes(("last",), "first")),
    Mistake("last token instead of the first", TAKES, make.takes(("first",), "last")),
    Mistake("first token instead of the mean", "This model's config says that its head takes the mean of all tokens.",
            make.takes(("mean",), "first")),
    Mistake("logits of the first token instead of the mean", "This model's config says that its head computes logits "
            "of every token, and takes their mean.", make.first_logits),
    Mistake("mean of the tokens instead of one", TAKES, make.takes(("first", "last"), "mean")),
    *OF_ROWS,
)
# fmt: on


def mistakes(model: EmbeddingLayer | Encoder) -> list[Mistake]:
    """The list, with what this model's own terms of the scores and windows can have wrong."""
    found = list(MISTAKES)
    attentions = [block.attention for block in model.stack.blocks] if isinstance(model, Encoder) else []
    for name in dict.fromkeys(term.name for own in attentions for term in own.terms):
        found += [
            Mistake(f"{name} {what}", "It is added to the scores of each pair, scaled.", attend.term(name, change))
            for what, change in TERM.items()
            if change is not before_division or any(own.scale != 1 for own in attentions)
        ]
    for name, why in dict.fromkeys(
        (name, why) for own in attentions for term in own.terms for name, why, _ in term.wrong()
    ):
        found.append(Mistake(name, why, partial(_own_of_term, name)))
    for window in sorted({own.window for own in attentions if own.window is not None}):
        other = attend.window_of(window)
        found.append(Mistake(f"window of {window} tokens", "Each block has its own window.", other, "local"))
    return found


def _own_of_term(name: str, at: At) -> Iterator[Step]:
    for step in at.of("term"):
        yield from (step._replace(formula=other.plain) for own, _, other in step.part.wrong() if own == name)


def before_division(x: Array, own: BoundAttention) -> Array:
    """A term that is divided as the products are; where these are not, it is no mistake."""
    return x * own.scale


TERM: dict[str, Callable[[Array, BoundAttention], Array]] = {
    "missing": lambda x, own: x * 0,
    "transposed": lambda x, own: np.swapaxes(x, -1, -2),
    "added before the division": before_division,
    "of the heads in reverse": lambda x, own: np.flip(x, -3),
}
