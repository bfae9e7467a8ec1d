# %% [markdown]
# ## Answers
#
# 1. The sum of the gradients of both places.

# %%
twice = layer.tokenize("I am what I am")["input_ids"]
types, grad = np.zeros_like(twice), np.random.default_rng(1).standard_normal((*twice.shape, whole.shape[-1]))
both = bert_input_gradient(grad, twice, types, *tables, norm.weight, norm.eps, padding_idx=0)
places = np.flatnonzero(twice[0] == twice[0, 1])
at_places = both.position[places].sum(axis=0)  # each position was used once, so its row gets the gradient of its place
assert len(places) == 2 and np.allclose(both.word[twice[0, 1]], at_places, rtol=0, atol=1e-12)

# %% [markdown]
# 2. The row of its position and the row of its type; not the row of `[PAD]`, which `padding_idx` excludes. But if the
#    loss leaves padding out, the gradient at these places is zero, and no row moves.

# %%
padded = np.concatenate([twice, [[0]]], axis=1)
types = np.zeros_like(padded)
grad = np.concatenate([np.zeros_like(grad), np.ones((1, 1, whole.shape[-1])) * np.arange(whole.shape[-1])], axis=1)
at_padding = bert_input_gradient(grad, padded, types, *tables, norm.weight, norm.eps, padding_idx=0)
assert not np.any(at_padding.word)
assert np.flatnonzero(np.any(at_padding.position != 0, axis=1)).tolist() == [padded.shape[1] - 1]
assert np.any(at_padding.token_type[0])
