# %% [markdown]
# # Sinusoidal positions, and what T5 has instead
#
# A word row does not say where its token stands, so a model needs a second source for the order. BERT and GPT-2
# learn a table of positions. The first Transformer *computed* one, from sines and cosines of falling frequency
# (Vaswani et al. 2017). Such a table needs no training, and it has a row for every position, however large.
#
# T5 is often said to use these sinusoids. It does not. Its input layer adds nothing to the words, and inside attention
# it adds a *learned bias* that depends on the distance between two tokens. Steps 1 to 3 look at T5, the other steps at
# the sinusoids.
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
from minibert.equations.attention_positions import relative_buckets
from minibert.equations.similarity import cosine_similarity
from minibert.show import plot

# %% [markdown]
# ## Step 1: a T5
#
# With `--model t5-small`, a folder, or the variable `MINIBERT_T5`: a trained T5, with its tokenizer. Without one an
# untrained T5 of the same sizes, which has no tokenizer.

# %%
model = study.load("t5")
layer, config, trained = model.layer, model.layer.config, model.trained
assert layer.family.model_type == config.model_type == "t5"
ids = np.array([[7, 9, 7]])
if trained:
    ids = layer.tokenize("the end of the story")["input_ids"]
    print(list(zip(layer.tokens(ids[0]), ids[0].tolist(), strict=True)))
    assert ids.shape[1] > 1

# %% [markdown]
# ## Step 2: the number 512 that nothing reads
#
# t5-small's `config.json` has `n_positions`: 512. No part of T5 uses it: a text may have any length.

# %%
print("n_positions", config.get("n_positions"))
assert layer.max_length is None
assert len(layer(np.zeros((1, 600), np.int64))[0]) == 600, "600 tokens are more than 512, and no trouble"

# %% [markdown]
# ## Step 3: no positions in the input layer, a bias in attention
#
# The input layer is one table, the words. So two equal tokens enter the first block as equal rows, wherever they
# stand:
#
#     y[i] = shared[ids[i]]
#
# The order comes in later. In each head, attention gives a score to every pair of a query (the token that is computed)
# and a key (a token that it may use). T5 adds a learned number to that score. The number depends only on how far the
# key is from the query, and on which side. The table of these numbers is `relative_attention_bias`, in block 0 of the
# tree below; all other blocks use the same bias.
#
# The distances share the 32 rows of the table, the buckets. In the encoder half of them are for keys before the query
# (and the query itself), half for keys after it. Near distances have a bucket each; farther ones share a bucket, in
# ever wider ranges; all distances from 91 on share the last one. Bucket 16 is never used: it would be a key after the
# query at distance 0. (T5's decoder looks back only. There all 32 buckets are for keys before the query, and the last
# one begins at distance 113.)
#
# The stripes of the picture are the buckets. Without a trained T5 their numbers are random: no head has learned them.

# %%
tree = study.with_relative_bias(layer)
print(tree)
assert list(layer.modules) == ["encoder.embed_tokens"]
assert "(relative_attention_bias): Embedding(" in tree
assert np.array_equal(layer(ids), layer.shared.weight[ids])
twice = np.repeat(ids[:, :1], 2, axis=1)
assert np.array_equal(layer(twice)[0, 0], layer(twice)[0, 1]), "the row says nothing about its place"

bias = layer.attention_position.relative_bias(160, 160)
print("relative bias", bias.shape, "(heads, query, key)")
study.show(
    plot.relative_bias(bias),
    "t5-bias",
    of=f"relative bias of {model.name}",
    alt="a line of colours for each head: the bias by the distance from query to key, a stripe for each bucket",
)
assert np.array_equal(bias[:, :-1, :-1], bias[:, 1:, 1:]), "one step further for both changes nothing"
if (config.relative_attention_num_buckets, config.relative_attention_max_distance) == (32, 128):
    assert np.ptp(bias[:, 0, 91:], axis=1).max() == 0.0, "keys 91 and more after the query share one row"
    assert np.any(bias[:, 0, 90] != bias[:, 0, 91])

distances = np.arange(-400, 401)  # key - query
encoder, decoder = relative_buckets(distances), relative_buckets(distances, bidirectional=False)
assert sorted(set(range(32)) - set(encoder.tolist())) == [16] and sorted(set(decoder.tolist())) == list(range(32))
assert distances[encoder == 31].min() == 91 and distances[encoder == 15].max() == -91
assert distances[decoder == 31].max() == -113

# %% [markdown]
# ## Step 4: a generator of sinusoids
#
#     angle(p, i) = p / 10000^(2i / dim)
#     y[p, 2i] = sin(angle(p, i)),   y[p, 2i + 1] = cos(angle(p, i))
#
# This generator is in many notebooks, line by line the same. It computes in float32: first the frequencies, through
# `exp` and `log`, then angles up to 299 radians. The last digits of these angles are lost before the sine is taken.


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
# 300 positions (the longest output that t5-small's config names for translation) of 512 numbers each. minibert's
# `sinusoidal_positions` computes the angles in float64 and rounds once, at the end. So each number is within half of
# the last digit of the exact one. The generator above is up to 3e-5 off, and its error grows with the position.

# %%
tasks = config.get("task_specific_params") or {}
max_len, d_model = tasks.get("translation_en_to_de", {}).get("max_length", 300), config.d_model
sin_pos_encoding = sinusoidal_positions(max_len, d_model)
formula = f"sinusoids, {max_len} x {d_model}: a formula, no model"
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
# Sines and cosines take turns in a row, so each row is drawn as two lines: its sines, in dimensions 0, 2, 4, ..., and
# its cosines, in 1, 3, 5, ... On the left, in the first dimensions, the waves are fast and tell neighbours apart. On
# the right they hardly change in 300 positions. Row 0 is `sin 0 = 0`, `cos 0 = 1`, again and again.

# %%
shown = [p for p in (0, 1, 2, 10, 50, 100, 150, 200, 250, 299) if p < max_len]
halves = {"sine": slice(0, None, 2), "cosine": slice(1, None, 2)}
axes = plot.position_rows(sin_pos_encoding, positions=shown, lines=halves)
study.show(axes, "rows", of=formula, alt="two lines for each of ten positions: its sines and its cosines by dimension")
for ax, position in zip(axes, shown, strict=True):
    for line, half in zip(ax.lines, halves.values(), strict=True):
        assert np.array_equal(line.get_ydata(), sin_pos_encoding[position, half])
assert np.array_equal(sin_pos_encoding[0], np.tile([0.0, 1.0], d_model // 2))
assert np.abs(sin_pos_encoding).max() <= 1.0

# %% [markdown]
# ## Step 7: the whole table as an image
#
# One line for each position. Each column is a wave. From left to right the waves grow longer: `2 pi = 6.3` positions in
# the first two columns, `2 pi * 10000^(510 / 512) = 60,611` in the last two of 512.

# %%
ax = plot.table_image(sin_pos_encoding)
study.show(ax, "table", of=formula, alt="an image of the table: in each column a wave, longer from left to right")
assert np.array_equal(ax.images[0].get_array(), sin_pos_encoding)
longest = 2 * np.pi * 10000.0 ** ((d_model - 2) / d_model)
print(f"the longest wave has {longest:,.0f} positions")
assert d_model != 512 or round(longest) == 60611

# %% [markdown]
# ## Step 8: which positions resemble each other
#
# A theorem: the product of two rows depends on their distance alone, because
# `sin a sin b + cos a cos b = cos(a - b)` for every pair of columns:
#
#     row_p . row_q = sum_i cos((p - q) / 10000^(2i / dim))
#
# So all rows have the same length, `sqrt(dim / 2)`, and the picture is one curve, repeated along the diagonal. In a
# learned table (`000_bert_positions.py`) no formula does this; it holds there as far as training has made it hold.
# Farther apart is not always less similar: the short waves come round again, and the curve rises at 104 of 299 steps.

# %%
similarity = cosine_similarity(sin_pos_encoding)
study.show(
    plot.similarity_matrix(similarity),
    "similarity",
    of=formula,
    alt="a square of colours: the cosine of every two rows, the same along each diagonal",
)
curve = np.cos(np.arange(max_len)[:, None] * 10000.0 ** -(np.arange(0, d_model, 2) / d_model)).mean(axis=1)
apart = np.abs(np.arange(max_len)[:, None] - np.arange(max_len))
print(f"largest difference from the curve: {np.abs(similarity - curve[apart]).max():.1e}")
assert np.abs(similarity - curve[apart]).max() < 1e-7, "float32 rows, measured 5e-9"

ax = plt.subplots(figsize=(8, 3), layout="constrained")[1]
ax.plot(curve, color=plot.DARK)
ax.set(xlabel="distance of two positions", ylabel="cosine similarity", xlim=(0, max_len - 1))
study.show(
    ax,
    "similarity-by-distance",
    of=formula,
    alt="a curve: the cosine by the distance of two positions; it falls fast, then slowly and in waves",
)
print(f"it rises at {np.count_nonzero(np.diff(curve) > 0)} of {max_len - 1} steps")
assert d_model != 512 or max_len != 300 or np.count_nonzero(np.diff(curve) > 0) == 104

# %% [markdown]
# ## Beyond the pictures: what can be read from a row?
#
# The two probes of Wang and Chen, explained in `000_bert_positions.py`, on 512 rows. A linear function reads every
# position without a single error, in each of ten shuffles. A slow wave is nearly a straight line over 512 positions, so
# this is no surprise. Which of two rows comes first is wrong for 5.9 % of the pairs, at width 512 and at width 768, the
# means of ten shuffles here. The learned rows of all-MiniLM-L6-v2 do as well, with 5.7 %; those of bert-base-uncased
# less well, with 12.4 %, measured in the same way.

# %%
table = sinusoidal_positions(512, d_model)
absolute, relative = probes.absolute_position_error(table), probes.relative_position_error(table)
print(f"sinusoids, 512 x {d_model}, one shuffle")
print(f"absolute: {absolute:.2f} positions off; relative: wrong for {relative:.1%} of the pairs")
assert absolute < 0.1
assert relative < 0.12

# %% [markdown]
# ## Exercises
#
# 1. The rows of positions 10 and 13 are known. Is there a matrix that turns the row of *any* position `p` into the
#    row of `p + 3`? Try it with the two columns of one wave.
# 2. Marian and Pegasus keep all sines in the left half and all cosines in the right half. Does the similarity of two
#    positions change?
# 3. How many buckets would T5's encoder need so that every distance from -127 to 127 has one of its own? (Its largest
#    distance stays 128.)

# %% [markdown]
# ## Answers
#
# 1. Yes: a rotation by the angle `3 * w`, where `w` is the wave's frequency. It is the same for every `p`. This is
#    why a model can learn from such rows to look three tokens back, and it is the idea of rotary positions.

# %%
wave = 20  # any one
w = 10000.0 ** (-2 * wave / d_model)
pairs = sin_pos_encoding[:, 2 * wave : 2 * wave + 2].astype(np.float64)
turn = np.array([[np.cos(3 * w), np.sin(3 * w)], [-np.sin(3 * w), np.cos(3 * w)]])
print(f"largest difference: {np.abs(pairs[:-3] @ turn.T - pairs[3:]).max():.1e}")
assert np.allclose(pairs[:-3] @ turn.T, pairs[3:], rtol=0, atol=1e-6)

# %% [markdown]
# 2. No. The columns are the same in another order, and a dot product adds over all columns.

# %%
halves = sinusoidal_positions(max_len, d_model, layout="halves")
assert np.array_equal(halves, np.concatenate([sin_pos_encoding[:, 0::2], sin_pos_encoding[:, 1::2]], axis=1))
assert np.allclose(cosine_similarity(halves), similarity, rtol=0, atol=1e-12)

# %% [markdown]
# 3. There are 255 such distances, and 278 buckets are the fewest. Half of the buckets, 139, are for each side. Half of
#    these, 69, are for the distances 0 to 68. Then the ranges grow, but from 69 to 127 they are still narrower than one
#    distance. With 512 buckets the near ones alone would reach to 127, and no distance would be left for the ranges
#    that grow: that is an error here. With T5's 32 buckets the 255 distances have 31 numbers.

# %%
near = np.arange(-127, 128)


def numbers(buckets: int) -> int:
    return len(set(relative_buckets(near, buckets=buckets, max_distance=128).tolist()))


assert numbers(278) == len(near) == 255
assert max(numbers(fewer) for fewer in range(4, 278)) < 255
try:
    numbers(512)
except ValueError as error:
    print(error)
else:
    raise AssertionError("512 buckets and a largest distance of 128 must be refused")
print(f"with 32 buckets these 255 distances have {numbers(32)} numbers")
assert numbers(32) == 31
