# %% [markdown]
# # Sinusoidal positions, and what T5 has instead
#
# A word row does not say where its token stands, so a model needs a second source for the order. BERT and GPT-2
# learn a table of positions. The first Transformer *computed* one, from sines and cosines of falling frequency
# (Vaswani et al. 2017). Such a table needs no training, and it has a row for every position, however far.
#
# T5 is often said to use these sinusoids. It does not: its input layer adds nothing to the words at all, and inside
# attention it adds a *learned bias* that depends on the distance between two tokens. Steps 1 to 3 look at that, the
# others at the sinusoids.
#
# * Wang and Chen 2020, *What Do Position Embeddings Learn? An Empirical Study of Pre-Trained Language Model
#   Positional Encoding* ([arXiv:2010.04903](https://arxiv.org/abs/2010.04903))
# * Vaswani et al. 2017, *Attention Is All You Need* ([arXiv:1706.03762](https://arxiv.org/abs/1706.03762))
# * Raffel et al. 2019, T5 ([arXiv:1910.10683](https://arxiv.org/abs/1910.10683)), section 2.1: the relative bias

# %%
import matplotlib.pyplot as plt
import numpy as np
import probes
import study

from minibert import sinusoidal_positions
from minibert.show import analysis, plot

# %% [markdown]
# ## Step 1: a T5
#
# With `--model t5-small` (or a folder) a trained one, else an untrained one of the same sizes.

# %%
layer, trained = study.load("t5")
config = layer.config
assert layer.family.model_type == config.model_type == "t5"

# %% [markdown]
# ## Step 2: the number 512 that nothing reads
#
# t5-small's `config.json` has `n_positions`: 512. No part of T5 uses it: a T5 has no longest text.

# %%
print("n_positions", config.get("n_positions"))
assert layer.max_length is None
assert len(layer(np.zeros((1, 600), np.int64))[0]) == 600, "600 tokens are more than 512, and no trouble"

# %% [markdown]
# ## Step 3: no positions in the input layer, a bias in attention
#
# The input layer is one table, the words. Two equal tokens so enter the first block as equal rows, wherever they
# stand:
#
#     y[i] = shared[ids[i]]
#
# The order comes in later. Each head adds to the score of a query and a key a number that depends on nothing but how
# far the key stands from the query, and in which direction; distances share 32 learned rows: near ones have a row
# each, farther ones share one in ever wider ranges, and from 91 on all share the last.

# %%
print(layer)
assert list(layer.modules) == ["encoder.embed_tokens"]
ids = np.array([[7, 9, 7]])
assert np.array_equal(layer(ids), layer.shared.weight[ids])
assert np.array_equal(layer(ids)[0, 0], layer(ids)[0, 2]), "the row of id 7 says nothing of its place"

bias = layer.attention_position.relative_bias(160, 160)
print("relative bias", bias.shape, "(heads, query, key)")
study.show(plot.relative_bias(bias), "t5-bias")
assert np.array_equal(bias[:, :-1, :-1], bias[:, 1:, 1:]), "one step further for both changes nothing"
if (config.relative_attention_num_buckets, config.relative_attention_max_distance) == (32, 128):
    assert np.ptp(bias[:, 0, 91:], axis=1).max() == 0.0, "keys 91 and more behind the query share one row"
    assert np.any(bias[:, 0, 90] != bias[:, 0, 91])

# %% [markdown]
# ## Step 4: a generator of sinusoids
#
#     angle(p, i) = p / 10000^(2i / dim)
#     y[p, 2i] = sin(angle(p, i)),   y[p, 2i + 1] = cos(angle(p, i))
#
# This generator is found in many notebooks, line by line the same. It computes in float32: the frequencies through
# `exp` and `log`, and then angles up to 299 radians, whose last digits are lost before the sine is taken.


# %%
def generate_positional_encoding(max_len: int, d_model: int) -> np.ndarray:
    position = np.arange(max_len, dtype=np.float32)[:, None]
    logarithm = np.log(np.float32(10000.0)) / np.float32(d_model)
    div_term = np.exp(np.arange(0, d_model, 2, dtype=np.float32) * -logarithm)
    pos_enc = np.zeros((max_len, d_model), np.float32)
    pos_enc[:, 0::2] = np.sin(position * div_term)
    pos_enc[:, 1::2] = np.cos(position * div_term)
    return pos_enc


print(generate_positional_encoding(2, 4))
assert np.allclose(
    generate_positional_encoding(2, 4), [[0, 1, 0, 1], np.sin([1, 1 + np.pi / 2, 0.01, 0.01 + np.pi / 2])]
)

# %% [markdown]
# ## Step 5: its size, and its error
#
# 300 positions, the longest output that t5-small's config names for translation, of 512 numbers. minibert's
# `sinusoidal_positions` computes the angles in float64 and rounds once, at the end, so every number is the float32
# nearest to the exact one. The generator above is up to 3e-5 off, the more so the further the position.

# %%
tasks = config.get("task_specific_params") or {}
max_len, d_model = tasks.get("translation_en_to_de", {}).get("max_length", 300), config.d_model
sin_pos_encoding = sinusoidal_positions(max_len, d_model)
print(sin_pos_encoding.shape)

angle = np.arange(max_len)[:, None] / 10000.0 ** (np.arange(0, d_model, 2) / d_model)
exact = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(max_len, d_model)
rough = generate_positional_encoding(max_len, d_model)
error, rough_error = np.abs(sin_pos_encoding - exact), np.abs(rough - exact)
print(f"largest error: {error.max():.1e} with float64 angles, {rough_error.max():.1e} with float32 angles")
assert error.max() <= 2**-25, "half of the last digit of a float32 below 1"
if (max_len, d_model) == (300, 512):
    assert 1e-5 < rough_error.max() < 4e-5
assert rough_error[-50:].max() > 2 * rough_error[:50].max(), "the error grows with the position"

# %% [markdown]
# ## Step 6: rows as lines
#
# On the left, in the first dimensions, the waves are fast and tell neighbours apart; on the right they hardly move in
# 300 steps. Row 0 is `sin 0 = 0`, `cos 0 = 1`, over and over.

# %%
shown = [p for p in (0, 1, 2, 10, 50, 100, 150, 200, 250, 299) if p < max_len]
axes = plot.position_rows(sin_pos_encoding, positions=shown)
study.show(axes, "rows")
for ax, position in zip(axes, shown, strict=True):
    assert np.array_equal(ax.lines[0].get_ydata(), sin_pos_encoding[position])
assert np.array_equal(sin_pos_encoding[0], np.tile([0.0, 1.0], d_model // 2))
assert np.abs(sin_pos_encoding).max() <= 1.0

# %% [markdown]
# ## Step 7: the whole table as an image
#
# One line for each position. Each column is a wave; from left to right it grows longer, from 6.3 positions to almost
# 63,000 (`2 pi * 10000`).

# %%
ax = plot.table_image(sin_pos_encoding)
study.show(ax, "table")
assert np.array_equal(ax.images[0].get_array(), sin_pos_encoding)

# %% [markdown]
# ## Step 8: which positions resemble each other
#
# A theorem: the product of two rows depends on their distance alone, because
# `sin a sin b + cos a cos b = cos(a - b)` for every pair of columns:
#
#     row_p . row_q = sum_i cos((p - q) / 10000^(2i / dim))
#
# So all rows have the same length, `sqrt(dim / 2)`, and the picture is one curve, repeated along the diagonal. A
# learned table (`000_bert_positions.py`) has to discover what holds here by construction.

# %%
similarity = analysis.cosine_similarity(sin_pos_encoding)
study.show(plot.similarity_matrix(similarity), "similarity")
curve = np.cos(np.arange(max_len)[:, None] * 10000.0 ** -(np.arange(0, d_model, 2) / d_model)).mean(axis=1)
apart = np.abs(np.arange(max_len)[:, None] - np.arange(max_len))
print(f"largest difference from the curve: {np.abs(similarity - curve[apart]).max():.1e}")
assert np.abs(similarity - curve[apart]).max() < 1e-7, "float32 rows, measured 2e-8"

ax = plt.subplots(figsize=(8, 3), layout="constrained")[1]
ax.plot(curve, color=plot.DARK)
ax.set(xlabel="distance of two positions", ylabel="cosine similarity", xlim=(0, max_len - 1))
study.show(ax, "similarity-by-distance")

# %% [markdown]
# ## Beyond the pictures: what can be read from a row?
#
# The two probes of Wang and Chen, explained in `000_bert_positions.py`, on 512 rows. A straight line reads every
# position off without a single error: the slow waves are themselves nearly straight. Which of two rows comes first is
# misjudged in about 5 % of the pairs, where bert-base-uncased's learned rows give 19 %.

# %%
table = sinusoidal_positions(512, d_model)
absolute, relative = probes.absolute_position_error(table), probes.relative_position_error(table)
print(f"absolute: {absolute:.2f} positions off; relative: wrong about {relative:.0%} of the pairs")
assert absolute < 0.1
assert relative < 0.12
