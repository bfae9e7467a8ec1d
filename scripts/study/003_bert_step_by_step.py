# %% [markdown]
# # BERT's input layer, step by step
#
# This page goes from a sentence to the rows that enter BERT's first block, with the numbers of a real model. Three
# tables each answer one question about a token:
#
# | table | question | rows of bert-base-uncased |
# |---|---|---|
# | word | which token is it, without any context? | 30522, one for each token of the vocabulary |
# | token type (segment) | is it of the first text or the second, as in question and answer? | 2 |
# | position | at which place of the sequence does it stand? | 512 |
#
# One often reads that BERT's token types and positions are fixed. They are not: all three tables were learned, as
# `learned_tables.py` shows.

# %%
import numpy as np
import study

from minibert.equations.input_layer import bert_input, default_position_ids, layer_norm
from minibert.show import plot
from minibert.show.text import torch_text

# %% [markdown]
# ## Step 1: the model
#
# Three tables and a LayerNorm. The reference also prints a `Dropout`, the last step of the layer. It acts only in
# training.

# %%
model = study.load("bert")
layer = model.layer
print(layer)
assert layer.family.model_type == layer.config.model_type == "bert"
assert layer.max_length == len(layer.position_embeddings.weight) == layer.config.max_position_embeddings

# %% [markdown]
# ## Step 2: the sentence becomes ids
#
# The tokenizer lower-cases the text, cuts words into known pieces (*WordPiece*: from the left, always the longest piece
# that fits and is in the vocabulary), and puts `[CLS]` before the text and `[SEP]` after it. So five words make seven
# tokens. "Sinan" is not in the vocabulary: it becomes two pieces, `sin` and `##an`.

# %%
sentence = "We lived above the clouds"
batch = layer.tokenize(sentence)
input_ids = batch["input_ids"]
tokens, seq = layer.tokens(input_ids[0]), input_ids.shape[-1]
print(list(zip(tokens, input_ids[0].tolist(), strict=True)))
print(layer.tokens(layer.tokenize("I am Sinan")["input_ids"][0]))

# %% [markdown]
# ## Step 3: three lookups
#
#     word[ids[i]]     position[p[i]], p = 0, 1, ..., seq - 1     token_type[types[i]]
#
# * The **word** row knows no context: "clouds" has this row in every sentence. `[CLS]` and `[SEP]` surround every text,
#   so its first and last row are always the same.
# * The **position** row depends only on the place. The longest text has as many tokens as the table has rows.
# * The **token type** is 0 for a single sentence. In a pair the second text and its `[SEP]` have type 1. The row of
#   type 0 still matters: it is learned, and it is not zero.

# %%
word = layer.word_embeddings(input_ids)
position = layer.position_embeddings(default_position_ids(seq))
token_type = layer.token_type_embeddings(batch["token_type_ids"])
print(f"word rows {word.shape}: (batch, seq, dim)\n{torch_text(word)}")
print("types of a pair:", layer.tokenize("We lived", "above the clouds")["token_type_ids"][0])
assert np.array_equal(word[0, 3], layer.word_embeddings.weight[input_ids[0, 3]])
assert np.array_equal(position[0], layer.position_embeddings.weight[:seq])
assert np.all(token_type == layer.token_type_embeddings.weight[0]) and np.any(token_type)
for text in ("I am a man", "She is Zoe"):
    other = layer.word_embeddings(layer.tokenize(text)["input_ids"])
    assert np.array_equal(other[0, [0, -1]], word[0, [0, -1]]), "the same [CLS], the same [SEP]"

# %% [markdown]
# ## Step 4: add, then normalise
#
#     y = (x - mean) / sqrt(variance + eps) * weight + bias
#
# LayerNorm is sometimes called a feed-forward layer. It is not one: a feed-forward layer multiplies each row by a
# matrix, and LayerNorm has no matrix, only a weight and a bias for each column. (Neither of the two mixes tokens; only
# attention does.) First every row gets mean 0 and variance 1. Then each column is scaled and shifted by the learned
# numbers.

# %%
x = word + position + token_type
standard = layer_norm(x, np.ones_like(layer.LayerNorm.weight), eps=layer.LayerNorm.eps)
output = layer.LayerNorm(x)
for name, rows in (("sum", x), ("mean 0, variance 1", standard), ("weight and bias", output)):
    print(f"{tokens[1]!r}, {name:18} mean {rows[0, 1].mean():+.4f}, variance {rows[0, 1].var():.4f}")
assert np.abs(standard.mean(axis=-1)).max() < 1e-6
assert np.abs(standard.var(axis=-1) - 1).max() < 1e-5
assert layer.LayerNorm.weight.shape == layer.LayerNorm.bias.shape == (layer.config.hidden_size,), "no matrix"
assert np.allclose(output, standard * layer.LayerNorm.weight + layer.LayerNorm.bias, rtol=0, atol=1e-6)
ax = plot.sum_steps({"word": word[0, 1], "position": position[0, 1], "token type": token_type[0, 1]}, output[0, 1])
ax.set_title(f"token {tokens[1]!r} at position 1", loc="left")
study.show(ax, "sum", of=model.name, alt="lines: the rows that are added for one token, their sum, and LayerNorm of it")

# %% [markdown]
# ## Step 5: the layer itself
#
# One call does all of this and returns the same numbers, except for the last bits. Floating point rounds after each
# `+`. So `(word + position) + type`, as above, is not always `(word + type) + position`, the order of the layer and of
# the reference. In that order every bit is equal.

# %%
whole = layer(**batch)
in_order = (word + token_type) + position
print(f"{whole.shape}, by hand at most {np.abs(output - whole).max():.1e} apart")
print(f"entries of the sum that the order changes: {np.mean(x != in_order):.0%}")
assert np.abs(whole - output).max() < 1e-5 and np.any(x != in_order)
assert np.array_equal(layer.LayerNorm(in_order), whole)
norm = layer.LayerNorm
tables = [getattr(layer, f"{name}_embeddings").weight for name in ("word", "token_type", "position")]
formula = bert_input(input_ids, np.zeros_like(input_ids), *tables, norm.weight, norm.bias, norm.eps)
assert np.abs(formula - whole).max() < 2e-6  # the layer computes the same norm faster

# %% [markdown]
# ## What two notebooks print of bert-base-uncased
#
# Two published notebooks take these steps with bert-base-uncased, one with "We lived above the clouds", one with "I am
# Sinan". The folded cell has all numbers that they print. If your model is bert-base-uncased, the next cell compares
# every digit.

# %% tags=["folded"] jupyter={"source_hidden": true}
CLOUDS = {
    "word rows": """
[[[ 0.0136, -0.0265, -0.0235,  ...,  0.0087,  0.0071,  0.0151],
  [-0.0564,  0.0063, -0.0526,  ...,  0.0193,  0.0267, -0.0234],
  [ 0.0055, -0.0347,  0.0068,  ..., -0.0516, -0.0400,  0.0004],
   ...,
  [-0.0446,  0.0061, -0.0022,  ..., -0.0363, -0.0004, -0.0306],
  [-0.0291, -0.0159, -0.0204,  ..., -0.0452, -0.0196, -0.0080],
  [-0.0145, -0.0100,  0.0060,  ..., -0.0250,  0.0046, -0.0015]]]
""",
    "the word rows of 'I am a man'": """
[[[ 0.0136, -0.0265, -0.0235,  ...,  0.0087,  0.0071,  0.0151],
  [-0.0211,  0.0059, -0.0179,  ...,  0.0163,  0.0122,  0.0073],
  [-0.0437, -0.0150,  0.0029,  ..., -0.0282,  0.0474, -0.0448],
  [ 0.0152,  0.0082,  0.0043,  ..., -0.0031, -0.0055,  0.0189],
  [-0.0077, -0.0312, -0.0070,  ...,  0.0076, -0.0427, -0.0426],
  [-0.0145, -0.0100,  0.0060,  ..., -0.0250,  0.0046, -0.0015]]]
""",
    "position rows": """
[[ 1.7505e-02, -2.5631e-02, -3.6642e-02,  ...,  3.3437e-05,
   6.8312e-04,  1.5441e-02],
 [ 7.7580e-03,  2.2613e-03, -1.9444e-02,  ...,  2.8910e-02,
   2.9753e-02, -5.3247e-03],
 [-1.1287e-02, -1.9644e-03, -1.1573e-02,  ...,  1.4908e-02,
   1.8741e-02, -7.3140e-03],
  ...,
 [-5.6087e-03, -1.0445e-02, -7.2288e-03,  ...,  2.0837e-02,
   3.5402e-03,  4.7708e-03],
 [-3.0871e-03, -1.8956e-02, -1.8930e-02,  ...,  7.4045e-03,
   2.0183e-02,  3.4077e-03],
 [ 6.4257e-03, -1.7664e-02, -2.2067e-02,  ...,  6.7531e-04,
   1.1108e-02,  3.7521e-03]]
""",
    "token type rows": """
[[ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
  ...,
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086]]
""",
    "LayerNorm by hand": """
[[[ 0.1686, -0.2858, -0.3261,  ..., -0.0276,  0.0383,  0.1640],
  [-0.6375,  0.5415, -0.8719,  ...,  0.8028,  1.1306, -0.3939],
  [ 0.1881, -0.1682,  0.2943,  ..., -0.4347, -0.1062,  0.0591],
   ...,
  [-0.6588,  0.3324,  0.1625,  ..., -0.1498,  0.2525, -0.3350],
  [-0.1675, -0.0255, -0.1687,  ..., -0.3345,  0.3529,  0.2077],
  [-0.1481, -0.2948, -0.1690,  ..., -0.5009,  0.2544, -0.0700]]]
""",
    "the layer": """
[[[ 0.1686, -0.2858, -0.3261,  ..., -0.0276,  0.0383,  0.1640],
  [-0.6375,  0.5415, -0.8719,  ...,  0.8028,  1.1306, -0.3939],
  [ 0.1881, -0.1682,  0.2943,  ..., -0.4347, -0.1062,  0.0591],
   ...,
  [-0.6588,  0.3324,  0.1625,  ..., -0.1498,  0.2525, -0.3350],
  [-0.1675, -0.0255, -0.1687,  ..., -0.3345,  0.3529,  0.2077],
  [-0.1481, -0.2948, -0.1690,  ..., -0.5009,  0.2544, -0.0700]]]
""",
}
SINAN = {
    "word rows": """
[[[ 0.0136, -0.0265, -0.0235,  ...,  0.0087,  0.0071,  0.0151],
  [-0.0211,  0.0059, -0.0179,  ...,  0.0163,  0.0122,  0.0073],
  [-0.0437, -0.0150,  0.0029,  ..., -0.0282,  0.0474, -0.0448],
  [-0.0022, -0.0876,  0.0143,  ...,  0.0232, -0.0024, -0.0213],
  [-0.0614, -0.0044, -0.0755,  ..., -0.0522, -0.0310, -0.0248],
  [-0.0145, -0.0100,  0.0060,  ..., -0.0250,  0.0046, -0.0015]]]
""",
    "the word rows of 'She is Zoe'": """
[[[ 0.0136, -0.0265, -0.0235,  ...,  0.0087,  0.0071,  0.0151],
  [-0.0255, -0.0532,  0.0113,  ...,  0.0024, -0.0210,  0.0090],
  [-0.0360, -0.0246, -0.0257,  ...,  0.0034, -0.0018,  0.0269],
  [-0.0673,  0.0302,  0.0147,  ..., -0.0061,  0.0402, -0.0234],
  [-0.0145, -0.0100,  0.0060,  ..., -0.0250,  0.0046, -0.0015]]]
""",
    "position rows": """
[[ 1.7505e-02, -2.5631e-02, -3.6642e-02,  ...,  3.3437e-05,
   6.8312e-04,  1.5441e-02],
 [ 7.7580e-03,  2.2613e-03, -1.9444e-02,  ...,  2.8910e-02,
   2.9753e-02, -5.3247e-03],
 [-1.1287e-02, -1.9644e-03, -1.1573e-02,  ...,  1.4908e-02,
   1.8741e-02, -7.3140e-03],
 [-4.1949e-03, -1.1852e-02, -2.1180e-02,  ...,  2.2455e-02,
   5.2826e-03, -1.9723e-03],
 [-5.6087e-03, -1.0445e-02, -7.2288e-03,  ...,  2.0837e-02,
   3.5402e-03,  4.7708e-03],
 [-3.0871e-03, -1.8956e-02, -1.8930e-02,  ...,  7.4045e-03,
   2.0183e-02,  3.4077e-03]]
""",
    "token type rows": """
[[ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086]]
""",
    "LayerNorm by hand": """
[[[ 1.6855e-01, -2.8577e-01, -3.2613e-01,  ..., -2.7571e-02,
    3.8253e-02,  1.6400e-01],
  [-3.4025e-04,  5.3974e-01, -2.8805e-01,  ...,  7.5731e-01,
    8.9008e-01,  1.6575e-01],
  [-6.3496e-01,  1.9748e-01,  2.5116e-01,  ..., -4.0819e-02,
    1.3468e+00, -6.9357e-01],
  [ 2.8197e-01, -1.0037e+00,  3.5063e-01,  ...,  8.5378e-01,
    3.9389e-01, -8.4527e-02],
  [-7.3509e-01,  3.3429e-01, -8.3037e-01,  ..., -2.1545e-01,
    -6.6517e-02, -2.6881e-02],
  [-3.2507e-01, -3.1879e-01, -1.1632e-01,  ..., -3.9602e-01,
    4.1120e-01, -7.7552e-02]]]
""",
    "the layer": """
[[[ 1.6855e-01, -2.8577e-01, -3.2613e-01,  ..., -2.7571e-02,
    3.8253e-02,  1.6400e-01],
  [-3.4026e-04,  5.3974e-01, -2.8805e-01,  ...,  7.5731e-01,
    8.9008e-01,  1.6575e-01],
  [-6.3496e-01,  1.9748e-01,  2.5116e-01,  ..., -4.0819e-02,
    1.3468e+00, -6.9357e-01],
  [ 2.8197e-01, -1.0037e+00,  3.5063e-01,  ...,  8.5378e-01,
    3.9389e-01, -8.4527e-02],
  [-7.3509e-01,  3.3429e-01, -8.3037e-01,  ..., -2.1545e-01,
    -6.6517e-02, -2.6881e-02],
  [-3.2507e-01, -3.1879e-01, -1.1632e-01,  ..., -3.9602e-01,
    4.1120e-01, -7.7552e-02]]]
""",
}

# %%
compared = 0
for text, also, ids, printed in (
    ("We lived above the clouds", "I am a man", [101, 2057, 2973, 2682, 1996, 8044, 102], CLOUDS),
    ("I am Sinan", "She is Zoe", [101, 1045, 2572, 8254, 2319, 102], SINAN),
):
    given = layer.tokenize(text)
    first, second, third = (table.weight[rows] for table, rows in (
        (layer.word_embeddings, given["input_ids"]),
        (layer.position_embeddings, np.arange(len(ids))),
        (layer.token_type_embeddings, np.zeros(len(ids), int)),
    ))  # fmt: skip
    others = layer.word_embeddings(layer.tokenize(also)["input_ids"])
    found = first, others, second, third, layer.LayerNorm(first + second + third), layer(**given)
    if model.is_bert_base:
        assert given["input_ids"].tolist() == [ids]
        compared += sum(study.assert_printed(*each) for each in zip(found, printed.values(), strict=True))
print(f"{compared} numbers are the same" if compared else "not compared: these numbers are bert-base-uncased's")

# %% [markdown]
# ## Exercises
#
# 1. Add 5 to every number of one row of `x`, or multiply the row by 3. What does LayerNorm make of it?
# 2. "clouds" stands at position 5 in our sentence. Which of its three rows differ from those of "clouds" in "Clouds
#    lived above"? Does its output row?
# 3. The row of type 0 is added to every token of a single sentence. Could you leave it out, and add it to all word rows
#    once instead?
# 4. How many numbers does the layer have in all, and which share of them is in the word table?
