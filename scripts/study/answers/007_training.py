# %% [markdown]
# ## Answers
#
# 1. All tokens are then about equally likely: log 50,257 = 10.8. A loss of 12 is worse than knowing nothing. The model
#    is sure and wrong: its first random numbers are too large.

# %%
print(f"{np.log(50257):.1f}")
assert round(np.log(50257), 1) == 10.8

# %% [markdown]
# 2. No token sees later tokens, and padding comes after the word. The model's predictions at padding have no share in
#    the loss. So loss and gradient are the same for any ids there.

# %%
other = few._replace(ids=np.where(few.counts, few.ids, 9))
assert not np.array_equal(other.ids, few.ids)
one, another = (training.loss_and_gradient(exact, each, int(few.counts.sum())) for each in (few, other))
assert abs(one[0] - another[0]) < 1e-12 and np.abs(one[1] - another[1]).max() < 1e-12
