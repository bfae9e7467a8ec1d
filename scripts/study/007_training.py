# %% [markdown]
# # Training a GPT-2
#
# A GPT-2 begins as random numbers. This file trains a small one in NumPy: 3 blocks, 64 wide, with letters as tokens. It
# learns words, and then makes up new words. In the end it is saved as a *checkpoint*, a folder with weights, settings
# and tokenizer; programs that read GPT-2, such as transformers, open it.
#
# Training needs the formulas forward (`minibert/equations/whole_models.py`), the same formulas backward
# (`gradients.py`, `block_gradients.py` and `model_gradients.py` beside this file), and Adam, which takes a step.
# `training.py` has the parts of this model alone: its sizes, the words as ids, the saved files.
#
# The whole training takes two to four minutes on two cores. Only its beginning runs here, unless you ask for all of it:
#
#     python scripts/study/007_training.py --full
#
# The trained model is beside this file, in `gpt2-words`. The other studies use it.
#
# * Radford et al. 2019, *Language Models are Unsupervised Multitask Learners*: GPT-2.
# * Kingma, Ba 2014, *Adam* ([arXiv:1412.6980](https://arxiv.org/abs/1412.6980)).

# %%
import matplotlib.pyplot as plt
import numpy as np
import study
import texts
import training
from block_gradients import cross_entropy_gradient
from model_gradients import adam, gpt2_model_gradient

import minibert
from minibert.equations.heads import cross_entropy
from minibert.equations.whole_models import gpt2_model
from minibert.show import plot

full = study.arguments.full  # in a notebook, write True here to train to the end
steps = training.STEPS if full else 200

# %% [markdown]
# ## Step 1: the words
#
# We use every token of BERT's vocabulary that is a word of 2 to 15 letters; the list is `words.txt` beside this file.
# Every tenth word is kept for testing: the model never learns from these words, so their loss shows what it understood,
# not memorised.

# %%
words = training.words()
to_learn, to_test = training.parted(words)
learned, tested = training.as_ids(to_learn), training.as_ids(to_test)
print(f"{len(words):,} words, {len(to_learn):,} to learn and {len(to_test):,} to test: {', '.join(to_test[-8:])}")
assert not set(to_learn) & set(to_test)

# %% [markdown]
# ### A word as a row of ids
#
# The id 0 comes before each word, where it means *begin*, and after it, where it means *end*. At each place the model
# sees the ids up to there and has to predict the next id. So a word of n letters is n + 1 small questions.

# %%
one = training.as_ids(["bank"])
print("sees", one.ids[0, :5], "and should say", one.targets[0, :5])
assert one.ids[0, :5].tolist() == [0, 2, 1, 14, 11] and one.targets[0, :5].tolist() == [2, 1, 14, 11, 0]
assert one.counts.sum() == 5, "the rest of the row is padding, which does not count"

# %% [markdown]
# ## Step 2: how far one comes without a model
#
#     loss = mean of -log(p[next letter])
#
# It is counted in nats: 0 if the model was sure and right. There are three bounds to compare with, each measured on the
# test words:
#
# * all 27 ids are equally likely: log 27
# * how often each letter occurs in the words to learn
# * how often each letter follows each other letter there (each pair counts once more than it occurs, so that none has
#   probability 0)

# %%
pairs = np.ones((training.VOCAB, training.VOCAB))
np.add.at(pairs, (learned.ids[learned.counts], learned.targets[learned.counts]), 1)
now, after = tested.ids[tested.counts], tested.targets[tested.counts]
bounds = {
    "uniform": np.log(training.VOCAB),
    "letters": -np.log(pairs.sum(axis=0) / pairs.sum())[after].mean(),
    "pairs of letters": -np.log(pairs / pairs.sum(axis=1, keepdims=True))[now, after].mean(),
}
for name, bound in bounds.items():
    print(f"{name:17} {bound:.3f}")
assert bounds["uniform"] > bounds["letters"] > bounds["pairs of letters"]

# %% [markdown]
# ## Step 3: before training
#
# All weights are one long vector, and the model's arrays are views into it. At first they are normal noise, 0.02 wide.
# The model then knows nothing: its loss is the loss of 27 equally likely ids. Its words look like this.


# %%
def made_up(folder, count, temperature=1.0):
    """Write words with the checkpoint in this folder, each with another seed."""
    with minibert.load_encoder(folder) as encoder:
        return [encoder.complete("", tokens=training.POSITIONS, temperature=temperature, seed=i) for i in range(count)]


vector = training.random_weights()
model = training.model_of(vector)
untrained = training.losses(model, tested).mean()
print(f"{vector.size:,} weights; loss on the test words: {untrained:.3f}")
print(", ".join(made_up(training.save(model, study.temporary()), 8)))
assert abs(untrained - bounds["uniform"]) < 0.05

# %% [markdown]
# ## Step 4: one step of training
#
# Forward, the loss, backward, Adam: each line is one function of `minibert.equations`. The gradient has a number for
# each weight: how fast the loss grows if that weight grows. Adam's first step moves each weight the other way, unless
# its gradient is 0; its later steps follow a mean of the gradients so far. We take ten first steps from the same noise,
# each with 128 other words: all ten lower the loss of their words, by 0.20 to 0.24.

# %%
some = learned.of(np.arange(128))
logits = gpt2_model(some.ids, np.ones_like(some.ids), model, training.HEADS)  # (128, seq, 27)
loss = cross_entropy(logits, some.targets)[some.counts].mean()
# each letter's share in the mean; padding has none
share = some.counts.astype(np.float32) / np.float32(some.counts.sum())
grad = cross_entropy_gradient(share, logits, some.targets)
gradient = gpt2_model_gradient(grad, some.ids, model, training.HEADS)
direction = training.vector_of(gradient)
assert np.allclose(training.batch_gradient(vector, learned, np.arange(128))[1], direction, atol=1e-6)
zeros, falls = np.zeros_like(vector), []
for begin in range(0, 1280, 128):
    rows = np.arange(begin, begin + 128)
    before, direction = training.batch_gradient(vector, learned, rows)
    moved, _, _ = adam(vector, direction, zeros, zeros, step=1, rate=1e-3)
    assert np.mean(np.sign(moved - vector) == -np.sign(direction)) > 0.999, "all but what rounding swallows"
    falls.append(before - training.losses(training.model_of(moved), learned.of(rows)).mean())
print(f"loss of the first 128 words: {loss:.3f} before the step, {loss - falls[0]:.3f} after it")
print(f"ten steps with 128 words each: the loss falls by {texts.spread(falls, 3)}")
assert min(falls) > 0

# %% [markdown]
# ### Is the gradient right? Try it
#
# Add a little to one weight, subtract the same from it, and compare the losses (in float64, since the differences are
# small). The cell tries two numbers of the word table: `wte` is used at both ends of the model, so its gradient is a
# sum of two.

# %%
h, exact = 1e-5, vector.astype(np.float64)
few = learned.of(np.arange(4))
_, direction = training.loss_and_gradient(exact, few, int(few.counts.sum()))
for place in (5, 70, 27 * 64 + 1, 5_000, 20_000, 50_000, 75_000, 100_000, 130_000, len(vector) - 1):
    more, less = exact.copy(), exact.copy()
    more[place] += h
    less[place] -= h
    up, down = (training.losses(training.model_of(each), few).mean() for each in (more, less))
    print(f"weight {place:7,}: gradient {direction[place]:+.6f}, tried {(up - down) / (2 * h):+.6f}")
    assert abs((up - down) / (2 * h) - direction[place]) < 1e-7
absent = sorted(set(range(training.VOCAB)) - set(few.ids.ravel().tolist()))
at_both_ends = training.model_of(direction).wte
print(f"{len(absent)} letters do not occur in these words; the logits give their rows a gradient all the same")
assert absent and np.all(np.any(at_both_ends[absent] != 0, axis=1))

# %% [markdown]
# ## Step 5: training
#
# The same step is repeated, each time with 128 other words. The learning rate rises for 100 steps and falls afterwards.
# 2,000 steps see each word about 13 times.

# %%
course, seen = [], {}
for step, (loss, vector) in enumerate(training.train(training.random_weights(), learned), 1):
    course.append(loss)
    if step in (20, 50, 100) or step % 200 == 0:
        seen[step] = training.losses(training.model_of(vector), tested).mean()
        folder = training.save(training.model_of(vector), study.temporary())
        print(f"step {step:5,}: loss on the test words {seen[step]:.3f}; {', '.join(made_up(folder, 4))}")
    if step == steps:
        break
model = training.model_of(vector)
assert seen[20] > seen[50] > seen[100] > seen[200]
assert seen[200] < bounds["pairs of letters"], "after 200 steps it knows more than pairs"

# %% [markdown]
# ### The loss beside the three bounds
#
# The line falls below the bounds one after the other: first the model learns which letters are frequent, then which
# letter follows which, then to use more than one letter. The lowest line is the trained model beside this file.

# %%
with minibert.load_encoder(training.SHIPPED) as encoder:
    said = encoder.logits(input_ids=tested.ids, attention_mask=np.ones_like(tested.ids))
shipped = cross_entropy(said, tested.targets)[tested.counts].mean()
print(f"loss on the test words: {seen[steps]:.3f} after {steps:,} steps, {shipped:.3f} of gpt2-words")
_, ax = plt.subplots(figsize=(7, 4), layout="constrained")
ax.plot(range(1, steps + 1), course, color=plot.LIGHT, linewidth=1, label="words of the step")
ax.plot(list(seen), list(seen.values()), "o", color=plot.DARK, markersize=5, label="test words")
for name, bound in {**bounds, "gpt2-words": shipped}.items():
    ax.axhline(bound, color="grey", linewidth=0.8, linestyle=":")
    ax.annotate(name, (steps, bound), ha="right", va="bottom", fontsize="small")
ax.set_xlabel("step")
ax.set_ylabel("loss in nats")
ax.legend(frameon=False, loc="center right")
study.show(
    ax, "loss", of="a small GPT-2, trained on words",
    alt="line: the loss of each step; points: that of the test words; dotted: what letters and pairs of letters reach",
)  # fmt: skip
assert shipped < bounds["pairs of letters"] - 0.3

# %% [markdown]
# ### A checkpoint like any other
#
# The folder holds `config.json`, `model.safetensors` with GPT-2's own names and shapes, and a tokenizer of letters.
# `load_encoder` opens it, and its logits are those of the formulas. (This project's tests open it with transformers,
# which computes the same logits.) So it can be loaded and trained further, with words of another kind and smaller
# steps: this is *fine-tuning*.

# %%
folder = training.save(model, study.arguments.output / "gpt2-words" if full else study.temporary())
with minibert.load_encoder(folder) as opened:
    found = opened.logits(**opened.tokenize("station"))
    begun = opened.tokenize("station")["input_ids"]
if full:
    print(f"saved in {folder}")
off = np.abs(found - gpt2_model(begun, np.ones_like(begun), model, training.HEADS)).max()
print(f"logits {found.shape}, at most {off:.0e} from the formulas'")
assert off < 2e-5

# %% [markdown]
# ### The same with words
#
# `novels.py` beside this file trains a larger GPT-2 with the same functions, on Jane Austen's six novels. Its tokens
# are words; half an hour of one core makes `gpt2-novels`. On the novels' last tenths, which it never saw, the loss is
# 4.11 nats a word; counting words has 5.77, counting pairs of words 4.66. `encoder.complete("I do not think",
# temperature=0.7, seed=1)` goes on with "it does, replied mrs. weston; i am not afraid of it." Eight to twelve words in
# a row read like English; a whole sentence often loses its way.
#
# ## Exercises
#
# 1. GPT-2 has 50,257 tokens. What is its loss before training? What is wrong if the first loss is 12?
# 2. The rows of short words end in padding. Why does no mask need to hide it?
