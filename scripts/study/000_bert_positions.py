# %% [markdown]
# # BERT's positions
#
# A word row says what a token is. It does not say where the token stands: the same word at the beginning and at the
# end of a sentence has the same row. Attention compares rows, so it sees no order either. BERT therefore adds a
# second row to each token, one for each position: row 0 for the first token, row 1 for the second, up to row 511.
# These rows are learned, like the word rows.
#
# This file looks at the position rows: how large they are beside a word row, and which of them resemble each other. It
# describes two models. **bert-base-uncased** is a model of the BERT paper. **all-MiniLM-L6-v2** is a smaller BERT, half
# as wide; `sh scripts/study/build` shows it unless you name another model. If you name one of the two, the file checks
# each claim about that model. The files recognise a model by its numbers, not by its name. Another page,
# `position_probes.py`, asks how much a small program can read from these rows.

# %%
import numpy as np
import study

from minibert.equations.similarity import cosine_similarity
from minibert.show import plot

# %% [markdown]
# ## Step 1: the model
#
# A layer is its tables, the tokenizer and the numbers of `config.json`, loaded together.

# %%
model = study.load("bert")
layer, config = model.layer, model.layer.config
assert layer.family.model_type == config.model_type == "bert"

# %% [markdown]
# ## Step 2: words become rows
#
# The tokenizer cuts the text into tokens and gives each token its number, the id. The table has one row for each id.
#
#     y[i] = table[ids[i]]
#
# The result has three axes: the texts of the *batch* (the texts of one call), the tokens of a text, the numbers of a
# row.

# %%
batch = layer.tokenize("let's tokenize something?")
input_ids = batch["input_ids"]
print(layer.tokens(input_ids[0]))

seq_embedding = layer.word_embeddings(input_ids)
print(seq_embedding.shape, "(batch, seq, dim)")
assert np.array_equal(seq_embedding, layer.word_embeddings.weight[input_ids])
if model.is_bert_base:
    assert input_ids.tolist() == [[101, 2292, 1005, 1055, 19204, 4697, 2242, 1029, 102]]
    assert seq_embedding.shape == (1, 9, 768)

# %% [markdown]
# ## Step 3: the parts of the layer
#
# Three tables and a LayerNorm. A notebook that runs the reference also prints a `Dropout`. Dropout sets random numbers
# to zero while the model is trained and does nothing later, so minibert has none.

# %%
print(layer)
assert list(layer.modules) == [
    f"embeddings.{name}" for name in ("word_embeddings", "token_type_embeddings", "position_embeddings", "LayerNorm")
]

# %% [markdown]
# ## Step 4: how long a row is, how many positions there are
#
# All three tables have rows of the same length, or they could not be added. The position table has one row for each
# place that a token can have. BERT cannot read a token at position 512: there is no row for it.

# %%
print("hidden_size            ", config.hidden_size)
print("max_position_embeddings", config.max_position_embeddings)
assert layer.position_embeddings.weight.shape == (config.max_position_embeddings, config.hidden_size)
assert layer.max_length == config.max_position_embeddings
if model.is_bert_base:
    assert (config.hidden_size, config.max_position_embeddings) == (768, 512)

# %% [markdown]
# ## Step 5: the positions of our sentence
#
# Positions count the tokens, `p = 0, 1, ..., seq - 1`, whatever the tokens are. So the sentence gets the first `seq`
# rows of the table. An axis of length 1 in front makes them fit every text of a batch.

# %%
seq_len = input_ids.shape[-1]
pos_embedding_seq = layer.position_embeddings.weight[:seq_len]
print(pos_embedding_seq.reshape(1, seq_len, config.hidden_size).shape)
assert np.array_equal(pos_embedding_seq[None], layer.trace(**batch)["embeddings.position_embeddings"])

# %% [markdown]
# ## Step 6: the sum
#
#     x[i] = word[ids[i]] + position[i]
#
# NumPy repeats the position rows for every text. (BERT adds a third row, the token type, and normalises the sum:
# `003_bert_step_by_step.py`.)

# %%
x = seq_embedding + pos_embedding_seq
print(x.shape)
assert np.array_equal(x[0, 2], layer.word_embeddings.weight[input_ids[0, 2]] + layer.position_embeddings.weight[2])

# %% [markdown]
# ## Step 7: position rows over a word's row
#
# The picture shows nine rows of the position table, each over the row of the word "something", with the sum of the two:
# the row that the token would have at that position. Most position rows are shorter than most word rows, but they are
# not lost beside them. A few numbers are so large that they leave the picture; the label then says how far the line
# goes. Row 0 is the longest of all position rows. Only `[CLS]` ever has position 0.
#
# In all-MiniLM-L6-v2 the median length is 0.48 for a position row and 1.11 for a word row, and row 0 has length 2.36.
# In bert-base-uncased row 0 has length 2.02, and the median of the position rows is 0.41.

# %%
shown = [p for p in (0, 1, 2, 10, 100, 200, 300, 400, 500) if p < config.max_position_embeddings]
place = layer.tokens(input_ids[0]).index("something")
token, word = "something", seq_embedding[0, place]
axes = plot.position_rows(layer.position_embeddings.weight, word, shown, token=token, sums=True)
study.show(
    axes, "rows", of=model.name, alt="lines: rows of the position table, each over the row of a word, and the sum"
)
assert len(axes) == len(shown)
for ax, position in zip(axes, shown, strict=True):
    over, row, total = (line.get_ydata() for line in ax.lines)
    assert np.array_equal(row, layer.position_embeddings.weight[position])
    assert np.array_equal(over, word) and np.array_equal(total, word + row)

lengths = np.linalg.norm(layer.position_embeddings.weight, axis=1)
word_lengths = np.linalg.norm(layer.word_embeddings.weight, axis=1)
print(f"length of position row 0: {lengths[0]:.2f}, median of all position rows: {np.median(lengths):.2f}")
print(f"length of the row of {token!r}: {np.linalg.norm(word):.2f}, ", end="")
print(f"median of all word rows: {np.median(word_lengths):.2f}")
assert np.median(lengths) < np.median(word_lengths)
assert lengths.argmax() == 0
if model.is_minilm:
    assert (round(np.median(lengths), 2), round(np.median(word_lengths), 2)) == (0.48, 1.11)
    assert round(lengths[0], 2) == 2.36
if model.is_bert_base:
    assert (round(np.median(lengths), 2), round(lengths[0], 2)) == (0.41, 2.02)

# %% [markdown]
# ## Step 8: which positions resemble each other
#
# The cosine of the angle between every two position rows:
#
#     c[p, q] = row_p . row_q / (|row_p| |row_q|)
#
# Dark orange is similar, violet is opposite. The picture below is of one model; its name stands above it. The two
# models have different pictures:
#
# * Both have a dark orange diagonal: neighbours are far more similar than positions 100 apart. Nobody told the model
#   that position 5 is beside position 6. It learned that from text.
# * **bert-base-uncased** has a border at position 128: two lines cut its picture into four squares. Rows that are 5
#   apart have a mean similarity of 0.61 before the border, of 0.40 after it, and of 0.27 across it. BERT was trained on
#   texts of 128 tokens for nine tenths of all steps (Devlin et al. 2018, appendix A.2), so the rows from 128 on were
#   trained in the last tenth only.
# * In **all-MiniLM-L6-v2** there is no border: the same three numbers are 0.66, 0.66 and 0.70. Row 127 alone is unlike
#   both of its neighbours (0.44 and 0.55); it is the thin line in the picture.
# * Farther is not always less similar. In all-MiniLM-L6-v2 there are waves beside the diagonal: positions 3, 6, 9 and
#   12 apart have a mean similarity of 0.44, 0.69, 0.21 and 0.57. So six apart is nearer than three apart, and nine
#   apart is far. In bert-base-uncased the same four are 0.51, 0.36, 0.17 and 0.12.
# * Row 0 is unlike every other row. Its similarity to row 1 is 0.04 in bert-base-uncased and 0.28 in all-MiniLM-L6-v2,
#   and to no row more than 0.13 and 0.32; neighbours have 0.64 and 0.85 on average.

# %%
table = layer.position_embeddings.weight
similarity = cosine_similarity(table)
study.show(
    plot.similarity_matrix(similarity),
    "similarity",
    of=model.name,
    alt="a square of colours: the cosine of every two position rows, 1 on the diagonal",
)
print(similarity.shape)
assert similarity.shape == (config.max_position_embeddings,) * 2
assert np.allclose(np.diag(similarity), 1.0) and np.allclose(similarity, similarity.T)

means = {distance: np.diag(similarity, distance).mean() for distance in (1, 3, 6, 9, 12, 100)}
for distance, mean in means.items():
    print(f"positions {distance:3} apart: mean similarity {mean:+.2f}")
assert means[1] > 2 * means[100]

first = np.arange(1, len(table) - 5)  # row 0 is left out
five_apart = similarity[first, first + 5]
before, after = five_apart[first + 5 < 128].mean(), five_apart[first >= 128].mean()
across = five_apart[(first < 128) & (first + 5 >= 128)].mean()
print(f"positions 5 apart: {before:.2f} before position 128, {after:.2f} after it, {across:.2f} across")
print(f"rows 0 and 1: {similarity[0, 1]:.2f}; rows 126 and 127: {similarity[126, 127]:.2f}, ", end="")
print(f"127 and 128: {similarity[127, 128]:.2f}")
assert similarity[0, 1] < 0.5 * means[1]
found = [round(float(number), 2) for number in (before, after, across, similarity[0, 1], *means.values())]
if model.is_bert_base:
    assert found == [0.61, 0.40, 0.27, 0.04, 0.64, 0.51, 0.36, 0.17, 0.12, -0.04]
    assert similarity[0, 1:].max() < 0.13
if model.is_minilm:
    assert found == [0.66, 0.66, 0.70, 0.28, 0.85, 0.44, 0.69, 0.21, 0.57, 0.15]
    assert (round(similarity[126, 127], 2), round(similarity[127, 128], 2)) == (0.44, 0.55)
    assert similarity[0, 1:].max() < 0.32
    beside = np.diag(similarity, 1)
    assert np.flatnonzero(np.maximum(beside[:-1], beside[1:]) < 0.6).tolist() == [126], "row 127, and no other"

# %% [markdown]
# ## Exercises
#
# 1. Is row `p + 1` or `p - 1` always the row most similar to row `p`? Count for how many of the 512 positions it is.
# 2. "Dog bites man" and "man bites dog" have the same tokens. Take the mean over the tokens of the word rows, and of
#    the sums `word + position`. Can one of the two means tell the sentences apart?
