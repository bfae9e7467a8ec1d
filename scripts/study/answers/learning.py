# %% [markdown]
# ## Answers
#
# 1. Each step leaves 95 %. `0.95^n < 0.01` needs `n > ln 0.01 / ln 0.95 = 89.8`, so 90 steps.

# %%
needed = int(np.ceil(np.log(0.01) / np.log(0.95)))
print(f"{needed} steps")
assert needed == 90 and 0.95**90 < 0.01 < 0.95**89

# %% [markdown]
# 2. The error of a word is multiplied by `1 - rate * s`. It grows if that factor is below -1, so if `rate > 2 / s`. The
#    most
#    frequent word has the largest `s` and fails first.

# %%
largest = counts.max() / input_ids.size
for rate, falls in ((1.9 / largest, True), (2.1 / largest, False)):
    _, losses = learn_word_table(target, input_ids, np.zeros((vocab, dim)), wpe, rate, steps)
    print(f"rate {rate:5.1f}: loss {losses[0]:.2f} at first, {losses[-1]:.1e} in the end")
    assert (losses[-1] < losses[0]) == falls

# %% [markdown]
# 3. It is zero, whatever gradient arrives. Without `padding_idx` it is not zero. (An output layer that shares the table
#    still adds a gradient to this row: step 7.)

# %%
ids, grad = np.array([0, 2, 0]), np.ones((3, 4))
assert not np.any(lookup_gradient(grad, ids, rows=4, padding_idx=0)[0])
assert np.all(lookup_gradient(grad, ids, rows=4)[0] == 2)
