# %% [markdown]
# # BERT's three tables are learned
#
# One often reads that BERT's token types and positions are fixed. They are not. This page shows that no formula made
# them, and which of their rows a text moves in training. `learning.py` explains the gradient first.
#
# * Devlin et al. 2018, *BERT* ([arXiv:1810.04805](https://arxiv.org/abs/1810.04805))

# %%
import numpy as np
import study
from gradients import bert_input_gradient

from minibert.equations.input_layer import sinusoidal_positions

# %% [markdown]
# ## Step 1: a phrase, and the layer's output

# %%
model = study.load("bert")
layer = model.layer
input_ids = layer.tokenize("I am Sinan")["input_ids"]
seq, whole = input_ids.shape[-1], layer(input_ids)
print(list(zip(layer.tokens(input_ids[0]), input_ids[0].tolist(), strict=True)))
assert whole.shape == (1, seq, layer.config.hidden_size)

# %% [markdown]
# ## Step 2: all three tables are learned
#
# Two things show it.
#
# **The reference holds all three tables as parameters**, so training changes them. In transformers: `[name for name,
# _ in BertModel(config).embeddings.named_parameters()]` gives `word_embeddings.weight`, `position_embeddings.weight`,
# `token_type_embeddings.weight` and LayerNorm's two. (This project's tests run that line.) A fixed table would be a
# buffer, as `position_ids` is.
#
# **The stored rows do not follow a formula.** If the positions were sinusoids, row `p` of the file would be the
# sinusoid of `p`, or a multiple of it: a cosine of 1 or -1. In both usual orders of the columns no position has a
# cosine beyond 0.17 or -0.17 in all-MiniLM-L6-v2, and beyond 0.11 or -0.11 in bert-base-uncased. All sinusoids also
# have the same length, `sqrt(dim / 2)`, and these rows have many lengths.

# %%
table = layer.position_embeddings.weight
for layout in ("interleaved", "halves"):
    waves = sinusoidal_positions(*table.shape, layout=layout)
    cosines = np.sum(table * waves, axis=1) / np.linalg.norm(table, axis=1) / np.linalg.norm(waves, axis=1)
    print(f"{model.name}, cosine of each position row and its sinusoid ({layout}): ", end="")
    print(f"from {cosines.min():+.2f} to {cosines.max():+.2f}")
    assert np.abs(cosines).max() < (0.17 if model.is_minilm else 0.11 if model.is_bert_base else 0.25)
    assert np.ptp(np.linalg.norm(waves, axis=1)) < 1e-5
lengths = np.linalg.norm(table, axis=1)
print(f"lengths of the position rows: from {lengths.min():.2f} to {lengths.max():.2f}")
assert lengths.max() > 1.5 * lengths.min()
types = layer.token_type_embeddings.weight
assert np.any(types[0] != types[1]), "and the two types are two rows, not one"

# %% [markdown]
# ## Step 3: how a row moves in training
#
# A gradient says how the loss would change if a number changed a little. A gradient alone does not show that a table is
# learned: a loss changes with fixed sinusoids too. But if a table *is* a parameter, the gradient moves it. On its way
# back through LayerNorm and the sum it reaches every addend unchanged:
#
#     x = word + token_type + position:   dL/d word = dL/d token_type = dL/d position = dL/dx
#
# So through this layer three rows move for each token: the rows of its word, its type and its position. All other rows
# get a gradient of zero; so does the padding row, even if it was looked up.
#
# This is not yet the gradient of a whole model. BERT predicts hidden words with the same word table: it compares its
# last vectors with every row. Through this second use every word row gets a gradient, even the rows of `[PAD]` and of
# words that are not in the text. `learning.py` computes it. (This project's tests show it with the reference's
# `BertForMaskedLM` and `GPT2LMHeadModel`.) Positions and types are used only in this layer.

# %%
tables = [
    layer[f"embeddings.{name}"].weight for name in ("word_embeddings", "token_type_embeddings", "position_embeddings")
]
types, norm = np.zeros_like(input_ids), layer.LayerNorm

loss_gradient = np.random.default_rng(0).standard_normal(whole.shape, np.float32)
gradients = bert_input_gradient(loss_gradient, input_ids, types, *tables, norm.weight, norm.eps, padding_idx=0)
for name in ("word", "token_type", "position"):
    moved = np.flatnonzero(np.any(getattr(gradients, name) != 0, axis=-1))
    print(f"{name:10} rows that this phrase moves through this layer: {moved.tolist()}")
assert set(np.flatnonzero(np.any(gradients.word != 0, axis=-1))) == set(input_ids[0].tolist())
assert np.any(gradients.token_type[0]) and not np.any(gradients.token_type[1])
assert np.all(np.any(gradients.position[:seq] != 0, axis=-1)) and not np.any(gradients.position[seq:])

# %% [markdown]
# ## Exercises
#
# 1. The phrase has the token "i" twice. Which gradient does its word row get?
# 2. Padding is looked up. Which rows does it move through this layer?
