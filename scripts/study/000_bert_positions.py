# %% [markdown]
# # BERT's positions
#
# A word row says what a token is. It does not say where the token stands: the same word at the beginning and at the
# end of a sentence takes the same row, and attention, which compares rows, sees no order either. So BERT adds a
# second row to each token, one for each position: row 0 for the first token, row 1 for the second, up to row 511.
# These rows are learned, like the word rows.
#
# This file looks at those rows: how large they are beside a word's, and which of them resemble each other.
#
# * Wang and Chen 2020, *What Do Position Embeddings Learn? An Empirical Study of Pre-Trained Language Model
#   Positional Encoding* ([arXiv:2010.04903](https://arxiv.org/abs/2010.04903)); its two probes stand at the end.

# %%
import numpy as np
import probes
import study

from minibert.show import analysis, plot

# %% [markdown]
# ## Step 1: the model
#
# A layer is its tables, the tokenizer and the numbers of `config.json`, loaded together.

# %%
layer, _ = study.load("bert")
config = layer.config
assert layer.family.model_type == config.model_type == "bert"

# %% [markdown]
# ## Step 2: words become rows
#
# The tokenizer cuts the text into tokens and gives each its number; the table gives one row for each number.
#
#     y[i] = table[ids[i]]
#
# The result has one axis for the texts of the batch, one for the tokens, one for the numbers of a row.

# %%
batch = layer.tokenize("let's tokenize something?")
input_ids = batch["input_ids"]
print(layer.tokens(input_ids[0]))

seq_embedding = layer.word_embeddings(input_ids)
print(seq_embedding.shape, "(batch, seq, dim)")
assert np.array_equal(seq_embedding, layer.word_embeddings.weight[input_ids])
if study.is_bert_base(layer):
    assert input_ids.tolist() == [[101, 2292, 1005, 1055, 19204, 4697, 2242, 1029, 102]]
    assert seq_embedding.shape == (1, 9, 768)

# %% [markdown]
# ## Step 3: the parts of the layer
#
# Three tables and a LayerNorm. A notebook that runs the reference also prints a `Dropout`: it sets random numbers to
# zero while the model is trained and does nothing afterwards, so there is none here.

# %%
print(layer)
assert list(layer.modules) == [
    f"embeddings.{name}" for name in ("word_embeddings", "token_type_embeddings", "position_embeddings", "LayerNorm")
]

# %% [markdown]
# ## Step 4: how long a row is, how many positions there are
#
# All three tables have rows of the same length, or they could not be added. The position table has one row for each
# place a token can have, and no more: BERT cannot read a token at position 512.

# %%
print("hidden_size            ", config.hidden_size)
print("max_position_embeddings", config.max_position_embeddings)
assert layer.position_embeddings.weight.shape == (config.max_position_embeddings, config.hidden_size)
assert layer.max_length == config.max_position_embeddings
if study.is_bert_base(layer):
    assert (config.hidden_size, config.max_position_embeddings) == (768, 512)

# %% [markdown]
# ## Step 5: the positions of our sentence
#
# Positions count the tokens, `p = 0, 1, ..., seq - 1`, whatever the tokens are; so the rows are the first `seq` of the
# table. With an axis of length 1 in front they fit every text of a batch.

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
# Nine rows of the position table, each over the row of the token at place 2. A position's row is shorter than a
# word's, but not lost beside it: the sum is first of all the word, moved a little by its place. Row 0 is an
# exception, so far out that it leaves the picture (its label says how far): only `[CLS]` ever stands there.

# %%
shown = [p for p in (0, 1, 2, 10, 100, 200, 300, 400, 500) if p < config.max_position_embeddings]
token = layer.tokens(input_ids[0])[2]
axes = plot.position_rows(layer.position_embeddings.weight, seq_embedding[0, 2], shown, token=token)
study.show(axes, "rows")
assert len(axes) == len(shown)
for ax, position in zip(axes, shown, strict=True):
    over, row = (line.get_ydata() for line in ax.lines)
    assert np.array_equal(row, layer.position_embeddings.weight[position])
    assert np.array_equal(over, seq_embedding[0, 2])

lengths = np.linalg.norm(layer.position_embeddings.weight, axis=1)
print(f"length of row 0: {lengths[0]:.2f}, of the middle one of all rows: {np.median(lengths):.2f}")
print(f"length of the row of {token!r}: {np.linalg.norm(seq_embedding[0, 2]):.2f}")

# %% [markdown]
# ## Step 8: which positions resemble each other
#
# The cosine of the angle between every two position rows:
#
#     c[p, q] = row_p . row_q / (|row_p| |row_q|)
#
# Bright is alike. The bright diagonal says that neighbours are alike; likeness fades with the distance, in some
# models in waves. Nobody told the model that position 5 stands beside position 6: it has learned it from text.

# %%
similarity = analysis.cosine_similarity(layer.position_embeddings.weight)
study.show(plot.similarity_matrix(similarity), "similarity")
print(similarity.shape)
assert similarity.shape == (config.max_position_embeddings,) * 2
assert np.allclose(np.diag(similarity), 1.0) and np.allclose(similarity, similarity.T)

for distance in (1, 2, 10, 100):
    print(f"positions {distance:3} apart: mean similarity {np.diag(similarity, distance).mean():+.2f}")
assert np.diag(similarity, 1).mean() > np.diag(similarity, 10).mean() > np.diag(similarity, 100).mean()

# %% [markdown]
# ## Beyond the picture: what can be read from a row?
#
# Wang and Chen ask two things of a position table, and answer with the simplest of readers.
#
# **Where am I?** A straight line, `p = w . row + b`, is fitted to four fifths of the rows and read off at the others.
# The mean error, in positions: 0 would be a perfect ruler. Who always answers "the middle" is 128 off among 512.
#
# **Which of us comes first?** Logistic regression on two rows side by side; the share of pairs it gets wrong. A coin
# is wrong about half of them.
#
# BERT's rows answer the second question far better than the first: they hold who stands before whom, not a number.
# Over ten shuffles bert-base-uncased is off by about 35 positions and wrong about 19 % of the pairs; one shuffle, as
# here, scatters by a few positions and a few per cent. `002_sinusoids_t5.py` asks the sinusoids.

# %%
table = layer.position_embeddings.weight
absolute, relative = probes.absolute_position_error(table), probes.relative_position_error(table)
middle = np.abs(np.arange(len(table)) - len(table) // 2).mean()
print(f"absolute: {absolute:.1f} positions off (always the middle: {middle:.0f})")
print(f"relative: wrong about {relative:.0%} of the pairs (a coin: 50 %)")
assert absolute < middle / 2
assert relative < 0.3
if study.is_bert_base(layer):
    assert 30 < absolute < 40
    assert 0.10 < relative < 0.26
