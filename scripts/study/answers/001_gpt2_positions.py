# %% [markdown]
# ## Answers
#
# 1. Its place in the whole text, `seq - 1`. Without it the layer starts again at position 0 and computes a different
#    row. `past_length` does the same: it is the number of earlier tokens.

# %%
last = encoding[:, -1:]
place = encoding.shape[-1] - 1
assert np.array_equal(layer(last, position_ids=[[place]])[0, 0], x[0, -1])
assert np.array_equal(layer(last, past_length=place)[0, 0], x[0, -1])
assert not np.array_equal(layer(last)[0, 0], x[0, -1])

# %% [markdown]
# 2. All rows have the same length, so count the rows. GPT-2 has 1024 position rows among 51,281, which is 2 %.

# %%
share = layer.wpe.weight.size / (layer.wpe.weight.size + layer.wte.weight.size)
print(f"{model.name}: {share:.1%} of the numbers are position numbers")
assert abs(share - len(pos_embedding) / (len(pos_embedding) + config.vocab_size)) < 1e-12
assert round(1024 / 51281, 2) == 0.02

# %% [markdown]
# 3. No. A plain call counts these tokens like any other. If you add them on the left, pass the positions too, as the
#    reference's `generate()` does: the real tokens are counted from 0.

# %%
padded, real = np.concatenate([[[0, 0]], encoding], axis=1), np.array([[0, 0] + [1] * encoding.shape[-1]])
assert not np.array_equal(layer(padded)[0, 2:], x[0])
counted = np.maximum(np.cumsum(real, axis=1) - 1, 0)
assert np.array_equal(layer(padded, position_ids=counted)[0, 2:], x[0])
