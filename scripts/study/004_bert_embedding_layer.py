# %% [markdown]
# # BERT's embedding layer
#
# Three tables, each of which answers one question about a token:
#
# | table | question | rows of bert-base-uncased | learned in training |
# |---|---|---|---|
# | word | which token is it, without any context? | 30522, one for each token of the vocabulary | yes |
# | token type (segment) | is it of the first text or the second, as in question and answer? | 2 | yes |
# | position | at which place of the sequence does it stand? | 512 | yes |
#
# One often reads that BERT's token types and positions are fixed. They are not: all three tables were learned, as
# `learned_tables.py` shows. (The sinusoids of the first Transformer are fixed: `002_sinusoids_t5.py`.)
#
# What a cell prints is of the model that you named. What is written in the cell as `bert_base_uncased` is what the
# reference prints for bert-base-uncased; the two are compared when the model is that one.

# %%
import numpy as np
import study

from minibert.equations.input_layer import bert_input
from minibert.show import plot

# %% [markdown]
# ## Step 1: the model

# %%
model = study.load("bert")
layer = model.layer
assert layer.family.model_type == layer.config.model_type == "bert"

# %% [markdown]
# ## Step 2: its parts

# %%
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
# ## Step 3: a phrase becomes ids
#
# "Sinan" is not in the vocabulary. It is cut into two pieces that are, `sin` and `##an`. With `[CLS]` and `[SEP]` three
# words make six tokens.

# %%
example_phrase = "I am Sinan"
batch = layer.tokenize(example_phrase)
input_ids = batch["input_ids"]
print(list(zip(layer.tokens(input_ids[0]), input_ids[0].tolist(), strict=True)))
seq, dim = input_ids.shape[-1], layer.config.hidden_size
if model.is_bert_base:
    assert input_ids.tolist() == [[101, 1045, 2572, 8254, 2319, 102]]
    assert layer.tokens(input_ids[0]) == ["[CLS]", "i", "am", "sin", "##an", "[SEP]"]

# %% [markdown]
# ## Step 4: the word rows, without context
#
#     y[i] = word[ids[i]]
#
# One row for each token, one column for each of the `dim` numbers of a row.

# %%
word = layer.word_embeddings(input_ids)
print(word.shape)
assert word.shape == (1, seq, dim)
assert np.array_equal(word, layer.word_embeddings.weight[input_ids])
if model.is_bert_base:
    assert word.shape == (1, 6, 768)
study.print_rows(
    model,
    word,
    bert_base_uncased="""
[[[ 0.0136, -0.0265, -0.0235,  ...,  0.0087,  0.0071,  0.0151],
  [-0.0211,  0.0059, -0.0179,  ...,  0.0163,  0.0122,  0.0073],
  [-0.0437, -0.0150,  0.0029,  ..., -0.0282,  0.0474, -0.0448],
  [-0.0022, -0.0876,  0.0143,  ...,  0.0232, -0.0024, -0.0213],
  [-0.0614, -0.0044, -0.0755,  ..., -0.0522, -0.0310, -0.0248],
  [-0.0145, -0.0100,  0.0060,  ..., -0.0250,  0.0046, -0.0015]]]
""",
)

# %% [markdown]
# ## Step 5: the first and the last row are the same for every phrase
#
# Another phrase, the same `[CLS]` and `[SEP]`: without context they cannot know what stands between them. For the same
# reason the first row of this layer says nothing about a text. At the model's end, after attention, it does.

# %%
other = layer.word_embeddings(layer.tokenize("She is Zoe")["input_ids"])
assert np.array_equal(other[0, 0], word[0, 0])
assert np.array_equal(other[0, -1], word[0, -1])
study.print_rows(
    model,
    other,
    bert_base_uncased="""
[[[ 0.0136, -0.0265, -0.0235,  ...,  0.0087,  0.0071,  0.0151],
  [-0.0255, -0.0532,  0.0113,  ...,  0.0024, -0.0210,  0.0090],
  [-0.0360, -0.0246, -0.0257,  ...,  0.0034, -0.0018,  0.0269],
  [-0.0673,  0.0302,  0.0147,  ..., -0.0061,  0.0402, -0.0234],
  [-0.0145, -0.0100,  0.0060,  ..., -0.0250,  0.0046, -0.0015]]]
""",
)

# %% [markdown]
# ## Step 6: the position rows
#
#     y[i] = position[i]

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
 [-4.1949e-03, -1.1852e-02, -2.1180e-02,  ...,  2.2455e-02,
   5.2826e-03, -1.9723e-03],
 [-5.6087e-03, -1.0445e-02, -7.2288e-03,  ...,  2.0837e-02,
   3.5402e-03,  4.7708e-03],
 [-3.0871e-03, -1.8956e-02, -1.8930e-02,  ...,  7.4045e-03,
   2.0183e-02,  3.4077e-03]]
""",
)

# %% [markdown]
# ## Step 7: the token type rows
#
#     y[i] = token_type[types[i]]
#
# The phrase is one text, so all its tokens are of type 0.

# %%
token_type = layer.token_type_embeddings(np.zeros(seq, np.int64))
assert np.all(token_type == layer.token_type_embeddings.weight[0])
study.print_rows(
    model,
    token_type,
    bert_base_uncased="""
[[ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086],
 [ 0.0004,  0.0110,  0.0037,  ..., -0.0066, -0.0034, -0.0086]]
""",
)

# %% [markdown]
# ## Step 8: add, normalise, and compare
#
#     y = (x - mean) / sqrt(variance + eps) * weight + bias
#
# This is a normalisation, not a feed-forward layer: there is no matrix in it. The layer gives the same rows, but for
# the last bits. By hand the order of the sum is `(word + position) + type`, in the layer `(word + type) + position`.
# Each `+` rounds, and so the two prints of the reference below differ in one last digit.

# %%
x = word + position + token_type
output = layer.LayerNorm(x)
whole = layer(input_ids)
print(f"by hand and by the layer: at most {np.abs(output - whole).max():.1e} apart")
assert np.abs(output - whole).max() < 1e-5
assert np.array_equal(layer.LayerNorm((word + token_type) + position), whole)
tables = [
    layer[f"embeddings.{name}"].weight for name in ("word_embeddings", "token_type_embeddings", "position_embeddings")
]
norm = layer.LayerNorm
formula = bert_input(input_ids, np.zeros_like(input_ids), *tables, norm.weight, norm.bias, norm.eps)
assert np.array_equal(formula, whole)
study.print_rows(
    model,
    output,
    bert_base_uncased="""
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
)
study.print_rows(
    model,
    whole,
    bert_base_uncased="""
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
)

for name, row in (("sum", x[0, 3]), ("LayerNorm", whole[0, 3])):
    print(f"token 3, {name:9} mean {row.mean():+.4f}, variance {row.var():.4f}")
ax = plot.sum_steps({"word": word[0, 3], "token type": token_type[3], "position": position[3]}, whole[0, 3])
ax.set_title(f"token {layer.tokens(input_ids[0])[3]!r} at position 3", loc="left")
study.show(ax, "sum", of=model.name, alt="lines: the rows that are added for one token, their sum, and LayerNorm of it")

# %% [markdown]
# So all that BERT does for its first representation is: look up, add, normalise. (Both sides of this comparison are
# minibert's. `minibert verify` and the printed numbers of the reference show that they are BERT's too.)

# %% [markdown]
# ## Exercises
#
# 1. How many numbers does the layer have in all, and which share of them is in the word table?
# 2. "[SEP]" ends the first text of a pair. Of which type is it, and of which type is the last one?
# 3. Two texts of unequal length are padded to one length. Do the padding tokens get zeros from this layer? Do they
#    change the rows of the other tokens?
