# %% [markdown]
# # A static model
#
# A static model has no blocks: it is an input layer and nothing else. Each token has one row, and a text's vector is
# the mean of its tokens' rows. `minibert distill` turns any encoder into a static model, in three steps: each token
# goes through the encoder by itself; the rows are projected onto their principal components; rare tokens get more
# weight. This file takes the three steps one by one, and shows the use of each step and its loss.
#
# * Tulkens, van Dongen 2024, *Model2Vec* ([github.com/MinishLab/model2vec](https://github.com/MinishLab/model2vec)).
# * Arora, Liang, Ma 2017, *A Simple but Tough-to-Beat Baseline for Sentence Embeddings* (ICLR): the weights.

# %%
import re
import sys
from collections.abc import Callable
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np
import study

import minibert
from minibert.equations.similarity import cosine_similarity
from minibert.equations.static import covariance_components, sif_weights, zipf_probabilities
from minibert.models.open.distill import static_tokenizer, token_rows

# two right programs differ in the last bits of a matrix product, and so do texts computed together and alone
CLOSE = 2e-5

# %% [markdown]
# ## Step 1: a row for each token
#
#     x[t] = mean of the last hidden state of [CLS] t [SEP]
#
# The mean is over all three. Tokens that occur in no text (`[MASK]`, `[unused7]`) get no row: 29,525 of MiniLM's 30,522
# tokens get a row. Their order in the vocabulary stays, and so the first words come after 999 signs and letters.

# %%
model = study.load("bert")
encoder = minibert.load_encoder(model.source)
made = static_tokenizer(encoder.sentence_tokenizer)
x = token_rows(encoder, made)  # (tokens, dim): half a minute for MiniLM
number = {token: i for i, token in enumerate(made.tokens)}
bank = encoder(**encoder.tokenize("bank"))[0].mean(axis=0)
print(f"{len(x):,} rows; 'bank' by hand: at most {np.abs(bank - x[number['bank']]).max():.0e} off")
assert np.abs(bank - x[number["bank"]]).max() < CLOSE
assert "[MASK]" not in number and not [token for token in number if token.startswith("[unused")]
if model.is_minilm:
    assert len(x) == 29_525 and number["the"] == 999

# %% [markdown]
# ## Step 2: the loss without context
#
# In a sentence about a river, MiniLM's "bank" is near the row of "river" (cosine 0.46); in a sentence about money it is
# not (0.29). The static model has the same row for both: 0.50, as if every bank had a river. Nor does it know who does
# what: a text with the same words in another order has the same mean.


# %%
def ids_of(text: str) -> list[int]:
    return made.tokenizer.encode([text])[0].input_ids


def vector(rows: np.ndarray, text: str, weights: np.ndarray | None = None) -> np.ndarray:
    """Compute the mean of a text's rows, scaled to length 1."""
    ids = ids_of(text)
    mean = (rows[ids] if weights is None else rows[ids] * weights[ids, None]).mean(axis=0)
    return mean / np.linalg.norm(mean)


sentences = ("The bank of the river was muddy.", "The bank raised its interest rates.")
in_context = np.array([encoder(**encoder.tokenize(text))[0][2] for text in sentences])  # [CLS] the bank
near = [float(c) for c in cosine_similarity([*in_context, x[number["bank"]]], x[[number["river"]]])[:, 0]]
print(f"'bank' and 'river': {near[0]:.2f} by the river, {near[1]:.2f} at the rates, {near[2]:.2f} without context")
cat, mouse = "The cat chased the mouse.", "The mouse chased the cat."
chased = float(vector(x, cat) @ vector(x, mouse))
print(f"who chased whom: {chased:.6f}")
assert abs(chased - 1) < 1e-6 and {ids_of(text)[1] for text in sentences} == {number["bank"]}
if model.is_minilm:
    assert np.abs(np.array(near) - [0.461, 0.287, 0.500]).max() < 1e-3

# %% [markdown]
# ## Step 3: the mean, which the principal components remove
#
# Any two tokens are a little alike: they share [CLS] and [SEP], two of the three vectors of their mean. The mean of all
# rows is half as long as a row. The components begin by subtracting the mean: then two random tokens have a cosine of
# 0.00, no longer 0.23.
#
# The rest is a rotation, which changes no cosine, until the last components are dropped: MiniLM's last 128 of 384 have
# 4 % of the variance.

# %%
mean = x.mean(axis=0, dtype=np.float64)
dims = min(256, x.shape[1])
pc = covariance_components(x, x.shape[1])
some = np.random.default_rng(0).choice(len(x), 500, replace=False)
pairs = np.triu_indices(len(some), 1)
before, after = (cosine_similarity(rows[some])[pairs] for rows in (x, x - mean))
print(f"mean {np.linalg.norm(mean):.2f} long, a row {np.median(np.linalg.norm(x, axis=1)):.2f}")
print(f"two tokens at random: cosine {before.mean():.2f}, centred {abs(after.mean()):.2f}")
print(f"{dims} of {x.shape[1]} components have {pc.shares[:dims].sum():.1%} of the variance")
assert np.abs(cosine_similarity(pc.coordinates[some])[pairs] - after).max() < 1e-6, "a rotation changes no cosine"
assert abs(after.mean()) < 0.01
if model.is_minilm:
    assert round(float(before.mean()), 2) == 0.23 and round(float(pc.shares[:dims].sum()), 3) == 0.959
ax = plt.subplots(figsize=(8, 3.5), layout="constrained")[1]
ax.hist([before, after], bins=60, label=["as they are", "centred"], histtype="stepfilled", alpha=0.6)
ax.set(xlabel="cosine of two tokens at random", ylabel="pairs")
ax.legend()
study.show(
    ax, "cosines", of=model.name,
    alt="two histograms of cosines between tokens: as they are to the right of 0, centred around 0",
)  # fmt: skip

# %% [markdown]
# What is a component? The first goes from places ("stadiums", "airspace") to letters of other scripts, the second from
# "reduces", "enhancing" and "enjoyment" to "birthplace" and names of towns, the third from characters of a story
# ("antagonist") and names to numbers.

# %%
for k in range(3):
    order = np.argsort(pc.coordinates[:, k])
    ends = [[made.tokens[i] for i in part] for part in (order[:5], order[-5:])]
    print(f"component {k}: {', '.join(ends[0])} ... {', '.join(ends[1])}")
assert (np.diff(pc.shares) <= 1e-12).all() and abs(pc.shares.sum() - 1) < 1e-9
if model.is_minilm:
    order = np.argsort(pc.coordinates, axis=0)
    assert all(made.tokens[i].isdigit() for i in order[-10:, 2]) and made.tokens[order[0, 2]] == "antagonist"
    assert {"stadiums", "airspace"} <= {made.tokens[i] for i in order[:5, 0]}
    assert {"reduces", "enhancing", "enjoyment"} <= {made.tokens[i] for i in order[:5, 1]}

# %% [markdown]
# ## Step 4: why rare words weigh more
#
# "the" is in nearly every long text, and so it distinguishes few texts. Its row is shorter than nine of ten word rows
# (6.5, the median 7.8; centred 5.1 and 6.9), but not nearly short enough: two of the seven rows of a short sentence may
# be rows of "the". So a frequent token gets a smaller weight:
#
#     w = a / (a + p),   a = 1e-4,   p = 1 / (rank + 2), divided by their sum
#
# The rank is the place in the vocabulary, in the hope that frequent words come first. In BERT's vocabulary they mostly
# do: of the words in Python's help topics (step 5), words that occur 200 times or more have the median rank 1,772,
# words that occur once 6,979. But 999 signs and letters of all scripts come before "the" (0.5): by their rank they are
# the most frequent tokens. This is true for the full stop (0.02), but not for "z" (0.06).

# %%
weights = sif_weights(zipf_probabilities(len(x)))
rows = pc.coordinates[:, :dims]
for i in ids_of("The cat sat on the mat."):
    length = np.linalg.norm(rows[i])
    print(f"{made.tokens[i]:>5}  row {length:.2f} long, weight {weights[i]:.3f}: {length * weights[i]:.2f}")
assert (np.diff(weights) > 0).all(), "the later in the vocabulary, the heavier"
assert weights[number["the"]] < weights[number["bank"]] < 1
words = [i for token, i in number.items() if re.fullmatch("[a-z]{3,}", token)]
shorter = []
for name, each in (("as they are", x), ("centred", x - mean)):
    length = np.linalg.norm(each, axis=1)
    own, median = length[number["the"]], np.median(length[words])
    shorter.append(float(np.mean(length[words] > own)))
    print(f"{name}: 'the' {own:.2f} long, the median word {median:.2f}; {shorter[-1]:.0%} of words are longer")
if model.is_minilm:
    assert 0.9 < shorter[0] < 0.92 and shorter[1] > 0.98
    found = [weights[number[token]] for token in (".", "z", "the", "mat")]
    assert np.abs(np.array(found) - [0.017, 0.062, 0.497, 0.925]).max() < 1e-3

# %% [markdown]
# Do the weights help? There are three questions, each with a text that shares words and a text that shares the meaning.
# The margin is how much nearer the second text is; below 0 the answer is wrong. MiniLM answers all three. Its plain
# rows answer one, narrowly. Centring alone is no better, weighting alone a little. Both together answer two. "What time
# does the store open?" stays nearest to the train: without context "what time does" is most of the question.

# %%
questions = [
    ("How do I reset my password?", "How do I boil an egg?", "I forgot my login credentials"),
    ("The bank raised its interest rates.", "The bank of the river was muddy.", "Loans have become more expensive."),
    ("What time does the store open?", "What time does the train leave?", "When can I go shopping there?"),
]


def margins(rows: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    found = [[vector(rows, text, weights) for text in three] for three in questions]
    return np.array([first @ meaning - first @ words for first, words, meaning in found])


whole = [encoder.encode(list(three), normalize_embeddings=True) for three in questions]
table = {
    "the whole model": np.array([first @ meaning - first @ words for first, words, meaning in whole]),
    "rows as they are": margins(x),
    "centred": margins(x - mean),
    f"{dims} components": margins(rows),
    "weighted": margins(x, weights),
    "both": margins(rows, weights),
}
for name, found in table.items():
    print(f"{name:>16}  {'  '.join(f'{margin:6.3f}' for margin in found)}   {np.count_nonzero(found > 0)} of 3")
assert np.abs(margins(pc.coordinates) - table["centred"]).max() < 1e-6, "all components: a rotation"
if model.is_minilm:
    right = {name: int(np.count_nonzero(found > 0)) for name, found in table.items()}
    assert list(right.values()) == [3, 1, 1, 1, 1, 2]
    assert np.abs(table["both"] - [0.292, 0.078, -0.035]).max() < 2e-3
    assert np.abs(table["rows as they are"] - [0.016, -0.071, -0.096]).max() < 2e-3

# %% [markdown]
# ## Step 5: more questions; Zipf's law, or counting
#
# Three questions prove little. Python's help topics make 78 more: the first sentence of each topic should find the rest
# of its text, among the rests of all topics. For Python 3.11 the whole model finds 67 % at the first try. Plain rows
# find 14 %, components alone 18 %, weights alone 42 %, both 45 %: nearly all of the gain comes from the weights.
#
# You can also count how often a token occurs in your texts. Each token counts once more than it occurs, because a token
# that the texts lack would otherwise have probability 0 (Laplace's rule of succession). In the topics "the" is every
# 28th token: its weight falls from 0.5 to 0.003. The weight of "cat", which they lack, rises to 0.94. The counts are
# nearer to the truth than Zipf's law, and yet they find less: 28 %.

# %%
texts = [" ".join(re.sub(r"^.*\n\*+\n", "", text).split()) for text in topics.values()]
halves = [(first, rest) for first, _, rest in (text.partition(". ") for text in texts) if rest]
counts = np.zeros(len(x))
for text in topics.values():
    np.add.at(counts, ids_of(text), 1)
counted = sif_weights((counts + 1) / (counts + 1).sum())
often, once = (np.median([i for i in words if least <= counts[i] <= most]) for least, most in ((200, np.inf), (1, 1)))
print(f"median rank of words that occur 200 times or more: {often:,.0f}, of words that occur once: {once:,.0f}")
assert often < once
print(f"Python {sys.version.split()[0]}: {counts.sum():,.0f} tokens, {np.count_nonzero(counts):,} different ones")
for token in (".", "the", "statement", "cat"):
    print(
        f"{token:>9} {counts[number[token]]:6.0f} times: {weights[number[token]]:.3f} -> {counted[number[token]]:.3f}"
    )
assert counted[number["the"]] < 0.02 < weights[number["the"]] and counts[number["cat"]] < 5
assert counted[counts == 0].min() == counted.max(), "what was never seen weighs most"


def at_once(encode: Callable[[str], np.ndarray]) -> float:
    """Compute the share of queries whose nearest rest is their own."""
    queries, rests = (np.array([encode(pair[i]) for pair in halves]) for i in (0, 1))
    return float(np.mean((queries @ rests.T).argmax(axis=1) == np.arange(len(halves))))


found = {
    "rows as they are": at_once(lambda text: vector(x, text)),
    f"{dims} components": at_once(lambda text: vector(rows, text)),
    "weighted": at_once(lambda text: vector(x, text, weights)),
    "both": at_once(lambda text: vector(rows, text, weights)),
    "both, counted": at_once(lambda text: vector(rows, text, counted)),
    "the whole model": at_once(lambda text: encoder.encode(text, normalize_embeddings=True)),
}
for name, share in found.items():
    print(f"{name:>16}  {share:.0%} of {len(halves)}")
if model.is_minilm:
    if sys.version_info[:2] == (3, 11):
        shares = [round(100 * found[name]) for name in ("the whole model", "rows as they are", "weighted", "both")]
        assert shares == [67, 14, 42, 45] and round(100 * found["both, counted"]) == 28
        assert f"{often:,.0f} {once:,.0f}" == "1,772 6,979"
    assert found["rows as they are"] < 0.3 < found["weighted"] < found["the whole model"]
    assert (
        abs(found[f"{dims} components"] - found["rows as they are"]) < 0.1 < found["both"] - found["rows as they are"]
    )

# %% [markdown]
# ## Exercises
#
# 1. Which texts can a static model never distinguish?
# 2. How do the weights change if `a` is very large, or very small?
# 3. How many components do the three questions need?
