# %% [markdown]
# # Nine terms, removed and learned
#
# `011_nine_terms.py` splits each score of block 0 into nine terms and measures how much of the scores' differences each
# term explains: its share. Does the model need a term with a large share? And were the shares there before training?
# This page removes terms in a run, as `008_what_does_a_head_do.py` removes heads, and looks at two small models before
# and after training.

# %%
import masked
import matplotlib.pyplot as plt
import numpy as np
import study
import texts
import training

import minibert
from minibert.show import plot
from minibert.show.attention import PARTS, shares_of, terms_of

model = study.load("bert")
encoder = minibert.load_encoder(model.source)
part = "encoder.layer.0.attention.self"
batch = encoder.tokenize("The bank of the river was muddy.")
tokens = encoder.tokens(batch["input_ids"][0])
trace = encoder.trace(**batch)
WORD, POSITION, REST = range(3)
NAMED = {f"{PARTS[a]} with {PARTS[b]}": (a, b) for a, b in ((0, 0), (1, 1), (2, 0), (0, 1), (1, 0))}

# %% [markdown]
# ## Step 1: a term removed
#
# A share shows how much a term contributes to the scores. Does the model need the term? `change=` replaces values in a
# run: it takes a name of the trace, and a function that gets these values and returns new ones. Here the function
# subtracts one term from the scores of all heads of block 0. Two numbers measure the effect: how much of a query's
# attention weight moves to other keys (0 to 1), and the cosine of the sentence vector (the mean of the last rows) to
# the unchanged one.
#
# The ten sentences of `texts.py` go through all-MiniLM-L6-v2. Without position with position, head 2 puts all its
# weight on `[CLS]` instead of the token before (1.00, now 0.10). Yet the sentence vectors hardly move: their cosine is
# at least 0.978. So a large share does not prove a need. Without the two mixed terms, which TUPE leaves out, the cosine
# is at least 0.998, though head 9 moves 0.31 of its weight. (TUPE's models learn without these terms; this model has
# learned with them.)
#
# But without rest with word the cosine falls to between 0.00 and 0.19. Head 9 causes the fall: without the term in this
# head alone the cosine is 0.00 to 0.21, and the head's weight on the last two tokens, a punctuation mark and `[SEP]`,
# rises from 0.09 to 0.65. With the head knocked out (all its weights 0) the cosine is at least 0.998. So nothing that
# head 9 gathers is needed here: the term is needed to keep the head from looking at these two tokens.


# %%
def without(
    batch: dict[str, np.ndarray], *pairs: tuple[int, int], head: int | slice = slice(None)
) -> dict[str, np.ndarray]:
    """Compute the trace of a text without some terms, in all heads or in one."""
    found = terms_of(encoder, batch)
    left_out = np.zeros(found.shape[2:], np.float32)
    for pair in pairs:
        left_out[head] += found[pair][head]
    return encoder.trace(**batch, change={f"{part}.scores": lambda scores: scores - left_out})


def cosine(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    first, second = (each[f"hidden_states.{len(encoder.stack.blocks)}"][0].mean(axis=0) for each in (one, other))
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


batches = [encoder.tokenize(sentence) for sentence in texts.SENTENCES]
usual = [encoder.trace(**each) for each in batches]
cosines, moved = {}, {}
CASES = {name: [pair] for name, pair in NAMED.items()} | {"both of word and position": [(0, 1), (1, 0)]}
for name, pairs in CASES.items():
    changed = [without(each, *pairs) for each in batches]
    cosines[name] = np.array([cosine(*both) for both in zip(changed, usual, strict=True)])
    apart = [np.abs(one["attentions.0"] - two["attentions.0"])[0] for one, two in zip(changed, usual, strict=True)]
    moved[name] = np.array([each.sum(axis=-1).mean(axis=-1) / 2 for each in apart])  # (texts, heads)
    most = int(moved[name].mean(axis=0).argmax())
    print(f"without {name}: head {most} moves {moved[name][:, most].mean():.2f} of its weight; ", end="")
    print(f"cosine {texts.spread(cosines[name], 3)}")
gone = [without(each, (POSITION, POSITION)) for each in batches]
on_before = [np.mean([np.diagonal(each["attentions.0"][0, 2], -1).mean() for each in some]) for some in (usual, gone)]
on_first = np.mean([each["attentions.0"][0, 2, :, 0].mean() for each in gone])
print(f"head 2 on the token before: {on_before[0]:.2f}, without position with position {on_before[1]:.2f}; ", end="")
print(f"then on the first token {on_first:.2f}")
alone = [without(each, (REST, WORD), head=9) for each in batches]
out = [encoder.trace(**each, change=minibert.knock_out(encoder, heads=[(0, 9)])) for each in batches]
of_head = [[cosine(*both) for both in zip(some, usual, strict=True)] for some in (alone, out)]
on_last = [[each["attentions.0"][0, 9, :, -2:].sum(axis=-1).mean() for each in some] for some in (usual, alone)]
last_two = np.mean(on_last, axis=1)
print(f"head 9 alone without rest with word: cosine {texts.spread(of_head[0])}, ", end="")
print(f"on the last two tokens {last_two[1]:.2f}, usually {last_two[0]:.2f}; head 9 out: {texts.spread(of_head[1], 3)}")
if model.is_minilm:
    assert [f"{found:.2f}" for found in (*on_before, on_first)] == ["1.00", "0.10", "1.00"]
    attended = [each["attentions.0"][0, 9, :, 0].mean() for each in usual]  # head 9 on [CLS]
    assert (f"{min(attended):.2f}", f"{max(attended):.2f}") == ("0.26", "0.41")
    least = [f"{cosines[name].min():.3f}" for name in ("position with position", "both of word and position")]
    assert least == ["0.978", "0.998"] and f"{moved['both of word and position'][:, 9].mean():.2f}" == "0.31"
    found = [(f"{min(each):.2f}", f"{max(each):.2f}") for each in (cosines["rest with word"], of_head[0])]
    assert found == [("0.00", "0.19"), ("0.00", "0.21")]
    assert [f"{each:.2f}" for each in last_two] == ["0.09", "0.65"] and f"{min(of_head[1]):.3f}" == "0.998"
assert np.abs(without(batch)[f"{part}.scores"] - trace[f"{part}.scores"]).max() == 0, "no term, no change"
axes = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")[1]
for ax, found, title in zip(axes, (usual[0], gone[0]), ("head 2", "without position with position"), strict=True):
    plot.attention_grid(found["attentions.0"][0, 2], tokens, ax=ax).set_title(title, loc="left")
alt = "two grids: the attention weights of head 2 of block 0, a line below the diagonal; without a term, columns"
study.show(list(axes), "without", of=model.name, alt=alt)

# %% [markdown]
# ## Step 2: before and after training
#
# Does a model begin like this, or does it learn this? Two small models of letters show it: `bert-words`, which finds
# hidden letters, and `gpt2-words`, which predicts the next letter. They read ten words that neither was trained on.
#
# Before training the four terms of word and position have about the same share: 15 to 19 % in `bert-words`, 21 to 29 %
# in `gpt2-words`; over ten draws of the first random numbers 9 to 27 % and 19 to 33 %. Their scores hardly differ
# (standard deviation 0.28 and 0.02). After training they differ (2.4 and 2.0): position with position has 78 % and
# 44 %, and the two mixed terms together have 19 % and 26 %, down from 36 % and 55 %. Both models have learned to
# separate the tables.

# %%
long_words = [word for word in training.parted(training.words())[1] if len(word) > 7]
unseen = long_words[:: len(long_words) // 10][:10]
folder = study.temporary()
small = {
    "bert-words before": masked.save(masked.random_weights(), folder / "bert"), "bert-words after": masked.SHIPPED,
    "gpt2-words before": training.save(training.model_of(training.random_weights()), folder / "gpt2"),
    "gpt2-words after": study.GPT2,
}  # fmt: skip
means, spread = {}, {}
for name, source in small.items():
    letters = minibert.load_encoder(source)
    parted = [terms_of(letters, letters.tokenize(each)) for each in unseen]
    means[name] = 100 * np.mean([shares_of(letters, each) for each in parted], axis=(0, -1))  # over all words and heads
    spread[name] = float(np.mean([each.sum(axis=(0, 1)).std() for each in parted]))
    told = ", ".join(f"{what} {means[name][pair]:.0f} %" for what, pair in NAMED.items())
    print(f"{name}: deviation {spread[name]:.2f}; {told}")

drawn = {
    "bert-words": lambda seed: masked.save(masked.random_weights(seed), folder / f"bert-{seed}"),
    "gpt2-words": lambda seed: training.save(training.model_of(training.random_weights(seed)), folder / f"gpt2-{seed}"),
}
ends = []
for name, draw in drawn.items():
    found = []
    for seed in range(10):
        letters = minibert.load_encoder(draw(seed))
        found.append([shares_of(letters, terms_of(letters, letters.tokenize(each))) for each in unseen])
    four = 100 * np.mean(found, axis=(1, -1))[:, :2, :2]  # (draws, query's part, key's part)
    ends.append((round(four.min()), round(four.max())))
    print(f"{name} before, ten draws: each of the four {texts.spread(four, 0)} %")
assert ends == [(9, 27), (19, 33)]

across = {name: round(found[0, 1] + found[1, 0]) for name, found in means.items()}
both = [np.round(means[f"{name} before"][:2, :2]) for name in ("bert-words", "gpt2-words")]
assert [(found.min(), found.max()) for found in both] == [(15, 19), (21, 29)]
assert [round(found[1, 1]) for found in means.values()][1::2] == [78, 44] and [*across.values()] == [36, 19, 55, 26]
assert [f"{found:.2f}" for found in spread.values()] == ["0.28", "2.38", "0.02", "2.02"]

# %% [markdown]
# ## Exercises
#
# 1. All nine terms of head 2 are removed. What are its weights?
# 2. Remove the three terms with the key's rest from `gpt2-words`. What changes?
