# %% [markdown]
# ## Answers
#
# 1. The sum is `-6 1 2 8` plus `0 1 1 -1` plus `0 1 0 1`: `-6 3 3 8`. Its mean is 2, and the row minus its mean is `-8
#    1 1 6`. The mean square is 102 / 4 = 25.5, its root 5.05: `-1.58 0.2 0.2 1.19`.

# %%
zeros, plain = np.zeros((1, 3), int), (np.ones(4), np.zeros(4))
man = bert_input(np.array([[0, 2, 1]]), zeros, words, texts, places, *plain)[0, 1]
print(man.round(2))
assert np.allclose(man, np.array([-8, 1, 1, 6]) / 25.5**0.5)

# %% [markdown]
# 2. Only the order of the rows: dog has the same row at both ends. So a model that adds the rows up would not know who
#    bites whom.

# %%
nowhere = np.zeros_like(places)
one, other = (bert_input(order, zeros, words, texts, nowhere, *plain)[0] for order in (ids[None], ids[None, ::-1]))
assert np.array_equal(one, other[::-1])
