# %% [markdown]
# # Lab 1: the input layer
#
# Text becomes ids, ids become rows, three rows are added, and LayerNorm gives the sum mean 0 and variance 1. In each
# cell `...` marks a missing answer. Write it and run the cell: `check` tries your function on random inputs, and then
# on this model's inputs. It prints whether the answer is right, or names its mistake. Use only the arguments: the
# random inputs have other sizes. Grade 1 is one short expression, grade 2 needs one more step, grade 3 is a small
# program.

# %%
import numpy as np
from lab import check, study

import minibert

model = study.load("bert")
layer = minibert.load(model.source)
batch = layer.tokenize("The bank of the river was muddy.")
ids, trace = batch["input_ids"][0], layer.trace(**batch)
words, positions, types = (layer[f"embeddings.{name}_embeddings"].weight for name in ("word", "position", "token_type"))
norm = layer["embeddings.LayerNorm"]
print(layer.tokens(ids))
print("words", words.shape, "positions", positions.shape, "types", types.shape)

# %% [markdown]
# ## Exercise 1 (grade 1): look words up
#
# A word row is a row of the table `words`. Return the rows of all `ids`.

# %%


def word_rows(words: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return words[ids]  # blank: NumPy selects many rows at once, by an array of their numbers


check(word_rows, (words, ids), trace["embeddings.word_embeddings"][0])

# %% [markdown]
# ## Exercise 2 (grade 1): positions
#
# The first token gets row 0 of `positions`, the next token row 1, and so on.

# %%


def position_rows(positions: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return positions[: len(ids)]  # blank: the first rows, as many as there are ids


check(position_rows, (positions, ids), trace["embeddings.position_embeddings"][0])

# %% [markdown]
# ## Exercise 3 (grade 1): the sum
#
# A single text has token type 0 everywhere.

# %%


def total(word_rows: np.ndarray, position_rows: np.ndarray, types: np.ndarray) -> np.ndarray:
    return word_rows + position_rows + types[0]  # blank: add three things; all tokens get the same type row


rows = [trace[f"embeddings.{name}_embeddings"][0] for name in ("word", "position")]
check(total, (*rows, types), trace["sum"][0])

# %% [markdown]
# ## Exercise 4 (grade 2): mean 0 and variance 1
#
#     n = (x - mean) / sqrt(variance + eps)
#
# Compute mean and variance for each row by itself. Keep the axis, or the shapes will not fit.

# %%


def even(x: np.ndarray, eps: float) -> np.ndarray:
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps)  # blank: eps belongs under the root


check(even)

# %% [markdown]
# ## Exercise 5 (grade 2): what training added
#
# LayerNorm has learned a factor and a term for each of the dimensions: `weight` and `bias`.

# %%


def output(even: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return even * weight + bias  # blank: first the factor, then the term


check(output)

# %% [markdown]
# ## Exercise 6 (grade 2): neighbours
#
# The cosine of two rows is their product, divided by both lengths.

# %%


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))  # blank: a @ b is the product


check(cosine, then=lambda: print("positions 10 and 11:", cosine(positions[10], positions[11])))

# %% [markdown]
# ## Exercise 7 (grade 3): the whole layer
#
# Put it together: the ids of one text in, rows out. `norm` has `weight`, `bias` and `eps`.

# %%


def input_layer(
    ids: np.ndarray, words: np.ndarray, positions: np.ndarray, types: np.ndarray, norm: object
) -> np.ndarray:
    # blank: exercises 1 to 5, one after the other
    rows = words[ids] + positions[: len(ids)] + types[0]
    centred = rows - rows.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(rows.var(axis=-1, keepdims=True) + norm.eps) * norm.weight + norm.bias
    # end


check(input_layer, (ids, words, positions, types, norm), layer(ids))

# %% [markdown]
# ## Exercise 8 (grade 3): the way back
#
# You get the rows of the sum of an unknown text, at places 0, 1, 2, .... Find the ids: subtract the known rows, and
# look for the nearest word row.

# %%


def ids_of(sums: np.ndarray, words: np.ndarray, positions: np.ndarray, types: np.ndarray) -> list[int]:
    # blank: subtract positions and type 0; then the smallest distance to a row of words, token by token
    rows = sums - positions[: len(sums)] - types[0]
    return [int(((words - row) ** 2).sum(axis=-1).argmin()) for row in rows]
    # end


check(ids_of, (trace["sum"][0], words, positions, types), ids.tolist())
