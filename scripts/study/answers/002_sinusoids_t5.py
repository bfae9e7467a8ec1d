# %% [markdown]
# ## Answers
#
# 1. Yes: a rotation by the angle `3 * w`, where `w` is the wave's frequency. It is the same for every `p`. So a model
#    can learn from these rows to look three tokens back; rotary positions use the same idea.

# %%
wave = 20  # any one
w = 10000.0 ** (-2 * wave / d_model)
pairs = sin_pos_encoding[:, 2 * wave : 2 * wave + 2].astype(np.float64)
turn = np.array([[np.cos(3 * w), np.sin(3 * w)], [-np.sin(3 * w), np.cos(3 * w)]])
print(f"largest difference: {np.abs(pairs[:-3] @ turn.T - pairs[3:]).max():.1e}")
assert np.allclose(pairs[:-3] @ turn.T, pairs[3:], rtol=0, atol=1e-6)

# %% [markdown]
# 2. No. The columns are the same in another order, and a dot product adds over all columns.

# %%
halves = sinusoidal_positions(max_len, d_model, layout="halves")
assert np.array_equal(halves, np.concatenate([sin_pos_encoding[:, 0::2], sin_pos_encoding[:, 1::2]], axis=1))
assert np.allclose(cosine_similarity(halves), similarity, rtol=0, atol=1e-12)
