# %% [markdown]
# # BERT's input layer, step by step
#
# From a sentence to what enters BERT's first block: three lookups, two additions, one normalisation. Each step is
# done by hand here. At the end the result is compared with the layer's own.
#
# Two kinds of numbers stand side by side in this file. What a cell *prints* is of the model that you named; its name
# stands above the print. What is *written in the cell*, as `bert_base_uncased`, is what the reference prints for
# bert-base-uncased. The two are compared, digit by digit, when the model is bert-base-uncased. Everything else is
# checked for every BERT.

# %% [markdown]
# ## Step 1: what is needed
#
# Nothing but minibert: NumPy does the arithmetic. matplotlib draws (`pip install '.[study]'`).

# %%
import numpy as np
import study

from minibert.equations.input_layer import default_position_ids, layer_norm
from minibert.show import plot

# %% [markdown]
# ## Step 2: the model
#
# Three tables and a LayerNorm. The reference prints a `Dropout` too, the last step of the layer. It acts in training
# only.

# %%
model = study.load("bert")
layer = model.layer
print(layer)
if model.is_bert_base:
    bert_base_uncased = """BertEmbeddings(
  (word_embeddings): Embedding(30522, 768, padding_idx=0)
  (position_embeddings): Embedding(512, 768)
  (token_type_embeddings): Embedding(2, 768)
  (LayerNorm): LayerNorm((768,), eps=1e-12, elementwise_affine=True)
)"""
    assert str(layer) == bert_base_uncased

# %% [markdown]
# ## Step 3: the sentence becomes ids
#
# The tokenizer lower-cases the text, cuts words into known pieces (*WordPiece*: always the longest piece that the
# vocabulary has), and puts `[CLS]` before the text and `[SEP]` after it: five words, seven tokens.

# %%
example_sentence = "We lived above the clouds"
batch = layer.tokenize(example_sentence)
input_ids = batch["input_ids"]
print(list(zip(layer.tokens(input_ids[0]), input_ids[0].tolist(), strict=True)))
seq = input_ids.shape[-1]
if model.is_bert_base:
    assert input_ids.tolist() == [[101, 2057, 2973, 2682, 1996, 8044, 102]]

# %% [markdown]
# ## Step 4: the word rows
#
#     y[i] = word[ids[i]]
#
# One row for each token, without context: "clouds" has this row in every sentence.

# %%
word = layer.word_embeddings(input_ids)
assert np.array_equal(word[0, 3], layer.word_embeddings.weight[input_ids[0, 3]])
study.print_rows(
    model,
    word,
    bert_base_uncased="""
[[[ 0.0136, -0.0265, -0.0235,  ...,  0.0087,  0.0071,  0.0151],
  [-0.0564,  0.0063, -0.0526,  ...,  0.0193,  0.0267, -0.0234],
  [ 0.0055, -0.0347,  0.0068,  ..., -0.0516, -0.0400,  0.0004],
   ...,
  [-0.0446,  0.0061, -0.0022,  ..., -0.0363, -0.0004, -0.0306],
  [-0.0291, -0.0159, -0.0204,  ..., -0.0452, -0.0196, -0.0080],
  [-0.0145, -0.0100,  0.0060,  ..., -0.0250,  0.0046, -0.0015]]]
""",
)

# %% [markdown]
# ## Step 5: another sentence, the same first and last row
#
# `[CLS]` and `[SEP]` stand around every sentence, and a lookup does not see the other tokens.

# %%
other = layer.word_embeddings(layer.tokenize("I am a man")["input_ids"])
assert np.array_equal(other[0, 0], word[0, 0])
assert np.array_equal(other[0, -1], word[0, -1])
study.print_rows(
    model,
    other,
    bert_base_uncased="""
[[[ 0.0136, -0.0265, -0.0235,  ...,  0.0087,  0.0071,  0.0151],
  [-0.0211,  0.0059, -0.0179,  ...,  0.0163,  0.0122,  0.0073],
  [-0.0437, -0.0150,  0.0029,  ..., -0.0282,  0.0474, -0.0448],
  [ 0.0152,  0.0082,  0.0043,  ..., -0.0031, -0.0055,  0.0189],
  [-0.0077, -0.0312, -0.0070,  ...,  0.0076, -0.0427, -0.0426],
  [-0.0145, -0.0100,  0.0060,  ..., -0.0250,  0.0046, -0.0015]]]
""",
)

# %% [markdown]
# ## Step 6: the position table
#
# One row for each position that a token can have. There are 512, so the longest text has 512 tokens.

# %%
print(layer.position_embeddings)
assert layer.max_length == len(layer.position_embeddings.weight) == layer.config.max_position_embeddings
if model.is_bert_base:
    assert str(layer.position_embeddings) == "Embedding(512, 768)"

# %% [markdown]
# ## Step 7: the position ids
#
#     p = 0, 1, ..., seq - 1

# %%
position_ids = default_position_ids(seq)
print(position_ids)
assert position_ids.tolist() == [list(range(seq))]
assert np.array_equal(position_ids, layer.trace(**batch)["position_ids"])

# %% [markdown]
# ## Step 8: the position rows
#
#     y[i] = position[p[i]]
#
# They are the same for every sentence: they depend on the place alone.

# %%
position = layer.position_embeddings(np.arange(seq))
assert np.array_equal(position, layer.position_embeddings.weight[:seq])
study.print_rows(
    model,
    position,
    bert_base_uncased="""
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
)

# %% [markdown]
# ## Step 9: the token type table
#
# Two rows: one for the tokens of a first text, A, and one for those of a second, B, as in question and answer.

# %%
print(layer.token_type_embeddings)
assert len(layer.token_type_embeddings.weight) == layer.config.type_vocab_size
if model.is_bert_base:
    assert str(layer.token_type_embeddings) == "Embedding(2, 768)"

# %% [markdown]
# ## Step 10: the token type ids
#
# A sentence alone is all A: zeros. In a pair the second text has ones, and its `[SEP]` too.

# %%
token_type_ids = batch["token_type_ids"]
print(token_type_ids)
assert token_type_ids.tolist() == [[0] * seq]
print(layer.tokenize("We lived", "above the clouds")["token_type_ids"])

# %% [markdown]
# ## Step 11: the token type rows
#
#     y[i] = token_type[types[i]]
#
# Here it is the same row for every token. It is not nothing: it is learned, and it is not zero.

# %%
token_type = layer.token_type_embeddings(token_type_ids[0])
assert np.all(token_type == token_type[0]) and np.any(token_type)
study.print_rows(
    model,
    token_type,
    bert_base_uncased="""
[[ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
  ...,
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086]]
""",
)

# %% [markdown]
# ## Step 12: add, then normalise
#
#     y = (x - mean) / sqrt(variance + eps) * weight + bias
#
# LayerNorm is sometimes called a feed-forward layer. It is none: a feed-forward layer multiplies each row by a
# matrix, and LayerNorm has no matrix, only a weight and a bias for each column. (Neither of the two mixes tokens;
# only attention does.) First every row gets mean 0 and variance 1. Then each column is scaled and shifted by the
# learned numbers.

# %%
x = word + position + token_type
standard = layer_norm(x, np.ones_like(layer.LayerNorm.weight), eps=layer.LayerNorm.eps)
output = layer.LayerNorm(x)
assert np.abs(standard.mean(axis=-1)).max() < 1e-6
assert np.abs(standard.var(axis=-1) - 1).max() < 1e-5
assert layer.LayerNorm.weight.shape == layer.LayerNorm.bias.shape == (layer.config.hidden_size,), "no matrix"
assert np.allclose(output, standard * layer.LayerNorm.weight + layer.LayerNorm.bias, rtol=0, atol=1e-6)
study.print_rows(
    model,
    output,
    bert_base_uncased="""
[[[ 0.1686, -0.2858, -0.3261,  ..., -0.0276,  0.0383,  0.1640],
  [-0.6375,  0.5415, -0.8719,  ...,  0.8028,  1.1306, -0.3939],
  [ 0.1881, -0.1682,  0.2943,  ..., -0.4347, -0.1062,  0.0591],
   ...,
  [-0.6588,  0.3324,  0.1625,  ..., -0.1498,  0.2525, -0.3350],
  [-0.1675, -0.0255, -0.1687,  ..., -0.3345,  0.3529,  0.2077],
  [-0.1481, -0.2948, -0.1690,  ..., -0.5009,  0.2544, -0.0700]]]
""",
)

token = layer.tokens(input_ids[0])[1]
addends = {"word": word[0, 1], "position": position[1], "token type": token_type[1]}
ax = plot.sum_steps(addends, output[0, 1])
ax.set_title(f"token {token!r} at position 1", loc="left")
study.show(ax, "sum", of=model.name, alt="lines: the rows that are added for one token, their sum, and LayerNorm of it")

# %% [markdown]
# ## Step 13: the layer itself
#
# One call does all of it and gives the same numbers, except for the last bits. Floating point rounds after each `+`. So
# `(word + position) + type`, as above, is not always `(word + type) + position`, the order of the layer and of the
# reference. In that order not a bit differs.

# %%
whole = layer(**batch)
assert np.abs(whole - output).max() < 1e-5
study.print_rows(
    model,
    whole,
    bert_base_uncased="""
[[[ 0.1686, -0.2858, -0.3261,  ..., -0.0276,  0.0383,  0.1640],
  [-0.6375,  0.5415, -0.8719,  ...,  0.8028,  1.1306, -0.3939],
  [ 0.1881, -0.1682,  0.2943,  ..., -0.4347, -0.1062,  0.0591],
   ...,
  [-0.6588,  0.3324,  0.1625,  ..., -0.1498,  0.2525, -0.3350],
  [-0.1675, -0.0255, -0.1687,  ..., -0.3345,  0.3529,  0.2077],
  [-0.1481, -0.2948, -0.1690,  ..., -0.5009,  0.2544, -0.0700]]]
""",
)

in_order = (word + token_type) + position
print(f"entries of the sum that the order changes: {np.mean(x != in_order):.0%}")
assert np.any(x != in_order)
assert np.array_equal(layer.LayerNorm(in_order), whole)

# %% [markdown]
# ## Step 14: its shape
#
# (batch, seq, dim): one text, its tokens, as many numbers as a row has.

# %%
print(whole.shape)
assert whole.shape == (1, seq, layer.config.hidden_size)
if model.is_bert_base:
    assert whole.shape == (1, 7, 768)

# %% [markdown]
# ## Exercises
#
# 1. Add 5 to every number of one row of `x`, or multiply the row by 3. What does LayerNorm make of it?
# 2. "clouds" stands at position 5 in our sentence. In which of the three rows, and in the output, does it differ from
#    "clouds" in "Clouds lived above"?
# 3. The row of type 0 is added to every token of a single sentence. Could you leave it out, and add it to all word rows
#    once instead?
