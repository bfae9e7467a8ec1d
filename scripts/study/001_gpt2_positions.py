# %% [markdown]
# # GPT-2's positions
#
# GPT-2 does the same as BERT with less: its whole input layer is a word row plus a position row. It has no table of
# token types, and its LayerNorm comes later, inside the first block. It has 1024 positions where BERT has 512.
#
# Name a GPT-2, by its folder or its name on the Hub, with `--model gpt2` or the variable `MINIBERT_GPT2`. Otherwise
# this file looks at a small GPT-2 that `007_training.py` trained on words: its tokens are letters, and it has 16
# positions.

# %%
import numpy as np
import study

from minibert.equations.input_layer import default_position_ids, gpt2_input
from minibert.equations.similarity import cosine_similarity
from minibert.show import plot

# %% [markdown]
# ## Step 1: the model and its numbers

# %%
model = study.load("gpt2")
layer, config = model.layer, model.layer.config
assert layer.family.model_type == config.model_type == "gpt2"

# %% [markdown]
# ## Step 2: the text becomes ids, and ids become tokens again
#
# GPT-2 cuts a text into pieces of bytes (*BPE*: it begins with single bytes and joins the pair that was learned first,
# again and again). A piece with a space in front is a different token from the same piece without the space; the
# tokenizer writes that space as `Ġ`. There is no `[CLS]` and no `[SEP]`: every row belongs to the text.
#
# The small GPT-2 cuts a word into letters. One token before the word, `<|endoftext|>`, marks its beginning.

# %%
small = study.of_letters(layer)
encoding = layer.tokenize("tokenize" if small else "let's tokenize something?")["input_ids"]
tokens = layer.tokens(encoding[0])
print(list(zip(tokens, encoding[0].tolist(), strict=True)))
if small:
    assert tokens == ["<|endoftext|>", *"tokenize"]
if config.vocab_size == 50257:
    assert encoding.tolist() == [[1616, 338, 11241, 1096, 1223, 30]]
    assert tokens == ["let", "'s", "Ġtoken", "ize", "Ġsomething", "?"]

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
shipped = model.source == str(study.GPT2)
if shipped or layer.wte.weight.shape == (50257, 768):
    assert (config.hidden_size, config.max_position_embeddings) == ((64, 16) if shipped else (768, 1024))

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
# This is one row of ids, with an axis of length 1 in front, so that it serves every text of a batch.

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
# ## Step 8: the sum is the whole layer
#
#     x[i] = wte[ids[i]] + wpe[i]
#
# The two sides below agree to the last bit. (The reference has a `Dropout` after the sum, as BERT has after its
# LayerNorm. It acts in training only.)
#
# There is no table of token types, but the reference accepts `token_type_ids`. It then adds a third row, taken from the
# *word* table: type 0 adds the row of token 0, whatever token that is. So passing types of zero is not the same as
# passing no types.
#
#     x[i] = (wte[ids[i]] + wpe[i]) + wte[types[i]]

# %%
x = seq_embedding + pos_embedding_seq
print(x.shape)
assert np.array_equal(x, layer(encoding))
assert np.array_equal(x, gpt2_input(encoding, layer.wte.weight, layer.wpe.weight))

types = np.zeros_like(encoding)
assert np.array_equal(layer(encoding, token_type_ids=types), x + layer.wte.weight[types])
assert not np.array_equal(layer(encoding, token_type_ids=types), x)

# %% [markdown]
# ## Step 9: all positions at once
#
# The same lookup with every position returns the table itself, (positions, dim).

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
# Before training each row is similar only to itself. Random rows are nearly at right angles to each other: the standard
# deviation of their cosine is `1 / sqrt(dim)`, 0.036 for the 768 numbers of GPT-2's rows and 0.125 for 64. So any
# pattern in a trained table was learned from text. The cell checks one pattern: neighbours are more similar than
# positions far apart (half the table, at most 100).

# %%
similarity = cosine_similarity(pos_embedding)
study.show(
    plot.similarity_matrix(similarity),
    "similarity",
    of=f"position rows of {model.name}",
    alt="a square of colours: the cosine of every two position rows",
)
assert similarity.shape == (config.max_position_embeddings,) * 2
far = min(100, len(similarity) // 2)
neighbours, others = np.diag(similarity, 1), np.diag(similarity, far)
print(f"mean cosine of neighbours: {neighbours.mean():+.3f}; of positions {far} apart: {others.mean():+.3f}")
assert neighbours.mean() > others.mean()

random = np.random.default_rng(0).standard_normal(pos_embedding.shape)
untrained = cosine_similarity(random)[np.triu_indices(len(random), 1)]
print(f"random rows: {untrained.mean():+.3f}, with a standard deviation of {untrained.std():.3f}")
assert abs(untrained.std() - config.hidden_size**-0.5) < 0.02

# %% [markdown]
# ## Exercises
#
# 1. GPT-2 writes a text token by token and keeps what it computed for the earlier tokens. Compute only the last row of
#    step 8, from the last id. Which position must you pass?
# 2. How many percent of the numbers in the two tables are position numbers?
# 3. GPT-2 has no `[PAD]`. When texts of unequal length are computed together, tokens without a meaning often fill up
#    the front of the shorter text. Does its first real token get position 0?
