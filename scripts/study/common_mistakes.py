# %% [markdown]
# # Common mistakes
#
# An input layer is a few lines, and most mistakes in them are silent: the shapes fit, the numbers look like embeddings,
# and the model still works with them. With the right layer all-MiniLM-L6-v2 answers 14 of 20 questions right, questions
# like those of `sentence_vectors.py`. With 14 of the 19 mistakes that this page makes in it, it answers 13 or 14; with
# the other five 0 to 11. This page makes every classic mistake on purpose, one after the other, and measures it against
# the right layer on the same inputs.
#
# The list is in `minibert/verify/mistakes/`; the mistakes of input layers are in `wrong_rows.py`. `minibert verify
# --against` tries all of them on the numbers of a port that differs, and names the mistake that fits.
#
# Mistakes that a BERT can have are measured in the BERT that you named. Mistakes of other families are measured in the
# tiny checkpoints of this project's tests: 12 to 20 random numbers a row.

# %%
import contextlib

import matplotlib.pyplot as plt
import numpy as np
import study

from minibert import EmbeddingLayer
from minibert.equations.input_layer import layer_norm
from minibert.families.parts.plan import run
from minibert.show import plot
from minibert.verify.mistakes import MISTAKES
from minibert.verify.mistakes.mistake import Mistake, all_places, begin, with_mistake
from minibert.verify.mistakes.wrong_modules import one_pass
from minibert.verify.mistakes.wrong_rows import ROWS
from minibert.verify.report import compare, rms
from minibert.verify.subjects import batches, tolerances, trace

model = study.load("bert")


def mistaken(layer: EmbeddingLayer, name: str) -> Mistake:
    """Return the mistake of this name that a layer can have."""
    (at,) = all_places(layer)
    return next(mistake for mistake in MISTAKES if mistake.name == name and with_mistake(mistake, at))


def traced(layer: EmbeddingLayer, batch: dict[str, np.ndarray], mistake: Mistake) -> dict[str, np.ndarray]:
    """Trace one batch through the layer's steps, with a mistake in them."""
    (at,) = all_places(layer)
    return dict(run(with_mistake(mistake, at), begin(batch)))


# %% [markdown]
# ## The measure
#
# A layer is a list of steps, and a mistake replaces one of these steps. The right steps and the wrong ones run on the
# same generated batches (padding on either side, two segments, cached tokens, ...).
#
# A mistake counts as found if some intermediate differs by more than rounding allows: up to the sum nothing may differ,
# after LayerNorm `2e-6 * max(1, |y|)`. The cells print the largest difference in the layer's *output*, beside the
# typical size of that output (its root mean square). Their ratio can be compared from model to model.

# %%
measured: dict[str, tuple[str, float]] = {}  # mistake -> family, difference / size


def measure(*names: str, on: str = "") -> None:
    """Make these mistakes in a model, the named BERT or a tiny checkpoint, and print the error of each."""
    with contextlib.nullcontext(model.layer) if not on else study.tiny(on) as right:
        allowed, inputs = tolerances(right), batches(right)
        inputs.pop("full_length", None)  # a layer that miscounts has too few positions for it, and raises an error
        expected = {kind: trace(right, batch) for kind, batch in inputs.items()}
        outputs = {kind: list(named.values())[-1] for kind, named in expected.items()}
        size = rms(np.concatenate([output.ravel() for output in outputs.values()]))
        family = right.family.model_type
        for name in names:
            mistake = mistaken(right, name)
            made = {kind: traced(right, batch, mistake) for kind, batch in inputs.items()}
            found = compare(made, expected, {}, allowed)
            assert not all(difference.passes for difference in found), f"{name} is not told apart from the right layer"
            off = max(float(np.abs(list(made[kind].values())[-1] - outputs[kind]).max()) for kind in made)
            measured[name] = family, off / size
            print(f"off by {off:7.1e} of {size:4.2f} in {family:8} {name}: {mistake.why}")


# %% [markdown]
# ## LayerNorm
#
#     right:  y = (x - mean) / sqrt(sum((x - mean)^2) / dim + eps) * weight + bias
#
# * dividing by `dim - 1`, the default of `torch.std` and of many tutorials
# * both that and `eps` outside the root: `(x - mean) / (std + eps)`
# * the `eps` of another family
# * no weight and bias, because old files call them `gamma` and `beta`
# * RMSNorm, `x / sqrt(mean(x^2) + eps) * weight`: no mean is subtracted

# %%
measure("variance divided by dim - 1", "variance divided by dim - 1, eps outside the root")
measure("eps 1e-05", "weight and bias ignored", "RMSNorm for LayerNorm")

# %% [markdown]
# With BERT's `eps = 1e-12` it hardly matters whether `eps` is under the root. With RoBERTa's 1e-5 it does, and a
# RoBERTa with BERT's 1e-12 is another mistake that shows.

# %%
measure("eps outside the root", "eps 1e-12", on="roberta")

# %% [markdown]
# One pass over the row instead of two is right on paper:
#
#     wrong:  variance = mean(x^2) - mean(x)^2
#
# In float32 both terms have seven digits. If the mean is large, their difference has only a few right digits. Here are
# rows with mean 100 and standard deviation 1:

# %%
far = (100 + np.random.default_rng(0).integers(-16, 17, (32, 16)) / 8).astype(np.float32)
ones = np.ones(16, np.float32)
truth = layer_norm(far.astype(np.float64), np.ones(16), eps=1e-5)
in_one_pass, two_passes = one_pass(far, 1e-5), layer_norm(far, ones, eps=1e-5)
name = "variance in one pass"
off = float(np.abs(in_one_pass - truth).max())
measured[name] = "mean 100", off / rms(truth)
print(f"off by {off:7.1e} of {rms(truth):4.2f} {name}: {mistaken(model.layer, name).why} Two passes: ", end="")
print(f"{np.abs(two_passes - truth).max():.1e}")
assert abs(far.mean() - 100) < 0.2 and abs(far.std() - 1) < 0.3
assert np.abs(two_passes - truth).max() < 2e-6
assert off > 1e-4

# %% [markdown]
# ## The sum
#
#     right:  x = (word + token_type) + position
#
# Adding in another order changes about a third of all entries, in the last bit. The mathematics is right. But a
# comparison to the bit then fails, and hides smaller mistakes: so add in the reference's order.
#
# No types passed does not mean no types added: BERT then adds row 0 to every token. GPT-2 does not.

# %%
measure("rows added in the other order", "type rows left out", "position rows left out")
measure("type 0 for all tokens", "type 1 for all tokens", "token types exchanged")
measure("type row 0 added", on="gpt2")

# %% [markdown]
# ## Which position does a token have?
#
#     BERT:     p = 0, 1, 2, ...                         padding counts
#     RoBERTa:  p = cumsum(ids != pad) * (ids != pad) + pad    ids that are padding do not; the first is at pad + 1
#     OPT:      p = cumsum(mask) * mask - 1               the mask decides, not the ids
#
# Six of these ten mistakes do not show in the rows of the tokens if there is no padding, or padding on the right.
# Padding on the left, or in the middle, shows three of the six. Cached tokens show one, and a mask that disagrees with
# the ids shows the other two.

# %%
measure("positions counted by the mask", "cached tokens not counted", "positions from 1", "positions from 2")
measure("positions from 0", "padding counted as tokens", "positions by the mask instead of the ids", on="roberta")
measure("padding id of positions from the config", on="mpnet-pad5")
measure("positions by the ids instead of the mask", "mask ignored in positions", on="opt")

# %% [markdown]
# BART's and OPT's position tables have two more rows in front:
#
#     right:  y = table[p + 2]
#
# BART uses neither of the two. OPT uses row 1: a masked token gets `p = 0 - 1`, and `table[-1 + 2]` is row 1. Neither
# uses row 0.

# %%
measure("offset of the position table missing", on="bart-encoder")

with study.tiny("opt") as opt:
    shown = opt.trace([[5, 6, 7]], attention_mask=[[0, 1, 1]])
    assert shown["position_ids"].tolist() == [[-1, 0, 1]]
    assert np.array_equal(shown["decoder.embed_positions"][0], opt.embed_positions.weight[[1, 2, 3]])

# %% [markdown]
# ## Sinusoids
#
#     Vaswani et al.:  sin, cos, sin, cos, ...           Marian, Pegasus:  all sines, then all cosines
#
# And the angles: `p / 10000^(2i / dim)` in float32 loses the digits after the point as `p` grows
# (`002_sinusoids_t5.py`). T5, Llama and similar models add no sinusoids at all. If a file holds a table of positions,
# that table is right: computed sinusoids differ from it.

# %%
measure("sinusoids in the other layout", "sinusoids from float32 angles", on="marian-encoder")
measure("sinusoids added", on="t5-encoder")
measure("sinusoids in the place of learned positions", on="distilbert")

# %% [markdown]
# ## The scale
#
#     right:  x = float32(sqrt(dim)) * word + position
#
# A family that scales its word rows scales nothing else, and it rounds the factor to float32 first.

# %%
measure("factor of the word rows left out", on="marian-encoder")
measure("word rows times sqrt(dim)")
measure("inputs_embeds scaled", on="mbart-encoder")

# %% [markdown]
# ## The tables
#
#     right:  y[i] = table[ids[i]]     also where ids[i] is the padding id
#
# `padding_idx` belongs to training: that row starts at zero, and the lookup gives it no gradient. An output layer that
# uses the same table, as in `BertForMaskedLM`, does give the row a gradient. So the row may be nonzero in a trained
# file, and the reference looks it up. If a file has several tables, the family decides which table is right.

# %%
measure("padding row zeroed", "rows of ids -1", "rows of ids +1")
measure("bias missing", on="albert")

# %% [markdown]
# ## The mask
#
#     right, in DeBERTa and XLM:  y = LayerNorm(x) * mask
#
# In nearly all other families the attention mask changes nothing before attention.

# %%
measure("mask not applied to the rows", on="xlm")

# %% [markdown]
# ## All of them
#
# Each mistake's largest difference in the output, divided by the typical size of that output. 1 means an error as large
# as the numbers. Above are the mistakes of the BERT that you named: one model, the same inputs. Below are the mistakes
# of the tiny checkpoints, one family each, with random numbers: only the order of magnitude means something there. The
# mistakes with the shortest lines would never be noticed by looking at numbers.

# %%
assert {each.name for each in ROWS if each.where != "local"} <= set(measured), "each mistake of rows has been made"
order = sorted(measured, key=lambda name: measured[name][1])
ours = [name for name in order if measured[name][0] == "bert"]
others = {f"{measured[name][0]}: {name}": measured[name][1] for name in order if name not in ours}
groups = {model.name: {name: measured[name][1] for name in ours}, "tiny checkpoints, random numbers": others}
heights = [len(group) for group in groups.values()]
axes = plt.subplots(2, figsize=(9, 9), layout="constrained", sharex=True, height_ratios=heights)[1]
smallest = min(ratio for _, ratio in measured.values()) / 3
for ax, (title, group) in zip(axes, groups.items(), strict=True):
    ax.hlines(list(group), smallest, list(group.values()), color="0.8", linewidth=1)
    ax.plot(list(group.values()), list(group), "o", color=plot.DARK)
    ax.axvline(1, color="0.8", linestyle=":")
    ax.set_title(title, loc="left", fontsize="medium")
    ax.set(xscale="log", xlim=(smallest, None), ylim=(-0.7, len(group) - 0.3))
    ax.spines[["top", "right"]].set_visible(False)
axes[-1].set_xlabel("largest difference in the output / root mean square of the output")
alt = "a dot for each mistake: how large the error is that it makes, on a logarithmic scale"
study.show(axes[0], "errors", of="mistakes beside the size of what they spoil", alt=alt)
assert sum(len(ax.lines[0].get_xdata()) for ax in axes) == len(measured)

# %% [markdown]
# ## Exercises
#
# 1. Write BERT's LayerNorm with `np.std(x, axis=-1, ddof=1)`. By which factor is each number wrong, before weight and
#    bias?
# 2. A port of RoBERTa agrees for every single text and differs in batches with padding on the left. Which of the
#    mistakes above fit?
# 3. A test compares a port's output with `np.allclose(ours, theirs, atol=1e-2)`. How many of the mistakes in the named
#    BERT pass it? (For a model with these sizes of numbers.)
