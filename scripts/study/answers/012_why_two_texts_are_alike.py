# %% [markdown]
# ## Answers
#
# 1. It is symmetric, since `x_i . x_j = x_j . x_i`. For 79 % of the tokens the pair with itself is its row's largest,
#    and not for all: a short vector can have a larger product with a long one.
# 2. By at most 0.06, more than without the vectors of all three (0.04, step 2): now no other token sees the full stop
#    either.

# %%
itself = [encoder.similarity_pairs(one, one).pairs for one, _ in KINDS["alike"]]
assert all(np.abs(each - each.T).max() < CLOSE for each in itself)
own = 100 * np.mean(np.concatenate([each.argmax(axis=1) == np.arange(len(each)) for each in itself]))
print(f"a token is its row's largest in {own:.0f} %")
bare = [encoder.encode([one.rstrip(".?"), two.rstrip(".?")]) for one, two in KINDS["alike"]]
without_end = np.array([encoder.similarity(*each).item() for each in bare]) - cosines["alike"]
print(f"without the end the cosine moves by {texts.spread(without_end)}")
assert (f"{own:.0f}", f"{np.abs(without_end).max():.2f}") == ("79", "0.06") or not model.is_minilm
