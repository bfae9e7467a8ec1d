# %% [markdown]
# ## Answers
#
# 1. The mean of the two letters: each gets half of the weight.

# %%
own = np.eye(26)[[0, 1, 0, 2, 0]]  # a b a c a
notes = np.concatenate([np.zeros((1, 26)), own[:-1]])
given = attention(100 * own, notes, own, additive_mask(np.tri(5, dtype=bool), "float64"))[-1]
print(f"'b' {given[1]:.2f}, 'c' {given[2]:.2f}")
assert np.allclose(given[1:3], 0.5, atol=1e-3)

# %% [markdown]
# 2. The second. The first head asks for one place, and that place is earlier anyway. Without a mask the second head
#    also finds the place after its own, with its own letter as the note: it would read the answer.

# %%
assert np.abs(attention(query[1:], position, letter) - note[:, 1:]).max() < 1e-3
unmasked = attention(100 * letter, note, np.broadcast_to(position, (len(ids), seq, seq)))
assert np.abs(unmasked[text, place, place + 1] - 0.5).max() < 1e-3
