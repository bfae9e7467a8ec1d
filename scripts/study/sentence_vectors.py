# %% [markdown]
# # Sentence vectors
#
# `006_blocks.py` leaves a vector for each token. This page makes one vector for a whole text, and tests whether texts
# of the same meaning come near each other. `012_why_two_texts_are_alike.py` goes on.
#
# * Reimers, Gurevych 2019, *Sentence-BERT* ([arXiv:1908.10084](https://arxiv.org/abs/1908.10084)).

# %%
import numpy as np
import study
import texts

import minibert
from minibert.equations.similarity import cosine_similarity

# two right programs differ in the last bits of a matrix product; measured here, with two kernels of BLAS: 2e-6
CLOSE = 2e-5

# %% [markdown]
# ## Step 1: a vector for a sentence
#
#     sentence = mean of the tokens' vectors, divided by its length
#
# The mean is *mean pooling*; the division makes the length 1. `encode` does both if the model's folder asks for them.
# Padding is left out of the mean.

# %%
model = study.load("bert")
encoder = minibert.load_encoder(model.source)
river = "The bank of the river was muddy."
mean = encoder(**encoder.tokenize(river))[0].mean(axis=0)
pooled = mean / np.linalg.norm(mean)
assert abs(np.linalg.norm(pooled) - 1) < 1e-6
if model.is_minilm:
    assert np.abs(encoder.encode(river) - pooled).max() < CLOSE

# %% [markdown]
# ## Step 2: shared words or shared meaning
#
# Each of ten sentences comes with two more: one shares words with it, one shares its meaning. By the mean of the input
# layer's rows the sentence with the same words is nearer, in all ten. By the whole encoder of all-MiniLM-L6-v2 the
# sentence with the same meaning is nearer in seven. One of the three errors: the encoder places "He lost his keys last
# week." nearer to "He lost his job last week." than "The company fired him a few days ago."
#
# Two things are harder:
#
# * a negation: in none of ten is a denial in other words nearer than the opposite statement in the same words. The
#   encoder places "The movie was good." nearer to "The movie was not good." (0.800) than "I did not enjoy the film."
#   (0.738).
# * exchanged roles: "The cat chased the mouse." and "The mouse chased the cat." have a cosine of 0.985; over ten pairs
#   like this it is 0.970 to 0.996.


# %%
def cosines(three: tuple[str, str, str]) -> np.ndarray:
    """Compare the first text with the second and the third, by the input layer and by the whole encoder: (2, 2)."""
    by_encoder = np.stack([encoder(**encoder.tokenize(text))[0].mean(axis=0) for text in three])
    return np.stack([cosine_similarity(x[:1], x[1:])[0] for x in (encoder.embeddings.embed(three), by_encoder)])


meaning = {}


def compare(name: str, some: tuple[tuple[str, str, str], ...]) -> None:
    """Print ten cosines, and how often the text of the same meaning is the nearer one."""
    found = np.stack([cosines(three) for three in some])  # (texts, input layer or encoder, words or meaning)
    for three, ((by_words, by_meaning), (words_after, meaning_after)) in zip(some, found, strict=True):
        print(f"{three[0]:37} input layer {by_words:.3f}, {by_meaning:.3f}; ", end="")
        print(f"whole encoder {words_after:.3f}, {meaning_after:.3f}")
    meaning[name] = np.count_nonzero(found[:, :, 1] > found[:, :, 0], axis=0).tolist()
    print(f"{name}: the meaning is nearer in {meaning[name][0]} of 10 by the input layer, ", end="")
    print(f"in {meaning[name][1]} of 10 by the whole encoder")
    assert np.abs(found).max() <= 1


compare("words or meaning", texts.QUESTIONS)

# %%
compare("a negation", texts.NEGATIONS)
turned = [[encoder(**encoder.tokenize(text))[0].mean(axis=0) for text in pair] for pair in texts.ROLES]
alike = np.array([cosine_similarity(first[None], second[None])[0, 0] for first, second in turned])
print(f"who does what: {alike[0]:.3f}; of ten pairs {texts.spread(alike, 3)}")
if model.is_minilm:
    assert meaning == {"words or meaning": [0, 7], "a negation": [0, 0]}
    assert (round(float(alike.min()), 3), round(float(alike.max()), 3)) == (0.970, 0.996)
    assert abs(alike[0] - 0.985) <= 5e-4 + 1e-6

# %% [markdown]
# ## Exercises
#
# 1. The vectors have length 1. Does the distance of two vectors sort texts in another order than the cosine?
# 2. A text is padded with five tokens, and the mask is forgotten. How does its vector change?
