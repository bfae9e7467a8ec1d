# %% [markdown]
# # Attention, one head by hand
#
# The input layer gives each token a vector that knows no other token. In a block, attention brings the tokens together.
# Each token's *query* is compared with every token's *key*. The comparison yields *attention weights*: positive numbers
# whose sum is 1. The new vector of the token is the mean of all tokens' *values*, with these weights. A block does this
# several times side by side; each time is a head, and all together are *multi-head* attention.
#
# This page computes one head by hand, from the rows that enter to the context that leaves, and compares each step with
# the model. `where_heads_look.py` goes on.
#
# * Vaswani et al. 2017, *Attention Is All You Need* ([arXiv:1706.03762](https://arxiv.org/abs/1706.03762)).

# %%
import numpy as np
import study

import minibert
from minibert.equations.blocks import attention, softmax
from minibert.show import plot

# two right programs differ in the last bits of a matrix product; measured here, with two kernels of BLAS: 8e-6
CLOSE = 2e-5

# %% [markdown]
# ## Step 1: the model, and a sentence on its way through it
#
# BERT is an *encoder*: it reads a whole text and computes a vector for each token, and every token may look at all
# tokens. GPT-2 is a *decoder*: it writes a text token by token, so a token may look only at itself and at earlier
# tokens. T5 has both, an encoder for the text that it reads and a decoder for the text that it writes.
#
# `trace` returns every intermediate by its name. The output of the input layer enters the first block.

# %%
model = study.load("bert")
encoder = minibert.load_encoder(model.source)
batch = encoder.tokenize("The bank of the river was muddy.")
tokens = encoder.tokens(batch["input_ids"][0])
trace = encoder.trace(**batch)
x = trace["hidden_states.0"][0]
heads, seq, dim = encoder.stack.heads, *x.shape
head_dim = dim // heads
print(tokens)
print(f"{seq} rows of {dim} numbers; {len(encoder.stack.blocks)} blocks of {heads} heads, each {head_dim} wide")
assert np.array_equal(x, trace["embeddings.LayerNorm"][0]) and head_dim * heads == dim

# %% [markdown]
# ## Step 2: queries, keys and values of one head
#
#     q = x @ Wq^T + bq      k = x @ Wk^T + bk      v = x @ Wv^T + bv
#
# Each of the three weights holds all heads, one after the other: rows 0 to `head_dim - 1` are head 0. A head has a
# small view of each token: `head_dim` numbers, computed from all `dim`. We take head 5 of block 0: it spreads its
# weights over a few tokens. (In all-MiniLM-L6-v2 head 2 puts all its weight on one token, and most other heads of this
# block spread theirs more evenly than head 5.)

# %%
head = 5
own = slice(head * head_dim, (head + 1) * head_dim)
part = "encoder.layer.0.attention.self"
q, k, v = (
    x @ encoder[f"{part}.{name}"].weight[own].T + encoder[f"{part}.{name}"].bias[own]
    for name in ("query", "key", "value")
)
print(q.shape, "(seq, head_dim)")
assert q.shape == k.shape == v.shape == (seq, head_dim)
for name, rows in (("query", q), ("key", k), ("value", v)):
    assert np.abs(rows - trace[f"{part}.{name}"][0, :, own]).max() < CLOSE

# %% [markdown]
# ## Step 3: scores, one number for each pair of tokens
#
#     scores[i, j] = q[i] . k[j] / sqrt(head_dim)
#
# Row `i` says how well each token fits what token `i` asks for.

# %%
scores = q @ k.T / np.float32(np.sqrt(head_dim))
print(f"scores of {tokens[2]!r}: {scores[2].round(2)}")
assert np.abs(scores - trace[f"{part}.scores"][0, head]).max() < CLOSE

# %% [markdown]
# ## Step 4: softmax, from scores to attention weights
#
#     weights[i, j] = exp(scores[i, j]) / sum over j of exp(scores[i, j])
#
# The weights of a token are positive, and their sum is 1. If one score rises by 1, the *ratio* of its weight to each
# other weight becomes 2.7 times as large, because `exp(s + 1) = 2.7 exp(s)`. The weight itself grows by less, since the
# sum of all weights is still 1: from 0.5 to 0.73, from 0.9 to 0.96.

# %%
weights = np.exp(scores - scores.max(axis=-1, keepdims=True))  # the largest is subtracted so that exp stays finite
weights /= weights.sum(axis=-1, keepdims=True)
for token, row in zip(tokens, weights, strict=True):
    print(f"{token:8} its largest weight: {row.max():.3f} for {tokens[row.argmax()]}")
assert np.abs(weights.sum(axis=-1) - 1).max() < 1e-6
assert np.abs(weights - trace["attentions.0"][0, head]).max() < CLOSE
higher = scores[2].copy()
higher[1] += 1
before, after = weights[2], softmax(higher)
assert np.allclose((after[1] / after) / (before[1] / before), [np.e, 1, *[np.e] * (seq - 2)], rtol=1e-5)
for weight, grown in ((0.5, 0.73), (0.9, 0.96)):
    two = np.log([weight, 1 - weight]) + np.array([1, 0])
    assert round(float(softmax(two)[0]), 2) == grown
if model.is_minilm:
    largest = trace["attentions.0"][0].max(axis=-1).mean(axis=-1)  # (heads,), mean over the rows
    assert largest[2] > 0.99 and np.argsort(largest)[-2] == head
ax = plot.attention_grid(weights, tokens)
ax.set_title(f"block 0, head {head}", loc="left")
study.show(ax, "head", of=model.name, alt="a grid: the attention weights of one head, a row for each query token")

# %% [markdown]
# ## Step 5: the context, a mean of values
#
#     context[i] = sum over j of weights[i, j] * v[j]
#
# Each row is a weighted mean of the values, so none of its numbers is larger than the largest of the values in that
# column. The contexts of all heads, side by side, then go through one more map, which mixes the heads.

# %%
context = weights @ v
assert np.abs(context - trace[f"{part}.context"][0, :, own]).max() < CLOSE
assert np.abs(context - attention(q, k, v)).max() < CLOSE
assert np.all(context <= v.max(axis=0) + CLOSE) and np.all(context >= v.min(axis=0) - CLOSE), "as every mean"
side_by_side = trace[f"{part}.context"][0]
output = encoder["encoder.layer.0.attention.output.dense"]
mixed = side_by_side @ output.weight.T + output.bias
assert np.abs(mixed - trace["encoder.layer.0.attention.output.dense"][0]).max() < CLOSE

# %% [markdown]
# ## Exercises
#
# 1. How many multiplications does one head's `q @ k.T` need for n tokens? What if the text is twice as long?
# 2. If all scores of a token are equal, what is its context?
