# %% [markdown]
# # GPT-2's positions
#
# GPT-2 does what BERT does, with less: a word row plus a position row, and that is its whole input layer. There are
# no token types, and its LayerNorm comes later, inside the first block. It has 1024 positions where BERT has 512.
#
# With a folder or a Hub name of a GPT-2 (`--model gpt2`) this file looks at trained tables. Without one it makes an
# untrained GPT-2 of the same size and says so: its tables are noise, which shows by contrast what training does.

# %%
import numpy as np
import study

from minibert.equations.input_layer import default_position_ids, gpt2_input
from minibert.show import analysis, plot

# %% [markdown]
# ## Step 1: the model and its numbers

# %%
layer, trained = study.load("gpt2")
config = layer.config
assert layer.family.model_type == config.model_type == "gpt2"

# %% [markdown]
# ## Step 2: the text becomes ids, and ids become tokens again
#
# GPT-2 cuts text into pieces of bytes. A piece that begins with a space is another token than the same piece without
# one; the tokenizer writes that space as `Ġ`. There is no `[CLS]` and no `[SEP]`: every row belongs to the text.
#
# The ids below are those of GPT-2's own tokenizer, so that the untrained model, which has none, can use them too.

# %%
text = "let's tokenize something?"
encoding = np.array([[1616, 338, 11241, 1096, 1223, 30]])
tokens = ["let", "'s", "Ġtoken", "ize", "Ġsomething", "?"]
if trained and config.vocab_size == 50257:
    assert layer.tokenize(text)["input_ids"].tolist() == encoding.tolist()
    assert layer.tokens(encoding[0]) == tokens
elif trained:
    encoding = layer.tokenize(text)["input_ids"]
    tokens = layer.tokens(encoding[0])
print(list(zip(tokens, encoding[0].tolist(), strict=True)))

# %% [markdown]
# ## Step 3: the two tables
#
# `wpe` holds one row for each position, `wte` one for each token.

# %%
print(layer.wpe)
print(layer.wte)
assert layer.wpe.weight.shape[1] == layer.wte.weight.shape[1], "rows of unequal length could not be added"

# %% [markdown]
# ## Step 4: how long a row is, how many positions there are
#
# GPT-2's own `config.json` calls these `n_embd` and `n_positions`; both names work.

# %%
print("hidden_size            ", config.hidden_size)
print("max_position_embeddings", config.max_position_embeddings)
assert config.hidden_size == config.n_embd and config.max_position_embeddings == config.n_positions
assert layer.wpe.weight.shape == (config.max_position_embeddings, config.hidden_size)
if not trained or layer.wte.weight.shape == (50257, 768):
    assert (config.hidden_size, config.max_position_embeddings) == (768, 1024)

# %% [markdown]
# ## Step 5: words become rows
#
#     y[i] = wte[ids[i]]

# %%
seq_embedding = layer.wte(encoding)
print(seq_embedding.shape, "(batch, seq, dim)")
assert np.array_equal(seq_embedding, layer.wte.weight[encoding])

# %% [markdown]
# ## Step 6: the position ids
#
#     p = 0, 1, ..., seq - 1
#
# One row of ids with an axis of length 1 in front, so that it serves every text of a batch.

# %%
positions = default_position_ids(encoding.shape[-1])
print(positions)
assert np.array_equal(positions, np.arange(encoding.shape[-1]).reshape(1, -1))

# %% [markdown]
# ## Step 7: positions become rows
#
# The result has three axes: (1, seq, dim).

# %%
pos_embedding_seq = layer.wpe(positions)
print(pos_embedding_seq.shape)
assert pos_embedding_seq.shape == (1, encoding.shape[-1], config.hidden_size)

# %% [markdown]
# ## Step 8: the sum, which is the whole layer
#
#     x[i] = wte[ids[i]] + wpe[i]
#
# Nothing comes after it: the two sides below agree to the last bit.

# %%
x = seq_embedding + pos_embedding_seq
print(x.shape)
assert np.array_equal(x, layer(encoding))
assert np.array_equal(x, gpt2_input(encoding, layer.wte.weight, layer.wpe.weight))

# %% [markdown]
# ## Step 9: all positions at once
#
# The same lookup with every position there is gives back the table itself, (positions, dim).

# %%
positions = default_position_ids(config.max_position_embeddings)
pos_embedding = layer.wpe(positions)[0]
print(pos_embedding.shape)
assert np.array_equal(pos_embedding, layer.wpe.weight)

# %% [markdown]
# ## Step 10: which positions resemble each other
#
#     c[p, q] = row_p . row_q / (|row_p| |row_q|)
#
# In a trained GPT-2 neighbours are almost the same row: a broad bright band lies along the diagonal and fades with
# the distance. In an untrained one every row is alike to itself alone, because random rows of 768 numbers stand
# nearly at right angles to each other: their cosine scatters around 0 by `1 / sqrt(768) = 0.036`. Whatever pattern
# a trained table shows has come from text.

# %%
similarity = analysis.cosine_similarity(pos_embedding)
ax = plot.similarity_matrix(similarity)
ax.set_title(f"position rows of {'a trained' if trained else 'an untrained'} GPT-2", loc="left")
study.show(ax, "similarity")
assert similarity.shape == (config.max_position_embeddings,) * 2
neighbours, others = np.diag(similarity, 1), similarity[np.triu_indices(len(similarity), 1)]
print(f"neighbours: {neighbours.mean():+.3f}; all pairs: {others.mean():+.3f}, scattered by {others.std():.3f}")
if trained:
    assert neighbours.mean() > np.diag(similarity, 100).mean()
else:
    assert abs(neighbours.mean()) < 0.01
    assert abs(others.std() - config.hidden_size**-0.5) < 0.001
