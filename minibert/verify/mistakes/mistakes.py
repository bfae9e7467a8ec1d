"""The list of mistakes: each a name, one reason, and the steps that it puts in the place of a bound model's own.

Whole traces, local checks, heads and vectors all try it. A mistake that changes no step of a place is not tried there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.activations import ACTIVATIONS
from minibert.families.parts.bound_blocks import BoundAttention, BoundFeedForward, Dense
from minibert.families.parts.plan import Step
from minibert.models.encoder import Encoder
from minibert.models.input_layer import EmbeddingLayer

from . import wrong_attention as attend
from . import wrong_formulas as wrong
from . import wrong_norms as norms
from . import wrong_steps as make
from .mistake import At, Mistake, by_part, on
from .wrong_attention import SCALE
from .wrong_formulas import LAYER_NORMS, RMS_NORMS, ROUNDINGS
from .wrong_masks import OF_MASKS, window_of
from .wrong_rotation import FLOATS, OF_ROTATION
from .wrong_rows import OF_ROWS

GATED = "The activation is of the gate; what `up` gives multiplies it."
HEADS_SPLIT = "Cut rows into (heads, head_dim), then exchange seq and heads."
LETTERS = "Scores are of queries and keys; what is gathered are the values."
LAST = "After the last block comes one more norm, once."
ADDED = "Each part adds what it makes to what entered it, once."
CONVOLVED = "After block 0 comes a convolution of what entered it, which is added, and a norm."
TAKES = "A head that takes one token of a text takes the first in BERT and its kin, the last in GPT-2."
BIAS = "A linear map adds its bias once, a norm after the weight."
WEIGHED = "A norm's weight multiplies what is normed already."
ALONE = "Queries, keys and values are cut into heads in one way."
NEAR_TOKEN = "Each token has keys and values of its own."
MOVED = "The activation stands between the two maps."
ROUNDED = "The weights are narrower than the model's."
# of 0 and BERT's 1e-12 no row of numbers shows which
EPS = {0.0: "0 or far too small"} | {eps: f"{eps:g}" for eps in (1e-8, 1e-7, 1e-6, 1e-5, 1e-3, 1e-2)}
ORDERS = [order for order in permutations(range(3)) if order != (0, 1, 2)]
ENDS = ("of the other end", "zeros", "repeated")  # what stands where no token is left
RARE = ("relu2", "leaky_relu")
# what a port may have in place of the right activation; a rare one would be no more than a guess
FORMULAS = {
    ACTIVATIONS[word][0]: word
    for word in ("tanh", "mish", "quick_gelu", "silu", "relu", "gelu_new", "gelu", "sigmoid", *RARE)
}

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
    Mistake("map left out", "Each map has a weight, also where its output is as wide as its input.",
            by_part("dense", lambda own: np.asarray if make.is_square(own) else None)),
    *(Mistake(f"weight in {name}", ROUNDED, make.dense(partial(make.rounded_weight, rounding=rounding)),
              on_vectors=name not in FLOATS, rounding=name if name in FLOATS else "int8")
      for name, rounding in ROUNDINGS.items()),
    *(Mistake(f"parameters in {name}", ROUNDED, make.rounded(ROUNDINGS[name]), on_vectors=True, rounding=name)
      for name in FLOATS),
    *(Mistake(f"parameters and rotary frequencies in {name}", ROUNDED, make.with_frequencies(ROUNDINGS[name]),
              on_vectors=True, rounding=name) for name in FLOATS),
    # norms
    *(Mistake(f"eps {word}", "config.json names it: BERT has 1e-12, RoBERTa 1e-5 as torch, Llama and its kin 1e-6.",
              partial(norms.other_eps, eps), on_vectors=True) for eps, word in EPS.items()),
    *(Mistake(name, why, norms.norm(formula, False)) for name, (formula, why) in LAYER_NORMS.items()),
    *(Mistake(name, why, norms.norm(formula, True)) for name, (formula, why) in RMS_NORMS.items()),
    Mistake("weight without 1 +", "Gemma's RMSNorm multiplies by 1 + weight.",
            by_part("norm", lambda own: norms.plain(own) if getattr(own, "plus", 0) else None)),
    Mistake("1 + weight twice", "Gemma's RMSNorm multiplies by 1 + weight.", by_part("norm", norms.once_more)),
    Mistake("1 + weight for weight", "Only Gemma's files hold the weight less 1.",
            by_part("norm", lambda own: norms.plain(own) if getattr(own, "plus", 1) == 0 else None)),
    Mistake("1 + weight for weight", "Only Gemma's files hold the weight less 1.",
            norms.rebound(lambda own: (own.weight + 1, own.bias, own.eps), lambda own: not hasattr(own, "plus"))),
    Mistake("weight before the norm", WEIGHED, norms.weight_first(plus=True)),
    Mistake("weight before the norm, without 1 +", WEIGHED, norms.weight_first(plus=False)),
    Mistake("weight ignored", "Each number of a row is multiplied by its weight.",
            norms.norm_of_one(lambda own: not make.biased(own))),
    Mistake("weight ignored", "Each number of a row is multiplied by its weight.",
            norms.rebound(lambda own: (np.ones_like(own.weight), own.bias, own.eps), make.biased)),
    Mistake("weight and bias ignored", "Old files call them gamma and beta, and readers miss them.",
            norms.norm_of_one(make.biased)),
    Mistake("bias missing", BIAS, norms.rebound(lambda own: (own.weight, None, own.eps), make.biased)),
    Mistake("bias added before the weight", BIAS,
            norms.rebound(lambda own: (own.weight, own.weight * own.bias, own.eps), make.biased)),
    Mistake("norm applied twice", "What a norm gives is not normed again.", by_part("norm", norms.twice)),
    Mistake("norm not applied", "This norm is there.", by_part("norm", lambda own: np.asarray)),
    # activations
    *(Mistake(f"activation {word}", "This activation is what config.json names, or one that the head fixes.",
              by_part("activation", partial(make.other_than, formula)), on_vectors=word not in RARE)
      for formula, word in FORMULAS.items()),
    Mistake("gelu without the root of 2", "gelu is x * (1 + erf(x / sqrt(2))) / 2.",
            by_part("activation", make.gelu_without_root)),
    Mistake("activation left out", "An activation stands between the two maps.",
            by_part("activation", lambda own: np.asarray), on_vectors=True),
    *(Mistake("activation after the second map", MOVED, make.activated_after(left_out, in_sum), "rest")
      for left_out in (True, False) for in_sum in (True, False)),
    *(Mistake("bias added after the activation", "The activation is of the product with its bias.",
              make.bias_after_activation(later), "rest") for later in (False, True)),
    Mistake("activation applied twice", "What an activation gives goes on.", by_part("activation", norms.twice)),
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
    Mistake("division by sqrt(dim / heads)", "This model's config says how wide a head is.", attend.by_share_of_width),
    Mistake("scale applied twice", SCALE,
            attend.scaled(lambda own: own.scale**2, lambda own: own.scale != 1 and not attend.by_root(own))),
    Mistake("scores divided by the number of the block", SCALE, attend.divided_by_place, "rest"),
    Mistake("keys reshaped in place of transposed", "Exchange the last two axes of the keys.",
            on("scores", attend.keys_reshaped)),
    Mistake("terms not counted in the scale", "The factor is 1 / sqrt(s * head_dim), s = 1 + DeBERTa's terms.",
            by_part("scores", attend.scale_of_one_term)),
    *(Mistake(f"scores of {q} and {k}", LETTERS, attend.looks(q=q, k=k), "local")
      for q, k in ("kq", "qq", "kk", "qv", "vk", "vq", "kv")),
    *(Mistake(f"q k v in another order: {' '.join('qkv'[i] for i in order)}", "The order is query, key, value.",
              attend.in_order(order), "whole") for order in ORDERS),
    *OF_ROTATION,
    # how numbers lie
    Mistake("queries, keys and values side by side for each head", "All queries stand in a row, then all keys, then "
            "all values; GPT-NeoX has them head by head.", attend.cut_by(attend.by_head)),
    Mistake("queries, keys and values interleaved", "All queries stand in a row, then all keys, then all values.",
            attend.cut_by(attend.by_turns)),
    Mistake("gate and up interleaved", "Of the map that gives both the first half is one, the second the other.",
            on("cut", attend.gate_and_up_by_turns)),
    *(Mistake(f"bias of {what} missing", BIAS, attend.third_without_bias(what[0]))
      for what in ("queries", "keys", "values")),
    # heads of attention
    Mistake("norm of queries and keys not applied", "Queries and keys are normed in each head before they are rotated.",
            norms.without_head_norms),
    Mistake("heads split without transposing", HEADS_SPLIT, attend.split(wrong.split_without_transposing)),
    Mistake("heads interleaved", "A head's numbers stand side by side in a row; the axes are (heads, head_dim).",
            attend.split(wrong.split_interleaved)),
    *(Mistake("heads in reverse", "Head 0 has the first numbers of a row.", made)
      for made in (attend.split(wrong.split_in_reverse), attend.joined(wrong.in_reverse))),
    *(Mistake(f"{what} alone {how}", ALONE, attend.split(formula, what[0]), "rest")
      for what in ("queries", "keys", "values")
      for how, formula in (("split without transposing", wrong.split_without_transposing),
                           ("interleaved", wrong.split_interleaved))),
    *(Mistake(f"{what} of the token {'before' if by > 0 else 'after'}", NEAR_TOKEN,
              attend.of_near_token(kind, what[0], by, ends), "rest")
      for what in ("keys", "values") for kind in ("split", "rotation") for by in (1, -1) for ends in ENDS),
    *(Mistake("values normed too", "Queries and keys are normed in each head, values are not.",
              attend.values_normed(plain)) for plain in (False, True)),
    Mistake("heads joined without transposing", "Exchange heads and seq before rows are made of them again.",
            attend.attention("join", wrong.join_without_transposing, attend.several_heads)),
    Mistake("heads joined interleaved", HEADS_SPLIT,
            attend.attention("join", wrong.join_interleaved, attend.several_heads)),
    *(Mistake(f"the {word} head lost", "Each head gathers numbers of its own.",
              attend.joined(partial(wrong.without_head, which))) for word, which in (("first", 0), ("last", -1))),
    Mistake("all queries on one key head", "Keys and values have several heads.",
            attend.one_key_head),
    Mistake("queries and keys normed over all heads", "They are normed in each head by itself.",
            norms.norm_over_heads),
    Mistake("key head taken modulo", "Query head h uses key head h // (heads / key_heads), not h % key_heads.",
            by_part("share", lambda own: (lambda x: x[:, np.arange(own.heads) % x.shape[1]])
                     if own.key_heads > 1 else None)),
    Mistake("key heads in reverse", "Query head h uses key head h // (heads / key_heads), from the first one on.",
            by_part("share", lambda own: (lambda x: np.repeat(x[:, ::-1], own.heads // x.shape[1], axis=1))
                    if own.key_heads > 1 else None)),
    *OF_MASKS,
    # what is gathered
    Mistake("probabilities transposed", "Rows are queries, columns keys.",
            attend.attention("gather", lambda weights, v: np.matmul(weights.swapaxes(-1, -2), v))),
    *(Mistake(f"{letter} gathered in place of v", LETTERS, attend.looks(v=letter), "local") for letter in "qk"),
    # feed-forward, sums, and norms around them
    Mistake("gate and up exchanged", GATED, make.gate_for_up),
    Mistake("1 added to up", GATED,
            on("product", lambda step: step._replace(formula=lambda gate, up: gate * (up + 1)))),
    Mistake("gate and up added", GATED, on("product", lambda step: step._replace(formula=np.add))),
    Mistake("activation of gate times up", GATED, make.activated_product),
    Mistake("norm before instead of after", "BERT normalises each sum, GPT-2 what enters attention and feed-forward.",
            make.parts(lambda part: part._replace(before=part.after, after="") if part.after else part)),
    Mistake("norm after instead of before", "GPT-2 normalises what enters attention and feed-forward, BERT each sum.",
            make.parts(lambda part: part._replace(before="", after=part.before) if part.before else part)),
    *(Mistake("norm of the sum, not before it", "What attention and feed-forward give is normed before it is added.",
              make.parts(partial(make.normed_sum, kind)), "whole")
      for kind in (object, BoundAttention, BoundFeedForward)),
    Mistake("norm before the sum not applied", "What attention and feed-forward give is normed before it is added.",
            make.parts(lambda part: part._replace(within=""))),
    Mistake("last norm not applied", "After the last block comes one more norm, which GPT-2 calls ln_f.",
            norms.without_last_norm, on_vectors=True),
    Mistake("last norm applied twice", LAST, norms.last_norm_twice),
    Mistake("last norm applied twice", LAST, norms.state_normed_again),
    *(Mistake("last norm applied to each block", LAST, norms.last_norm_of_each_block(*which))
      for which in ((False,), (True,), (True, True))),
    *(Mistake("norm where this block has none", "ModernBERT's block 0 has no norm before attention: the input layer "
              "has one.", norms.norm_where_there_is_none(plain)) for plain in (True, False)),
    Mistake("residual from the normed x", "In GPT-2 x itself is not normalised between blocks, only what is added.",
            make.residual_normed),
    Mistake("residual from before the norm", "In BERT the second sum begins with the first norm's output.",
            make.residual_before_norm),
    Mistake("norm before the sum", "BERT normalises each sum, not what is added to it.", make.normed_before_sum,
            "rest"),
    Mistake("residual of what enters the block", "The second sum begins with what the first one gives.",
            make.residual_of_block, "rest"),
    *(Mistake("feed-forward beside attention", "The feed-forward works on what attention's sum gives, not on what "
              "enters the block.", make.side_by_side(one_norm), "whole") for one_norm in (False, True)),
    Mistake("norms of each block exchanged", "One norm is attention's, the other the feed-forward's.",
            norms.norms_exchanged, "whole"),
    Mistake("norms as in Llama", "Of the four norms of a block two stand before the sums.", make.norms_of_llama,
            "whole"),
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
    Mistake("last norm not applied before the head", "Where a norm comes after the last block, a head is computed from "
            "what it gives.", make.of_un_normed),
    *(Mistake("logits shifted by a token", "Logits stand at the token from which they are computed; the shift is the "
              "loss's.", make.logits(partial(make.shifted, by, ends), whole))
      for by in (1, -1) for ends in ENDS for whole in (True, False)),
    *(Mistake(name, "Logits are products of rows and weights, as config.json says without a factor.",
              make.logits(partial(make.by_root_of_width, power), whole))
      for name, power in (("logits divided by sqrt(dim)", -1), ("logits times sqrt(dim)", 1))
      for whole in (True, False)),
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
        other = window_of(window)
        found.append(Mistake(f"window that reaches {window} tokens", "Each block has its own window.", other, "local"))
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
