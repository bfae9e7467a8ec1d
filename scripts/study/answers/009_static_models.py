# %% [markdown]
# ## Answers
#
# 1. Texts with the same tokens in another order. Also a text and the same text twice: they have the same mean.

# %%
twice = vector(rows, f"{cat} {cat}", weights)
assert np.abs(twice - vector(rows, mouse, weights)).max() < 1e-6

# %% [markdown]
# 2. With a large `a` all weights are nearly 1, as if there were none. With a small `a`, `a / (a + p)` is nearly `a /
#    p`, so the weight is proportional to the rank, and the last token of the vocabulary weighs most. At 1e-6 MiniLM's
#    rows answer all three questions.

# %%
p = zipf_probabilities(len(x))
large, small = sif_weights(p, 1e3), sif_weights(p, 1e-9)
assert np.abs(large - 1).max() < 1e-3 and np.abs(small / small[0] / (np.arange(len(x)) / 2 + 1) - 1).max() < 1e-2
if model.is_minilm:
    assert (margins(rows, sif_weights(p, 1e-6)) > 0).all() and (margins(rows, large) > 0).sum() == 1

# %% [markdown]
# 3. With 8 of MiniLM's components all three answers are right, with 384 only two. But three questions do not measure a
#    model: the benchmark's page has thousands.

# %%
for count in (2, 8, 32, 128, x.shape[1]):
    found = margins(pc.coordinates[:, :count], weights)
    print(f"{count:>4} components, {pc.shares[:count].sum():4.0%} of the variance: {found.round(3)}")
assert np.abs(margins(pc.coordinates, weights) - margins(x - mean, weights)).max() < 1e-6
if model.is_minilm:
    assert (margins(pc.coordinates[:, :8], weights) > 0).all() and (found > 0).sum() == 2
