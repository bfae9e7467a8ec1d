# %% [markdown]
# # What the small GPT-2 has learned
#
# `007_training.py` trained a GPT-2 of letters; the model stands beside this file, in `gpt2-words`. This page tests its
# knowledge: words that it makes up, places in a word, and the last letter of words that it never saw.

# %%
import numpy as np
import study
import texts
import training

import minibert
from minibert.equations.similarity import cosine_similarity
from minibert.show import plot

words = training.words()
to_learn, to_test = training.parted(words)
learned, tested = training.as_ids(to_learn), training.as_ids(to_test)

# %% [markdown]
# ## Step 1: words that it makes up
#
# `complete` begins with nothing, draws each letter by its probability, and stops when the model ends the word. Some of
# the words exist in the vocabulary, most do not: of 200 words of `gpt2-words`, 35 are in the vocabulary of
# all-MiniLM-L6-v2, 0 to 7 in each group of 20.


# %%
def made_up(count: int, temperature: float) -> list[str]:
    """Write words with the model, each from another seed."""
    with minibert.load_encoder(training.SHIPPED) as encoder:
        return [encoder.complete("", tokens=training.POSITIONS, temperature=temperature, seed=i) for i in range(count)]


written = made_up(200, temperature=1.0)
new = [word for word in written if word not in set(words)]
print(", ".join(new[:20]))
usual = np.array([word in set(words) for word in written]).reshape(10, 20).sum(axis=1)
print(f"{usual.sum()} of {len(written)} are words of the vocabulary; of each 20 {texts.spread(usual, 0)}")
assert 0 < len(new) < len(written)

# %% [markdown]
# At a low temperature the model prefers likely letters, and invents less: 72 of 200 are words of the vocabulary, 4 to 9
# in each group of 20. In nine of the ten groups there are more of them than at temperature 1.

# %%
careful = made_up(200, temperature=0.5)
known = np.array([word in set(words) for word in careful]).reshape(10, 20).sum(axis=1)
print(f"{known.sum()} of 200 at temperature 0.5: {', '.join(careful[:12])}")
print(f"of each 20 {texts.spread(known, 0)}; more than at temperature 1 in {np.count_nonzero(known > usual)} of 10")
assert known.sum() > usual.sum()

# %% [markdown]
# ## Step 2: the learned positions
#
# The position table began as noise: each row was similar only to itself. Nobody told the model that place 9 is next to
# place 10, but their rows have become similar, like all rows of places 9 to 13: any two of these have a cosine over
# 0.8. Beyond these places the cosine falls, to 0.55 for places 8 and 14. The model separates the first places, and
# hardly distinguishes places 9 to 13. The last place, 15, is apart again: its largest cosine is 0.57, with place 14.

# %%
encoder = minibert.load_encoder(training.SHIPPED)
similarity = cosine_similarity(encoder.embeddings.wpe.weight)
alt = "square: the cosine of every position's row with every other's; 9 to 13 are alike, the first are not"
study.show(plot.similarity_matrix(similarity), "positions", of=f"position rows of {study.WORDS}", alt=alt)
began = cosine_similarity(training.model_of(training.random_weights()).wpe)
for name, table in {"before training": began, "gpt2-words": similarity}.items():
    early, late = np.diag(table, 1)[1:5], np.diag(table, 1)[8:13]
    print(f"{name}: mean cosine of neighbours from 1 to 5 {early.mean():+.2f}, from 8 to 13 {late.mean():+.2f}")
assert late.mean() > 0.7 > 0.3 > early.mean() and np.abs(np.diag(began, 1)).max() < 0.5
assert similarity[9:14, 9:14].min() > 0.8 and round(float(similarity[8, 14]), 2) == 0.55
assert similarity[15, :15].argmax() == 14 and round(float(similarity[15, 14]), 2) == 0.57

# %% [markdown]
# ## Step 3: words that it never saw
#
# How much does `gpt2-words` know of words that it never saw? It reads each of the 2,171 test words without the last
# letter. Its likeliest letter is the right one for 34.9 %; counted pairs of letters are right for 11.4 %. In ten words
# that it may have learned it predicts the next letter right in 7: "u" after "q", "g" after "walkin"; but "n" after
# "stati", and not the "o" of "station".

# %%
said = encoder.logits(input_ids=tested.ids, attention_mask=np.ones_like(tested.ids))
pairs = np.ones((training.VOCAB, training.VOCAB))  # pairs of letters, each counted once more than it occurs
np.add.at(pairs, (learned.ids[learned.counts], learned.targets[learned.counts]), 1)
last = tested.counts.sum(axis=1) - 2  # the place that sees all letters except the last
each = np.arange(len(last))
letter = tested.targets[each, last]
by_model, by_pairs = said[each, last].argmax(axis=-1) == letter, pairs[tested.ids[each, last]].argmax(axis=-1) == letter
shares = f"right in {by_model.mean():.1%}, by pairs {by_pairs.mean():.1%}"
print(f"the last letter of the {len(last):,} test words: {shares}")
assert by_model.mean() > by_pairs.mean()

# %%
right = 0
for text, wanted in zip(texts.BEGUN, texts.NEXT, strict=True):
    told = encoder.next_words(text, k=3)
    right += told[0]["token_str"] == wanted
    likeliest = ", ".join(f"{word['token_str']} {word['score']:.2f}" for word in told)
    print(f"{text:9} {likeliest}; wanted: {wanted}")
print(f"right in {right} of {len(texts.BEGUN)}")
assert right == 7

# %% [markdown]
# ## Exercises
#
# 1. At temperature 0, how many different words does the model make up?
