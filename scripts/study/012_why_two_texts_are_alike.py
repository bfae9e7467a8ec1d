# %% [markdown]
# # Why are two texts alike? A cosine as a sum over pairs of tokens
#
# A model makes one vector for each text, and the cosine of two vectors is one number. The number does not show which
# words made it. But with mean pooling each vector is a mean of token vectors, and the product of two means is a sum of
# products: one for each pair of tokens. Nothing is approximated.
#
#     v = (x_1 + ... + x_n) / n        w = (y_1 + ... + y_m) / m
#     cos(v, w) = v . w / (|v| |w|) = sum over i and j of x_i . y_j / (n m |v| |w|)
#
# This file computes the pairs by hand, looks at ten alike, ten opposite and ten unrelated pairs of sentences, asks what
# `[CLS]`, `[SEP]` and the full stop add, and exchanges words. It ends with the limits of such a sum.

# %%
import numpy as np
import study
import texts

import minibert
from minibert.equations.token_pairs import pooled_parts, similarity_pairs
from minibert.show import plot

CLOSE = 1e-9  # measured here: 2e-17
model = study.load("bert")
encoder = minibert.load_encoder(model.source)
text, other = "The doctor gave her some medicine.", "A physician treated the patient."
x, y = (encoder.encode(each, output_value="token_embeddings").astype(np.float64) for each in (text, other))
v, w = x.mean(axis=0), y.mean(axis=0)
by_hand = x @ y.T / (len(x) * len(y) * np.linalg.norm(v) * np.linalg.norm(w))
split = encoder.similarity_pairs(text, other)
assert np.abs(by_hand - split.pairs).max() < CLOSE
print(f"{by_hand.shape[0]} x {by_hand.shape[1]} pairs, their sum is {by_hand.sum():.4f}")
print("similarity:", f"{encoder.similarity(encoder.encode(text), encoder.encode(other)).item():.4f}")
for one, two, adds in split.largest(3):
    print(f"{one} with {two}: {adds:.4f}")
study.show(
    plot.token_pairs(split.pairs, split.tokens, split.others, of="cosine"), "pairs", of=model.name,
    alt="a grid: a row for each token of one text, a column for each token of the other, bars with their sums",
)  # fmt: skip

# %% [markdown]
# ## Step 1: alike, opposite, unrelated
#
# The texts of `texts.py` are ten pairs with one meaning in different words, ten pairs that differ in the word "not",
# and ten pairs that have nothing to do with each other.
#
# In all-MiniLM-L6-v2 the largest pair of alike texts is in 10 of 10 a pair of two different words, such as "doctor"
# with "physician" or "password" with "credentials". For opposite texts it is in 10 of 10 the same word twice. Their
# cosine (0.77 to 0.93) is larger than that of alike texts (0.36 to 0.68). The column of "not" even adds 0.03 to 0.07.
# So the sum shows what the model compares: the topic more than the truth.
#
# In unrelated texts no words belong together, and the largest pair is `[CLS]` with `[CLS]` in 9 of 10. There 9 to 82 %
# of the pairs are below 0; in alike texts at most 3 % are.

# %%
MARKS = ("[CLS]", "[SEP]", ".", "?")
KINDS = {
    "alike": [(one, two) for one, _, two in texts.QUESTIONS],
    "opposite": [(two, one) for one, two, _ in texts.NEGATIONS],
    "unrelated": [
        (one[0], two[0]) for one, two in zip(texts.QUESTIONS, texts.QUESTIONS[1:] + texts.QUESTIONS[:1], strict=True)
    ],
}
splits = {kind: [encoder.similarity_pairs(*each) for each in some] for kind, some in KINDS.items()}
cosines = {kind: np.array([each.pairs.sum() for each in some]) for kind, some in splits.items()}
below = {kind: [100 * (each.pairs < 0).mean() for each in some] for kind, some in splits.items()}
largest = {kind: [each.largest(1)[0][:2] for each in some] for kind, some in splits.items()}
negation = [each.pairs[:, each.others.index("not")].sum() for each in splits["opposite"]]
for kind in KINDS:
    print(f"{kind}: cosine {texts.spread(cosines[kind])}; below 0: {texts.spread(below[kind], 0)} %; ", end="")
    print("largest:", ", ".join(f"{one} {two}" for one, two in largest[kind][:5]))
print(f'the column of "not" adds {texts.spread(negation)}')
if model.is_minilm:
    assert all(one != two and one not in MARKS for one, two in largest["alike"])
    assert all(one == two and one not in MARKS for one, two in largest["opposite"])
    assert largest["unrelated"].count(("[CLS]", "[CLS]")) == 9
    said = [cosines["opposite"], cosines["alike"], negation]
    assert [f"{min(each):.2f} {max(each):.2f}" for each in said] == ["0.77 0.93", "0.36 0.68", "0.03 0.07"]
    assert [round(end) for end in (min(below["unrelated"]), max(below["unrelated"]), max(below["alike"]))] == [9, 82, 3]

# %% [markdown]
# ## Step 2: `[CLS]`, `[SEP]` and the full stop
#
# The mean counts every token, so these three count too. In alike texts the pairs with at least one of them (or a
# question mark) add 34 to 52 % of the cosine. Yet they are no separate reason for it: each of these tokens has looked
# at its whole text. If the means are computed of the words alone, the cosine of alike texts moves by at most 0.04, and
# the cosine of opposite and unrelated texts by at most 0.03.

# %%
shares, alone = {}, {}
for kind, some in KINDS.items():
    shares[kind], alone[kind] = [], []
    for pair, each in zip(some, splits[kind], strict=True):
        of_word = [np.array([token not in MARKS for token in tokens]) for tokens in each[:2]]
        words = each.pairs[np.ix_(*of_word)].sum()
        shares[kind].append(100 * (1 - words / each.pairs.sum()))
        rows = (encoder.encode(one, output_value="token_embeddings") for one in pair)
        parts = [pooled_parts(one[kept], "mean") for one, kept in zip(rows, of_word, strict=True)]
        alone[kind].append(similarity_pairs(*parts).sum())
moved = {kind: np.array(alone[kind]) - cosines[kind] for kind in KINDS}
print(f"pairs with a mark, alike texts: {texts.spread(shares['alike'], 0)} % of the cosine")
for kind in KINDS:
    print(f"{kind}, words alone: cosine {texts.spread(alone[kind])}; moved by {texts.spread(moved[kind])}")
if model.is_minilm:
    assert [round(end) for end in (min(shares["alike"]), max(shares["alike"]))] == [34, 52]
    assert [f"{np.abs(moved[kind]).max():.2f}" for kind in KINDS] == ["0.04", "0.03", "0.03"]

# %% [markdown]
# ## Step 3: a part of a sum is no cause
#
# In ten sentences one word is exchanged, such as "lion" for "bear". A text with itself has the cosine 1; with the
# exchanged word the cosine falls by 0.11 to 0.33. If a column belonged to its word alone, the whole fall would be in
# the column of the exchanged word. Only 25 to 67 % of it is (mean 36 %): the other tokens have seen the new word, and
# their vectors changed too.
#
# So a large part does not mean that the cosine falls by this part without the word. To know that, take the word out
# and compare. In the alike texts every word's row adds something above 0, but without 18 of the 56 words the cosine
# rises. The word with the largest row is the word that the cosine needs most in 5 of 10. "bank" adds 0.05 to the cosine
# of two sentences about interest and loans; without "bank" the cosine rises by 0.04. A sentence without a word can be
# odd, and a model computes something for odd sentences too: that is the limit of taking out.

# %%
falls, in_column = [], []
for one, two in texts.SWAPS:
    same, swapped = encoder.similarity_pairs(one, one), encoder.similarity_pairs(one, two)
    (place,) = (i for i, (a, b) in enumerate(zip(swapped.tokens, swapped.others, strict=True)) if a != b)
    columns = (same.pairs - swapped.pairs).sum(axis=0)
    falls.append(columns.sum())
    in_column.append(100 * columns[place] / columns.sum())
print(f"one word exchanged: the cosine falls by {texts.spread(falls)}; ", end="")
print(f"in its column {texts.spread(in_column, 0)} %")
added, needed = [], []
for (one, two), each in zip(KINDS["alike"], splits["alike"], strict=True):
    words, end = one[:-1].split(), one[-1]
    without = [" ".join(words[:i] + words[i + 1 :]) + end for i in range(len(words))]
    assert len(each.tokens) == len(words) + 3 or not model.is_minilm, "each word is one token"
    added.append(each.pairs[1 : 1 + len(words)].sum(axis=1))
    vectors, compared = encoder.encode(without), encoder.encode(two)
    needed.append(each.pairs.sum() - encoder.similarity(vectors, compared)[:, 0])
best = sum(int(row.argmax() == fall.argmax()) for row, fall in zip(added, needed, strict=True))
every, gone = np.concatenate(added), np.concatenate(needed)
print(f"{len(every)} words taken out: the cosine rises without {(gone < 0).sum()}; ", end="")
print(f"the largest row is needed most in {best} of 10")
print(f'"bank" adds {added[1][1]:.2f}; without it the cosine rises by {-needed[1][1]:.2f}')
if model.is_minilm:
    assert (f"{min(falls):.2f}", f"{max(falls):.2f}") == ("0.11", "0.33")
    assert [round(each) for each in (min(in_column), max(in_column), np.mean(in_column))] == [25, 67, 36]
    assert (len(every), (gone < 0).sum(), best, every.min() > 0) == (56, 18, 5, True)
    assert (f"{added[1][1]:.2f}", f"{-needed[1][1]:.2f}") == ("0.05", "0.04")

# %% [markdown]
# ## Exercises
#
# 1. Compare a text with itself. Is the matrix symmetric, and is the pair of a token with itself always its row's
#    largest?
# 2. Take the full stop or the question mark out of both texts, and encode both again. How far does the cosine of alike
#    texts move?
