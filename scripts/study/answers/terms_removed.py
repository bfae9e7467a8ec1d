# %% [markdown]
# ## Answers
#
# 1. All its scores are 0, so all its weights are equal: 1 / 10 for a text of ten tokens.

# %%
every = [(a, b) for a in range(3) for b in range(3)]
equal = without(batch, *every, head=2)["attentions.0"][0, 2]
print(f"ten tokens: weights {equal.min():.5f} to {equal.max():.5f}")
assert np.abs(equal - 1 / len(tokens)).max() < 1e-4

# %% [markdown]
# 2. Nothing. GPT-2's rest of a key is its biases, the same for every key. So each of the three terms adds the same
#    number to all scores of a query, and softmax does not see it.

# %%
letters = minibert.load_encoder(study.GPT2)
muddy = letters.tokenize("muddy")
gone = terms_of(letters, muddy)[:, REST].sum(axis=0)
pair = [letters.trace(**muddy, change=change) for change in ({}, {"h.0.attn.scores": lambda scores: scores - gone})]
apart = np.abs(pair[0]["attentions.0"] - pair[1]["attentions.0"]).max()
print(f"the terms differ by up to {np.ptp(gone):.1f} from query to query, the weights move by {apart:.0e}")
assert np.ptp(gone) > 0.1 and apart < 1e-5
