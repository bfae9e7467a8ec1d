# %% [markdown]
# # Induction: copying what has been seen once
#
# "... muddy bank ... muddy": what comes next? You can find the answer without knowing a word of English: look for the
# word that followed the same word before. Two heads can do it together. A head in an early block gives each token a
# note of the token *before* it (a *previous-token head*). A head in a later block looks for the token with a note of
# the current token, and copies that token: an *induction head*. No weight holds the answer; it is in the text.
#
# This page *builds* the two heads out of ones and zeros, so that each number can be followed. Large trained models have
# induction heads; the last step looks for them in the small model beside this file.
#
# * Olsson et al. 2022, *In-context Learning and Induction Heads* ([arXiv:2209.11895](https://arxiv.org/abs/2209.11895)).

# %%
import numpy as np
import study
import training

import minibert
from minibert.equations.blocks import additive_mask, attention
from minibert.show import plot

# %% [markdown]
# ## Step 1: rows in which some letters occur twice
#
# The cell draws 200 rows of 64 random letters. In each row a piece of 4 to 20 letters, all different, occurs twice; its
# letters occur nowhere else. Both places are random, so the distance reveals nothing.

# %%
random, seq = np.random.default_rng(0), 64
ids, asked, copied = np.empty((200, seq), np.int64), [], []
for i, row in enumerate(ids):
    length, letters = int(random.integers(4, 21)), random.permutation(26)
    row[:] = random.choice(letters[length:], seq)
    first = int(random.integers(1, seq - 2 * length + 1))
    second = int(random.integers(first + length, seq - length + 1))
    row[first : first + length] = row[second : second + length] = letters[:length]
    asked += [(i, second + j) for j in range(length - 1)]  # the place that has to predict the next letter
    copied += [first + j + 1 for j in range(length - 1)]  # the earlier place of that letter
text, place = np.array(asked).T
copied = np.array(copied)
distances = np.bincount(place - copied)
print("".join(training.LETTERS[i] for i in ids[0]))
print(f"{len(text)} letters to say; the most frequent distance is that of {distances.max() / len(text):.0%}")
assert np.array_equal(ids[text, copied], ids[text, place + 1]) and distances.max() < 0.1 * len(text)

# %% [markdown]
# ## Step 2: the previous-token head
#
#     q[i] = position i - 1,   k[j] = position j,   v[j] = letter j
#
# Positions and letters are rows of ones and zeros. The query asks for the place before, times 100, so that softmax
# leaves nothing for the other places. The head returns the letter before; it is written beside the letter, as a note.

# %%
letter, position = np.eye(26)[ids], np.eye(seq)
mask = additive_mask(np.tri(seq, dtype=bool), "float64")
query = 100 * np.eye(seq, k=-1)
note = attention(query, position, letter, mask)  # (rows, seq, 26)
back = attention(query, position, position, mask)  # with positions as values, a head returns its own weights
print(f"weight on the token before: {np.diagonal(back, -1).min():.3f} and more")
assert np.abs(note[:, 1:] - letter[:, :-1]).max() < 1e-3 and np.diagonal(back, -1).min() > 0.99

# %% [markdown]
# ## Step 3: the induction head
#
#     q[i] = letter i,   k[j] = note j,   v[j] = letter j
#
# Each letter asks: what followed me last time? It finds the place after its first occurrence, and copies the letter
# there.


# %%
def right(note: np.ndarray, scale: float = 100.0) -> float:
    """Compute the share of the wanted letters that the induction head predicts."""
    said = attention(scale * letter, note, letter, mask).argmax(axis=-1)
    return float(np.mean(said[text, place] == ids[text, place + 1]))


looks = attention(100 * letter, note, np.broadcast_to(position, (len(ids), seq, seq)), mask)
induction = looks[text, place, copied]
print(f"weight on the letter to be copied: {induction.min():.3f} and more; right: {right(note):.0%}")
assert induction.min() > 0.99 and right(note) == 1.0
study.show(
    plot.attention_heads(np.stack([back, looks[0]])[:, None]),
    "heads",
    of="two heads made of ones and zeros",
    alt="two grids of attention weights: a line below the diagonal; a shorter one farther off, where letters repeat",
)

# %% [markdown]
# ## Step 4: each alone
#
# Without the first head there is no note, and the second finds nothing. Without the second the note is there, but it
# names the letter before, not the next letter. Neither head alone predicts the right letter. (This page does not show
# how a model learns both.)

# %%
without = {"first": right(0 * note), "second": float(np.mean(note.argmax(-1)[text, place] == ids[text, place + 1]))}
print(", ".join(f"without the {name}: right {share:.0%}" for name, share in without.items()))
assert max(without.values()) < 0.1

# %% [markdown]
# ## Step 5: has the small GPT-2 such a head?
#
# `gpt2-words` has learned from words, in which a piece rarely occurs twice: a pair of letters does in 5 % of them,
# three letters in 0.4 %. Here it reads ten made-up words, each of seven letters and the same seven again. The mean
# weights of its twelve heads on the letter to be copied are all far from 1: at most 0.2.

# %%
encoder = minibert.load_encoder(training.SHIPPED)
halves = np.array([random.permutation(26)[:7] + 1 for _ in range(10)])
twice = np.concatenate([np.zeros((10, 1), np.int64), halves, halves], axis=1)
trace = encoder.trace(input_ids=twice, attention_mask=np.ones_like(twice))
places = np.arange(8, 14)
scores = np.array([trace[f"attentions.{i}"][:, :, places, places - 6].mean(axis=(0, 2)) for i in range(3)])
print(scores.round(2))
assert scores.max() < 0.2
for length, share in ((2, 0.052), (3, 0.004)):
    again = [any(word[i : i + length] in word[i + 1 :] for i in range(len(word) - length)) for word in training.words()]
    print(f"words in which {length} letters occur twice: {np.mean(again):.1%}")
    assert round(np.mean(again), 3) == share

# %% [markdown]
# ## Exercises
#
# 1. A letter occurs twice, with a different letter after it each time. What does the induction head predict the third
#    time?
# 2. Which of the two heads needs the causal mask?
