# %% [markdown]
# # BERT's input layer in five minutes
#
# After this page you can compute BERT's first layer by hand. It turns each word into a *row* of numbers: it looks up
# three rows, adds them, and normalises the sum.
#
# A row is an arrow. These are real rows of "dog bites man", arrows in hundreds of directions, each drawn in a plane in
# which it lies. On the left are the row of "dog" and the rows of its place and its text, and their sum. In the middle
# are the sums of two words, on the right both normalised: the directions hardly change, and the lengths, written
# beside the arrows, become equal.

# %% tags=["folded"] jupyter={"source_hidden": true}
import matplotlib.pyplot as plt
import numpy as np
import study

from minibert.equations.input_layer import bert_input
from minibert.show.plot import BETWEEN, DARK, LIGHT

model = study.load("bert")
named = ("word", "position", "token_type")
tables = [np.array(model.layer[f"embeddings.{name}_embeddings"].weight, np.float64) for name in named]
dog, bites = (
    np.stack([tables[0][id_], tables[1][1 + i], tables[2][0]])
    for i, id_ in enumerate(model.layer.tokenize("dog bites man")["input_ids"][0, 1:3])
)
sums = np.stack([dog.sum(axis=0), bites.sum(axis=0)])
centred = sums - sums.mean(axis=1, keepdims=True)
normal = centred / sums.std(axis=1, keepdims=True)


def in_plane(two_rows: np.ndarray) -> np.ndarray:
    """Return two rows as points of the plane in which both lie, (2, 2): the first on the axis to the right."""
    directions, sizes = np.linalg.qr(two_rows.T)
    return two_rows @ (directions * np.sign(np.diag(sizes)))


word, others = in_plane(np.stack([dog[0], dog[1] + dog[2]]))
zero, arrows = np.zeros(2), {}
arrows["three rows of dog, and their sum"] = [
    (zero, word, DARK, "word"), (word, word + others, LIGHT, "place + text"), (zero, word + others, BETWEEN, "sum"),
]  # fmt: skip
for title, rows in (("two sums", sums), ("both normalised", normal)):
    named = zip(in_plane(rows), (BETWEEN, DARK), ("dog", "bites"), strict=True)
    arrows[title] = [(zero, end, ink, name) for end, ink, name in named]
axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")[1]
for ax, (title, drawn) in zip(axes, arrows.items(), strict=True):
    for begin, end, ink, name in drawn:
        ax.quiver(*begin, *(end - begin), color=ink, angles="xy", scale_units="xy", scale=1, width=0.012)
        label = f"{name} {np.linalg.norm(end - begin):.2f}"
        ax.annotate(label, (begin + end) / 2, xytext=(6, -12), textcoords="offset points", fontsize="small")
    longest = max(float(end.max()) for _, end, *_ in drawn)
    ax.set(title=title, xlim=(-0.1 * longest, 1.7 * longest), ylim=(-0.2 * longest, 1.25 * longest), aspect="equal")
alt = "arrows: rows of dog and their sum; the sums of dog and bites; both normalised, now of one length"
study.show(axes.tolist(), "arrows", of=model.name, alt=alt)
lengths = np.linalg.norm(normal, axis=1)
turned = np.vecdot(sums, normal) / np.linalg.norm(sums, axis=1) / lengths
print(f"normalised, both are {lengths.round(1)} long; the cosines with the sums: {turned.round(3)}")
assert np.allclose(lengths, np.sqrt(sums.shape[1])) and turned.min() > 0.99

# %% [markdown]
# The rest of this page computes all of this by hand for the same sentence, with four numbers a row where BERT has 768.
# The numbers are made up, so that you can check each of them.

# %%
sentence = ["dog", "bites", "man"]

# %% [markdown]
# ## Tokens
#
# A text is cut into *tokens*, here whole words. Each token has a number, its *id*: dog is 0, bites 1, man 2. (BERT has
# 30,522 tokens, among them pieces of words, and puts `[CLS]` before a text and `[SEP]` after it.)

# %%
vocabulary = ["dog", "bites", "man"]
ids = np.array([vocabulary.index(token) for token in sentence])
print(ids)

# %% [markdown]
# ## Three rows for each token
#
# Three tables answer three questions. *Which word?* Row 0 of `words` is dog's. *Which place?* Row 0 of `places` is for
# the first token, whatever its word. *Which text?* Row 0 of `texts` is for a first text, row 1 for a second one, as in
# question and answer. BERT learned all its rows in training.

# %%
words = np.array([[7.0, 0, 1, -7], [2, 6, -7, 0], [-6, 1, 2, 8]])
places = np.array([[1.0, 1, -1, 0], [0, 1, 1, -1], [1, -1, 1, 0]])
texts = np.array([[0.0, 1, 0, 1], [1, 0, 1, 0]])

word, place, text = words[ids], places[:3], texts[[0, 0, 0]]
for name, rows in (("word", word), ("place", place), ("text", text)):
    print(f"{name:5} {rows[0]}  {rows[1]}  {rows[2]}")

# %% [markdown]
# ## Their sum
#
# The three rows of a token are added, number by number. For dog:
#
#     word     7   0   1  -7
#     place    1   1  -1   0
#     text     0   1   0   1
#     sum      8   2   0  -6

# %%
total = word + place + text
print(total)
if sentence[0] == "dog":
    assert total[0].tolist() == [8, 2, 0, -6]

# %% [markdown]
# ## LayerNorm
#
# Each sum gets mean 0 and *standard deviation* 1. Subtract the row's mean, then divide by the standard deviation: the
# root of the mean square of what is left. For dog:
#
#     mean                 (8 + 2 + 0 - 6) / 4 = 1
#     minus the mean       7   1  -1  -7
#     standard deviation   sqrt((49 + 1 + 1 + 49) / 4) = 5
#     divided              1.4   0.2  -0.2  -1.4
#
# BERT then multiplies each column by a learned weight and adds a learned bias. Here the weights are 1, the biases 0.

# %%
middle = total - total.mean(axis=1, keepdims=True)
deviation = np.sqrt((middle**2).mean(axis=1, keepdims=True))
output = middle / deviation
print(output)
whole = bert_input(ids[None], np.zeros((1, 3), int), words, texts, places, np.ones(4), np.zeros(4))
assert np.allclose(output, whole[0]), "BERT's formula gives the same"

# %% [markdown]
# These three rows enter BERT's first *block*, one of several in a row that change them. Each row still knows only its
# own token: to look at others is the work of *attention*.

# %% [markdown]
# ## The picture

# %%
steps = {"word": word, "+ place": place, "+ text": text, "= sum": total, "→ LayerNorm": output}
figure, axes = plt.subplots(1, 5, figsize=(12, 2), layout="constrained", sharey=True)
for ax, (name, rows) in zip(axes, steps.items(), strict=True):
    limit = 1.5 if rows is output else 9
    ax.imshow(rows, cmap="PuOr_r", vmin=-limit, vmax=limit, alpha=0.6, aspect="auto")
    ax.set(title=name, xticks=[], yticks=range(3), yticklabels=sentence)
    for (i, j), number in np.ndenumerate(rows):
        ax.text(j, i, f"{number:.3g}", ha="center", va="center")
alt = "five grids of 3 x 4 numbers: the rows of word, place and text, their sum, and LayerNorm of it"
study.show(axes.tolist(), "steps", of="a made-up input layer, four numbers a row", alt=alt)

# %% [markdown]
# ## Change this
#
# Swap dog and man in the cell with the sentence, and run all cells again. What stays? The row of bites, and all rows of
# `place` and `text`. What moves? The words' rows. At its new place dog gets another row of `place`, and so another
# result: `1.4 -0.2 0.2 -1.4`. The outer two numbers are as before only by accident, because the tables are so small and
# round. In a real model every number of the row changes.

# %%
swapped = bert_input(ids[None, ::-1], np.zeros((1, 3), int), words, texts, places, np.ones(4), np.zeros(4))[0]
for tokens, rows in ((sentence, output), (sentence[::-1], swapped)):
    print("  ".join(f"{token} {row.round(1)}" for token, row in zip(tokens, rows, strict=True)))
if sentence[1] == "bites":
    assert np.array_equal(swapped[1], whole[0, 1])
    assert np.allclose(swapped[::-1][[0, 2]], output[[0, 2]] * [1, -1, -1, 1])

# %% [markdown]
# ## Onwards
#
# - The next page, with real numbers: [BERT's input layer, step by step](003_bert_step_by_step.py)
# - Places: [BERT's positions](000_bert_positions.py)
# - Looking at others: [Attention, one head by hand](005_attention.py)
# - Why three rows may be added: [Nine terms](011_nine_terms.py)
# - Where the rows come from: [BERT's three tables are learned](learned_tables.py)
#
# ## Exercises
#
# 1. By hand: which row has man in the middle of "dog man bites"?
# 2. Without `places`, what would the swap change?
