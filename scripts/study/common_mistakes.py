# %% [markdown]
# # Common mistakes
#
# An input layer is a few lines, and most of what can go wrong in them goes wrong quietly: the shapes fit, the numbers
# look like embeddings, and the model behind them still works, a little worse. Here every classic mistake is made on
# purpose, one after the other, and measured against the right layer on the same inputs. Each is one that somebody has
# made while porting such a model.
#
# The list is `minibert/verify/mistakes.py`. `minibert verify --against` tries all of them on the numbers of a port that
# differs, and says which one fits.
#
# What BERT itself can get wrong is measured on the model that `--model` names; what only other families can, on the
# tiny checkpoints of this project's tests.

# %%
import contextlib

import matplotlib.pyplot as plt
import numpy as np
import study

from minibert.equations.input_layer import layer_norm
from minibert.show import plot
from minibert.verify import mistakes
from minibert.verify.compare import batches, compare, tolerances, trace
from minibert.verify.mistakes import MISTAKES

MISTAKE = {mistake.name: mistake for mistake in MISTAKES}
bert, _ = study.load("bert")

# %% [markdown]
# ## The measure
#
# A mistake is a change of the recipe: it takes the family's row and gives a wrong one. The layer of the right row and
# that of the wrong one run on the same generated batches (padding on either side, two segments, cached tokens, ...).
# What counts is the largest difference of any intermediate, and whether it is more than rounding allows: nothing at
# all up to the sum, `2e-6 * max(1, |y|)` behind LayerNorm.

# %%
measured: dict[str, float] = {}


def measure(*names: str, on: str = "") -> None:
    """Make these mistakes in a model, the named BERT or a tiny checkpoint, and print what each is off by."""
    with contextlib.nullcontext(bert) if not on else study.tiny(on) as right:
        allowed, inputs = tolerances(right), batches(right)
        inputs.pop("full_length", None)  # a layer that miscounts has no room for it, and says so at once
        expected = {kind: trace(right, batch) for kind, batch in inputs.items()}
        for name in names:
            row = MISTAKE[name].make(right.family)
            assert row is not None, f"{name} cannot be made in {right.family.model_type}"
            with study.again(on, row) as wrong:
                found = compare({kind: trace(wrong, batch) for kind, batch in inputs.items()}, expected, {}, allowed)
            rejected = [difference.largest for difference in found if not difference.passes]
            assert rejected, f"{name} is not told apart from the right layer"
            measured[name] = max(rejected)
            print(f"off by {measured[name]:8.1e} in {right.family.model_type:8} {name}: {MISTAKE[name].why}")


# %% [markdown]
# ## LayerNorm
#
#     right:  y = (x - mean) / sqrt(sum((x - mean)^2) / dim + eps) * weight + bias
#
# * dividing by `dim - 1`, the default of `torch.std` and of many tutorials
# * both that and `eps` outside the root: `(x - mean) / (std + eps)`
# * an `eps` that another family has
# * no weight and bias, because old files call them `gamma` and `beta`
# * RMSNorm, `x / sqrt(mean(x^2) + eps) * weight`: no mean is taken away

# %%
measure(
    "variance divided by dim - 1",
    "variance divided by dim - 1, eps outside the root",
    "eps 1e-5",
    "weight and bias of the norm ignored",
    "RMSNorm for LayerNorm",
)

# %% [markdown]
# With BERT's `eps = 1e-12` its place hardly shows. With RoBERTa's 1e-5 it does, and so does BERT's value.

# %%
measure("eps outside the root", "eps 1e-12", on="roberta")

# %% [markdown]
# One pass over the row instead of two is right on paper:
#
#     wrong:  variance = mean(x^2) - mean(x)^2
#
# In float32 both terms have seven digits, so where the mean is large the digits of their difference are gone. Rows
# around 100, scattered by 1:

# %%
far = (100 + np.random.default_rng(0).integers(-16, 17, (32, 16)) / 8).astype(np.float32)
ones, zeros = np.ones(16, np.float32), np.zeros(16, np.float32)
truth = layer_norm(far.astype(np.float64), np.ones(16), eps=1e-5)
one_pass, two_passes = mistakes.one_pass(far, ones, zeros, 1e-5), layer_norm(far, ones, eps=1e-5)
name = "variance in one pass"
measured[name] = float(np.abs(one_pass - truth).max())
print(f"off by {measured[name]:8.1e} {name}: {MISTAKE[name].why} Two passes: {np.abs(two_passes - truth).max():.1e}")
assert np.abs(two_passes - truth).max() < 2e-6
assert measured[name] > 1e-4

# %% [markdown]
# ## The sum
#
#     right:  x = (word + token_type) + position
#
# Adding in another order changes a third of all entries, in the last bit. That is no error of the mathematics, and yet
# it hides every smaller one: who compares to the bit must add in the reference's order.
#
# No types passed does not mean no types added: BERT then adds row 0 to every token. GPT-2 does not.

# %%
measure("rows added in the other order", "type rows left out", "position rows left out")
measure("type row 0 added", on="gpt2")

# %% [markdown]
# ## Which position has a token?
#
#     BERT:     p = 0, 1, 2, ...                         padding counts
#     RoBERTa:  p = cumsum(ids != pad) * (ids != pad) + pad    padding does not, and the first token is at pad + 1
#     OPT:      p = cumsum(mask) * mask - 1               the mask decides, not the ids
#
# With padding on the right, or none, most of these look right. Left padding and a padding id in the middle show them.

# %%
measure("positions counted by the mask", "cached tokens not counted")
measure("positions counted from 0", "padding counted as tokens", on="roberta")
measure("padding id from the config", on="mpnet-pad5")
measure("ids instead of the mask", "mask ignored in positions", on="opt")

# %% [markdown]
# BART's and OPT's position tables have two rows in front that no position uses:
#
#     right:  y = table[p + 2]

# %%
measure("offset of the position table missing", on="bart-encoder")

# %% [markdown]
# ## Sinusoids
#
#     Vaswani et al.:  sin, cos, sin, cos, ...           Marian, Pegasus:  all sines, then all cosines
#
# And the angles: `p / 10000^(2i / dim)` in float32 loses the digits behind the comma as `p` grows
# (`002_sinusoids_t5.py`). T5, Llama and their like get none at all.

# %%
measure("sinusoids in the other layout", "sinusoids from float32 angles", on="marian-encoder")
measure("sinusoids added", on="t5-encoder")

# %% [markdown]
# ## The scale
#
#     right:  x = float32(sqrt(dim)) * word + position
#
# Where a family scales its words, it scales nothing else, and with a factor that has been rounded to float32 before.

# %%
measure("scale in float64", on="pegasus-encoder")
measure("scale left out", on="marian-encoder")
measure("inputs_embeds scaled", on="mbart-encoder")

# %% [markdown]
# ## The tables
#
#     right:  y[i] = table[ids[i]]     also where ids[i] is the padding id
#
# `padding_idx` belongs to training: that row starts at zero and gets no gradient. In a trained file there may be
# numbers in it, and the reference looks them up. Which of a file's tables is the right one depends on the family too.

# %%
measure("padding row zeroed")
measure("shared table first", on="bart-untied-encoder")
measure("bias of the projection left out", on="albert")

# %% [markdown]
# ## The mask
#
#     right, in DeBERTa and XLM:  y = LayerNorm(x) * mask
#
# Nearly everywhere else the attention mask plays no part before attention.

# %%
measure("mask not applied", on="xlm")

# %% [markdown]
# ## All of them
#
# From the last bit to several units. Those at the bottom would never be noticed by looking at numbers. (The same
# mistake is larger in a model with larger numbers, so the order is not the same everywhere.)

# %%
assert set(measured) == set(MISTAKE), "every mistake of the list has been made"
names = sorted(measured, key=lambda name: measured[name])
ax = plt.subplots(figsize=(9, 8), layout="constrained")[1]
ax.hlines(names, min(measured.values()) / 3, [measured[name] for name in names], color="0.8", linewidth=1)
ax.plot([measured[name] for name in names], names, "o", color=plot.DARK)
ax.set_xscale("log")
ax.set(xlabel="largest difference from the right layer", xlim=(min(measured.values()) / 3, None))
ax.spines[["top", "right"]].set_visible(False)
study.show(ax, "errors")
assert len(ax.lines[0].get_xdata()) == len(MISTAKES)
