"""The list of mistakes: each a name, one reason, and the steps that it puts in the place of a bound model's own.

Whole traces, local checks, heads and vectors all try it. A mistake that changes no step of a place is not tried there.
`MISTAKES.md` is made from it.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from minibert.families.parts.bound_blocks import ACTIVATIONS, Dense

from . import wrong_attention as attend
from . import wrong_formulas as wrong
from . import wrong_norms as norms
from . import wrong_steps as make
from .mistake import Mistake, by_part
from .wrong_formulas import LAYER_NORMS, RMS_NORMS, ROUNDINGS
from .wrong_masks import OF_MASKS
from .wrong_rotation import OF_ROTATION
from .wrong_rows import OF_ROWS

HEADS_SPLIT = "Cut rows into (heads, head_dim), then exchange seq and heads."
LETTERS = "Scores are made of queries and keys; the values are gathered."
TAKES = "A head that takes one token of a text takes the first in BERT and its kin, the last in GPT-2."
BIAS = "A linear map adds its bias once, a norm after the weight."
ROUNDED = "The weights are narrower than the model's."
TERM = "It is added to the scores of each pair, scaled."
WITHIN = "The outputs of attention and feed-forward are normed before they are added."
ACTIVATION = "config.json names the activation, or the head fixes it."
EPS_KEYS = ("layer_norm_eps", "rms_norm_eps", "layer_norm_epsilon", "norm_eps")
ACT_KEYS = ("hidden_act", "hidden_activation", "activation_function", "activation", "dense_act_fn")
HEADS_KEYS = ("num_attention_heads",)
EPS = (1e-12, 1e-6, 1e-5, 1e-3)  # of BERT, of Llama, of torch, of Keras
ORDERS = [(1, 0, 2), (0, 2, 1)]
# what a port may have in place of the right activation; a rare one would be no more than a guess
FORMULAS = {ACTIVATIONS[word]: word for word in ("quick_gelu", "silu", "relu", "gelu_new", "gelu")}

# fmt: off
MISTAKES: tuple[Mistake, ...] = (
    # linear maps
    Mistake("bias missing", BIAS, make.dense(lambda own: Dense(own.weight, None, own.transposed), make.biased)),
    Mistake("weight transposed", "GPT-2 stores (in, out), others (out, in); square ones fit both ways.",
            make.dense(lambda own: Dense(own.weight, own.bias, not own.transposed), make.is_square)),
    *(Mistake(f"parameters in {name}", ROUNDED, partial(make.rounded, rounding), on_vectors=True, rounding=name)
      for name, rounding in ROUNDINGS.items()),
    Mistake("weights in int8", ROUNDED, make.dense(partial(make.rounded_weight, rounding=wrong.to_int8)),
            on_vectors=True, rounding="int8"),
    # norms
    *(Mistake(f"eps {eps:g}", "config.json names it: BERT has 1e-12, RoBERTa 1e-5 as torch, Llama and its kin 1e-6.",
              by_part("norm", partial(norms.with_eps, eps)), on_vectors=True, keys=EPS_KEYS) for eps in EPS),
    *(Mistake(name, why, norms.norm(formula, False), on_vectors=True) for name, (formula, why) in LAYER_NORMS.items()),
    *(Mistake(name, why, norms.norm(formula, True)) for name, (formula, why) in RMS_NORMS.items()),
    Mistake("weight without 1 +", "Gemma's RMSNorm multiplies by 1 + weight.",
            by_part("norm", norms.without_plus), on_vectors=True),
    Mistake("weight and bias ignored", "Old files call them gamma and beta, and readers miss them.",
            norms.rebound(lambda own: (np.ones_like(own.weight), None, own.eps), make.biased), on_vectors=True),
    Mistake("gamma and beta exchanged", "gamma is the weight, which multiplies; beta is the bias, which is added.",
            norms.rebound(lambda own: (own.bias, own.weight, own.eps), make.biased), on_vectors=True),
    Mistake("bias missing", BIAS, norms.rebound(lambda own: (own.weight, None, own.eps), make.biased)),
    Mistake("norm not applied", "You left out LayerNorm, or RMSNorm.", by_part("norm", lambda own: np.asarray)),
    # activations
    *(Mistake(f"activation {word}", ACTIVATION, by_part("activation", partial(make.other_than, formula)),
              on_vectors=True, keys=ACT_KEYS) for formula, word in FORMULAS.items()),
    Mistake("activation left out", "An activation stands between the two maps.",
            by_part("activation", lambda own: np.asarray), on_vectors=True),
    # scores
    Mistake("no division by sqrt(head_dim)", "Scores grow with head_dim, and softmax then keeps only the largest.",
            attend.scaled(lambda own: own.scale * math.sqrt(own.head_dim), attend.by_root), on_vectors=True),
    Mistake("division by sqrt(dim)", "Each head's product has head_dim terms, not dim.",
            attend.scaled(lambda own: own.scale / math.sqrt(own.heads),
                          lambda own: attend.by_root(own) and own.heads > 1), on_vectors=True),
    Mistake("scale by head_dim", "This model's config names the scale of the scores.",
            attend.scaled(lambda own: 1 / math.sqrt(own.head_dim),
                          lambda own: own.scale != 1 and not attend.by_root(own)), on_vectors=True),
    Mistake("division by sqrt(head_dim)", "T5's scores are not divided, nor GPT-2's where its config says so.",
            attend.scaled(lambda own: own.head_dim**-0.5, lambda own: own.scale == 1 and own.head_dim > 1),
            on_vectors=True),
    *(Mistake(f"scores of {q} and {k}", LETTERS, partial(attend.looks, {"q": q, "k": k}), "local")
      for q, k in ("kq", "qq")),
    Mistake("k gathered in place of v", LETTERS, partial(attend.looks, {"v": "k"}), "local"),
    *(Mistake(f"q k v in another order: {' '.join('qkv'[i] for i in order)}", "The order is query, key, value.",
              partial(attend.in_order, order), on_vectors=True) for order in ORDERS),
    # terms of the scores
    *(Mistake(f"{name} missing", TERM, partial(attend.term, name, lambda x: x * 0), on_vectors=True)
      for name in ("relative bias", "content to position", "position to content")),
    Mistake("relative bias transposed", "The bias of query i and key j is that of the distance j - i.",
            partial(attend.term, "relative bias", lambda x: np.swapaxes(x, -1, -2)), on_vectors=True),
    Mistake("relative bias of the other direction", "Keys after the query have separate buckets, if they are seen.",
            attend.relative(lambda own: {"bidirectional": not own.scheme.bidirectional}), on_vectors=True),
    Mistake("relative bias to a distance of 64", "config.json says from which distance on all share a bucket: "
            "relative_attention_max_distance.",
            attend.relative(lambda own: {"max_distance": 64} if own.scheme.buckets < 64 != own.scheme.max_distance
                            else {}), on_vectors=True, keys=("relative_attention_max_distance",)),
    Mistake("relative bias in the first block alone", "One table serves all blocks of this model.",
            attend.relative(lambda own: {"table": own.scheme.table * 0} if own.block and not own.first else {}),
            on_vectors=True),
    Mistake("relative bias of the first block", "Each block of this model has its own table.",
            attend.relative(lambda own: {"table": own.first.table} if own.block and own.first else {}),
            on_vectors=True),
    Mistake("distances in the wrong direction", "A row is that of the query's position less the key's, in both terms.",
            attend.distances(lambda own: own._replace(backward=True))),
    Mistake("distances without log buckets", "Far distances share rows, by their logarithm; only near ones have a row "
            "each.", attend.distances(attend.without_buckets)),
    Mistake("terms not counted in the scale", "The factor is 1 / sqrt(s * head_dim), s = 1 + DeBERTa's terms.",
            by_part("scores", attend.scale_of_one_term)),
    *OF_ROTATION,
    # how numbers lie
    Mistake("queries, keys and values side by side for each head", "All queries stand in a row, then all keys, then "
            "all values; GPT-NeoX has them head by head.", attend.cut_by_head, on_vectors=True),
    # heads of attention
    Mistake("twice as many heads", "config.json names the number of heads.", attend.heads(lambda heads: 2 * heads),
            on_vectors=True, keys=HEADS_KEYS),
    Mistake("half as many heads", "config.json names the number of heads.", attend.heads(lambda heads: heads // 2),
            on_vectors=True, keys=HEADS_KEYS),
    Mistake("heads split without transposing", HEADS_SPLIT, attend.split_without_transposing,
            on_vectors=True),
    Mistake("heads joined without transposing", "Exchange heads and seq before rows are made of them again.",
            attend.attention("join", wrong.join_without_transposing, attend.several_heads), on_vectors=True),
    Mistake("norm of queries and keys not applied", "Queries and keys are normed in each head before they are rotated.",
            norms.without_head_norms, on_vectors=True),
    Mistake("key head taken modulo", "Query head h uses key head h // (heads / key_heads), not h % key_heads.",
            by_part("share", lambda own: (lambda x: x[:, np.arange(own.heads) % x.shape[1]])
                    if own.key_heads > 1 else None), on_vectors=True),
    *OF_MASKS,
    # feed-forward, sums, and norms around them
    Mistake("gate and up exchanged", "The activation is of the gate; what `up` gives multiplies it.",
            make.gate_for_up, on_vectors=True),
    Mistake("norm before instead of after", "BERT normalises each sum, GPT-2 the inputs of attention and feed-forward.",
            partial(make.parts, lambda part: part._replace(before=part.after, after="") if part.after else part),
            on_vectors=True),
    Mistake("norm after instead of before", "GPT-2 normalises the inputs of attention and feed-forward, BERT each sum.",
            partial(make.parts, lambda part: part._replace(before="", after=part.before) if part.before else part),
            on_vectors=True),
    Mistake("norm before the sum not applied", WITHIN, partial(make.parts, lambda part: part._replace(within=""))),
    Mistake("last norm not applied", "After the last block comes one more norm, which GPT-2 calls ln_f.",
            norms.without_last_norm, on_vectors=True),
    Mistake("residual from the normed x", "In GPT-2 each part adds to x as it was before the part's norm.",
            make.residual_normed, on_vectors=True),
    Mistake("residual from before the norm", "In BERT the second sum begins with the first norm's output.",
            make.residual_before_norm, on_vectors=True),
    Mistake("feed-forward beside attention", "The feed-forward works on attention's sum, not on the block's input.",
            make.side_by_side, "whole", True),
    Mistake("residual missing", "Each part adds its output to its input, once.",
            by_part("sum", lambda part: lambda x, added: added), on_vectors=True),
    Mistake("last block missing", "Every block of the file is run.", make.without_last_block, on_vectors=True),
    # a model's head
    Mistake("word table where the head has its own", "The head has its own table in this file; only a tied head uses "
            "the word table.", make.by_the_word_table),
    Mistake("pooler forgotten", "The classes are not computed from the hidden state itself: a map and an activation "
            "come before.", make.without_pooler),
    Mistake("first token instead of the last", TAKES, make.takes(("last",), "first")),
    Mistake("first token instead of the mean", "This model's config says that its head takes the mean of all tokens.",
            make.takes(("mean",), "first")),
    Mistake("mean of the tokens instead of one", TAKES, make.takes(("first", "last"), "mean")),
    *OF_ROWS,
)
# fmt: on
