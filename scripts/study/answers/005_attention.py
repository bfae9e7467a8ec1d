# %% [markdown]
# ## Answers
#
# 1. `n * n * head_dim`: four times as many for a text twice as long. So attention, alone among a block's parts, grows
#    with the square of the length.

# %%
counted = [n * n * head_dim for n in (seq, 2 * seq)]
assert counted[1] == 4 * counted[0]

# %% [markdown]
# 2. The plain mean of all values.

# %%
assert np.abs(attention(0 * q, k, v) - v.mean(axis=0)).max() < CLOSE
