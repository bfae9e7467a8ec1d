# %% [markdown]
# ## Answers
#
# 1. The same map twice, side by side: `[W W]`. So adding rows is a special case of concatenating them, with half the
#    numbers in the map: word and position have to share the map, and only their directions separate them. TUPE has a
#    separate map for positions.

# %%
beside = np.concatenate([entered[0], entered[1]], axis=-1)
twice = np.concatenate([query.weight, query.weight], axis=-1)
assert np.abs(beside @ twice.T - (entered[0] + entered[1]) @ query.weight.T).max() < CLOSE

# %% [markdown]
# 2. Softmax does not see a number that all keys have in common. GPT-2's rest of a key is its biases, the same for every
#    key. In BERT the token type's row is divided by each token's `std`, so something remains: in all-MiniLM-L6-v2 at
#    most 11 %, in any head of the ten sentences.

# %%
assert np.abs(means["gpt2-words after"][:, REST]).max() < 1e-6
most = np.abs(shares["sentences"][:, :, REST]).max()
print(f"of BERT's terms with the key's rest none has more than {most:.0f} %")
assert round(most) == 11 or not model.is_minilm

# %% [markdown]
# 3. It changes only by one factor for each query and each key: the `std` of the new sum at that place. So the words
#    change how strongly a position looks, not where it looks.

# %%
swapped = encoder.tokenize("The river of the bank was muddy.")
pair = [terms_of(encoder, each)[POSITION, POSITION] for each in (batch, swapped)]
factor = pair[1][0] / pair[0][0]  # head 0, (query, key)
assert np.abs(factor * pair[0] - pair[1]).max() < CLOSE, "the same factors in all heads"
print(f"the factors are {factor.min():.2f} to {factor.max():.2f}")
