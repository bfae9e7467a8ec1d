# %% [markdown]
# ## Answers
#
# 1. Its place in the whole text, `seq - 1`. Without it the layer starts again at position 0, and the row is another
#    one. `past_length` says the same: so many tokens came before.

# %%
last = encoding[:, -1:]
place = encoding.shape[-1] - 1
assert np.array_equal(layer(last, position_ids=[[place]])[0, 0], x[0, -1])
assert np.array_equal(layer(last, past_length=place)[0, 0], x[0, -1])
assert not np.array_equal(layer(last)[0, 0], x[0, -1])

# %% [markdown]
# 2. All rows have the same length, so count the rows. In GPT-2 itself they are 1024 of 51,281, which is 2 %.

# %%
share = layer.wpe.weight.size / (layer.wpe.weight.size + layer.wte.weight.size)
print(f"{model.name}: {share:.1%} of the numbers are position numbers")
assert abs(share - len(pos_embedding) / (len(pos_embedding) + config.vocab_size)) < 1e-12
assert round(1024 / 51281, 2) == 0.02

# %% [markdown]
# 3. No. A plain call counts such tokens like any other. Whoever puts them on the left must pass the positions too, as
#    the reference's `generate()` does: the real tokens are counted from 0.

# %%
padded, real = np.concatenate([[[0, 0]], encoding], axis=1), np.array([[0, 0] + [1] * encoding.shape[-1]])
assert not np.array_equal(layer(padded)[0, 2:], x[0])
counted = np.maximum(np.cumsum(real, axis=1) - 1, 0)
assert np.array_equal(layer(padded, position_ids=counted)[0, 2:], x[0])
