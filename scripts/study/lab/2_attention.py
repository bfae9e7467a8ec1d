# %% [markdown]
# # Lab 2: attention, and a block
#
# Each token asks (query), answers (key), and brings its content (value). In each cell `...` marks a missing answer.
# Write it and run the cell: `check` tries your function on random inputs, and then on this model's inputs. It prints
# whether the answer is right, or names its mistake. Use only the arguments: the random inputs have other sizes. Grade 1
# is one short expression, grade 2 needs one more step, grade 3 is a small program.

# %%
import numpy as np
from lab import check, study

import minibert
from minibert.equations.activations import gelu
from minibert.equations.blocks import Linear, softmax
from minibert.equations.input_layer import layer_norm
from minibert.equations.nine_terms import normed_parts
from minibert.show.attention import terms_of

model = study.load("bert")
encoder = minibert.load_encoder(model.source)
batch = encoder.tokenize("The bank of the river was muddy.")
tokens, trace = encoder.tokens(batch["input_ids"][0]), encoder.trace(**batch)
heads, eps = encoder.stack.heads, encoder.config.layer_norm_eps
blocks = [
    study.plain_block(block) for block in encoder.stack.blocks
]  # its maps are query, key, value, output, up and down
x, block = trace["hidden_states.0"][0], blocks[0]
seq, dim = x.shape
head_dim = dim // heads
part = "encoder.layer.0.attention.self"
queries, keys, values = (trace[f"{part}.{name}"][0] for name in ("query", "key", "value"))
own = slice(0, head_dim)  # the columns of head 0
q, k, v = queries[:, own], keys[:, own], values[:, own]
print(tokens)
print(f"{seq} tokens of {dim} numbers; {heads} heads, each {head_dim} wide")

# %% [markdown]
# ## Exercise 1 (grade 1): scores
#
#     scores[i, j] = q[i] . k[j] / sqrt(head_dim)
#
# `q` and `k` belong to one head, (seq, head_dim).

# %%


def scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    head_dim = q.shape[-1]
    return q @ k.T / np.sqrt(head_dim)  # blank: all products at once are one matrix product, one side transposed


check(scores, (q, k), trace[f"{part}.scores"][0, 0])

# %% [markdown]
# ## Exercise 2 (grade 1): attention weights
#
# Softmax is `exp` of each score, divided by the sum of these over its row.

# %%


def weights(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores)
    return raised / raised.sum(axis=-1, keepdims=True)  # blank: the sum of each row; keepdims=True keeps the axis


check(weights, (trace[f"{part}.scores"][0, 0],), trace["attentions.0"][0, 0])

# %% [markdown]
# ## Exercise 3 (grade 1): the context
#
# Compute for each token the mean of all values, weighted by its row of `weights`.

# %%


def context(weights: np.ndarray, v: np.ndarray) -> np.ndarray:
    return weights @ v  # blank: one matrix product


check(context, (trace["attentions.0"][0, 0], v), trace[f"{part}.context"][0, :, own])

# %% [markdown]
# ## Exercise 4 (grade 2): all heads at once
#
# The heads stand side by side in the columns of `queries`, (seq, dim). Move them to a separate axis: (heads, seq,
# head_dim).

# %%


def parted(queries: np.ndarray, heads: int) -> np.ndarray:
    seq, dim = queries.shape
    return queries.reshape(seq, heads, dim // heads).swapaxes(0, 1)  # blank: reshape first, then swap two axes


check(parted, (queries, heads), np.stack([queries[:, i * head_dim : (i + 1) * head_dim] for i in range(heads)]))

# %% [markdown]
# ## Exercise 5 (grade 2): no look ahead
#
# In GPT-2 no token sees later tokens. Change the scores so that softmax gives later tokens a weight of 0.

# %%


def causal(scores: np.ndarray) -> np.ndarray:
    later = np.triu(np.ones(scores.shape, bool), 1)  # True if the key comes after the query
    return np.where(later, -1e9, scores)  # blank: np.where chooses; a very small score becomes a weight of 0


check(causal)

# %% [markdown]
# ## Exercise 6 (grade 2): back to the tokens
#
# The contexts of all heads, side by side, go through one more map, and are added to the block's input `x`. `output` has
# `weight` (out, in) and `bias`.

# %%


def added(x: np.ndarray, side_by_side: np.ndarray, output: object) -> np.ndarray:
    return x + side_by_side @ output.weight.T + output.bias  # blank: x + the map of side_by_side


check(added, (x, trace[f"{part}.context"][0], block.output), trace["encoder.layer.0.attention.output.sum"][0])

# %% [markdown]
# ## Exercise 7 (grade 3): attention of any block
#
# Compute attention from the input to the result of the output map, for any block. `block.query`, `block.key` and
# `block.value` are maps like `block.output`. You may call `softmax`. `check` tries random blocks, and then the model's
# last block.

# %%


def attend(x: np.ndarray, block: object, heads: int) -> np.ndarray:
    # blank: three maps, split into heads; scores, softmax, context; heads side by side again; the output map
    q, k, v = (
        (x @ each.weight.T + each.bias).reshape(len(x), heads, -1).swapaxes(0, 1)
        for each in (block.query, block.key, block.value)
    )
    context = softmax(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])) @ v
    return context.swapaxes(0, 1).reshape(len(x), -1) @ block.output.weight.T + block.output.bias
    # end


last = len(blocks) - 1
wanted = trace[f"encoder.layer.{last}.attention.output.dense"][0]
check(attend, (trace[f"hidden_states.{last}"][0], blocks[last], heads), wanted)

# %% [markdown]
# ## Exercise 8 (grade 3): the whole model
#
#     x = LayerNorm(x + attention(x))        x = LayerNorm(x + down(gelu(up(x))))
#
# `layer_norm(x, *block.norm_1, eps)` and `block.norm_2` are the norms, `block.up` and `block.down` the maps of the
# feed-forward. Pass `x` through all blocks.

# %%


def whole_model(x: np.ndarray, blocks: list, heads: int, eps: float) -> np.ndarray:
    # blank: a loop over blocks, with attend of exercise 7
    for block in blocks:
        x = layer_norm(x + attend(x, block, heads), *block.norm_1, eps)
        hidden = gelu(x @ block.up.weight.T + block.up.bias)
        x = layer_norm(x + hidden @ block.down.weight.T + block.down.bias, *block.norm_2, eps)
    return x
    # end


check(whole_model, (x, blocks, heads, eps), encoder(**batch)[0])

# %% [markdown]
# ## Exercise 9 (grade 3): nine terms
#
# `parts` has three parts of each token's row after LayerNorm, (3, seq, dim): word, position, and the rest. Their sum
# enters block 0. `query` and `key` are one head's maps, each with `weight` (head_dim, dim) and `bias`; the biases
# belong to the rest. Return the nine terms of each score, (3, 3, seq, seq): the query's part first, then the key's.
# Each is divided by `sqrt(head_dim)`. (`011_nine_terms.py` uses this.)

# %%


def nine_terms(parts: np.ndarray, query: object, key: object) -> np.ndarray:
    # blank: map the parts, add the biases to part 2; then q[:, None] and k[None] pair each part with each
    q, k = (parts @ each.weight.T for each in (query, key))
    q[2] += query.bias
    k[2] += key.bias
    return q[:, None] @ k[None].swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    # end


rows = [trace[f"embeddings.{name}_embeddings"][0] for name in ("word", "position", "token_type")]
norm = encoder["embeddings.LayerNorm"]
parts = normed_parts(np.stack(np.broadcast_arrays(*rows)), norm.weight, norm.bias, norm.eps)
maps = [Linear(each.weight[own], each.bias[own]) for each in (block.query, block.key)]
check(nine_terms, (parts, *maps), terms_of(encoder, batch)[:, :, 0])
