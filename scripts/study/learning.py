# %% [markdown]
# # How the tables are learned
#
# A table of embeddings begins as random numbers. One rule, repeated many times, makes it useful: ask how the loss would
# change if a number of the table changed, and move that number a little the other way. The answers for all numbers are
# the *gradient*.
#
# How are these answers computed? If y grows 3 times as fast as x, and the loss 2 times as fast as y, the loss grows 6
# times as fast as x: factors are multiplied. If x is used in two places, the two effects are added. So we go back from
# the loss, formula by formula, and pass each formula the gradient of its result: this is *backpropagation*. This file
# goes backward through the formulas of the input layer, checks one of them by hand, and finds a table by plain gradient
# descent. At the end it looks at the output layer, which uses the same table and adds to its gradient.
#
# The formulas are in `gradients.py` beside this file, in the order of `minibert/equations/input_layer.py`.
# No model is needed here.
#
# * Rumelhart, Hinton, Williams 1986, *Learning representations by back-propagating errors*

# %%
import matplotlib.pyplot as plt
import numpy as np
import study
from gradients import gpt2_input_gradient, layer_norm_gradient, learn_word_table, lookup_gradient

from minibert.equations.input_layer import gpt2_input, layer_norm
from minibert.show import plot

generator = np.random.default_rng(0)

# %% [markdown]
# ## Step 1: a lookup, backward
#
#     forward:   y[i] = table[ids[i]]
#     backward:  g[ids[i]] += grad[i]
#
# A row that was looked up twice gets both gradients. A row that was not looked up gets none from here. `g[ids] += grad`
# in NumPy would keep only the last of the two gradients: a classic mistake.

# %%
ids, grad = np.array([2, 0, 2]), np.array([[1.0], [2.0], [4.0]])
gradient = lookup_gradient(grad, ids, rows=4)
print(gradient.ravel())
assert gradient.ravel().tolist() == [2.0, 0.0, 5.0, 0.0]

wrong = np.zeros((4, 1))
wrong[ids] += grad
assert wrong.ravel().tolist() == [2.0, 0.0, 4.0, 0.0], "the 1 is lost"

# %% [markdown]
# ## Step 2: LayerNorm, backward
#
#     n = (x - mean) / s,   s = sqrt(variance + eps),   h = grad * weight
#     g_x = (h - mean(h) - n * mean(h * n)) / s
#
# Add a constant to a row, or multiply its distance from the mean: LayerNorm gives the same result (`eps` aside). So no
# loss after it changes either. Therefore the gradient of a row sums to zero and is at a right angle to the row.

# %%
x, weight, grad = (generator.standard_normal(shape) for shape in ((5, 16), (16,), (5, 16)))
gradient = layer_norm_gradient(grad, x, weight).x
centred = x - x.mean(axis=-1, keepdims=True)
assert np.abs(gradient.sum(axis=-1)).max() < 1e-12
assert np.abs(np.vecdot(gradient, centred)).max() < 1e-9

# %% [markdown]
# ## Step 3: is the formula right? Try it
#
# A gradient predicts the effect of a small change. So make a small change: add `h` to a single number, subtract `h`
# from it, and compare.
#
#     dL/dx = (L(x + h) - L(x - h)) / (2 h)      up to an error of the size h^2

# %%
h, bias = 1e-5, np.zeros(16)
tried = np.empty_like(x)
for place in np.ndindex(*x.shape):
    more, less = x.copy(), x.copy()
    more[place] += h
    less[place] -= h
    tried[place] = np.sum(grad * (layer_norm(more, weight, bias) - layer_norm(less, weight, bias))) / (2 * h)
print(f"formula and trial differ by at most {np.abs(gradient - tried).max():.1e}")
assert np.abs(gradient - tried).max() < 1e-7

# %% [markdown]
# ## Step 4: a table to find
#
# Somebody hides a word table from us. We see only the output of GPT-2's input layer with this table, for 64 texts.
# Eight of the 50 words never occur in them. The numbers are made up; there is no trained model in this file.

# %%
vocab, dim, length, texts, unseen = 50, 32, 16, 64, 8
hidden, wpe = generator.standard_normal((vocab, dim)), generator.standard_normal((length, dim))
# as in a language, some words are frequent and many are rare
chances = 1 / np.arange(1, vocab - unseen + 1)
input_ids = generator.choice(vocab - unseen, (texts, length), p=chances / chances.sum())
target = gpt2_input(input_ids, hidden, wpe)
print(target.shape, "(batch, seq, dim)")
assert target.shape == (texts, length, dim)
assert input_ids.max() < vocab - unseen

# %% [markdown]
# ## Step 5: learn
#
#     loss = sum((gpt2_input(ids, wte, wpe) - target)^2) / (2 * tokens)
#     wte <- wte - rate * dL/d wte
#
# We take three hundred steps from a table of zeros. The loss falls in every step. The line in the picture bends because
# frequent words are learned first. If a word is the share `s` of all tokens, each step multiplies its error by `1 -
# rate * s`.

# %%
rate, steps = 1.0, 300
learned, losses = learn_word_table(target, input_ids, np.zeros((vocab, dim)), wpe, rate, steps)
print(f"loss: {losses[0]:.2f} before the first step, {losses[-1]:.1e} before the last")
assert np.all(np.diff(losses) < 0)
assert losses[-1] < 0.02 * losses[0]

first = gpt2_input_gradient(gpt2_input(input_ids, np.zeros((vocab, dim)), wpe) - target, input_ids, learned, wpe)
assert not np.any(first.wte[vocab - unseen :]), "no token, no gradient"

ax = plt.subplots(figsize=(8, 4), layout="constrained")[1]
ax.semilogy(losses, color=plot.DARK)
ax.set(xlabel="step of gradient descent", ylabel="loss", xlim=(0, steps - 1))
ax.spines[["top", "right"]].set_visible(False)
study.show(ax, "loss", of="made-up tables, no model", alt="a curve: the loss falls with the steps of training")

# %% [markdown]
# ## Step 6: the rows that were found
#
# The rows of frequent words are found. The rows of rare words are on their way. The rows of words that never occurred
# are still zeros, as at the start: the lookup gives them no gradient.
#
# In a trained BERT or GPT-2 they do move. Step 7 shows why.

# %%
error = np.linalg.norm(learned - hidden, axis=1) / np.linalg.norm(hidden, axis=1)
counts = np.bincount(input_ids.ravel(), minlength=vocab)
left = (1 - rate * counts / input_ids.size) ** steps
assert np.allclose(error, np.abs(left), rtol=0, atol=1e-9), "exactly as the formula says"
assert not np.any(learned[counts == 0]) and np.count_nonzero(counts == 0) >= unseen
print(f"most frequent word: {counts.max()} times, {error[counts.argmax()]:.0e} of its row is missing")

ax = plt.subplots(figsize=(8, 4), layout="constrained")[1]
ax.scatter(counts, error, s=18, color=plot.DARK)
ax.set_xscale("symlog", linthresh=1)  # a logarithm that has a place for zero
ax.set(xlabel="how often the word occurred", ylabel="share of its row still missing", xlim=(-0.1, None))
ax.set_xticks([0, 1, 10, 100], ["never", "1", "10", "100"])
ax.spines[["top", "right"]].set_visible(False)
alt = "dots: how far a learned row is off, by how often its word was seen"
study.show(ax, "found", of="made-up tables, no model", alt=alt)

# %% [markdown]
# ## Step 7: the same table at the output
#
# BERT learns to predict hidden words, GPT-2 the next word. Both compare a vector `h` of a token with every row of the
# input layer's word table. (In GPT-2 `h` is the last hidden state. BERT passes it through one more map and norm, and
# adds a learned number for each word to the logits.)
#
#     logits = h @ wte^T,   p = softmax(logits),   loss = -log p[right word]
#     g_wte[w] = (p[w] - 1) * h   for the right word,     g_wte[w] = p[w] * h   for every other word
#
# Softmax gives no word a probability of 0. So every row gets a gradient, even the rows of `[PAD]` and of words that
# never occurred. The gradient pushes the rows of the wrong words away from `h`, each by its probability. So in a
# trained file no row still has its first values. (This project's tests check this in the reference: in
# `BertForMaskedLM` and in `GPT2LMHeadModel` all rows of words that are not in the batch get a gradient.) The position
# rows are used only in the input layer, so they get no second gradient.

# %%
h = generator.standard_normal(dim)
right = int(input_ids[0, 0])
logits = learned @ h
p = np.exp(logits - logits.max())
p /= p.sum()
at_output = np.outer(p, h)
at_output[right] -= h


def loss_of(table: np.ndarray) -> float:
    logits = table @ h
    return float(np.log(np.sum(np.exp(logits - logits.max()))) + logits.max() - logits[right])


for row in (right, vocab - 1):
    for column in range(dim):
        more, less = learned.copy(), learned.copy()
        more[row, column] += 1e-5
        less[row, column] -= 1e-5
        assert abs((loss_of(more) - loss_of(less)) / 2e-5 - at_output[row, column]) < 1e-8
moved = np.count_nonzero(np.any(at_output != 0, axis=1))
never = np.linalg.norm(at_output[counts == 0], axis=1)
print(f"rows with a gradient from the output: {moved} of {vocab}, though {len(never)} of these words never occurred")
print(f"length of the gradient: {np.linalg.norm(at_output[right]):.1f} for the right word, ", end="")
print(f"{never.mean():.1e} for a word that never occurred")
assert moved == vocab

# %% [markdown]
# ## Exercises
#
# 1. A word is 5 % of all tokens, and `rate` is 1. After how many steps is less than 1 % of its row missing? Say it
#    before you compute it.
# 2. With which `rate` does the descent fail, and for which word first?
# 3. `padding_idx` takes the row of padding out of the lookup's gradient. How does that row's gradient look, though
#    padding was looked up?
