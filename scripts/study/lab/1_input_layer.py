# %% [markdown]
# # Lab 1: the input layer
#
# Text becomes ids, ids become rows, three rows are added, and LayerNorm gives the sum mean 0 and variance 1. In each
# cell an answer is missing, where `...` stands. Write it and run the cell: it says whether it is right. Grade 1 is one
# short expression, grade 2 one thought more, grade 3 a small program.

# %%
import numpy as np
from lab import check, study

import minibert
from minibert.equations.input_layer import layer_norm
from minibert.equations.similarity import cosine_similarity

model = study.load("bert")
layer = minibert.load(model.source)
batch = layer.tokenize("The bank of the river was muddy.")
ids, trace = batch["input_ids"][0], layer.trace(**batch)
words, positions, types = (layer[f"embeddings.{name}_embeddings"].weight for name in ("word", "position", "token_type"))
norm, dim = layer["embeddings.LayerNorm"], layer.dim
print(layer.tokens(ids))
print("words", words.shape, "positions", positions.shape, "types", types.shape)

# %% [markdown]
# ## Exercise 1 (grade 1): look words up
#
# A word row is a row of the table `words`. Take the rows of all `ids`.

# %%
word_rows = words[ids]  # blank: NumPy takes many rows at once, by an array of their numbers
check("word_rows", word_rows, trace["embeddings.word_embeddings"][0])

# %% [markdown]
# ## Exercise 2 (grade 1): positions
#
# The first token gets row 0 of `positions`, the next one row 1, and so on.

# %%
position_rows = positions[: len(ids)]  # blank: as many first rows as there are ids
check("position_rows", position_rows, trace["embeddings.position_embeddings"][0])

# %% [markdown]
# ## Exercise 3 (grade 1): the sum
#
# One text alone has token type 0 everywhere.

# %%
total = word_rows + position_rows + types[0]  # blank: three things are added; of the types it is one row for all
check("total", total, trace["sum"][0])

# %% [markdown]
# ## Exercise 4 (grade 2): mean 0 and variance 1
#
#     n = (x - mean) / sqrt(variance + eps)
#
# Mean and variance are those of each row by itself. `norm.eps` is eps. Keep the axis, or the shapes will not fit.

# %%
mean, variance = total.mean(axis=-1, keepdims=True), total.var(axis=-1, keepdims=True)
even = (total - mean) / np.sqrt(variance + norm.eps)  # blank: eps stands under the root
check("even", even, layer_norm(total, np.ones(dim, np.float32), np.zeros(dim, np.float32), norm.eps))

# %% [markdown]
# ## Exercise 5 (grade 2): what training added
#
# LayerNorm has learned a factor and a term for each of the dimensions: `norm.weight` and `norm.bias`.

# %%
output = even * norm.weight + norm.bias  # blank: first the factor, then the term
check("output", output, layer(ids))

# %% [markdown]
# ## Exercise 6 (grade 2): neighbours
#
# The cosine of two rows is their product, divided by both lengths. Compute it for positions 10 and 11.

# %%
a, b = positions[10], positions[11]
cosine = a @ b / (np.linalg.norm(a) * np.linalg.norm(b))  # blank: a @ b is the product
check("cosine", cosine, cosine_similarity(a[None], b[None])[0, 0])

# %% [markdown]
# ## Exercise 7 (grade 3): the whole layer
#
# Put it together: ids of one text in, rows out. It is tried on random ids.

# %%


def input_layer(ids: np.ndarray) -> np.ndarray:
    # blank: exercises 1 to 5, one after the other
    x = words[ids] + positions[: len(ids)] + types[0]
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + norm.eps) * norm.weight + norm.bias
    # end


chance = np.random.default_rng(0).integers(0, len(words), 20)
check("input_layer", input_layer(chance), layer(chance))

# %% [markdown]
# ## Exercise 8 (grade 3): the way back
#
# Given are rows of the sum, at places 0, 1, 2, ..., of an unknown text. Find the ids: take away what is known, and look
# for the word row that is nearest.

# %%


def ids_of(sums: np.ndarray) -> list[int]:
    # blank: subtract positions and type 0; then the smallest distance to a row of words, token by token
    rows = sums - positions[: len(sums)] - types[0]
    return [int(((words - row) ** 2).sum(axis=-1).argmin()) for row in rows]
    # end


check("ids_of", ids_of(trace["sum"][0]), ids.tolist())
