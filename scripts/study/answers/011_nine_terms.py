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
letters = minibert.load_encoder(study.GPT2)
of_letters = shares_of(letters, terms_of(letters, letters.tokenize("wonderful")))
assert np.abs(of_letters[:, REST]).max() < 1e-6
most = np.abs(shares["sentences"][:, :, REST]).max()
print(f"of BERT's terms with the key's rest none has more than {most:.0f} %")
assert round(most) == 11 or not model.is_minilm

# %% [markdown]
# 3. It changes only by two factors, the `std` of the new sum at the query's place and at the key's. So the words change
#    how strongly a position looks. They hardly change where it looks, but not never: the keys get different factors, so
#    the second strongest key can become the strongest. If any two tokens of the ten sentences swap places, this happens
#    in 4 % of the rows.

# %%
swapped = encoder.tokenize("The river of the bank was muddy.")
pair = [terms_of(encoder, each)[POSITION, POSITION] for each in (batch, swapped)]
factor = pair[1][0] / pair[0][0]  # head 0, (query, key)
assert np.abs(factor * pair[0] - pair[1]).max() < CLOSE, "the same factors in all heads"
print(f"the factors are {factor.min():.2f} to {factor.max():.2f}")
moved = []
for sentence in texts.SENTENCES:
    usual = encoder.tokenize(sentence)
    strongest = terms_of(encoder, usual)[POSITION, POSITION].argmax(axis=-1)  # (heads, query)
    for i, j in zip(*np.triu_indices(strongest.shape[1] - 2, 1), strict=True):  # between [CLS] and [SEP]
        ids = usual["input_ids"].copy()
        ids[0, [i + 1, j + 1]] = ids[0, [j + 1, i + 1]]
        other = terms_of(encoder, usual | {"input_ids": ids})[POSITION, POSITION].argmax(axis=-1)
        moved.append(np.mean(other != strongest))
print(f"another key is the strongest in {np.mean(moved):.0%} of the rows, on average over {len(moved)} exchanges")
assert round(100 * np.mean(moved)) == 4 or not model.is_minilm
