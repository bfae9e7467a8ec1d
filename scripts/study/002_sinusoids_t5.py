# %% [markdown]
# # Sinusoidal positions
#
# A word row does not say where its token stands, so a model needs another source for the order. BERT and GPT-2 learn a
# table of positions. The first Transformer *computed* one, from sines and cosines of falling frequency (Vaswani et al.
# 2017). This table needs no training, and it has a row for every position, however large.
#
# T5 is often said to use these sinusoids. It does not: its input layer adds nothing to the words. Steps 1 to 3 show
# this; T5's positions are in attention: see `t5_relative_bias.py`. The other steps look at the sinusoids.
#
# * Vaswani et al. 2017, *Attention Is All You Need* ([arXiv:1706.03762](https://arxiv.org/abs/1706.03762))

# %%
import matplotlib.pyplot as plt
import numpy as np
import study

from minibert import sinusoidal_positions
from minibert.equations.similarity import cosine_similarity
from minibert.show import plot

# %% [markdown]
# ## Step 1: a T5
#
# Name a trained T5 with `--model t5-small`, a folder, or the variable `MINIBERT_T5`; it brings its tokenizer. Otherwise
# this file makes an untrained T5 of the same sizes, without a tokenizer.

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
# ## Step 3: no positions in the input layer
#
# The input layer is a single table, the words. So two equal tokens enter the first block as equal rows, wherever they
# stand:
#
#     y[i] = shared[ids[i]]
#
# The order comes in later, inside attention.

# %%
print(layer)
assert list(layer.modules) == ["encoder.embed_tokens"]
assert np.array_equal(layer(ids), layer.shared.weight[ids])
twice = np.repeat(ids[:, :1], 2, axis=1)
assert np.array_equal(layer(twice)[0, 0], layer(twice)[0, 1]), "the row says nothing about its place"

# %% [markdown]
# ## Step 4: a generator of sinusoids
#
#     angle(p, i) = p / 10000^(2i / dim)
#     y[p, 2i] = sin(angle(p, i)),   y[p, 2i + 1] = cos(angle(p, i))
#
# Many notebooks contain this generator, line for line. It computes in float32: first the frequencies, through `exp` and
# `log`, then angles up to 299 radians. The last digits of these angles are lost before the sine is taken.


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
# The table has 300 positions (the longest output that t5-small's config names for translation) of 512 numbers each.
# minibert's `sinusoidal_positions` computes the angles in float64 and rounds once, at the end. So each number is within
# half of the last digit of the exact one. The generator above is up to 3e-5 off. Its error grows with the position,
# though not from each row to the next: the last 50 rows are up to six times as far off as the first 50.

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
times = rough_error[-50:].max() / rough_error[:50].max()
print(f"float32 angles: the last 50 rows are up to {times:.1f} times as far off as the first 50")
assert times > 2, "the error grows with the position"
assert (max_len, d_model) != (300, 512) or 5.5 < times < 7.5

# %% [markdown]
# ## Step 6: rows as lines
#
# Sines and cosines take turns in a row, so each row is drawn as two lines: its sines, in dimensions 0, 2, 4, ..., and
# its cosines, in 1, 3, 5, ... On the left, in the first dimensions, the waves are fast and separate neighbours. On the
# right they hardly change in 300 positions. Row 0 is `sin 0 = 0`, `cos 0 = 1`, again and again.

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
# The image has one line for each position. Each column is a wave. From left to right the waves grow longer: `2 pi =
# 6.3` positions in the first two columns, `2 pi * 10000^(510 / 512) = 60,611` in the last two of 512.

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
# The product of two rows depends only on their distance, because `sin a sin b + cos a cos b = cos(a - b)` for every
# pair of columns:
#
#     row_p . row_q = sum_i cos((p - q) / 10000^(2i / dim))
#
# So all rows have the same length, `sqrt(dim / 2)`, and the picture is one curve, repeated along the diagonal. In a
# learned table (`000_bert_positions.py`) no formula makes this so; it holds only as far as training made it hold.
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
# ## Exercises
#
# 1. The rows of positions 10 and 13 are known. Is there a matrix that turns the row of *any* position `p` into the
#    row of `p + 3`? Try it with the two columns of one wave.
# 2. Marian and Pegasus keep all sines in the left half and all cosines in the right half. Does the similarity of two
#    positions change?
