# %% [markdown]
# # Lab 2: attention, and a block
#
# Each token asks (query), each token offers (key), and brings what it has (value). In each cell an answer is missing,
# where `...` stands. Write it and run the cell: it says whether it is right. Grade 1 is one short expression, grade 2
# one thought more, grade 3 a small program.

# %%
import numpy as np
from lab import check, study

import minibert
from minibert.equations.activations import gelu
from minibert.equations.blocks import additive_mask, attention, softmax
from minibert.equations.input_layer import layer_norm
from minibert.show.text.blocks import plain_block

model = study.load("bert")
encoder = minibert.load_encoder(model.source)
batch = encoder.tokenize("The bank of the river was muddy.")
tokens, trace = encoder.tokens(batch["input_ids"][0]), encoder.trace(**batch)
heads, eps = encoder.stack.heads, encoder.config.layer_norm_eps
blocks = [plain_block(block) for block in encoder.stack.blocks]  # its maps are query, key, value, output, up and down
x, block = trace["hidden_states.0"][0], blocks[0]
seq, dim = x.shape
head_dim = dim // heads
part = "encoder.layer.0.attention.self"
queries, keys, values = (trace[f"{part}.{name}"][0] for name in ("query", "key", "value"))
head = 0
own = slice(head * head_dim, (head + 1) * head_dim)  # its columns
q, k, v = queries[:, own], keys[:, own], values[:, own]
print(tokens)
print(f"{seq} tokens of {dim} numbers; {heads} heads, each {head_dim} wide")

# %% [markdown]
# ## Exercise 1 (grade 1): scores
#
#     scores[i, j] = q[i] . k[j] / sqrt(head_dim)

# %%
scores = q @ k.T / np.sqrt(head_dim)  # blank: all products at once are one matrix product; one side is transposed
check("scores", scores, trace[f"{part}.scores"][0, head])

# %% [markdown]
# ## Exercise 2 (grade 1): attention weights
#
# softmax: `exp` of each score, divided by the sum of its row.

# %%
raised = np.exp(scores)
weights = raised / raised.sum(axis=-1, keepdims=True)  # blank: the sum of each row; keepdims=True keeps the axis
check("weights", weights, trace["attentions.0"][0, head])

# %% [markdown]
# ## Exercise 3 (grade 1): the context
#
# For each token the mean of all values, weighted by its row of `weights`.

# %%
context = weights @ v  # blank: one matrix product
check("context", context, trace[f"{part}.context"][0, :, own])

# %% [markdown]
# ## Exercise 4 (grade 2): all heads at once
#
# The heads stand side by side in the columns of `queries`, (seq, dim). Give them an axis of their own: (heads, seq,
# head_dim).

# %%
parted = queries.reshape(seq, heads, head_dim).swapaxes(0, 1)  # blank: reshape first, then swap two axes
check("parted", parted, np.stack([queries[:, i * head_dim : (i + 1) * head_dim] for i in range(heads)]))

# %% [markdown]
# ## Exercise 5 (grade 2): no look ahead
#
# GPT-2 lets no token see those after it. Make these scores such that softmax gives later tokens a weight of 0.

# %%
later = np.triu(np.ones((seq, seq), bool), 1)  # True where the key comes after the query
causal = np.where(later, -1e9, scores)  # blank: np.where chooses; a very small score becomes a weight of 0
wanted = attention(q, k, v, additive_mask(~later))
check("causal", causal, wanted, used=lambda scores: softmax(np.array(scores, np.float32)) @ v)

# %% [markdown]
# ## Exercise 6 (grade 2): back to the tokens
#
# The contexts of all heads, side by side, go through one more map, and are added to what came in. `block.output` has
# `weight` (out, in) and `bias`.

# %%
side_by_side = trace[f"{part}.context"][0]
added = x + side_by_side @ block.output.weight.T + block.output.bias  # blank: x + the map of side_by_side
check("added", added, trace["encoder.layer.0.attention.output.sum"][0])

# %% [markdown]
# ## Exercise 7 (grade 3): attention of any block
#
# From what enters to what the output map gives, for any block. `block.query`, `block.key` and `block.value` are maps as
# `block.output` is. It is tried on the last block.

# %%


def attend(x: np.ndarray, block: object) -> np.ndarray:
    # blank: three maps, parted into heads; scores, softmax, context; heads side by side again; the output map
    q, k, v = (
        (x @ each.weight.T + each.bias).reshape(len(x), heads, head_dim).swapaxes(0, 1)
        for each in (block.query, block.key, block.value)
    )
    context = softmax(q @ k.swapaxes(1, 2) / np.float32(np.sqrt(head_dim))) @ v
    return context.swapaxes(0, 1).reshape(len(x), dim) @ block.output.weight.T + block.output.bias
    # end


last = len(blocks) - 1
wanted = trace[f"encoder.layer.{last}.attention.output.dense"][0]
check("attend", attend(trace[f"hidden_states.{last}"][0], blocks[last]), wanted)

# %% [markdown]
# ## Exercise 8 (grade 3): the whole model
#
#     x = LayerNorm(x + attention(x))        x = LayerNorm(x + down(gelu(up(x))))
#
# `layer_norm(x, *block.norm_1, eps)` and `block.norm_2` are the norms, `block.up` and `block.down` the maps of the
# feed-forward. Take `x` through all blocks.

# %%


def whole_model(x: np.ndarray) -> np.ndarray:
    # blank: a loop over blocks, with attend of exercise 7
    for block in blocks:
        x = layer_norm(x + attend(x, block), *block.norm_1, eps)
        hidden = gelu(x @ block.up.weight.T + block.up.bias)
        x = layer_norm(x + hidden @ block.down.weight.T + block.down.bias, *block.norm_2, eps)
    return x
    # end


check("whole_model", whole_model(x), encoder(**batch)[0])
