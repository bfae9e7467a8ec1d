# %% [markdown]
# # BERT's positions
#
# A word row says what a token is. It does not say where the token stands: the same word at the beginning and at the
# end of a sentence takes the same row. Attention compares rows, so it sees no order either. BERT therefore adds a
# second row to each token, one for each position: row 0 for the first token, row 1 for the second, up to row 511.
# These rows are learned, like the word rows.
#
# This file looks at the position rows: how large they are beside a word's, and which of them resemble each other.
# It speaks of two models. **bert-base-uncased** is the BERT of the paper. **all-MiniLM-L6-v2** is a smaller BERT, half
# as wide; it is what `sh scripts/study/build` shows unless you name another model.
#
# * Wang and Chen 2020, *What Do Position Embeddings Learn? An Empirical Study of Pre-Trained Language Model
#   Positional Encoding* ([arXiv:2010.04903](https://arxiv.org/abs/2010.04903)); its two probes are at the end.

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
# The result has three axes: the texts of the batch, the tokens of a text, the numbers of a row.

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
# Three tables and a LayerNorm. A notebook that runs the reference also prints a `Dropout`. It sets random numbers to
# zero while the model is trained, and does nothing later, so there is none here.

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
# Positions count the tokens, `p = 0, 1, ..., seq - 1`, whatever the tokens are. So the rows are the first `seq` of the
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
# word's, but it is not lost beside it: the sum is mostly the word, moved a little by its place. A few numbers are so
# large that they leave the picture; the label then says how far the line goes. Row 0 is the longest of all position
# rows. Only `[CLS]` ever stands there.
#
# The median length in all-MiniLM-L6-v2 is 0.48 for a position's row and 1.11 for a word's. Row 0 has 2.36 there, and
# 2.02 in bert-base-uncased, where the median of the position rows is 0.41.

# %%
shown = [p for p in (0, 1, 2, 10, 100, 200, 300, 400, 500) if p < config.max_position_embeddings]
token = layer.tokens(input_ids[0])[2]
axes = plot.position_rows(layer.position_embeddings.weight, seq_embedding[0, 2], shown, token=token)
study.show(axes, "rows", of=model.name)
assert len(axes) == len(shown)
for ax, position in zip(axes, shown, strict=True):
    over, row = (line.get_ydata() for line in ax.lines)
    assert np.array_equal(row, layer.position_embeddings.weight[position])
    assert np.array_equal(over, seq_embedding[0, 2])

lengths = np.linalg.norm(layer.position_embeddings.weight, axis=1)
word_lengths = np.linalg.norm(layer.word_embeddings.weight, axis=1)
print(f"length of position row 0: {lengths[0]:.2f}, median of all position rows: {np.median(lengths):.2f}")
print(f"length of the row of {token!r}: {np.linalg.norm(seq_embedding[0, 2]):.2f}, ", end="")
print(f"median of all word rows: {np.median(word_lengths):.2f}")
assert np.median(lengths) < np.median(word_lengths)
assert lengths.argmax() == 0

# %% [markdown]
# ## Step 8: which positions resemble each other
#
# The cosine of the angle between every two position rows:
#
#     c[p, q] = row_p . row_q / (|row_p| |row_q|)
#
# Bright is similar. What the picture shows depends on the model:
#
# * In both models a bright diagonal: neighbours are similar, and the similarity falls with the distance. Nobody told
#   the model that position 5 is beside position 6. It learned that from text.
# * In **bert-base-uncased** a border at position 128: two lines cut the picture into four blocks. Rows that are 5 apart
#   have a mean similarity of 0.61 before the border, of 0.40 after it, and of 0.27 where the border is between them.
#   BERT was trained on texts of 128 tokens for nine tenths of all steps (Devlin et al. 2018, appendix A.2), so the rows
#   from 128 on were trained in the last tenth only.
# * In **all-MiniLM-L6-v2** there are waves beside the diagonal, and no border: the same three numbers are 0.66, 0.66
#   and 0.70. One row, 127, is unlike its neighbours (0.44 and 0.55); it is the thin line in the picture.
# * Row 0 is unlike all others. Its similarity to row 1 is 0.04 in bert-base-uncased and 0.28 in all-MiniLM-L6-v2, where
#   neighbours have 0.64 and 0.85 on average.

# %%
table = layer.position_embeddings.weight
similarity = analysis.cosine_similarity(table)
study.show(plot.similarity_matrix(similarity), "similarity", of=model.name)
print(similarity.shape)
assert similarity.shape == (config.max_position_embeddings,) * 2
assert np.allclose(np.diag(similarity), 1.0) and np.allclose(similarity, similarity.T)

for distance in (1, 2, 10, 100):
    print(f"positions {distance:3} apart: mean similarity {np.diag(similarity, distance).mean():+.2f}")
assert np.diag(similarity, 1).mean() > np.diag(similarity, 10).mean() > np.diag(similarity, 100).mean()

first = np.arange(1, len(table) - 5)  # row 0 is left out
five_apart = similarity[first, first + 5]
before, after = five_apart[first + 5 < 128].mean(), five_apart[first >= 128].mean()
across = five_apart[(first < 128) & (first + 5 >= 128)].mean()
print(f"positions 5 apart: {before:.2f} before position 128, {after:.2f} after it, {across:.2f} across")
print(f"rows 0 and 1: {similarity[0, 1]:.2f}; rows 126 and 127: {similarity[126, 127]:.2f}, ", end="")
print(f"127 and 128: {similarity[127, 128]:.2f}")
assert similarity[0, 1] < 0.5 * np.diag(similarity, 1).mean()
if model.is_bert_base:
    assert across < 0.7 * after < after < before

# %% [markdown]
# ## Beyond the picture: what can be read from a row?
#
# Wang and Chen ask two questions of a position table. For each they train the simplest possible reader: a probe.
#
# **Where am I?** A linear function of a row's numbers, `p = w . row + b`, is fitted to four fifths of the rows and
# gives a position for each of the others. The result is the mean error, in positions. The constant answer 256 is 128
# off.
#
# **Which of us comes first?** Logistic regression on two rows side by side. The result is the share of pairs that it
# gets wrong. A coin is wrong for 50 % of them.
#
# Each run shuffles the rows, so one result is off by chance. Ten shuffles here gave, as mean and range:
#
# | table | absolute: positions off | relative: pairs wrong |
# |---|---|---|
# | bert-base-uncased | 34.2 (32.9 to 35.9) | 18.2 % (14.9 to 21.3) |
# | all-MiniLM-L6-v2 | 58.0 (51.0 to 63.5) | 14.6 % (12.7 to 16.4) |
# | guessing | 128 | 50 % |
#
# So both tables hold something of both, and neither holds either exactly. Beside guessing, bert-base-uncased is left
# with 27 % of the error in the first question and 36 % in the second; all-MiniLM-L6-v2 with 45 % and 29 %. For BERT the
# paper itself reports about 34 positions and about 20 %. `002_sinusoids_t5.py` asks the sinusoids.

# %%
absolute, relative = probes.absolute_position_error(table), probes.relative_position_error(table)
constant = np.abs(np.arange(len(table)) - len(table) // 2).mean()
print(f"{model.name}, one shuffle")
print(f"absolute: {absolute:.1f} positions off (the constant answer: {constant:.0f})")
print(f"relative: wrong for {relative:.1%} of the pairs (a coin: 50 %)")
assert absolute < constant / 2
assert relative < 0.3
if model.is_bert_base:
    assert 30 < absolute < 40
    assert 0.10 < relative < 0.26

# %% [markdown]
# ## Exercises
#
# 1. Is row `p + 1` or `p - 1` always the row most similar to row `p`? Count for how many of the 512 positions it is.
# 2. "Dog bites man" and "man bites dog" have the same tokens. Take the mean over the tokens of the word rows, and of
#    the sums `word + position`. Can one of the two means tell the sentences apart?
# 3. What happens if you read the probe's answer for a table whose rows are shuffled, so that row `p` belongs to another
#    position?

# %% [markdown]
# ## Answers
#
# 1. For nearly all: for 511 of 512 in all-MiniLM-L6-v2 (not for row 0), for 473 in bert-base-uncased, where most of the
#    others are after position 340. Long texts are rare in training, and those rows were used least.

# %%
others = similarity - 2 * np.eye(len(table))  # a row is not its own neighbour
nearest = others.argmax(axis=1)
beside = np.abs(nearest - np.arange(len(table))) == 1
print(f"{model.name}: a neighbour is the most similar row for {beside.sum()} of {len(table)} positions")
assert not beside[0] and beside.mean() > 0.9

# %% [markdown]
# 2. No, neither. A mean does not depend on the order in which it adds. The word rows are the same rows, and the
#    position rows are the same rows too: both means are equal, but for the last bits. Order shows only where a token
#    and its position are used together, as LayerNorm and attention do.

# %%
dog, man = (layer.trace(**layer.tokenize(text)) for text in ("dog bites man", "man bites dog"))
for name in ("embeddings.word_embeddings", "sum"):
    apart = np.abs(dog[name].mean(axis=1) - man[name].mean(axis=1)).max()
    print(f"means of {name}: {apart:.1e} apart")
    assert apart < 1e-6
assert np.abs(dog["sum"] - man["sum"]).max() > 0.01, "token by token they differ"

# %% [markdown]
# 3. It knows nothing any more: it is even further off than the constant answer. So what the probe found before
#    was in the order of the rows, not in the probe itself.

# %%
shuffled = table[np.random.default_rng(1).permutation(len(table))]
lost = probes.absolute_position_error(shuffled)
print(f"absolute, of a shuffled table: {lost:.0f} positions off (the constant answer: {constant:.0f})")
assert lost > 0.9 * constant
