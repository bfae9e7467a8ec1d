# %% [markdown]
# # Heads: from vectors to letters
#
# The last block leaves a vector for each token. A *head* (not an attention head) makes a model useful: a few formulas
# that turn vectors into a number for each word, the logits. GPT-2's head compares the vector with the word table and
# predicts the next token (`gpt2_blocks.py`). BERT's head predicts the token behind a mask. This page computes BERT's
# head by hand, with `bert-words`, a small BERT whose tokens are letters; `masked.py` trained it.
#
# * Devlin et al. 2018, *BERT* ([arXiv:1810.04805](https://arxiv.org/abs/1810.04805)), section 3.1: hidden words.

# %%
import masked
import numpy as np
import training
from safetensors.numpy import load_file

import minibert
from minibert.equations.activations import gelu_tanh
from minibert.equations.blocks import linear, softmax
from minibert.equations.heads import cross_entropy, tied_logits
from minibert.equations.input_layer import layer_norm

# two right programs differ in the last bits of a matrix product; measured here: 3e-6
CLOSE = 2e-5

# %% [markdown]
# ## Step 1: a word with a hidden letter
#
# `[MASK]` stands for the letter. It is a token like any other, with its own row, and it leaves the blocks as a vector
# that knows its neighbours on both sides.

# %%
encoder = minibert.load_encoder(masked.SHIPPED)
batch = encoder.tokenize("questi[MASK]n")
tokens = encoder.tokens(batch["input_ids"][0])
place = tokens.index("[MASK]")
x = encoder(**batch)[0, place]
print(tokens, x.shape)
assert encoder.heads == ("masked_word",) and x.shape == (encoder.dim,)

# %% [markdown]
# ## Step 2: the head, by hand
#
#     h = LayerNorm(gelu(x @ transform^T + b)),   logits = h @ word^T + bias
#
# The head is a map and a norm, then once more the table that gave each id its row. A letter's logit is large if h
# points in the direction of its row. `bias` is a letter's score before its neighbours are seen: frequent letters have a
# higher bias, though not in exact order. "t" has the highest, and "e", the most frequent letter, comes seventh (rank
# correlation 0.80).

# %%
stored = load_file(masked.SHIPPED / "model.safetensors")
weight, shift = (stored[f"cls.predictions.transform.dense.{name}"] for name in ("weight", "bias"))
norm = [stored[f"cls.predictions.transform.LayerNorm.{name}"] for name in ("weight", "bias")]
bias = stored["cls.predictions.bias"]
h = layer_norm(gelu_tanh(linear(x, weight, shift)), *norm, masked.EPS)
by_hand = tied_logits(h, encoder.embeddings.word_embeddings.weight, bias)
logits = encoder.logits(**batch)[0, place]
off, size = np.abs(by_hand - logits).max(), np.abs(logits).max()
print(f"by hand: at most {off:.0e} from the model's, of numbers up to {size:.2g}")
assert off < CLOSE * size
letters = np.arange(len(masked.SPECIAL), masked.VOCAB)
order = letters[np.argsort(bias[letters])]
print(f"least by the bias: {encoder.tokens(order[:5])}, most: {encoder.tokens(order[-7:])}")
counts = np.bincount(masked.as_ids(training.parted(training.words())[0]).ravel(), minlength=masked.VOCAB)[letters]
ranks = [np.argsort(np.argsort(each)) for each in (counts, bias[letters])]
frequent = np.corrcoef(*ranks)[0, 1]
print(f"most frequent: {encoder.tokens(letters[[counts.argmax()]])}; rank correlation with the bias {frequent:.2f}")
assert encoder.tokens(order[[-1, -7]]) == ["t", "e"] and ranks[0][letters == order[-7]] == 25 and frequent > 0.79

# %% [markdown]
# ## Step 3: probabilities
#
# Softmax turns the logits into probabilities; `fill` returns the largest.

# %%
chances = softmax(logits.copy())
best = np.argsort(chances)[::-1][:3]
print([(encoder.tokens([i])[0], round(float(chances[i]), 3)) for i in best])
filled = encoder.fill("questi[MASK]n", k=3)[0]
assert [each["token"] for each in filled] == best.tolist()
assert np.allclose([each["score"] for each in filled], chances[best], rtol=0, atol=CLOSE)

# %% [markdown]
# ## Step 4: how much both sides help
#
# The test: 2,171 words that the model never saw, with each of their 14,977 letters hidden once. The *loss* is the mean
# of -log of the probability that the right letter gets: 0 if every guess is sure and right, log 26 = 3.26 if each
# letter is equally likely. Counting which letter follows its left neighbour reaches a loss of 2.57, counting which
# letter stands between both neighbours 1.99, and the model, which sees the whole word, 1.83. Its likeliest letter is
# the right one for 41 %.

# %%
to_learn, to_test = (masked.as_ids(part) for part in training.parted(training.words()))
words = masked.one_hidden(to_test)
text, at = np.nonzero(words.hidden)
wanted = words.targets[text, at]
found = encoder.logits(input_ids=words.ids, attention_mask=(words.ids != masked.PAD).astype(int))[text, at]
counted = np.ones((masked.VOCAB,) * 3)  # each triple counts once more than it occurs, so that none has probability 0
inner = to_learn[:, 1:-1] >= len(masked.SPECIAL)
np.add.at(counted, tuple(to_learn[:, begin:end][inner] for begin, end in ((0, -2), (1, -1), (2, None))), 1)
counted = counted[:, len(masked.SPECIAL) :]  # the hidden token is a letter
before, after = words.targets[text, at - 1], words.targets[text, at + 1]
left, between = counted.sum(axis=2)[before], counted[before, :, after]
own = wanted - len(masked.SPECIAL)
losses = {
    name: float(-np.log(each[np.arange(len(own)), own] / each.sum(axis=1)).mean())
    for name, each in {"left neighbour": left, "both neighbours": between}.items()
}
losses["bert-words"] = float(cross_entropy(found, wanted).mean())
right = float(np.mean(found.argmax(axis=-1) == wanted))
print(", ".join(f"{name} {loss:.2f}" for name, loss in losses.items()), f"; right {right:.0%} of {len(own):,}")
assert [round(loss, 2) for loss in losses.values()] == [2.57, 1.99, 1.83] and round(right, 2) == 0.41

# %% [markdown]
# ## Exercises
#
# 1. Are the logits of a visible letter a prediction too?
# 2. A word has two masks. Does the guess for one use the guess for the other?
