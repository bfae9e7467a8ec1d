# %% [markdown]
# # Where heads look
#
# `005_attention.py` computes one head by hand. This page asks why the scores are divided, how attention leaves tokens
# out, and where the heads of a trained model put their weights.
#
# * Vaswani et al. 2017, *Attention Is All You Need* ([arXiv:1706.03762](https://arxiv.org/abs/1706.03762)).
# * Clark et al. 2019, *What Does BERT Look At?* ([arXiv:1906.04341](https://arxiv.org/abs/1906.04341)).

# %%
import numpy as np
import study
import texts

import minibert
from minibert.equations.blocks import additive_mask, softmax
from minibert.show import plot

# two right programs differ in the last bits of a matrix product; measured here, with two kernels of BLAS: 8e-6
CLOSE = 2e-5

# %% [markdown]
# ## Step 1: why the scores are divided by sqrt(head_dim)
#
# A score is a sum of `head_dim` products. If the numbers of q and k are independent, of mean 0 and variance 1, the sum
# has variance `head_dim`: its standard deviation is `sqrt(head_dim)`. The wider the head, the larger the scores, and
# the nearer is the largest weight to 1. Divided, the scores have standard deviation 1 for every width.
#
# Below, random queries meet 16 random keys. Without the division the largest weight grows with the width.

# %%
random = np.random.default_rng(0).standard_normal
divided, undivided = [], []
for width in (8, 32, 128):
    queries, keys = random((4000, 1, width)), random((4000, 16, width))
    raw = (queries @ keys.swapaxes(1, 2))[:, 0]
    divided.append(softmax(raw / np.sqrt(width)).max(axis=-1).mean())
    undivided.append(softmax(raw.copy()).max(axis=-1).mean())
    print(f"width {width:3}: scores deviate by {raw.std():5.2f}; largest of 16 weights {undivided[-1]:.2f}, ", end="")
    print(f"with the division {divided[-1]:.2f}")
    assert abs(raw.std() / np.sqrt(width) - 1) < 0.02
assert undivided[0] < undivided[1] < undivided[2] and undivided[2] > 0.85
assert max(divided) - min(divided) < 0.02
stuck = np.mean(softmax(raw.copy()).max(axis=-1) > 0.99), np.mean(softmax(raw / np.sqrt(width)).max(axis=-1) > 0.99)
print(f"width {width}: one weight is over 0.99 in {stuck[0]:.0%} of the rows; with the division in {stuck[1]:.0%}")
assert stuck[0] > 0.4 and stuck[1] == 0

# %% [markdown]
# A trained model's queries and keys are not independent, and it was trained *with* the division. Without the division
# many tokens have one weight near 1 and nothing for the rest. How many depends on the block and on the text. Ten
# sentences (9 to 15 tokens) go through all-MiniLM-L6-v2: without the division 57 % to 93 % of a block's rows have a
# weight over 0.9, with it 0 % to 33 %. There are more without the division in every block of all ten. In training that
# would hinder learning: when a weight is almost 1, softmax is nearly flat. A small change of a score then changes next
# to nothing, and small changes are how a model learns (`learning.py`).

# %%
model = study.load("bert")
encoder = minibert.load_encoder(model.source)
heads = encoder.stack.heads
head_dim = encoder.dim // heads
traces = [encoder.trace(**encoder.tokenize(sentence)) for sentence in texts.SENTENCES]
blocks = range(len(encoder.stack.blocks))
over = np.empty((2, len(traces), len(blocks)))  # with the division and without it
for text, found in enumerate(traces):
    for i in blocks:
        undone = softmax(found[f"encoder.layer.{i}.attention.self.scores"][0] * np.sqrt(head_dim))
        for way, each in enumerate((found[f"attentions.{i}"][0], undone)):
            over[way, text, i] = np.mean(each.max(axis=-1) > 0.9)
for name, found in zip(("with the division", "without it"), 100 * over, strict=True):
    ends = zip(found.min(axis=0), found.max(axis=0), strict=True)
    by_block = ", ".join(f"{least:.0f}-{most:.0f}" for least, most in ends)
    print(f"{name}: {found.min():.0f} % to {found.max():.0f} % of the rows have a weight over 0.9; by block {by_block}")
more = np.count_nonzero(np.all(over[1] > over[0], axis=1))
print(f"in {more} of {len(traces)} sentences every block has more such rows without the division")
if model.is_minilm:
    ranges = [f"{found.min():.0%} to {found.max():.0%}" for found in over]
    assert ranges == ["0% to 33%", "57% to 93%"] and more == 10

# %% [markdown]
# ## Step 2: the mask
#
# The texts of a batch have different lengths, and the shorter ones are filled up with tokens that mean nothing. This
# *padding* must get no weight. The *mask* sees to it: it is added to the scores, 0 for a token and the most negative
# float32 for padding. After softmax that is a weight of exactly 0. (It is not minus infinity, because a row of only
# minus infinity would become NaN.)

# %%
both = encoder.tokenize(["The bank of the river was muddy.", "The bank."])
keep = both["attention_mask"][1] != 0
mask = additive_mask(keep)
rng = np.random.default_rng(1)
masked = softmax(rng.standard_normal((len(keep), len(keep)), np.float32) + mask)
assert np.all(masked[:, ~keep] == 0) and np.abs(masked.sum(axis=-1) - 1).max() < 1e-6
padded, alone = encoder(**both)[1, keep], encoder(**encoder.tokenize("The bank."))[0]
print(f"a text in a batch and alone: at most {np.abs(padded - alone).max():.0e} apart")
assert np.abs(padded - alone).max() < CLOSE
unmasked = encoder(both["input_ids"])[1, keep]
print(f"without the mask: up to {np.abs(unmasked - alone).max():.1f} apart")
assert np.abs(unmasked - alone).max() > 1000 * CLOSE

# %% [markdown]
# ## Step 3: where the heads put their weights
#
# We measure three simple habits of every head: the weight on the first token, `[CLS]`; the weight on the token just
# before; and the weight on the token just after. Each is a mean over all tokens of a text: first in ten single
# sentences, then in ten texts of 175 to 202 tokens, each made of 25 sentences.
#
# In all-MiniLM-L6-v2 head 2 of block 0 puts all its weight on the token before in each of the ten sentences, and 0.80
# to 0.84 of it in the long texts. No other head looks as much at the token before, in any of the twenty texts. Head 8
# of block 1 looks at the token after: 0.55 to 0.70 in short texts, 0.62 to 0.66 in long ones. Sharp heads are few: the
# largest weight of a row is 1.00 for head 2 of block 0, but 0.26 to 0.47 for the block's other heads.
#
# `[CLS]` gets more than half of all weight in blocks 2 and 4 of all ten sentences, and in blocks 1 and 3 of nine. In
# the long texts it gets 0.23 to 0.42 in these blocks, because more tokens share the weight. So a habit belongs to a
# head *and* to a length of text. Clark et al. saw much weight on `[SEP]` in BERT, and took it for the place where a
# head looks when it has nothing to do: the *attention sink* of later papers.


# %%
def habits(text: str) -> dict[str, np.ndarray]:
    """Compute every head's mean weight on the first token, the one before, the one after: (blocks, heads) each."""
    found = encoder.trace(**encoder.tokenize(text))
    weights = np.stack([found[f"attentions.{i}"][0] for i in blocks])
    return {
        "first": weights[..., 0].mean(axis=-1),
        "before": np.diagonal(weights, -1, 2, 3).mean(axis=-1),
        "after": np.diagonal(weights, 1, 2, 3).mean(axis=-1),
        "largest": weights.max(axis=-1).mean(axis=-1),
    }


kinds = {"short": texts.SENTENCES, "long": texts.long_texts()}
lengths = {kind: [encoder.tokenize(text)["input_ids"].shape[1] for text in some] for kind, some in kinds.items()}
print(", ".join(f"the {kind} texts have {min(found)} to {max(found)} tokens" for kind, found in lengths.items()))
short, long = (
    {name: np.stack([found[name] for found in each]) for name in each[0]}  # (texts, blocks, heads)
    for each in ([habits(text) for text in some] for some in kinds.values())
)
for kind, tables in (("short", short), ("long", long)):
    for name in ("first", "before", "after"):
        table = tables[name].mean(axis=0)
        block, strongest = np.unravel_index(table.argmax(), table.shape)
        held = np.count_nonzero(tables[name].reshape(len(tables[name]), -1).argmax(axis=1) == table.argmax())
        print(f"{kind:5} {name:6} most in block {block}, head {strongest}: ", end="")
        print(f"{texts.spread(tables[name][:, block, strongest])}; the most of all heads in {held} of 10 texts")
        assert np.all((tables[name] >= 0) & (tables[name] <= 1))
    by_block = tables["first"].mean(axis=2)  # (texts, blocks)
    over_half = np.count_nonzero(by_block > 0.5, axis=0)
    print(f"{kind:5} first, by block: mean {by_block.mean(axis=0).round(2)}; over half in {over_half} texts")
soft = short["largest"].mean(axis=0)[0]
print(f"block 0, the largest weight of a row in the short texts, by head: {soft.round(2)}")
if model.is_minilm:
    assert all(np.all(each["before"].reshape(10, -1).argmax(axis=1) == 2) for each in (short, long))
    assert all(np.all(each["after"].reshape(10, -1).argmax(axis=1) == 1 * heads + 8) for each in (short, long))
    assert short["before"][:, 0, 2].min() > 0.995
    over_half = np.count_nonzero(short["first"].mean(axis=2) > 0.5, axis=0)
    assert over_half.tolist() == [0, 9, 10, 9, 10, 0]
    after, others = [each["after"][:, 1, 8] for each in (short, long)], np.delete(soft, 2)
    said = [long["before"][:, 0, 2], *after, long["first"][:, 1:5].mean(axis=2), others]
    ends = [(0.80, 0.84), (0.55, 0.70), (0.62, 0.66), (0.23, 0.42), (0.26, 0.47)]
    assert [(round(float(each.min()), 2), round(float(each.max()), 2)) for each in said] == ends
    assert {kind: (min(found), max(found)) for kind, found in lengths.items()} == {"short": (9, 15), "long": (175, 202)}
    assert soft[2] > 0.995
every = np.stack([traces[0][f"attentions.{i}"][0] for i in blocks])
alt = "a small grid of attention weights for each head of each block"
study.show(plot.attention_heads(every), "heads", model.name, alt=alt)

# %% [markdown]
# ## Exercises
#
# 1. Without the position rows, does BERT see the order of the words? Would GPT-2?
